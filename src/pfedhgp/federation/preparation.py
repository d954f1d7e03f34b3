"""Before training: the server asks for sums, and learns from them how to scale and where to start.

Phases: `Magnitude` if there are masks, `Census`, then `Extent` if no domain was given, then `Cycles` if there
is a cycle layer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from pfedhgp.data.scaling import Scaling
from pfedhgp.errors import InputError
from pfedhgp.federation import diagnosing
from pfedhgp.federation.messages import Message
from pfedhgp.federation.opening import inducing_inputs, wanted_inducing
from pfedhgp.federation.phases import Counted, Outcome, Phase, Prepared, RunState, Sums
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.schema import OTHERS_IN_CONTEST
from pfedhgp.federation.telling import is_closed
from pfedhgp.federation.training import Starts
from pfedhgp.inference.cycles.exchange import CycleServer
from pfedhgp.inference.starts import candidates, census, contest, ranks, shared_scale, totals
from pfedhgp.inference.starts.census import Scales
from pfedhgp.inference.starts.few_rows import ROWS_A_BIN
from pfedhgp.inference.starts.periodogram import starting_period

log = logging.getLogger("pfedhgp")
QUIETEST = 1e-5
"""The noise that starting budgets are laid out for, at least."""


@dataclass
class Magnitude:
    """With masks: where numbers lie and how large they are, once about zero, once about that centre."""

    plan: Plan
    run: RunState
    kind: ClassVar[str] = "magnitude"

    def request(self) -> dict[str, np.ndarray]:
        spec = self.plan.spec
        return self.run.known or {
            "x_centre": np.zeros(spec.inputs),
            "y_centre": np.zeros(spec.outputs),
        }

    def take(self, sums: Sums, senders: Sequence[str]) -> Outcome:
        run = self.run
        if not run.known:
            run.known = totals.centres_of(sums, self.request())
            if any(np.any(centre) for centre in run.known.values()):
                return Outcome(self)
        run.known = {**run.known, **totals.units_of(sums)}
        return Outcome(Census(self.plan, run))


def first_phase(plan: Plan, run: RunState) -> Phase:
    """What the server asks first."""
    if plan.masks and "x_unit" not in run.known:
        return Magnitude(plan, run)
    return Census(plan, run)


@dataclass
class Census:
    """Counts, means and covariances; with a known domain, also how fast outputs vary."""

    plan: Plan
    run: RunState
    by_client: dict[str, int] = field(default_factory=dict)
    kind: ClassVar[str] = "census"

    def see(self, reply: Message) -> None:
        """With privacy="sums" a client's own rows decide what it is asked."""
        if is_closed(self.plan):
            cells = np.diagonal(reply.arrays["y_pairs"])
            rows = int(reply.arrays["rows"][0])
            self.by_client[reply.sender] = int(cells[cells > 0].min(initial=rows))

    def request(self) -> dict[str, np.ndarray]:
        return self.run.known if self.plan.masks else {}

    def take(self, sums: Sums, senders: Sequence[str]) -> Outcome:
        if self.plan.masks:
            sums = totals.whole(sums, self.run.known)
        self.run.counted = counted = Counted(sums, len(senders), self.by_client)
        if self.plan.domain is None:
            return Outcome(Extent(self.plan, self.run, counted))
        lower, upper = (np.asarray(side, np.float64) for side in self.plan.domain)
        found = prepared(self.plan, counted, (lower, upper), sums, upper - lower)
        return Outcome(after_preparation(self.run, found))


@dataclass
class Extent:
    """Where rows lie, by histograms, and how fast outputs vary."""

    plan: Plan
    run: RunState
    counted: Counted
    kind: ClassVar[str] = "extent"

    def request(self) -> dict[str, np.ndarray]:
        asked = {"centre": self.counted.x_centre, "spread": self.counted.x_spread}
        plan, closed = self.plan, is_closed(self.plan)
        least = ROWS_A_BIN if closed else shared_scale.ROWS_A_BIN
        bins = shared_scale.bins_for(self.counted.rows_a_client, least)
        several = self.counted.clients > 1 and plan.cycles is None and plan.inference.knows_bound
        if bins and several and candidates.asks_between_clients(plan.spec, compare=not closed):
            asked["bins"] = np.asarray(float(bins))
        return asked | ({"y_unit": self.run.known["y_unit"]} if plan.masks else {})

    def take(self, sums: Sums, senders: Sequence[str]) -> Outcome:
        if self.plan.masks:
            sums = totals.in_data_units(sums, self.run.known)
        where = (sums["histogram"], self.counted.x_centre, self.counted.x_spread)
        width, crowd = self.counted.x_spread * np.sqrt(12.0), census.limits_of_most_rows(*where)
        found = prepared(self.plan, self.counted, census.extent(*where), sums, width)
        if crowd is not None:
            found = replace(found, crowd=np.stack(crowd))
        return Outcome(after_preparation(self.run, found))


@dataclass
class Cycles:
    """The cycle layer, from sums over cycles; several exchanges if cycles lack cells."""

    run: RunState
    prepared: Prepared
    cycles: CycleServer
    kind: ClassVar[str] = "cycles"

    def request(self) -> dict[str, np.ndarray]:
        return {**self.prepared.scaling.as_arrays(), **self.cycles.request()}

    def take(self, sums: Sums, senders: Sequence[str]) -> Outcome:
        self.cycles.gather(sums, len(senders))
        if not self.cycles.done:
            return Outcome(self)
        layer = self.cycles.layer
        noise = float(np.mean(np.diagonal(layer.noise))) / max(self.cycles.cycles, 1.0)
        scales = replace(self.prepared.scales, noise_variance=max(noise, QUIETEST))
        log.info("cycle layer: %s, %d basis functions", layer.form, len(layer.basis.inputs))
        self.run.prepared = found = replace(self.prepared, scales=scales)
        return Outcome(Starts(self.run, found))


def after_preparation(run: RunState, found: Prepared) -> Phase:
    """The cycle layer if there is one, or the start of training."""
    plan = found.plan
    if plan.cycles is None:
        run.prepared = found
        if plan.diagnosis is not None and run.diagnosis is None:
            return diagnosing.started(run, found)
        return Starts(run, found)
    cycles = found.cycles or CycleServer.start(
        plan.cycles,
        noise=plan.spec.noise,
        outputs=plan.spec.outputs,
        inputs=plan.spec.inputs,
        rows=found.counted.rows_a_client,
        scales=found.scales,
    )
    run.prepared = found = replace(found, cycles=cycles)
    return Cycles(run, found, cycles)


def prepared(
    plan: Plan,
    counted: Counted,
    domain: tuple[np.ndarray, np.ndarray],
    sums: Sums,
    width: np.ndarray,
) -> Prepared:
    """Scaling and starting scales; clients took lags and waves in units of `width`."""
    scaling = scaling_of(plan, counted.sums, *domain)
    ratio = _ratio(scaling, width)
    scales = scales_of(scaling, sums, ratio)
    periods, gain = None, 0.0
    if "waves" in sums:  # open periods start where waves explain most
        waves = [starting_period(total) for total in np.moveaxis(sums["waves"], 1, 0)]
        gain = max(found.gain for found in waves)
        periods = np.array([found.period for found in waves]) * np.where(width > 0, width, 1.0)
    short = shared_is_short(scales, sums, ratio)
    found = Prepared(plan, counted, plan.spec, scaling, scales, short, periods).about(0)
    kept: tuple[int, ...] = ()
    if plan.specs:
        evidence = sums["forms"].T if short else sums["forms"]
        cells = float(counted.cells.sum())
        kept = contest.shortlist(plan.specs, evidence, gain, cells=cells, clients=counted.clients)
        found = found.about(kept[0])
    if plan.ranks and is_closed(plan):
        kept = (answered_ranks(found),)
        found = found.about(kept[0])
    elif plan.ranks:
        kept = (*(kept or (0,)), *other_ranks(found))[: 1 + OTHERS_IN_CONTEST]
    return replace(found, shortlist=kept)


def answered_ranks(found: Prepared) -> int:
    """With privacy="sums": the number of the first model whose inducing inputs clients answer for, or the
    last one, which has the fewest latents.
    """
    start = candidates.with_long_shared(found.scales)
    counts = range(len(found.plan.candidates))
    for number in counts[:-1]:
        model = found.about(number)
        allowed = model.counted.told.allowed(found.plan) // model.spec.latents
        if allowed >= wanted_inducing(model, start):
            return number
    return counts[-1]


def other_ranks(prepared: Prepared) -> list[int]:
    """Numbers of the models with the first kernel and other numbers of latents that are worth training."""
    plan, spec = prepared.plan, prepared.spec
    inputs = inducing_inputs(prepared, candidates.with_long_shared(prepared.scales))
    pairs = ranks.worth_training(
        plan.ranks,
        prepared.moment,
        prepared.most_latents(len(inputs)),
        mixed_by=prepared.counted.clients * spec.outputs if spec.client_loadings else None,
    )
    log.info("latents to compare: %s", [plan.ranks[number] for number in pairs])
    return [number * len(plan.specs or (plan.spec,)) + prepared.candidate for number in pairs[1:]]


def scaling_of(plan: Plan, counted: Sums, lower: np.ndarray, upper: np.ndarray) -> Scaling:
    """Inputs to the unit box, outputs to mean 0 and variance 1; `counted` are the census's sums."""
    seen = np.maximum(np.diagonal(counted["y_pairs"]), 1.0)
    centre = np.diagonal(counted["y_mean"]).copy()
    variance = np.maximum(np.diagonal(counted["y_cross"]) / seen, 0.0)
    if not np.all(np.isfinite(variance)):
        raise InputError("outputs are too large to be summed: rescale them")
    spread = np.sqrt(variance)
    if plan.spec.noise == "scalar":
        spread = np.full_like(spread, np.sqrt(np.mean(variance)))
    tiny = spread <= 8.0 * np.finfo(np.float64).eps * np.abs(centre)  # no more than rounding
    spread = np.where(tiny | (spread == 0), np.maximum(np.abs(centre) * 1e-6, 1e-9), spread)
    if not plan.scale_outputs:
        centre, spread = np.zeros_like(centre), np.ones_like(spread)
    return Scaling(lower, upper, centre, spread)


def scales_of(scaling: Scaling, sums: Sums, ratio: float) -> Scales:
    """Starting scales; clients took lags in units of `ratio` widths of the domain."""
    found = census.starting_scales(sums["lag_sum"], sums["lag_pairs"], scaling.spread**2)
    short, long = min(found.short * ratio, 0.3), min(found.long * ratio, 0.35)
    return replace(found, short=short, long=long)


def shared_is_short(scales: Scales, sums: Sums, ratio: float) -> bool:
    """Whether clients have the shorter of two scales in common, where they sent what tells it."""
    found = shared_scale.shared_scale(sums) if "bin_sum" in sums else None
    if found is None:
        return False
    scale, share = found
    scale *= ratio
    log.info("between clients: scale %.3g, with %.2g of the variance", scale, share)
    return shared_scale.is_short((scale, share), short=scales.short, long=scales.long)


def _ratio(scaling: Scaling, width: np.ndarray) -> float:
    """`width`, in widths of the domain."""
    extent = scaling.upper - scaling.lower
    varies = (extent > 0) & (width > 0)
    gaps = np.log(width[varies] / extent[varies])
    return float(np.exp(np.mean(gaps))) if varies.any() else 1.0
