"""What a message has to look like: every array by name and shape, as the plan and the request imply.

Both sides ask before they use anything: schema, run, exchange and hash by equality, arrays by the lists here,
numbers by finiteness, and the size: at most four times what is expected of a reply, and of a request at
most four times the largest of its kind that the settings allow. Of a request also its round, which its
exchange implies, and its hash, which its arrays do.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from pfedhgp.federation.flower.envelope import DELIVER, MISSED, Envelope, Refused
from pfedhgp.federation.messages import hash_arrays
from pfedhgp.federation.phases import LARGEST_INDUCING
from pfedhgp.federation.plan import Plan
from pfedhgp.inference.arrays import DERIVATIVES
from pfedhgp.inference.meanfield import bound as meanfield
from pfedhgp.inference.meanfield import steps
from pfedhgp.inference.meanfield.training import MeanField
from pfedhgp.inference.starts.census import HISTOGRAM_BINS, LAG_EDGES
from pfedhgp.inference.starts.periodogram import PERIODS
from pfedhgp.model.blocks import GlobalBlock
from pfedhgp.model.spec import open_periods, starting_kernels

Shapes = dict[str, tuple[int, ...]]
Arrays = Mapping[str, np.ndarray]
SLACK = 4
"""A message may be this many times as large as expected before it is refused unread."""
HEADER = 256
"""Bytes that an array takes beside its numbers, at most."""
MOST_BASIS = 4096
SETUP = ("census", "extent", "cycles")
"""Requests before the first start, all of round 0."""
ASKED = (*SETUP, "start", "round", "finish", DELIVER)
"""Requests that a federation makes: sketches (`zones`) are asked for in one process alone."""
OTHER_STARTS = 2
"""Starts that the first exchange of training compares with the usual one, at most."""


def check_arrays(arrays: Arrays, expected: Shapes) -> None:
    """The names, shapes and dtypes of `expected`, and nothing else; all finite."""
    if set(arrays) != set(expected):
        raise Refused("malformed")
    for name, array in arrays.items():
        if array.dtype != np.float64 or array.shape != expected[name]:
            raise Refused("malformed")
    for array in arrays.values():
        if not np.all(np.isfinite(array)):
            raise Refused("not-finite")


def size_of(shapes: Shapes) -> int:
    """Bytes on the wire, about."""
    return sum(8 * int(np.prod(shape)) + HEADER for shape in shapes.values())


def most_bytes(plan: Plan, kind: str) -> int:
    """The cap on a request: four times the largest of its kind, and of what a late site is told with it."""
    late = {"start": ["cycles"]}
    late |= {each: ["cycles", "start"] for each in ("round", "finish", DELIVER)}
    told = [each for each in late.get(kind, []) if each != "cycles" or plan.cycles is not None]
    arrays = _largest_arrays(plan)
    sizes = (size_of(request_shapes(plan, each, arrays)) for each in (kind, *told))
    return SLACK * (HEADER + sum(sizes))


def _largest_arrays(plan: Plan) -> Arrays:
    """Those by whose shapes or presence a request is larger or smaller; they take no memory."""
    d, basis = plan.spec.inputs, _largest_basis(plan)
    wide = plan.spec.outputs * basis
    shapes: Shapes = {"inputs": (_largest(plan), d), "bins": (), "chosen": (), "crowd": (2, d)}
    shapes |= {"cycle_inputs": (basis, d), "cycle_factor": (wide, wide)}
    shapes |= {f"other {k + 1}.inputs": (_largest(plan), d) for k in range(OTHER_STARTS)}
    return {name: np.broadcast_to(0.0, shape) for name, shape in shapes.items()}


# --------------------------------------------------------------------------------------- requests


def check_request(request: Envelope, plan: Plan, last: tuple[int, int] | None = None) -> None:
    """At the site: what the server asks, and the requests that it says were missed.

    `last` is exchange and round of the last request that the site has answered, if that was after the setup.
    """
    check_kind(request, plan)
    parts: dict[str, dict[str, np.ndarray]] = {}
    for name, array in request.arrays.items():
        words = name.split("/", 2)
        missed = words[0] == MISSED and len(words) == 3
        kind, own = (words[1], words[2]) if missed else ("", name)
        parts.setdefault(kind, {})[own] = array
    for kind, arrays in {"": {}, **parts}.items():
        if kind not in ("", "cycles", "start"):
            raise Refused("malformed")
        check_arrays(arrays, request_shapes(plan, kind or request.kind, arrays))
    # The delivery is no server's request and has no hash: nothing is answered to it.
    own = "" if request.kind == DELIVER else hash_arrays(parts.get("", {}))
    if request.block != own:
        raise Refused("malformed")
    _check_round(request, plan, last)


def check_kind(request: Envelope, plan: Plan) -> None:
    """Whether a federation on these terms asks such a thing at all."""
    if request.kind not in ASKED or (request.kind == "extent" and plan.domain is not None):
        raise Refused("malformed")


def _check_round(request: Envelope, plan: Plan, last: tuple[int, int] | None) -> None:
    """Rounds and exchanges go on together from the first start, the round 0, through all restarts.

    So a round follows from its exchange; with a cycle layer, which may be asked for more than once, within a
    bound, and from the last round that was answered.
    """
    cycles = plan.cycles is not None
    setup = 1 + (plan.domain is None) + cycles
    if request.kind in SETUP:
        first = {"census": 1, "extent": 2, "cycles": setup}[request.kind]
        again = request.kind == "cycles" and request.exchange > first
        good = request.round == 0 and (request.exchange == first or again)
    else:
        # Where `finish` is answered, the delivery is an exchange more in the same round.
        more = request.kind == DELIVER and bool(reply_shapes(plan, "finish", {}))
        before = request.exchange - request.round - more
        if cycles and last is not None:
            good = before == last[0] - last[1]
        else:
            good = before == setup + 1 or (cycles and before > setup + 1)
    if not good:
        raise Refused("malformed")


def request_shapes(plan: Plan, kind: str, arrays: Arrays) -> Shapes:
    """Of a request whose number of inducing inputs is as `arrays` say, within the plan."""
    d = plan.spec.inputs
    if kind == "census":
        return {}
    if kind == "extent":
        return {"centre": (d,), "spread": (d,)} | ({"bins": ()} if "bins" in arrays else {})
    if kind == "cycles":
        return _scaling(plan) | _cycle_layer(plan, *_basis_in(plan, arrays))
    size = _inducing_in(plan, arrays)
    if kind in ("finish", DELIVER):
        shapes = _finish(plan, size)
        return shapes | _population(plan) if kind == DELIVER else shapes
    shapes = (
        _totals(plan, size)
        if isinstance(plan.inference, MeanField)
        else (_block(plan, size) | _totals(plan, size))
    )
    if kind == "round" and "chosen" in arrays:
        shapes["chosen"] = ()
    if kind == "start":
        shapes |= _start(plan) | _told(plan, arrays)
        if plan.cycles is not None:
            shapes |= _cycle_layer(plan, *_basis_in(plan, arrays))
        for prefix, other in _others(arrays).items():
            shapes |= _below(prefix, request_shapes(plan, "round", other) | {"scales": (5,)})
    return shapes


def _told(plan: Plan, arrays: Arrays) -> Shapes:
    """What a start says where there is something to say: periods from the data, and where rows crowd."""
    d = plan.spec.inputs
    there: Shapes = {"crowd": (2, d)} if "crowd" in arrays else {}
    return there | {"periods": (d,)} if open_periods(plan.spec) else there


def _others(arrays: Arrays) -> dict[str, Arrays]:
    """The starts that are compared with the first, by their prefix."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        prefix, dot, own = name.partition(".")
        if dot and prefix.startswith("other "):
            found.setdefault(prefix, {})[own] = array
    if set(found) != {f"other {k + 1}" for k in range(len(found))} or len(found) > OTHER_STARTS:
        raise Refused("malformed")
    return dict(found)


def _below(prefix: str, shapes: Shapes) -> Shapes:
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def _largest(plan: Plan) -> int:
    if plan.inducing != "auto":
        return int(plan.inducing)
    return LARGEST_INDUCING if plan.largest_inducing is None else plan.largest_inducing


def _inducing_in(plan: Plan, arrays: Arrays) -> int:
    inputs = arrays.get("inputs", arrays.get("free.inputs"))
    if inputs is None or inputs.ndim != 2 or len(inputs) > _largest(plan):
        raise Refused("malformed")
    return len(inputs)


def _basis_in(plan: Plan, arrays: Arrays) -> tuple[int, int]:
    inputs, factor = arrays.get("cycle_inputs"), arrays.get("cycle_factor")
    if plan.cycles is None or inputs is None or factor is None:
        raise Refused("malformed")
    if inputs.ndim != 2 or factor.ndim != 2 or len(inputs) > _largest_basis(plan):
        raise Refused("malformed")
    if factor.shape[1] > plan.spec.outputs * len(inputs):
        raise Refused("malformed")
    return len(inputs), factor.shape[1]


def _largest_basis(plan: Plan) -> int:
    if plan.cycles is None:
        return 0
    return MOST_BASIS if plan.cycles.basis == "auto" else int(plan.cycles.basis)


def _kernel_size(plan: Plan) -> int:
    spec = plan.spec
    kernels = starting_kernels(
        spec.kernel, scale=0.2, count=spec.latents, extent=np.ones(spec.inputs)
    )
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(kernels))


def _block(plan: Plan, size: int) -> Shapes:
    spec = plan.spec
    return {
        "kernel": (_kernel_size(plan),),
        "inputs": (size, spec.inputs),
        "loadings": (spec.outputs, spec.latents),
        "phi": (),
    }


def _totals(plan: Plan, size: int) -> Shapes:
    if isinstance(plan.inference, MeanField):
        return {f"free.{name}": shape for name, shape in _coordinates(plan, size).items()} | {
            "jitter": ()
        }
    weights = plan.spec.latents * size
    flags = ("jitter", "kernels_free", "evaluations", "derivatives")
    sums: Shapes = {"J": (weights, weights), "h": (weights,), "noise": (plan.spec.outputs,)}
    return sums | {name: () for name in flags}


def _coordinates(plan: Plan, size: int) -> Shapes:
    """Θ_global of mean-field, as it travels."""
    spec, inference = plan.spec, plan.inference
    assert isinstance(inference, MeanField)
    options = inference.options(spec)
    kernels = starting_kernels(
        spec.kernel, scale=0.2, count=spec.latents, extent=np.ones(spec.inputs)
    )
    block = GlobalBlock(
        kernels,
        jax.numpy.zeros((size, spec.inputs)),
        jax.numpy.ones((spec.outputs, spec.latents)),
        jax.numpy.ones(()),
    )
    named = steps.gradient_to_arrays(meanfield.global_coordinates(options, block))
    return {name: tuple(np.shape(array)) for name, array in named.items()}


def _scaling(plan: Plan) -> Shapes:
    d, Q = plan.spec.inputs, plan.spec.outputs
    return {"lower": (d,), "upper": (d,), "centre": (Q,), "spread": (Q,)}


def _start(plan: Plan) -> Shapes:
    return _scaling(plan) | {"scales": (5,), "attempt": ()}


def _finish(plan: Plan, size: int) -> Shapes:
    weights = plan.spec.latents * size
    moments = {"mean": (weights,), "covariance": (weights, weights)}
    return _block(plan, size) | moments | {"jitter": (), "attempt": ()}


def _population(plan: Plan) -> Shapes:
    Q = plan.spec.outputs
    powers = ("deviation_power", "local_power", "noise", "division")
    return {f"population.{name}": (Q, Q) for name in powers} | {"population.clients": ()}


def _delivered(plan: Plan, size: int) -> Shapes:
    return _finish(plan, size) | _population(plan)


def _cycle_layer(plan: Plan, basis: int, columns: int | None = None) -> Shapes:
    Q, d = plan.spec.outputs, plan.spec.inputs
    wide = Q * basis if columns is None else columns
    return {
        "cycle_inputs": (basis, d),
        "cycle_factor": (Q * basis, wide),
        "cycle_noise": (Q, Q),
        "cycle_form": (),
        "cycle_worth": (),
    }


# ---------------------------------------------------------------------------------------- replies


def reply_shapes(plan: Plan, kind: str, request: Arrays) -> Shapes:
    """What a client answers to a request of the server's own making."""
    d, Q = plan.spec.inputs, plan.spec.outputs
    lags: Shapes = {name: (len(LAG_EDGES) - 1, Q) for name in ("lag_sum", "lag_pairs")}
    if open_periods(plan.spec):
        lags["waves"] = (d, len(PERIODS))
    if kind == "census":
        shapes: Shapes = {"rows": (1,), "y_clients": (Q,)}
        shapes |= {name: (d,) for name in ("x_sum", "x_within", "x_means")}
        shapes |= {name: (Q, Q) for name in ("y_pairs", "y_mean", "y_cross")}
        return shapes | lags if plan.domain is not None else shapes
    if kind == "extent":
        return {"histogram": (d, HISTOGRAM_BINS), **lags, **_bins(plan, request)}
    if kind == "cycles":
        return _within(plan, len(request["cycle_inputs"]))
    mean_field = isinstance(plan.inference, MeanField)
    powers: Shapes = {name: (Q, Q) for name in ("deviation_square", "local_square", "noise")}
    if kind == "finish":
        return powers | {"clients": ()} if mean_field else {}
    if kind == DELIVER:
        return {}
    if mean_field:
        return _coordinates(plan, len(request["free.inputs"]))
    powers["deviation_power"] = (Q, Q)
    shapes = _statistics(plan, request) | powers
    others = _others(request) if kind == "start" else {}
    for prefix, other in others.items():
        shapes |= _below(prefix, _statistics(plan, other) | powers)
    return shapes


def _bins(plan: Plan, request: Arrays) -> Shapes:
    """Sums by bin and their products by lag, where the server asks for them."""
    if "bins" not in request:
        return {}
    count, Q = 2 * int(request["bins"]), plan.spec.outputs
    products: Shapes = {"own_products": (count,), "own_pairs": (count,)}
    return {"bin_sum": (Q, count), "bin_rows": (Q, count)} | products


def _statistics(plan: Plan, request: Arrays) -> Shapes:
    spec, size = plan.spec, len(request["inputs"])
    Q, R = spec.outputs, spec.latents
    weights, unloaded = R * size, Q * R * size
    parameters = len(request["kernel"]) + (Q * R + 1 if spec.structure.tied else 0)
    shapes: Shapes = {
        "evidence": (),
        "U": (unloaded * (unloaded + 1) // 2,),
        "y": (unloaded,),
        "shared_residual": (R, Q, Q),
        "residual": (),
        "clients": (),
        "d_evidence": (parameters,),
        "d_h": (parameters, weights),
        "d_J": (parameters, weights * (weights + 1) // 2),
        "curvature": (parameters, parameters),
    }
    if not bool(request["derivatives"]):
        shapes = {name: shape for name, shape in shapes.items() if name not in DERIVATIVES}
    if getattr(plan.inference, "learn_inducing", False):
        shapes["d_inputs"] = (size, spec.inputs)
    return shapes


def _within(plan: Plan, basis: int) -> Shapes:
    Q = plan.spec.outputs
    wide = Q * basis
    half: Shapes = {name: () for name in ("freedom", "rows", "log_counts")}
    half |= {"gram": (basis, basis), "T": (wide * (wide + 1) // 2,), "scatter": (Q, Q)}
    both = {f"{part}.{name}": shape for part in ("first", "rest") for name, shape in half.items()}
    return both | {"cycles": (), "incomplete": ()}
