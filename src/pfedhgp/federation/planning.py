"""From checked settings to a plan, and from a finished federation to a fitted model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pfedhgp.base.choices import AUTO, DIFFERENTIAL, NO_PRIVACY, SHARED_WHITE
from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError, warn
from pfedhgp.federation import telling
from pfedhgp.federation.clients import ClientGroup
from pfedhgp.federation.masks.keys import check_installed
from pfedhgp.federation.masks.roster import refuse_with
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.server import Server
from pfedhgp.gp.kernels import KERNELS, Kernel, Matern12, Periodic, Sum, split_scale
from pfedhgp.inference.markov.settings import Markov
from pfedhgp.inference.protocols import Inference
from pfedhgp.inference.registry import inference_named
from pfedhgp.inference.starts import ranks
from pfedhgp.inference.starts.forms import FORMS
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.model.cycle_layer import CycleChoice
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.spec import (
    Spec,
    build_spec,
    like_shared,
    with_deviation_kernel,
)
from pfedhgp.settings.table import ModelSettings

SETTLED_BY = 40
"""The most rounds of a fit that trains until it has settled: those of docs/notes/inference.md had by 23."""
LEAST_OUTPUTS = 3
"""From so many outputs on, "auto" chooses how many latents there are."""


def cycle_choice(settings: ModelSettings) -> CycleChoice | None:
    """What was asked of the cycle layer; None for white cycles, which are plain replicates."""
    if settings.cycles == "white":
        return None
    if settings.cycles == SHARED_WHITE:
        return CycleChoice("white", "shared", settings.cycle_basis)
    return CycleChoice(settings.cycles, settings.cycle_sharing, settings.cycle_basis)


def make_plan(settings: ModelSettings, inputs: int, outputs: int) -> Plan:
    """What server and clients compute by, from checked settings; warns of settings that have no effect."""
    inference = inference_named(
        settings.inference,
        rounds=settings.rounds,
        learn_inducing=settings.learn_inducing,
        averaging=settings.averaging,
    )
    choice = cycle_choice(settings)
    domain = None if settings.domain is None else np.asarray(settings.domain, np.float64).T
    if choice is not None and inference.name != "structured":
        raise InputError("a cycle layer needs inference='structured': mean-field has none")
    exact = settings.local == "state-space"
    if exact and (inference.name == "mean-field" or choice is not None):
        raise InputError(
            "local='state-space' needs inference='structured' or 'markov', and no cycle layer"
        )
    if settings.client_loadings and inference.name == "mean-field":
        raise InputError("client_loadings needs inference='structured': mean-field has none")
    latents, local_latents = numbers_of_latents(settings)
    deviation = deviation_kernel(settings, inference, choice)
    specs = [
        build_spec(
            inputs=inputs,
            outputs=outputs,
            kernel=kernel,
            local_kernel=local,
            layers=tuple(settings.layers),
            latents=latents,
            local_latents=local_latents,
            noise=settings.noise,
            local=settings.local,
            client_loadings=settings.client_loadings,
        )
        for kernel, local in kernels_to_try(settings)
    ]
    if deviation is not None:
        specs = [with_deviation_kernel(spec, deviation) for spec in specs]
    spec = specs[0]
    pairs = ranks_to_try(settings, spec)
    for name, chosen in (("kernel", len(specs) > 1), ("latents", bool(pairs))):
        if chosen:
            _check_choice(name, inference, choice)
    if isinstance(inference, Structured) and inference.probes:
        _check_probes(inference, spec)
    if isinstance(inference, Markov):
        _check_markov(spec, settings)
    elif spec.noise == "level":
        raise InputError("noise='level' needs inference='markov'")
    if settings.privacy in DIFFERENTIAL:
        raise InputError(f"privacy={settings.privacy!r}: a private fit has no rounds to plan")
    _warn_of_unused(settings, inference)
    if settings.masks:
        _check_masks(settings)
    plan = Plan(
        spec=spec,
        inference=inference,
        inducing=settings.inducing,
        local_inducing=settings.local_inducing,
        domain=None if domain is None else (domain[0], domain[1]),
        largest_inducing=settings.largest_inducing,
        largest_local_inducing=settings.largest_local_inducing,
        tolerance=settings.tolerance,
        restarts=settings.restarts,
        seed=settings.seed,
        cycles=choice,
        masks=settings.masks,
        privacy=settings.privacy or NO_PRIVACY,
        robust=robust_of(settings, inference),
        specs=tuple(specs) if len(specs) > 1 else (),
        ranks=pairs,
    )
    return telling.closed_plan(plan, usual=settings.latents is None)


def until_settled(settings: ModelSettings) -> ModelSettings:
    """For a fit in one process: if nothing is said about rounds, it trains until it has settled.

    Between machines, with masks and with closed sums, a round costs time and tells more, and the usual limit
    of the inference holds.
    """
    guarded = settings.masks or (settings.privacy or NO_PRIVACY) != NO_PRIVACY
    if guarded or settings.rounds is not None or settings.inference != Structured.name:
        return settings
    return replace(settings, rounds=SETTLED_BY)


def robust_of(settings: ModelSettings, inference: Inference) -> str:
    """What was asked for, or off: `federation.agreement` decides otherwise between machines."""
    given = settings.robust
    if given == AUTO:
        return "off"
    if given != "off" and settings.masks:
        raise InputError(
            f"robust='{given}' cannot be combined with `masks`: they hide the replies that it compares"
        )
    if given == "clip" and inference.name != "mean-field":
        raise InputError(
            f"robust='clip' is for inference='mean-field': {inference.name} has a test, robust='test'"
        )
    return given


def numbers_of_latents(settings: ModelSettings) -> tuple[int | None, int | None]:
    """(shared, local) as they were given; None: the usual number, with which "auto" begins."""
    given = (settings.latents, settings.local_latents)
    shared, local = (None if isinstance(number, str) else number for number in given)
    return shared, local


def deviation_kernel(
    settings: ModelSettings, inference: Inference, cycles: CycleChoice | None
) -> Kernel | None:
    """The deviations' own kernel, or None; what cannot be combined with it is named."""
    given = settings.deviation_kernel
    if given is None:
        return None
    if isinstance(given, tuple) or given == AUTO:
        raise InputError("`deviation_kernel` cannot be chosen in training: name one kernel")
    if not isinstance(inference, Structured):
        raise InputError("`deviation_kernel` needs inference='structured'")
    if cycles is not None:
        raise InputError("`deviation_kernel` cannot be combined with a cycle layer")
    for name in ("kernel", "local_kernel", "latents", "local_latents"):
        value = getattr(settings, name)
        if isinstance(value, tuple) or value == AUTO:
            raise InputError(f"`deviation_kernel` cannot be combined with a choice of `{name}`")
    return _kernel(given)


def ranks_to_try(settings: ModelSettings, spec: Spec) -> tuple[ranks.Pair, ...]:
    """The numbers of latents that training chooses from; none if they are given.

    Below three outputs there is nothing to choose, but for shared functions that clients mix for themselves.
    """
    several, mixed = spec.outputs >= LEAST_OUTPUTS, spec.client_loadings
    shared = settings.latents == AUTO and spec.latents > 0 and (several or mixed)
    local = settings.local_latents == AUTO and spec.local_latents > 0 and several
    local = local and not spec.state_space
    if not (shared or local):
        return ()
    numbers = (None if shared else spec.latents, None if local else spec.local_latents)
    return ranks.pairs(spec.outputs, *numbers, mixed=mixed)


def kernels_to_try(settings: ModelSettings) -> list[tuple[Kernel, Kernel]]:
    """The pairs (shared, local) that training chooses from; one pair if both kernels are given."""
    shared = _listed(settings.kernel, [_kernel(form) for form in FORMS])
    if settings.kernel == AUTO:
        shared = [kernel for form in shared for kernel in (form, form + Periodic())]
    if "global" not in settings.layers:
        shared = shared[:1]
    given, exact = settings.local_kernel, settings.local == "state-space"
    forms = [_kernel(form) for form in (("matern32", "matern52") if exact else FORMS)]
    if "local" not in settings.layers:
        forms = forms[:1]
    if given is None and exact:
        given = "matern32"
    if given is None and settings.kernel == AUTO:
        given = AUTO
    if given is None:
        return [(kernel, like_shared(kernel)) for kernel in shared]
    return [(kernel, local) for kernel in shared for local in _listed(given, forms)]


def _listed(given: Any, usual: list[Kernel]) -> list[Kernel]:
    """The kernels of a setting: the usual ones for "auto"."""
    if isinstance(given, str) and given == AUTO:
        return usual
    return [_kernel(each) for each in (given if isinstance(given, tuple) else (given,))]


def _check_choice(name: str, inference: Inference, cycles: CycleChoice | None) -> None:
    """Where training can choose kernels and numbers of latents, and where not."""
    at_knots = isinstance(inference, Markov) and name == "latents"
    if not (isinstance(inference, Structured) or at_knots):
        raise InputError(f"`{name}` cannot be chosen with {inference.name}: give one")
    if cycles is not None:
        raise InputError(f"`{name}` cannot be chosen together with a cycle layer: give one")


def _check_probes(inference: Structured, spec: Spec) -> None:
    """What the search at q(v_g) can do, and cannot."""
    if not spec.state_space or spec.deviation:
        raise InputError("`probes` needs local='state-space' and layers=('global', 'local')")
    if inference.learn_shared or inference.learn_inducing is not False:
        raise InputError("`probes` needs learn_shared=False, and no learn_inducing")


def _check_markov(spec: Spec, settings: ModelSettings) -> None:
    """What the Markov solver takes: one line names all that it needs."""
    kernels = (split_scale(spec.kernel)[1], split_scale(spec.local_kernel)[1])
    fits = spec.client_loadings and spec.state_space and not spec.deviation
    if not fits or any(type(kernel) is not Matern12 for kernel in kernels):
        raise InputError(
            "inference='markov' needs kernel='matern12', local_kernel='matern12', "
            "local='state-space', layers=('global', 'local') and client_loadings=True"
        )
    if settings.inducing == "auto":
        raise InputError(
            "inference='markov' needs `inducing`, the number of knots: one for each step of the "
            "series, such as 730 for half-daily rows of a year"
        )
    if spec.noise not in ("output", "level") and spec.outputs > 1:
        raise InputError("inference='markov' takes noise='output' or 'level'")


def settings_of_adoption(settings: ModelSettings) -> Structured:
    """How a new client is fitted: as the model was, or as `structured` does after another inference."""
    found = inference_named(
        settings.inference, rounds=None, learn_inducing=None, averaging=settings.averaging
    )
    if not isinstance(found, Structured):
        return Structured() if settings.averaging else Structured(averaging=None)
    # q(v_g) does not know the new client's rows yet: the cavity does.
    found = replace(found, probes=0)
    if settings.learn_inducing is None:
        return found
    return replace(found, learn_inducing=settings.learn_inducing)


def check_diagnosis(masks: bool) -> None:
    """Diagnosis compares cycles of all classes in one place."""
    refuse_with(masks, "diagnosis")


def _check_masks(settings: ModelSettings) -> None:
    """What masks cannot hide is refused here; how many clients there are is seen later."""
    check_installed()
    if settings.learn_inducing == AUTO:
        raise InputError("learn_inducing='auto' cannot be combined with `masks`: say True or False")


def _kernel(given: Kernel | str) -> Kernel:
    return KERNELS[given]() if isinstance(given, str) else given


def _warn_of_unused(settings: ModelSettings, inference: Inference) -> None:
    """Names settings that were given and have no effect."""

    def given(*names: str) -> list[str]:
        return [n for n in names if getattr(settings, n) != getattr(ModelSettings, n)]

    unused = []
    if not inference.knows_bound and given("tolerance"):
        why = f"{inference.name} does not know the bound, and runs all rounds"
        unused.append(f"`tolerance` ({why})")
    for name in ("inducing", "local_inducing"):
        if given(name):
            unused += [f"`{most}` (`{name}` is given)" for most in given(f"largest_{name}")]
    for layer, names in (
        ("global", ("latents", "inducing")),
        ("local", ("local_kernel", "local_latents", "local_inducing")),
    ):
        if layer not in settings.layers:
            unused += [f"`{name}` (there is no {layer} layer)" for name in given(*names)]
    if settings.cycles == "white":
        names = ("cycle_sharing", "cycle_basis")
        unused += [f"`{name}` (there is no cycle layer)" for name in given(*names)]
    for name in ("kernel", "deviation_kernel", "local_kernel"):
        kernel = getattr(settings, name)
        if isinstance(kernel, Kernel):
            variance, unit = split_scale(kernel)
            if not isinstance(unit, Sum) and variance != 1.0:
                what = f"the variance {float(variance):g} of `{name}`"
                unused.append(f"{what} (it starts from the data)")
    if unused:
        warn(f"not used: {', '.join(unused)}", stacklevel=7)


def fitted_model(
    plan: Plan,
    server: Server,
    groups: Sequence[ClientGroup],
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
        for group in groups
        if best.attempt in group.parties
        for name, value in zip(group.names, group.parties[best.attempt].jitter, strict=True)
    }
    found = {name: p for group in groups for name, p in group.posteriors.items()}
    shared_layer = None if best.prepared.cycles is None else best.prepared.cycles.layer
    return FittedModel(
        structure=best.prepared.spec.structure,
        inference=plan.inference.name,
        kernel=best.prepared.spec.kernel,
        local_kernel=best.prepared.spec.local_kernel,
        shared=best.shared,
        clients={row.name: found[row.name] for row in rows if row.name in found},
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
        sums={name: own for group in groups for name, own in group.kept.items()},
        client_layers={n: layer for group in groups for n, layer in group.own_layers.items()},
    )
