"""Model files: a RUN folder of JSON and safetensors, written whole or not at all, checked on load.

    spec.json                   format, kernels, scaling, names, population, SHA-256 of every file
    global.safetensors          what all clients share: Z_g, B_g, φ, kernel parameters, q(v_g), cycle layer
    clients/<hash>.safetensors  one client: Z_i, loadings, kernel parameters, noise, q(w | v_g), cycle layer;
                                where parameters were averaged, its view of v_g and its tangents
    clients/<hash>.sums.safetensors  its sums, to which rows can be added (see `kept_sums`); may be missing
    diagnosis.safetensors       where it was trained for diagnosis: sums over runs of all classes
    metrics.json                the history of the fit, and scores on held-out rows where there are some
    messages.jsonl              names, shapes and bytes of all that crossed the wire

Nothing is pickled, and nothing in a file is executed. A client's file is named by a hash of its
name; the name itself is in spec.json and messages.jsonl.

What a client's file reveals: it holds no rows, but it is the client's fitted function with its
uncertainty. Whoever has it predicts as the client does, and sees from the covariance where its data
are dense. Where the client has no more rows than inducing inputs, its inducing inputs ARE its
inputs (Z_i = X_i), and the fitted function there is nearly its outputs: guard such a file like the
rows. So is every file with a state-space local layer: it holds the fitted function at the client's
times. global.safetensors holds the shared function and, in its covariance, where the clients' data
are dense together. A site needs spec.json, global.safetensors and its own file (`load_client`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from pfedhgp.base.numerics import with_numerics
from pfedhgp.data.scaling import Scaling
from pfedhgp.errors import InputError
from pfedhgp.gp.kernels import Kernel
from pfedhgp.model import kept_sums
from pfedhgp.model.blocks import GlobalBlock, Structure
from pfedhgp.model.client_files import (
    LAYER,
    client_arrays,
    client_posterior,
    cycle_layer,
    picked,
    taken,
)
from pfedhgp.model.codec import (
    Arrays,
    kernel_from_json,
    kernel_to_json,
    noise_to_json,
    number,
    numbers,
    plain_json,
    string,
    to_array,
)
from pfedhgp.model.cycle_layer import check_layer
from pfedhgp.model.fitted import FittedModel, check_client, check_frame, check_shared
from pfedhgp.model.global_posterior import KNOTS, MOMENTS, from_arrays, to_arrays
from pfedhgp.model.posterior import (
    GlobalPosterior,
    Population,
)
from pfedhgp.model.run_folder import (
    DIAGNOSIS,
    SPEC,
    RunFolder,
    client_file,
    naming,
    parse_json,
    sums_file,
    write_folder,
)

GLOBAL, METRICS, MESSAGES = "global.safetensors", "metrics.json", "messages.jsonl"
ENCODE = json.JSONEncoder(allow_nan=False).encode
OPTIONAL = ("loadings_covariance", "noise_levels")
PathLike = str | os.PathLike[str]


@with_numerics
def save(
    model: FittedModel,
    path: PathLike,
    *,
    overwrite: bool = False,
    stay: Sequence[str] = (),
    keep_previous: bool = False,
    replaces: str | None = None,
) -> None:
    """Writes `model` into the folder `path`; an existing model stays unless `overwrite`.

    Other files in the folder are removed, except those named in `stay`. With `keep_previous` the model that
    was there, with its other files, is in the folder `previous` afterwards. If `replaces` is given, it is the
    SHA-256 of the model that must be there.

    Settings come back as JSON has them: tuples as lists. In the history and the messages, numbers
    that are not finite come back as None.
    """
    _check_before_saving(model)
    write_folder(
        Path(path),
        _files_of(model),
        _spec_of(model),
        overwrite=overwrite,
        stay=stay,
        keep_previous=keep_previous,
        replaces=replaces,
    )


@with_numerics
def load(path: PathLike, *, sums: bool = True) -> FittedModel:
    """Reads a model, checking all of it: hashes, shapes, finite numbers, covariances.

    Without `sums`, clients' sums are not read: predictions do not need them.
    """
    folder = RunFolder.open(path)
    with naming(folder.path / SPEC):
        entries = _entries(folder.spec)
    known = [GLOBAL, METRICS, MESSAGES, *(e["file"] for e in entries.values())]
    known += [sums_file(name) for name in entries if sums_file(name) in folder.spec["files"]]
    diagnosed = DIAGNOSIS in folder.spec["files"]
    folder.refuse_strangers([*known, *([DIAGNOSIS] if diagnosed else [])])
    history = folder.read(METRICS)
    with naming(folder.path / METRICS):
        metrics = parse_json(history)
        records = metrics.pop("history")
    lines = folder.read(MESSAGES)
    with naming(folder.path / MESSAGES):
        messages = [parse_json(line) for line in lines.splitlines()]
    of_runs = _arrays(folder, DIAGNOSIS) if diagnosed else {}
    model = _assemble(folder, entries, records, messages, with_sums=sums)
    return replace(model, metrics=metrics, diagnosis=of_runs)


@with_numerics
def load_client(path: PathLike, name: str) -> FittedModel:
    """Reads the model with one client's part alone: no other client's file needs to be there.

    The history and the messages are left out. Predictions for the other clients would be those for
    an unseen one.
    """
    folder = RunFolder.open(path)
    with naming(folder.path / SPEC):
        entries = _entries(folder.spec)
    if name not in entries:
        raise InputError(
            f"{folder.path}: no client {name!r} among the {len(entries)} of this model"
        )
    return _assemble(folder, {name: entries[name]}, [], [])


# ------------------------------------------------------------------------------------------- saving


def _check_before_saving(model: FittedModel) -> None:
    """A broken model is refused now, not when it is needed."""
    where = "the model"
    try:
        check_shared(model.structure, model.shared)
        check_frame(model)
        for name, client in model.clients.items():
            where = f"client {name!r}"
            check_client(model.structure, model.shared, client)
            if name in model.client_layers:
                check_layer(model.client_layers[name], model.outputs, model.inputs)
    except ValueError as error:
        raise InputError(f"{where} cannot be saved: {error}") from None
    files = {client_file(name): name for name in model.clients}
    if len(files) != len(model.clients):
        raise InputError("two clients' names have the same hash: rename one of them")


def _files_of(model: FittedModel) -> Iterator[tuple[str, bytes]]:
    """One file at a time, so that no more than one is in memory."""
    yield GLOBAL, safetensors.numpy.save(_shared_arrays(model))
    for name, client in model.clients.items():
        arrays = client_arrays(client, model.client_layers.get(name))
        yield client_file(name), safetensors.numpy.save(arrays)
        if name in model.sums:
            yield sums_file(name), safetensors.numpy.save(kept_sums.to_arrays(model.sums[name]))
    if model.diagnosis:
        sums = {key: to_array(array) for key, array in model.diagnosis.items()}
        yield DIAGNOSIS, safetensors.numpy.save(sums)
    history = plain_json(dict(model.metrics), "metrics", strict=False)
    history["history"] = plain_json(model.history, "history", strict=False)
    yield METRICS, json.dumps(history, indent=1, allow_nan=False).encode("ascii")
    yield MESSAGES, "".join(_line(message) for message in model.messages).encode("ascii")


def _line(message: Mapping[str, Any]) -> str:
    """One message. Nearly all are JSON as they are, and large models have many thousands."""
    try:
        return ENCODE(message) + "\n"
    except (TypeError, ValueError):
        return json.dumps(plain_json(message, "messages", strict=False), allow_nan=False) + "\n"


def _shared_arrays(model: FittedModel) -> Arrays:
    block, shared = model.shared.block, model.shared
    arrays = picked(block, ("inputs", "loadings", "phi"))
    arrays |= picked(block, OPTIONAL)
    arrays |= {name: to_array(array) for name, array in to_arrays(shared).items()}
    arrays |= kernel_to_json(block.kernels, "kernels")[1]
    for key, kernel in (("kernel", model.kernel), ("local_kernel", model.local_kernel)):
        arrays |= kernel_to_json(kernel, key)[1] if kernel is not None else {}
    if model.cycle_layer is not None:
        arrays |= picked(model.cycle_layer, LAYER, "cycles.")
        arrays |= picked(model.cycle_layer.basis, ("inputs", "lengthscale"), "cycles.")
    return arrays


def _spec_of(model: FittedModel) -> dict[str, Any]:
    def tree(kernel: Kernel | None) -> dict[str, Any] | None:
        return None if kernel is None else kernel_to_json(kernel, "")[0]

    return {
        "inference": model.inference,
        "structure": asdict(model.structure),
        "inputs": list(model.input_names),
        "outputs": list(model.output_names),
        "scalar_output": model.scalar_output,
        "scaling": _lists(model.scaling),
        "population": _lists(model.population),
        "kernel": tree(model.kernel),
        "local_kernel": tree(model.local_kernel),
        "kernels": tree(model.shared.block.kernels),
        "jitter": float(model.jitter),
        "cycles": None if model.cycle_layer is None else model.cycle_layer.form,
        "settings": plain_json(dict(model.settings), "settings", strict=True),
        "clients": [
            {
                "name": name,
                "file": client_file(name),
                "jitter": model.jitter_of(name),
                "kernels": tree(client.block.kernels),
                "noise": noise_to_json(client.block.noise, "")[0],
                "cycles": model.client_layers[name].form if name in model.client_layers else None,
            }
            for name, client in model.clients.items()
        ],
    }


def _lists(record: Scaling | Population) -> dict[str, Any]:
    named = {f.name: getattr(record, f.name) for f in fields(record)}
    return {name: to_array(a).tolist() for name, a in named.items() if a is not None}


# ------------------------------------------------------------------------------------------ loading


def _entries(spec: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The clients' entries by name."""
    entries = {string(entry["name"], "name"): entry for entry in spec["clients"]}
    if len(entries) != len(spec["clients"]):
        raise ValueError("two clients have the same name")
    for name, entry in entries.items():
        if entry["file"] != client_file(name):
            raise ValueError(f"the file of client {name!r} is {entry['file']!r}")
    return entries


def _assemble(
    folder: RunFolder,
    entries: Mapping[str, dict[str, Any]],
    history: Any,
    messages: list[Any],
    *,
    with_sums: bool = True,
) -> FittedModel:
    spec, arrays = folder.spec, _arrays(folder, GLOBAL)
    with naming(folder.path / SPEC):
        structure = _structure(spec["structure"])
        if type(spec["scalar_output"]) is not bool:
            raise ValueError("`scalar_output` is not true or false")
    with naming(folder.path / GLOBAL):
        shared = _shared(spec, arrays)
        templates = {
            key: None if spec[key] is None else kernel_from_json(spec[key], arrays, key)
            for key in ("kernel", "local_kernel")
        }
        layer = cycle_layer(spec.get("cycles"), arrays, None)
        _refuse_rest(arrays)
        check_shared(structure, shared)
        Q, d = np.shape(shared.block.loadings)[0], np.shape(shared.block.inputs)[1]
        if layer is not None:
            check_layer(layer, Q, d)
    clients, layers, sums = {}, {}, {}
    for name, entry in entries.items():
        own = _arrays(folder, entry["file"])
        with naming(folder.path / entry["file"]):
            clients[name] = client_posterior(entry, own)
            its_own = cycle_layer(entry.get("cycles"), own, layer)
            _refuse_rest(own)
            check_client(structure, shared, clients[name])
            if its_own is not None:
                check_layer(its_own, Q, d)
                layers[name] = its_own
        if with_sums and sums_file(name) in spec["files"]:
            content = folder.read(sums_file(name))
            with naming(folder.path / sums_file(name)):
                sums[name] = kept_sums.from_arrays(safetensors.numpy.load(content))
    with naming(folder.path / SPEC):
        model = FittedModel(
            structure=structure,
            inference=string(spec["inference"], "inference"),
            kernel=templates["kernel"],
            local_kernel=templates["local_kernel"],
            shared=shared,
            clients=clients,
            population=_population(spec["population"]),
            scaling=Scaling(**numbers(spec["scaling"])),
            input_names=tuple(string(name, "inputs") for name in spec["inputs"]),
            output_names=tuple(string(name, "outputs") for name in spec["outputs"]),
            jitter=number(spec["jitter"]),
            client_jitter={name: number(entry["jitter"]) for name, entry in entries.items()},
            scalar_output=spec["scalar_output"],
            settings=dict(spec["settings"]),
            history=list(history),
            messages=messages,
            cycle_layer=layer,
            client_layers=layers,
            sums=sums,
        )
        check_frame(model)
    return model


def _population(table: Mapping[str, Any]) -> Population:
    found = numbers(table)
    found.setdefault("division", np.zeros_like(found["noise"]))  # older files do not know of it
    return Population(**found)


def _structure(table: Mapping[str, Any]) -> Structure:
    usual = asdict(Structure())
    table = {"state_space": False, "client_loadings": False, **table}  # older files lack these
    if {key: type(value) for key, value in table.items()} != {k: type(v) for k, v in usual.items()}:
        raise ValueError(
            f"`structure` is {table!r}, expected {', '.join(usual)}, true or false each"
        )
    return Structure(**table)


def _arrays(folder: RunFolder, name: str) -> Arrays:
    """The arrays of a file, all of float64."""
    content = folder.read(name)
    with naming(folder.path / name):
        arrays = safetensors.numpy.load(content)
        for key, array in arrays.items():
            if array.dtype != np.float64:
                raise ValueError(f"{key} is of {array.dtype}, not float64")
        return {key: to_array(array) for key, array in arrays.items()}


def _shared(spec: Mapping[str, Any], arrays: Arrays) -> GlobalPosterior:
    kernels = kernel_from_json(spec["kernels"], arrays, "kernels")
    take = arrays.pop
    optional = taken(arrays, [name for name in OPTIONAL if name in arrays])
    block = GlobalBlock(kernels, take("inputs"), take("loadings"), take("phi"), **optional)
    known = taken(arrays, KNOTS if KNOTS[0] in arrays else MOMENTS)
    return from_arrays(block, known, number(spec["jitter"]))


def _refuse_rest(arrays: Arrays) -> None:
    for key in sorted(arrays):
        raise ValueError(f"unknown array {key!r}")
