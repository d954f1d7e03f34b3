"""Training: `Starts` compares where it may begin, `Rounds` are the rounds, `Finish` delivers the best.

Starts and rounds come again for each restart.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from pfedhgp.errors import BudgetWarning, warn_caller
from pfedhgp.federation.opening import (
    Opening,
    inducing_inputs,
    opened,
    too_few,
    wanted_inducing,
    warn_of_fewer,
)
from pfedhgp.federation.phases import Best, Outcome, Phase, Prepared, RunState, Sums
from pfedhgp.federation.telling import Asked, is_closed, question_of, warn_of_limits
from pfedhgp.inference import ending
from pfedhgp.inference.arrays import State, below
from pfedhgp.inference.markov.population import starting_logs
from pfedhgp.inference.own_weights import population_of
from pfedhgp.inference.protocols import ServerParty
from pfedhgp.inference.starts import budget, candidates, contest
from pfedhgp.inference.starts.candidates import Start
from pfedhgp.inference.structured.traits import starting_traits
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
            own = {**opening.request(), "scales": opening.start.as_array()}
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
        run, plan = self.run, self.prepared.plan
        wanted = self._wanted_starts()
        models = [self.prepared.about(number) for number in self.prepared.shortlist]
        if len(models) > 1:  # rough kernels take many inducing inputs, and may not be worth them
            most = 2 * min(len(inducing_inputs(model, wanted[0])) for model in models)
            models = [replace(model, most=most) for model in models]
        if run.attempt == 0:
            warn_of_fewer(self.prepared)
            if plan.learn_inducing == "auto":
                run.learn = too_few(self.prepared, wanted[0])
        seed = None if run.attempt == 0 else plan.seed + run.attempt
        found = [
            opened(model, start, seed=seed, learn=run.learn)
            for model in models or [self.prepared]
            for start in wanted
        ]
        if is_closed(plan) and self.prepared.spec.latents:
            self._within_limits(found[0])
        short = [each for each in found[1:] if _is_short(each)]
        return [replace(each, number=k) for k, each in enumerate([found[0], *short])]

    def _within_limits(self, opening: Opening) -> None:
        """Says what is left out so that clients answer, and counts what they are asked from here on."""
        prepared, inducing = opening.prepared, len(opening.block.inputs)
        count = prepared.spec.latents * inducing
        asked = Asked.nothing(prepared.plan, prepared.counted.told, count)
        self.run.asked = asked
        opening.within(asked)
        wanted = wanted_inducing(prepared, self._wanted_starts()[0])
        warn_of_limits(asked, inducing, wanted, masks=prepared.plan.masks)

    def _wanted_starts(self) -> list[Start]:
        """Those that the first exchange compares, or another one for a restart."""
        run, prepared, plan = self.run, self.prepared, self.prepared.plan
        if run.attempt == 0:
            return candidates.starts_to_compare(
                prepared.spec,
                prepared.scales,
                compare=plan.inference.knows_bound and not is_closed(plan),
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
        count_questions(run, self.openings)
        own = {name: array for name, array in sums.items() if not name.startswith("other ")}
        parts = [own, *(replies.part(f"other {k}") for k in range(1, len(self.openings)))]
        bounds = [o.party.gather(part) for o, part in zip(self.openings, parts, strict=True)]
        chosen: list[Opening] = []
        for model in dict.fromkeys(o.prepared.candidate for o in self.openings):
            alike = [o for o in self.openings if o.prepared.candidate == model]
            best = candidates.best_of(
                [bounds[o.number] for o in alike], float(self.prepared.counted.cells.sum())
            )
            run.compared = run.compared or len(alike) > 1
            chosen.append(alike[best])
        numbers = [each.number for each in chosen]
        log.info("starts: bounds %s, going on with %s", bounds, numbers)
        record = record_of(run, chosen[0].party, bounds[numbers[0]], self.kind)
        for each in chosen:
            each.party.advance(more_inputs(each.prepared, each.party))
        run.round += 1
        first = 2 if self.prepared.plan.inference.start_is_round else 1
        return Outcome(Rounds(run, chosen, first), record)


def _is_short(opening: Opening) -> bool:
    """Whether the statistics of a start that is tried beside the first are not too long to send."""
    prepared = opening.prepared
    return prepared.spec.latents <= prepared.most_latents(len(opening.block.inputs))


@dataclass
class Rounds:
    """Rounds of one training, until it has converged, is at its limit or is asked to stop.

    If there is a choice of models, a few are trained side by side in the same exchanges. The first of
    `running` leads; the others are dropped as soon as they are too far behind (`contest`).
    """

    run: RunState
    running: list[Opening]
    number: int = 1
    """Number of the next round in this training"""
    kind: ClassVar[str] = "round"

    @property
    def leader(self) -> Opening:
        return self.running[0]

    def request(self) -> dict[str, np.ndarray]:
        """If starts were compared and the first was not the best, clients hear which one was."""
        number = self.leader.number
        which = {"chosen": np.asarray(float(number))} if number else {}
        asked = {**self.leader.request(), **which}
        for k, other in enumerate(self.running[1:], 1):
            own = {**other.request(), "chosen": np.asarray(float(other.number))}
            asked |= below(f"other {k}", own)
        return asked

    def take(self, sums: Sums, senders: Sequence[str]) -> Outcome:
        run, replies = self.run, State(sums)
        count_questions(run, self.running)
        parts = [{name: array for name, array in sums.items() if not name.startswith("other ")}]
        parts += [replies.part(f"other {k}") for k in range(1, len(self.running))]
        for each, part in zip(self.running, parts, strict=True):
            if set(senders) != set(run.present):
                each.party.bounds.clear()  # bounds of different clients do not compare
            bound = each.party.gather(part)
        plan, settings = self.leader.prepared.plan, self.leader.prepared.plan.inference
        at_end = self.number >= settings.rounds or run.stop_asked
        if len(self.running) > 1:
            self._drop(at_end=at_end)
        party = self.leader.party
        bound = party.bounds[-1] if settings.knows_bound else None
        record = record_of(run, party, bound, self.kind)
        slack = plan.tolerance * len(senders)
        patient = self.number > settings.patience and len(self.running) == 1
        converged = bound is not None and patient and ending.has_converged(party.bounds, slack)
        following: Phase = self
        if converged or at_end:
            record |= self._ended(bound, converged=converged, slack=slack)
            again = run.attempt < plan.restarts and not run.stop_asked
            assert run.best is not None
            run.prepared = replace(self.leader.prepared, shortlist=())
            following = Starts(run, run.prepared) if again else Finish(run, run.best)
        else:
            for each in self.running:
                each.party.advance(more_inputs(each.prepared, each.party))
        self.number += 1
        run.round += 1
        return Outcome(following, record)

    def _drop(self, *, at_end: bool) -> None:
        """Puts the best model first and drops those that are too far behind; at the end, all others."""
        prepared = self.leader.prepared
        cells = float(prepared.counted.cells.sum())
        settling = prepared.plan.inference.rounds_to_settle(prepared.spec)
        allowed = -1.0 if at_end else contest.margin(self.number - settling, cells)
        behind = contest.behind([each.score() for each in self.running])
        order = sorted(range(len(behind)), key=lambda i: behind[i])
        stays = [i for i in order if i == order[0] or behind[i] < allowed]
        dropped = [
            {**label(self.running[i].prepared), "round": self.number} | {"behind": float(behind[i])}
            for i in order
            if i not in stays
        ]
        self.run.choice += dropped
        self.running = [self.running[i] for i in stays]
        if len(stays) == 1:
            alone = replace(self.leader.prepared, most=None)
            self.running = [replace(self.leader, prepared=alone)]

    def _ended(self, bound: float | None, *, converged: bool, slack: float) -> dict[str, Any]:
        """Ends this training and keeps it if it is the best; returns what its record says of the end."""
        run, party, prepared = self.run, self.leader.party, self.leader.prepared
        run.starts[run.attempt] = self.leader.start
        warn_of_cap(prepared, party)
        shared = party.finish()
        bound = party.bounds[-1] if bound is not None else None
        ended = ending.outcome(
            party.bounds, converged=converged, stopped=run.stop_asked, slack=slack
        )
        best = run.best
        if best is None or (bound is not None and best.bound is not None and bound > best.bound):
            found, start = party.population(), run.starts[run.attempt]
            population = None if found is None else over_observing_clients(found, prepared)
            if population is not None:
                population = from_the_start(population, prepared, start)
            run.best = Best(bound, run.attempt, shared, population, party.jitter, start, prepared)
        if prepared.plan.chooses and run.attempt == 0:
            chosen = {**label(prepared), "round": None, "behind": 0.0}
            run.choice = [chosen, *reversed(run.choice)]
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


def count_questions(run: RunState, openings: Sequence[Opening]) -> None:
    """With privacy="sums": counts what an exchange asked, before the parties move on."""
    if run.asked is not None:
        for each in openings:
            run.asked.add(question_of(each.prepared.spec, each.prepared.scaling, each.request()))


def label(prepared: Prepared) -> dict[str, Any]:
    """What a choice says of a model: its kernels, and how many latents it has if that was chosen, too."""
    spec = prepared.spec
    numbers = {"latents": spec.latents, "local_latents": spec.local_latents}
    return {**contest.label(spec), **(numbers if prepared.plan.ranks else {})}


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
    if plan.inducing != "auto" or plan.spec.latents == 0 or is_closed(plan):
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
        warn_caller(
            f"{largest} global inducing inputs, the most allowed, are too few for the data's "
            f"lengthscales ({nats:.1f} nats a client are lost): raise `largest_inducing`",
            BudgetWarning,
        )


def from_the_start(population: Population, prepared: Prepared, start: Start) -> Population:
    """The population's traits themselves: the server counts them from the agreed start."""
    if population.traits is None:
        return population
    markov = prepared.plan.inference.name == "markov"
    starting = starting_logs if markov else starting_traits
    centre = starting(prepared.spec, start, prepared.scaling.extent)
    mean, variance = np.asarray(population.traits)
    return replace(population, traits=np.stack([centre + mean, variance]))


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
