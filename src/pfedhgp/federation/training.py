"""Training: `Starts` compares where it may begin, `Rounds` are the rounds, `Finish` delivers the best.

Starts and rounds come again for each restart.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from pfedhgp.errors import BudgetWarning, warn
from pfedhgp.federation.opening import Opening, opened, too_few, warn_of_fewer
from pfedhgp.federation.phases import Best, Outcome, Phase, Prepared, RunState, Sums
from pfedhgp.inference import ending
from pfedhgp.inference.arrays import State, below
from pfedhgp.inference.own_weights import population_of
from pfedhgp.inference.protocols import ServerParty
from pfedhgp.inference.starts import budget, candidates
from pfedhgp.inference.starts.candidates import Start
from pfedhgp.model.blocks import GlobalBlock
from pfedhgp.model.posterior import Population

log = logging.getLogger("pfedhgp")


@dataclass
class Starts:
    """The first exchange of a training: clients evaluate one start or several, the best is taken."""

    run: RunState
    prepared: Prepared
    openings: list[Opening] = field(default_factory=list)
    kind: ClassVar[str] = "start"

    def request(self) -> dict[str, np.ndarray]:
        prepared = self.prepared
        if not self.openings:
            self.openings = self._opened()
        asked: dict[str, np.ndarray] = {}
        for k, opening in enumerate(self.openings):
            own = {**opening.party.request(), "scales": opening.start.as_array()}
            asked |= below(f"other {k}", own) if k else own
        return {
            **asked,
            **prepared.scaling.as_arrays(),
            **({} if prepared.cycles is None else prepared.cycles.request()),
            **({} if prepared.periods is None else {"periods": prepared.periods}),
            **({} if prepared.crowd is None else {"crowd": prepared.crowd}),
            **({"learn": np.ones(())} if self.run.learn else {}),
            "attempt": np.asarray(float(self.run.attempt)),
        }

    def _opened(self) -> list[Opening]:
        """The starts to compare, but for those whose statistics would be too long to send."""
        run, plan, spec = self.run, self.prepared.plan, self.prepared.spec
        wanted = self._wanted_starts()
        if run.attempt == 0:
            warn_of_fewer(self.prepared)
            if plan.learn_inducing == "auto":
                run.learn = too_few(self.prepared, wanted[0])
        seed = None if run.attempt == 0 else plan.seed + run.attempt
        found = [opened(self.prepared, start, seed=seed, learn=run.learn) for start in wanted]
        most = candidates.LARGEST_MESSAGE // max(spec.latents * spec.outputs, 1)
        return found[:1] + [each for each in found[1:] if len(each.block.inputs) <= most]

    def _wanted_starts(self) -> list[Start]:
        """Those that the first exchange compares, or another one for a restart."""
        run, prepared, plan = self.run, self.prepared, self.prepared.plan
        if run.attempt == 0:
            return candidates.starts_to_compare(
                prepared.spec,
                prepared.scales,
                compare=plan.inference.knows_bound,
                shared_is_short=prepared.shared_is_short,
            )
        compared = run.compared or not prepared.spec.tied
        tried, number = run.starts[0], run.attempt
        return [
            candidates.restart(
                prepared.scales, tried, compared=compared, attempt=number, seed=plan.seed
            )
        ]

    def take(self, sums: Sums, senders: Sequence[str]) -> Outcome:
        run, replies = self.run, State(sums)
        own = {name: array for name, array in sums.items() if not name.startswith("other ")}
        parts = [own, *(replies.part(f"other {k}") for k in range(1, len(self.openings)))]
        bounds = [o.party.gather(part) for o, part in zip(self.openings, parts, strict=True)]
        best = candidates.best_of(bounds, float(self.prepared.counted.cells.sum()))
        if len(bounds) > 1:
            run.compared = True
            log.info("starts: bounds %s, number %d is taken", bounds, best)
        chosen = self.openings[best]
        run.starts[run.attempt] = chosen.start
        record = record_of(run, chosen.party, bounds[best], self.kind)
        chosen.party.advance(more_inputs(self.prepared, chosen.party))
        run.round += 1
        first = 2 if self.prepared.plan.inference.start_is_round else 1
        return Outcome(Rounds(run, self.prepared, chosen.party, chosen.block, best, first), record)


@dataclass
class Rounds:
    """Rounds of one training, until it has converged, is at its limit or is asked to stop."""

    run: RunState
    prepared: Prepared
    party: ServerParty
    started: GlobalBlock
    """Where the party started"""
    chosen: int = 0
    """Which of the compared starts this is"""
    number: int = 1
    """Number of the next round in this training"""
    kind: ClassVar[str] = "round"

    def request(self) -> dict[str, np.ndarray]:
        """If starts were compared and the first was not the best, clients hear which one was."""
        which = {"chosen": np.asarray(float(self.chosen))} if self.chosen else {}
        return {**self.party.request(), **which}

    def take(self, sums: Sums, senders: Sequence[str]) -> Outcome:
        run, party, settings = self.run, self.party, self.prepared.plan.inference
        if set(senders) != set(run.present):
            party.bounds.clear()  # bounds of different clients do not compare
        bound = party.gather(sums)
        record = record_of(run, party, bound, self.kind)
        slack = self.prepared.plan.tolerance * len(senders)
        patient = self.number > settings.patience
        converged = bound is not None and patient and ending.has_converged(party.bounds, slack)
        following: Phase = self
        if converged or self.number >= settings.rounds or run.stop_asked:
            record |= self._ended(bound, converged=converged, slack=slack)
            again = run.attempt < self.prepared.plan.restarts and not run.stop_asked
            assert run.best is not None
            following = Starts(run, self.prepared) if again else Finish(run, run.best)
        else:
            party.advance(more_inputs(self.prepared, party))
        self.number += 1
        run.round += 1
        return Outcome(following, record)

    def _ended(self, bound: float | None, *, converged: bool, slack: float) -> dict[str, Any]:
        """Ends this training and keeps it if it is the best; returns what its record says of the end."""
        run, party = self.run, self.party
        warn_of_cap(self.prepared, party)
        shared = party.finish()
        bound = party.bounds[-1] if bound is not None else None
        ended = ending.outcome(
            party.bounds, converged=converged, stopped=run.stop_asked, slack=slack
        )
        best = run.best
        if best is None or (bound is not None and best.bound is not None and bound > best.bound):
            found, start = party.population(), run.starts[run.attempt]
            population = None if found is None else over_observing_clients(found, self.prepared)
            run.best = Best(
                bound, run.attempt, shared, population, party.jitter, start, self.prepared
            )
        run.attempt += 1
        return {"bound": bound, "ended": ended}


@dataclass
class Finish:
    """The best training goes to the clients; if their replies say what a client is like, they count."""

    run: RunState
    best: Best
    kind: ClassVar[str] = "finish"

    def request(self) -> dict[str, np.ndarray]:
        return self.best.as_arrays()

    def take(self, sums: Sums, senders: Sequence[str]) -> Outcome:
        if senders:
            found = population_of(
                self.best.prepared.spec.structure,
                sums["deviation_square"],
                sums["local_square"],
                sums["noise"],
                np.float64(len(senders)),
            )
            population = over_observing_clients(found, self.best.prepared)
            self.run.best = replace(self.best, population=population)
        return Outcome(None)


def record_of(run: RunState, party: ServerParty, bound: float | None, kind: str) -> dict[str, Any]:
    """What the history says of an exchange of training."""
    return {
        "round": run.round,
        "kind": kind,
        "attempt": run.attempt,
        "exchange": run.exchanges,
        "bound": None if bound is None else float(bound),
        "inducing": len(party.block.inputs),
    }


def more_inputs(prepared: Prepared, party: ServerParty) -> np.ndarray | None:
    """More global inducing inputs, if the residual says that they are too few."""
    plan = prepared.plan
    if plan.inducing != "auto" or plan.spec.latents == 0:
        return None
    size, cap = len(party.block.inputs), prepared.most_inducing
    if party.shared_nats() <= budget.NATS or size >= cap:
        return None
    larger = min(budget.round_up(size + max(2, size // 4)), cap)
    log.info("global inducing inputs: %d instead of %d", larger, size)
    return budget.box_points(larger, plan.spec.inputs)


def warn_of_cap(prepared: Prepared, party: ServerParty) -> None:
    """Warns if automatic inducing inputs ended at their largest number, and are too few."""
    size, largest = len(party.block.inputs), prepared.largest_inducing
    if prepared.plan.inducing != "auto" or size < largest or not prepared.spec.latents:
        return
    nats = party.shared_nats()
    if nats > budget.NATS:
        warn(
            f"{largest} global inducing inputs, the most allowed, are too few for the data's "
            f"lengthscales ({nats:.1f} nats a client are lost): raise `largest_inducing`",
            BudgetWarning,
        )


def over_observing_clients(population: Population, prepared: Prepared) -> Population:
    """Means over the clients that observed an output: loadings of the others are zero, not small.

    T_q of T clients did. Sums were divided by T, and for deviations by T − 1 (see `population_of`). The right
    divisors are T_q and T_q − 1.
    """
    counted = prepared.counted
    T, T_q = counted.clients, np.maximum(counted.sums["y_clients"], 1.0)
    up = np.sqrt(T / T_q)
    own = up if prepared.spec.structure.tied else np.sqrt(max(T - 1, 1) / np.maximum(T_q - 1, 1))
    local, deviation = (np.outer(v, v) for v in (up, own))
    return replace(
        population,
        deviation_power=population.deviation_power * deviation,
        local_power=population.local_power * local,
        division=population.division * deviation * local,
    )
