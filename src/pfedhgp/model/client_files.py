"""A client's part of a model as named arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pfedhgp.base.choices import FORMS
from pfedhgp.model.blocks import ClientBlock
from pfedhgp.model.codec import (
    Arrays,
    kernel_from_json,
    kernel_to_json,
    noise_from_json,
    noise_to_json,
    to_array,
)
from pfedhgp.model.cycle_layer import CycleBasis, CycleLayer
from pfedhgp.model.posterior import ClientPosterior, LocalStates, Tangents

BLOCK, OWN = ("inputs", "active", "deviation", "loadings"), ("offset", "G", "covariance")
LAYER = ("factor", "noise")
GLOBAL_LOADINGS, LOADINGS_HALF = "global_loadings", "loadings_half"
VIEW = ("shared_mean", "shared_covariance")
DEPARTURE = "departure"
STATES = ("times", "counts", "means")
SLOPES = ("kernels", "deviation", "loadings", "weights")
NOISE = "noise"


def picked(record: Any, keys: Sequence[str], prefix: str = "") -> Arrays:
    """Those that the record has."""
    found = {key: getattr(record, key) for key in keys}
    return {prefix + key: to_array(value) for key, value in found.items() if value is not None}


def _tangent_arrays(tangents: Tangents, name: str) -> Arrays:
    arrays = picked(tangents, (*SLOPES, GLOBAL_LOADINGS, NOISE), f"{name}.")
    if tangents.reach is None or tangents.middle is None:
        return arrays
    reach = {f"{name}.reach": to_array(tangents.reach)}
    return arrays | reach | _tangent_arrays(tangents.middle, f"{name}.middle")


def client_arrays(client: ClientPosterior, own: CycleLayer | None) -> Arrays:
    block = client.block
    arrays = picked(block, (*BLOCK, GLOBAL_LOADINGS)) | picked(
        client, (*OWN, DEPARTURE, LOADINGS_HALF)
    )
    arrays |= kernel_to_json(block.kernels, "kernels")[1]
    if client.tangents is not None:
        arrays |= picked(client, VIEW)
        arrays |= _tangent_arrays(client.tangents, "tangents")
    if client.states is not None:
        arrays |= picked(client.states, STATES, "states.")
    if own is not None:
        arrays |= picked(own, LAYER, "cycles.")
    return arrays | noise_to_json(block.noise, "noise")[1]


def client_posterior(entry: Mapping[str, Any], arrays: Arrays) -> ClientPosterior:
    kernels = kernel_from_json(entry["kernels"], arrays, "kernels")
    noise = noise_from_json(entry["noise"], arrays, "noise")
    kept = {GLOBAL_LOADINGS: arrays.pop(GLOBAL_LOADINGS, None), **taken(arrays, BLOCK)}
    block = ClientBlock(kernels=kernels, noise=noise, **kept)
    parts: dict[str, Any] = taken(arrays, OWN)
    parts[DEPARTURE] = arrays.pop(DEPARTURE, None)
    parts[LOADINGS_HALF] = arrays.pop(LOADINGS_HALF, None)
    if f"states.{STATES[0]}" in arrays:
        parts["states"] = LocalStates(*(arrays.pop(f"states.{key}") for key in STATES))
    if VIEW[0] in arrays:
        parts |= taken(arrays, VIEW)
        parts["tangents"] = _tangents(arrays, "tangents")
    return ClientPosterior(block, **parts)


def taken(arrays: Arrays, keys: Sequence[str]) -> dict[str, Any]:
    return {key: arrays.pop(key) for key in keys}


def _tangents(arrays: Arrays, name: str) -> Tangents:
    """Files of earlier versions have neither `reach` nor `middle`, nor the noise."""
    parts: dict[str, Any] = {key: arrays.pop(f"{name}.{key}") for key in SLOPES}
    for optional in (GLOBAL_LOADINGS, NOISE):
        parts[optional] = arrays.pop(f"{name}.{optional}", None)
    if f"{name}.reach" in arrays:
        parts["reach"] = arrays.pop(f"{name}.reach")
        parts["middle"] = _tangents(arrays, f"{name}.middle")
    return Tangents(**parts)


def cycle_layer(form: Any, arrays: Arrays, shared: CycleLayer | None) -> CycleLayer | None:
    """The cycle layer of a file; a client's is on the basis of the shared one."""
    if form is None:
        return None
    if form not in FORMS:
        raise ValueError(f"a cycle layer is one of {', '.join(FORMS)}, not {form!r}")
    take = arrays.pop
    if shared is not None:
        basis = shared.basis
    else:
        basis = CycleBasis(take("cycles.inputs"), take("cycles.lengthscale"))
    return CycleLayer(basis, take("cycles.factor"), take("cycles.noise"), form)
