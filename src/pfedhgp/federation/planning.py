"""From checked parameters and rows to a plan, and from a finished federation to a fitted model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError, PFedHGPWarning
from pfedhgp.federation.clients import Cohort
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.server import Server
from pfedhgp.gp.kernels import Kernel, Sum, split_scale
from pfedhgp.inference.protocols import Inference
from pfedhgp.inference.registry import INFERENCES, inference_named
from pfedhgp.inference.structured.averaging import Averaging
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.model.codec import plain_json
from pfedhgp.model.cycle_layer import SHARED_WHITE, CycleChoice
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.spec import Spec, build_spec, like_shared
from pfedhgp.settings.parameters import KERNELS

TOLERANCE, LARGEST_LOCAL = 0.02, 200
"""The usual `tolerance` and `largest_local_inducing`."""
LARGEST = 1e120
"""Of inputs and outputs: sums of squares, and squares of those, stay finite."""
Parameters = Mapping[str, Any]
"""As `parameters.checked` gives them."""


def cycle_choice(chosen: Parameters) -> CycleChoice | None:
    """What was asked of the cycle layer; None for white cycles, which are plain replicates."""
    if chosen["cycles"] == "white":
        return None
    if chosen["cycles"] == SHARED_WHITE:
        return CycleChoice("white", "shared", chosen["cycle_basis"])
    return CycleChoice(chosen["cycles"], chosen["cycle_sharing"], chosen["cycle_basis"])


def make_plan(chosen: Parameters, rows: Sequence[ClientRows], choice: CycleChoice | None) -> Plan:
    """What server and clients agree on; says which parameters have nothing to act on."""
    inference = inference_named(
        chosen["inference"],
        rounds=chosen["rounds"],
        learn_inducing=chosen["learn_inducing"],
        averaging=chosen["averaging"],
    )
    if choice is not None and inference.name != "structured":
        raise InputError("a cycle layer needs inference='structured': mean-field has none")
    if chosen["restarts"] > 1 and not inference.knows_bound:
        raise InputError("`restarts` needs a bound to choose by, which mean-field does not send")
    own, exact = chosen["local_kernel"], chosen["local"] == "state-space"
    if exact and (inference.name != "structured" or choice is not None):
        raise InputError(
            "local='state-space' needs inference='structured', and goes with no cycle layer"
        )
    if own is None and exact:
        own = "matern32"
    if own is None:
        own = chosen["kernel"]
        own = own if isinstance(own, str) else like_shared(own)
    spec = build_spec(
        inputs=rows[0].X.shape[1],
        outputs=rows[0].Y.shape[1],
        kernel=_kernel(chosen["kernel"]),
        local_kernel=_kernel(own),
        layers=chosen["layers"],
        latents=chosen["latents"],
        local_latents=chosen["local_latents"],
        noise=chosen["noise"],
        local=chosen["local"],
    )
    if isinstance(inference, Structured) and inference.probes:
        _check_probes(inference, spec)
    _say_what_is_not_used(chosen, inference)
    return Plan(
        spec=spec,
        inference=inference,
        inducing=chosen["inducing"],
        local_inducing=chosen["local_inducing"],
        domain=_domain(chosen["domain"], rows),
        largest_inducing=chosen["largest_inducing"],
        largest_local_inducing=chosen["largest_local_inducing"],
        tolerance=chosen["tolerance"],
        restarts=chosen["restarts"],
        seed=chosen["seed"],
        cycles=choice,
    )


def _check_probes(inference: Structured, spec: Spec) -> None:
    """What the search at q(v_g) can do, and cannot."""
    if not spec.state_space or spec.deviation:
        raise InputError("`probes` needs local='state-space' and layers=('global', 'local')")
    if inference.learn_shared or inference.learn_inducing is not False:
        raise InputError("`probes` needs learn_shared=False, and no learn_inducing")


def settings_of_adoption(chosen: Parameters) -> Structured:
    """How a new client is fitted: as the model was, or as `structured` does after another inference."""
    found = inference_named(
        chosen["inference"], rounds=None, learn_inducing=None, averaging=chosen["averaging"]
    )
    if not isinstance(found, Structured):
        return Structured() if chosen["averaging"] else Structured(averaging=None)
    found = replace(
        found, probes=0
    )  # q(v_g) does not know the new client's rows yet: the cavity does
    return (
        found
        if chosen["learn_inducing"] is None
        else replace(found, learn_inducing=chosen["learn_inducing"])
    )


def _kernel(given: Kernel | str) -> Kernel:
    return KERNELS[given]() if isinstance(given, str) else given


def _say_what_is_not_used(chosen: Parameters, inference: Inference) -> None:
    """A parameter that was given and has nothing to act on is not dropped in silence."""
    idle = []
    if not inference.knows_bound and chosen["tolerance"] != TOLERANCE:
        idle.append(f"`tolerance` ({inference.name} does not know the bound, and runs all rounds)")
    for name, most in (("inducing", None), ("local_inducing", LARGEST_LOCAL)):
        if chosen[name] != "auto" and chosen[f"largest_{name}"] != most:
            idle.append(f"`largest_{name}` (`{name}` is given)")
    for layer, names in (
        ("global", ("latents", "inducing")),
        ("local", ("local_kernel", "local_latents", "local_inducing")),
    ):
        if layer not in chosen["layers"]:
            given = [name for name in names if chosen[name] not in (None, "auto")]
            idle += [f"`{name}` (there is no {layer} layer)" for name in given]
    if chosen["cycles"] == "white":
        usual = {"cycle_sharing": "shared", "cycle_basis": "auto"}
        given = [name for name, value in usual.items() if chosen[name] != value]
        idle += [f"`{name}` (there is no cycle layer)" for name in given]
    for name in ("kernel", "local_kernel"):
        if isinstance(chosen[name], Kernel):
            variance, unit = split_scale(chosen[name])
            if not isinstance(unit, Sum) and variance != 1.0:
                idle.append(
                    f"the variance {float(variance):g} of `{name}` (it starts from the data)"
                )
    if idle:
        warnings.warn(f"not used: {', '.join(idle)}", PFedHGPWarning, stacklevel=6)


def _domain(
    given: Sequence[tuple[float, float]] | None, rows: Sequence[ClientRows]
) -> tuple[np.ndarray, np.ndarray] | None:
    if given is None:
        return None
    d, pairs = rows[0].X.shape[1], np.asarray(given, np.float64)
    if len(pairs) != d:
        wanted = "one pair" if d == 1 else f"{d} pairs"
        raise InputError(f"`domain` must be {wanted} (lower, upper), got {len(pairs)}")
    lower, upper = pairs[:, 0], pairs[:, 1]
    for client in rows:
        if np.any(lower > client.X) or np.any(upper < client.X):
            raise InputError(f"client {client.name!r} has rows outside `domain`")
    return lower, upper


def with_observations(rows: list[ClientRows]) -> list[ClientRows]:
    """Clients without an observed cell are left out, and said so."""
    kept = [client for client in rows if np.isfinite(client.Y).any()]
    empty = [client.name for client in rows if not np.isfinite(client.Y).any()]
    if empty:
        others = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        warnings.warn(
            f"without observations, and left out: client {empty[0]!r}{others}",
            PFedHGPWarning,
            stacklevel=4,
        )
    if not kept:
        raise InputError("no client has an observed output")
    for client in kept:
        for what, values in (("inputs", client.X), ("outputs", client.Y)):
            if np.nanmax(np.abs(values)) > LARGEST:
                raise InputError(
                    f"client {client.name!r}: {what} beyond {LARGEST:g} cannot be squared: rescale them"
                )
    if sum(len(client.X) for client in kept) < 2:
        raise InputError("one row in all: a model needs at least two")
    return kept


def fitted_model(
    plan: Plan,
    server: Server,
    cohorts: Sequence[Cohort],
    rows: Sequence[ClientRows],
    *,
    input_names: tuple[str, ...],
    output_names: tuple[str, ...],
    settings: dict[str, Any],
    messages: list[dict[str, Any]],
) -> FittedModel:
    """What server and clients ended with, in one object."""
    best = server.best
    assert best is not None
    assert best.population is not None
    own_jitter = {
        name: float(value)
        for cohort in cohorts
        for name, value in zip(cohort.names, cohort.parties[best.attempt].jitter, strict=True)
    }
    found = {name: p for cohort in cohorts for name, p in cohort.posteriors.items()}
    shared_layer = None if best.prepared.cycles is None else best.prepared.cycles.layer
    own_layers = {
        name: layer
        for cohort in cohorts
        for name, layer in cohort.layers.items()
        if plan.cycles is not None and plan.cycles.sharing != "shared"
    }
    return FittedModel(
        structure=plan.spec.structure,
        inference=plan.inference.name,
        kernel=best.prepared.spec.kernel,
        local_kernel=best.prepared.spec.local_kernel,
        shared=best.shared,
        clients={row.name: found[row.name] for row in rows},
        population=best.population,
        scaling=best.prepared.scaling,
        input_names=input_names,
        output_names=output_names,
        jitter=float(best.jitter),
        client_jitter=own_jitter,
        scalar_output=plan.spec.outputs == 1,
        settings=settings,
        history=server.history,
        messages=messages,
        cycle_layer=shared_layer,
        client_layers=own_layers,
    )


def kept_settings(given: Parameters, server: Server) -> dict[str, Any]:
    """The parameters as JSON has them, and what else a loaded model needs: starting scales, the bound.

    Kernels are kept as arrays with the model; callbacks are code, and are not kept.
    """
    best = server.best
    assert best is not None
    kept = {
        name: plain_json(value, name, strict=True)
        for name, value in given.items()
        if name not in ("kernel", "local_kernel", "callbacks", "inference")
    }
    kept |= {
        name: given[name]
        for name in ("kernel", "local_kernel")
        if not isinstance(given[name], Kernel)
    }
    kept["inference"] = _inference_to_json(given["inference"])
    kept["starting_scales"] = best.start.as_dict()
    kept["exchanges"] = server.exchanges
    kept["bound"] = None if best.bound is None else float(best.bound)
    if (cycles := best.prepared.cycles) is not None:
        kept["cycle_form"] = cycles.layer.form
        kept["cycle_evidence"] = dict(cycles.evidence)
    return kept


def _inference_to_json(given: Any) -> Any:
    """A name stays one; settings of ours are kept by name and field, another's by their name."""
    if isinstance(given, str) or type(given) not in INFERENCES.values():
        return given if isinstance(given, str) else given.name
    return {"name": given.name, **plain_json(asdict(given), "inference", strict=True)}


def inference_from_json(kept: Any) -> Any:
    """The inverse, for a model that is read from a file."""
    if not isinstance(kept, dict):
        return kept
    fields = dict(kept)
    settings = INFERENCES[fields.pop("name")]
    if fields.get("averaging") is not None:
        fields["averaging"] = Averaging(*fields["averaging"])
    return settings(**fields)
