"""RUN folders: round trips, and every way in which one can be broken."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfedhgp.base import atomic_files
from pfedhgp.data.scaling import Scaling
from pfedhgp.errors import InputError, ModelFileError
from pfedhgp.gp import kernels as kn
from pfedhgp.model import run_folder
from pfedhgp.model.codec import kernel_from_json, kernel_to_json
from pfedhgp.model.files import load, load_client, save
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.prediction import predict
from pfedhgp.model.run_folder import client_file
from support.broken_runs import edit_arrays, refused, reseal
from support.posteriors import make

X = np.linspace(-0.1, 1.1, 5)[:, None]
TREES = {
    "rbf": kn.RBF(0.3),
    "matern12": kn.Matern12(0.3),
    "matern32": kn.Matern32([0.3]),
    "matern52": kn.Matern52(0.3),
    "rational quadratic": kn.RationalQuadratic(0.3, alpha=2.0),
    "periodic": kn.Periodic(0.8, period=0.4),
    "dims": kn.RBF(0.3, dims=(0,)),
    "sum": kn.split_scale(0.65 * kn.RBF(0.3) + 0.35 * kn.Periodic(0.8, period=0.4))[1],
    "product": kn.RBF(0.3) * kn.Periodic(0.8, period=0.4),
    "sum of products": kn.split_scale(
        kn.RBF(0.3) * kn.Matern32(0.9, dims=[0]) + 2.0 * kn.Matern52(0.1) + kn.RBF(2.0)
    )[1],
    "scaled": 3.0 * kn.RBF(0.3),
}


def same_tree(one, two) -> None:
    """The same classes and static parts, and the same numbers bit for bit."""
    assert jax.tree.structure(one) == jax.tree.structure(two)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        assert np.asarray(b).dtype == np.float64


def same_predictions(one: FittedModel, two: FittedModel) -> None:
    for client in (*one.clients, "somebody new"):
        p, q = predict(one, client, X), predict(two, client, X)
        assert p.known == q.known
        np.testing.assert_array_equal(p.mean, q.mean)
        np.testing.assert_array_equal(p.sd, q.sd)
        np.testing.assert_array_equal(p.covariance("joint"), q.covariance("joint"))


def same_model(one: FittedModel, two: FittedModel) -> None:
    for name in ("structure", "inference", "input_names", "output_names", "jitter"):
        assert getattr(one, name) == getattr(two, name)
    for name in ("shared", "population", "kernel", "local_kernel"):
        same_tree(getattr(one, name), getattr(two, name))
    assert list(one.clients) == list(two.clients)
    for client in one.clients:
        same_tree(one.clients[client], two.clients[client])
        assert one.jitter_of(client) == two.jitter_of(client)
    for field in dataclasses.fields(Scaling):
        name = field.name
        np.testing.assert_array_equal(getattr(one.scaling, name), getattr(two.scaling, name))
    assert (one.settings, one.history, one.messages, one.scalar_output) == (
        two.settings, two.history, two.messages, two.scalar_output,
    )  # fmt: skip


@pytest.fixture(scope="module")
def model() -> FittedModel:
    return make(seed=1).model


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "RUN"
    save(model, path)
    return path


@pytest.fixture
def run(saved, tmp_path) -> Path:
    """A copy of a RUN folder, to break."""
    return Path(shutil.copytree(saved, tmp_path / "RUN"))


# ---------------------------------------------------------------------------------------- round trip


CASES = {
    "loaded": {},
    "tied": {"outputs": 1, "latents": 1, "local_latents": 1, "tied": True, "noise": "scalar"},
    "full noise": {"outputs": 3, "noise": "full", "missing": 0.3},
    "scalar noise": {"noise": "scalar"},
    "no deviation": {"deviation": False},
    "no local": {"local_latents": 0},
    "local only": {"latents": 0, "deviation": False},
    "own jitter": {"local_jitter": 1e-5},
}


@pytest.mark.parametrize("name", CASES)
def test_round_trip_of_structures(name, tmp_path):
    model = make(seed=2, **CASES[name]).model
    scaling = Scaling(np.array([0.1]), np.array([np.pi]), np.float64(1 / 3), np.array([0.7]))
    model = dataclasses.replace(model, scaling=scaling, scalar_output=model.outputs == 1)
    save(model, tmp_path / "RUN")
    back = load(tmp_path / "RUN")
    same_model(model, back)
    same_predictions(model, back)


@pytest.mark.parametrize("name", TREES)
def test_round_trip_of_kernels(name, tmp_path, model):
    pair = kn.stack([TREES[name], TREES[name]])
    shared = eqx.tree_at(lambda s: s.block.kernels, model.shared, pair)
    clients = {
        key: eqx.tree_at(lambda c: c.block.kernels, client, pair)
        for key, client in list(model.clients.items())[:1]
    }
    changed = dataclasses.replace(
        model, shared=shared, clients=clients, kernel=TREES[name], local_kernel=kn.RBF()
    )
    save(changed, tmp_path / "RUN")
    back = load(tmp_path / "RUN")
    same_model(changed, back)
    p, q = predict(changed, "client 0", X), predict(back, "client 0", X)
    np.testing.assert_array_equal(p.mean, q.mean)
    np.testing.assert_array_equal(p.sd, q.sd)


def test_templates_keep_what_is_open(tmp_path, model):
    template = 2.0 * (kn.RBF(dims=(0,)) * kn.Periodic(period=[7.0])) + kn.Matern32()
    changed = dataclasses.replace(model, kernel=template, local_kernel=None)
    save(changed, tmp_path / "RUN")
    back = load(tmp_path / "RUN")
    same_tree(template, back.kernel)
    assert back.kernel.kernel.kernels[1].lengthscale is None
    assert back.kernel.kernel.kernels[0].kernels[0].dims == (0,)
    assert back.local_kernel is None


def test_files_are_those_of_the_design(saved, model):
    found = {p.relative_to(saved).as_posix() for p in saved.rglob("*") if p.is_file()}
    clients = {
        f"clients/{hashlib.sha256(name.encode()).hexdigest()[:16]}.safetensors"
        for name in model.clients
    }
    others = {"spec.json", "global.safetensors", "metrics.json", "messages.jsonl"}
    assert found == others | clients
    spec = json.loads((saved / "spec.json").read_text())
    for name, digest in spec["files"].items():
        assert hashlib.sha256((saved / name).read_bytes()).hexdigest() == digest
    assert set(spec["files"]) == found - {"spec.json"}
    assert spec["format_version"] == 1
    assert json.loads((saved / "metrics.json").read_text()) == {"history": model.history}
    lines = (saved / "messages.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == model.messages


def test_a_model_is_its_owners_alone_until_the_owner_says_otherwise(tmp_path, model):
    target = tmp_path / "RUN"
    save(model, target)
    assert target.stat().st_mode & 0o777 == 0o700
    target.chmod(0o750)
    save(model, target, overwrite=True)
    assert target.stat().st_mode & 0o777 == 0o750


def test_names_of_any_kind(tmp_path, model):
    names = [
        "a/b",
        "../../etc/passwd",
        "two\nlines",
        "x" * 300,
        "",
        " ",
        "ü 東京",
        "\ud800",
        "NUL\0",
    ]
    one = model.clients["client 0"]
    several = dataclasses.replace(model, clients=dict.fromkeys(names, one))
    save(several, tmp_path / "RUN")
    back = load(tmp_path / "RUN")
    assert list(back.clients) == names
    files = {p.name for p in (tmp_path / "RUN" / "clients").iterdir()}
    assert files == {Path(client_file(name)).name for name in names}
    assert all(len(file) == 16 + len(".safetensors") for file in files)
    assert list(load_client(tmp_path / "RUN", "two\nlines").clients) == ["two\nlines"]


def test_arrays_that_are_not_contiguous(tmp_path, model):
    shared = model.shared
    mixed = np.asfortranarray(np.asarray(shared.block.loadings))
    padded = np.zeros((12, 2))
    padded[::2] = np.asarray(shared.block.inputs)
    changed = dataclasses.replace(
        model,
        shared=eqx.tree_at(
            lambda s: (s.block.loadings, s.block.inputs), shared, (mixed, padded[::2, :1])
        ),
    )
    save(changed, tmp_path / "RUN")
    back = load(tmp_path / "RUN")
    np.testing.assert_array_equal(back.shared.block.loadings, shared.block.loadings)
    np.testing.assert_array_equal(back.shared.block.inputs, shared.block.inputs)


def test_numbers_of_numpy_and_jax_become_json(tmp_path, model):
    changed = dataclasses.replace(
        model,
        settings={
            "a": np.float64(0.1),
            "b": np.int64(3),
            "c": (1, 2),
            "d": np.arange(2),
            "e": None,
        },
        history=[{"bound": jnp.asarray(1.5), "gap": np.inf, "names": ("x", "y"), "ok": np.True_}],
    )
    save(changed, tmp_path / "RUN")
    back = load(tmp_path / "RUN")
    assert back.settings == {"a": 0.1, "b": 3, "c": [1, 2], "d": [0, 1], "e": None}
    assert back.history == [{"bound": 1.5, "gap": None, "names": ["x", "y"], "ok": True}]


def test_one_client_needs_only_its_own_file(run, model):
    for name in ("client 1", "client 2"):
        (run / client_file(name)).unlink()
    (run / "metrics.json").unlink()
    (run / "messages.jsonl").unlink()
    back = load_client(run, "client 0")
    assert list(back.clients) == ["client 0"]
    same_tree(back.clients["client 0"], model.clients["client 0"])
    np.testing.assert_array_equal(predict(back, "client 0", X).sd, predict(model, "client 0", X).sd)
    with pytest.raises(ModelFileError, match="the file is missing"):
        load_client(run, "client 1")
    with pytest.raises(InputError, match="no client 'nobody' among the 3"):
        load_client(run, "nobody")


# ---------------------------------------------------------------------------------------- corruption

CLIENT = client_file("client 1")
FILES = ("spec.json", "global.safetensors", CLIENT, "metrics.json", "messages.jsonl")


@pytest.mark.parametrize("file", FILES)
def test_corruption_is_refused(file, run):
    path = run / file
    content = path.read_bytes()
    for where in np.linspace(0, len(content) - 2, 9, dtype=int):
        if content[where : where + 1].isspace() and file == "spec.json":
            continue  # white space between JSON's words has no meaning
        broken = bytearray(content)
        broken[where] ^= 1
        path.write_bytes(broken)
        refused(run, file, "corrupted")
    path.write_bytes(content[: len(content) // 2])
    refused(run, file)
    path.write_bytes(b"")
    refused(run, file)
    path.unlink()
    refused(run, file, "the file is missing")
    path.mkdir()
    refused(run, file)
    path.rmdir()
    path.write_bytes(content)
    load(run)


def test_truncated_arrays_with_the_right_hash(run):
    for file in ("global.safetensors", CLIENT):
        content = (run / file).read_bytes()
        for part in (content[:-8], content[:100], b"", b"\xff" * 64):
            (run / file).write_bytes(part)
            reseal(run)
            refused(run, file)
        (run / file).write_bytes(content)


def test_strange_files(run):
    (run / "report.html").write_text("<p>")
    (run / "checkpoint").mkdir()
    load(run)
    stranger = run / "clients" / "0123456789abcdef.safetensors"
    shutil.copy(run / CLIENT, stranger)
    refused(run, "clients/0123456789abcdef.safetensors", "not listed in spec.json")
    stranger.rename(run / "more.safetensors")
    refused(run, "more.safetensors", "not listed in spec.json")


def test_a_newer_format(run):
    reseal(run, lambda spec: spec.update(format_version=2))
    refused(run, "spec.json", "format version 2 is newer than 1, .* update pfedhgp")
    for version in ("1", 0, True, None):
        reseal(run, lambda spec, v=version: spec.update(format_version=v))
        refused(run, "spec.json", "does not exist")


def test_not_a_model(tmp_path):
    with pytest.raises(ModelFileError, match="nowhere: no such folder"):
        load(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelFileError, match="file: a file, not a folder that a fit wrote"):
        load(tmp_path / "file")
    refused(tmp_path, "spec.json", "the file is missing")
    for text in ("{}", "[]", "3", '{"format": "other"}'):
        (tmp_path / "spec.json").write_text(text)
        refused(tmp_path, "spec.json", "not the spec of a pfedhgp model")
    (tmp_path / "spec.json").write_text("[" * 100_000)
    refused(tmp_path, "spec.json")


NAN = lambda a: np.full_like(a, np.nan)  # noqa: E731
GLOBAL_CHANGES = {
    "mean NaN": ({"mean": NAN}, "mean is not finite"),
    "inputs infinite": ({"inputs": lambda a: a + np.inf}, "inputs is not finite"),
    "not PSD": ({"covariance": lambda a: a - 2 * np.eye(len(a)) * a.max()}, "not positive semi"),
    "slightly not PSD": (
        {"covariance": lambda a: a - (np.linalg.eigvalsh(a)[0] + 1e-6) * np.eye(len(a))},
        "covariance is not positive semi-definite",
    ),
    "not symmetric": ({"covariance": lambda a: a + np.eye(len(a), k=1)}, "not symmetric"),
    "wrong mean": ({"mean": lambda a: a[:-1]}, r"mean has shape \(11,\), expected \(12,\)"),
    "wrong inputs": ({"inputs": lambda a: a[:-1]}, "mean has shape"),
    "inputs flat": ({"inputs": lambda a: a[:, 0]}, "not both matrices"),
    "kernel zero": ({"kernels__lengthscale": lambda a: 0 * a}, "lengthscale"),
    "kernel latents": ({"kernels__lengthscale": lambda a: a[:1]}, "lengthscale has shape"),
    "missing": ({"loadings": None}, "'loadings' is missing"),
    "unknown": ({"more": lambda a: np.zeros(1)}, "unknown array 'more'"),
    "float32": ({"mean": lambda a: a.astype(np.float32)}, "mean is of float32"),
    "phi": ({"phi": lambda a: a - 5.0}, "phi is negative"),
}
CLIENT_CHANGES = {
    "offset NaN": ({"offset": NAN}, "offset is not finite"),
    "noise NaN": ({"noise__log_variance": NAN}, "noise is not finite"),
    "G": ({"G": lambda a: a.T}, "G has shape"),
    "not PSD": ({"covariance": lambda a: -a}, "covariance is not positive semi-definite"),
    "deviation": ({"deviation": lambda a: a[:, :1]}, "deviation has shape"),
    "loadings": ({"loadings": lambda a: a[:1]}, "loadings has shape"),
    "active": ({"active": lambda a: a * 0.5}, "active has values other than 0 and 1"),
    "noise": ({"noise__log_variance": lambda a: np.zeros(5)}, "noise has shape"),
    "missing": ({"active": None}, "'active' is missing"),
    "unknown": ({"rows": lambda a: np.zeros((3, 2))}, "unknown array 'rows'"),
}


@pytest.mark.parametrize("name", GLOBAL_CHANGES)
def test_wrong_global_arrays(name, run):
    changes, text = GLOBAL_CHANGES[name]
    edit_arrays(run / "global.safetensors", **changes)
    reseal(run)
    refused(run, "global.safetensors", text)


@pytest.mark.parametrize("name", CLIENT_CHANGES)
def test_wrong_client_arrays(name, run):
    changes, text = CLIENT_CHANGES[name]
    edit_arrays(run / CLIENT, **changes)
    reseal(run)
    refused(run, CLIENT, text)
    load_client(run, "client 0")


SPEC_CHANGES = {
    "spread": (lambda s: s["scaling"].update(spread=[0.0, 1.0]), "scaling.spread is not positive"),
    "scaling": (lambda s: s["scaling"].update(lower=[0.0, 0.0]), "scaling.lower has shape"),
    "words": (lambda s: s["scaling"].update(lower=["a"]), "could not convert"),
    "missing": (lambda s: s.pop("population"), "'population' is missing"),
    "missing part": (lambda s: s["scaling"].pop("lower"), "lower"),
    "population": (lambda s: s["population"].update(noise=[[1.0, 2.0], [2.0, 1.0]]), "noise is not pos"),
    "names": (lambda s: s.update(outputs=["y"]), "1 output names for 2 outputs"),
    "name": (lambda s: s.update(outputs=["y", 3]), "3 is not a name"),
    "jitter": (lambda s: s.update(jitter=-1.0), "jitter is -1.0"),
    "jitter word": (lambda s: s["clients"][0].update(jitter="small"), "'small' is not a number"),
    "structure": (lambda s: s["structure"].update(deviation="yes"), "`structure` is"),
    "structure key": (lambda s: s["structure"].pop("tied"), "`structure` is"),
    "path": (lambda s: s["clients"][0].update(file="../../x"), "the file of client 'client 0' is"),
    "twice": (lambda s: s["clients"].append(s["clients"][0]), "same name"),
    "files": (lambda s: s["files"].update({"more.safetensors": "0"}), "`files` has 'more.safetensors'"),
    "fewer files": (lambda s: s["files"].pop(CLIENT), "`files` lacks"),
    "clients": (lambda s: s.update(clients=3), "not iterable"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPEC_CHANGES)
def test_wrong_spec(name, run):
    change, text = SPEC_CHANGES[name]
    reseal(run, change)
    refused(run, "spec.json", text)


def test_files_from_before_the_division_was_known_have_none(run):
    reseal(run, lambda spec: spec["population"].pop("division"))
    division = load(run).population.division
    assert division.shape == (2, 2)
    assert not division.any()


def test_a_spec_cannot_name_other_classes(run):
    kernels = json.loads((run / "spec.json").read_text())["kernels"]
    strange = ({"kernel": "os.system", "open": []}, {"kernel": "Kernel"}, "RBF", 3, {"kernel": []})
    for tree in strange:
        reseal(run, lambda spec, t=tree: spec.update(kernels=t))
        refused(run, "global.safetensors", "unknown kernel .* in spec.json; known: RBF, ")
    reseal(run, lambda spec: spec.update(kernels=kernels))
    load(run)
    reseal(run, lambda spec: spec["clients"][1]["noise"].update(noise="eval"))
    refused(run, CLIENT, "unknown noise 'eval' in spec.json; known: DiagonalNoise, FullNoise")


def test_metrics_and_messages_are_json(run):
    content = (run / "metrics.json").read_bytes()
    for text in ("{", '{"history": [NaN]}', "[]"):
        (run / "metrics.json").write_text(text)
        reseal(run)
        refused(run, "metrics.json")
    (run / "metrics.json").write_bytes(content)
    (run / "messages.jsonl").write_text("{}\n{\n")
    reseal(run)
    refused(run, "messages.jsonl")


# ------------------------------------------------------------------------------------------- writing


def snapshot(run: Path) -> dict[str, bytes]:
    return {p.relative_to(run).as_posix(): p.read_bytes() for p in run.rglob("*") if p.is_file()}


def test_an_existing_model_is_kept(run, model):
    before = snapshot(run)
    with pytest.raises(InputError, match=r"already exists: .* \(overwrite=True\)"):
        save(model, run)
    assert snapshot(run) == before
    save(dataclasses.replace(model, history=[{"round": 9}]), run, overwrite=True)
    assert load(run).history == [{"round": 9}]
    assert [p.name for p in run.parent.iterdir()] == ["RUN"]


def test_a_place_where_nothing_can_be_written_is_refused_in_one_line(tmp_path, model):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "RUN", tmp_path / ("n" * 300)):
        with pytest.raises(InputError, match=r"cannot be written \(.*\): choose another folder"):
            save(model, place)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_only_a_model_is_replaced(tmp_path, model):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"holds 'thesis.tex', which is no part of a model"):
        save(model, tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    with pytest.raises(InputError, match="is a file"):
        save(model, tmp_path / "thesis.tex", overwrite=True)


def test_into_an_empty_folder_or_a_finished_checkpoint(tmp_path, model):
    (tmp_path / "empty").mkdir()
    save(model, tmp_path / "empty")
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    save(model, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint").exists()
    save(model, tmp_path / "new" / "deep" / "run")
    load(tmp_path / "new" / "deep" / "run")


@pytest.mark.parametrize(
    "step", ["_write_one", "fsync", "sync_folder", "_put_in_place", "exchange", "rename"]
)
def test_a_failure_leaves_the_old_model(step, run, model, monkeypatch):
    before = snapshot(run)
    calls = []

    def fail_late(original):
        def wrapped(*args, **kwargs):
            calls.append(args)
            if len(calls) == 2 or step in ("_put_in_place", "exchange"):
                raise OSError(28, "No space left on device")
            return original(*args, **kwargs)

        return wrapped

    modules = {"rename": os, "fsync": os, "_write_one": atomic_files}
    target = (modules.get(step, run_folder), step)
    if step == "rename":  # where folders cannot change places in one step
        monkeypatch.setattr(atomic_files, "_swapped", lambda one, two: False)
    monkeypatch.setattr(*target, fail_late(getattr(*target)))
    with pytest.raises(OSError, match="No space left"):
        save(dataclasses.replace(model, history=[]), run, overwrite=True)
    monkeypatch.undo()
    assert calls
    assert snapshot(run) == before
    assert [p.name for p in run.parent.iterdir()] == ["RUN"]
    load(run)


@pytest.mark.parametrize("in_one_step", [True, False])
def test_what_a_federation_keeps_stays_when_its_model_is_replaced(
    run, model, monkeypatch, in_one_step
):
    """And while it is replaced there is always a whole model with its logs at its place."""
    if not in_one_step:
        monkeypatch.setattr(atomic_files, "_swapped", lambda one, two: False)
    for name in ("audit.jsonl", "checkpoint/private", "sites/ab/audit.jsonl", "report.html"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(name)
    seen, rename = [], os.rename

    def watched(one, two):
        if in_one_step:
            load(run)
            seen.append((run / "audit.jsonl").read_text())
        rename(one, two)

    monkeypatch.setattr(os, "rename", watched)
    save(dataclasses.replace(model, history=[]), run, overwrite=True, stay=("checkpoint",))
    assert load(run).history == []
    for name in ("audit.jsonl", "checkpoint/private", "sites/ab/audit.jsonl"):
        assert (run / name).read_text() == name
    assert not (run / "report.html").exists()
    assert [p.name for p in run.parent.iterdir()] == ["RUN"]
    assert seen == (["audit.jsonl"] * 2 if in_one_step else []), "the two folders that stay"


def test_a_failure_leaves_nothing_behind(tmp_path, model, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_folder, "_put_in_place", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(model, tmp_path / "RUN")
    assert list(tmp_path.iterdir()) == []


def test_a_broken_model_is_not_saved(tmp_path, model):
    client = dataclasses.replace(model.clients["client 1"], offset=np.full(22, np.nan))
    for changed, text in (
        (
            {"clients": {"client 1": client}},
            "client 'client 1' cannot be saved: offset is not finite",
        ),
        ({"output_names": ("y",)}, "the model cannot be saved: 1 output names"),
        ({"settings": {"a": np.nan}}, "`settings.a` is nan"),
        ({"settings": {"kernel": kn.RBF()}}, "`settings.kernel` is a RBF"),
        ({"settings": {"a": [{3: 1}]}}, r"`settings.a\[0\]` is a dict"),
        ({"history": [object()]}, r"`history\[0\]` is a object"),
        ({"jitter": np.nan}, "jitter is nan"),
    ):
        with pytest.raises(InputError, match=text):
            save(dataclasses.replace(model, **changed), tmp_path / "RUN")
    assert list(tmp_path.iterdir()) == []


def test_kernels_of_other_classes_are_not_saved():
    class Mine(kn.RBF):
        pass

    with pytest.raises(ValueError, match="a kernel of class Mine cannot be saved"):
        kernel_to_json(Mine(1.0), "k")


def test_kernel_json_takes_its_arrays():
    tree, arrays = kernel_to_json(TREES["sum of products"], "kernels")
    assert "kernels.0.1.lengthscale" in arrays
    assert json.loads(json.dumps(tree)) == tree
    back = kernel_from_json(tree, arrays, "kernels")
    same_tree(back, TREES["sum of products"])
    assert arrays == {}
    tree, arrays = kernel_to_json(TREES["sum"], "k")
    with pytest.raises(ValueError, match=r"k.ratios does not fit a sum of 2"):
        kernel_from_json(tree, {**arrays, "k.ratios": np.ones(3)}, "k")
