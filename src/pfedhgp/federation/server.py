"""The server: agrees on scales from sums, asks for rounds, and never sees a row.

It has two calls, so that any engine can drive it: `request()` says what to broadcast next (None when done),
`gather(replies)` takes the answers. What it asks for is up to its phase: see `preparation` and `training`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pfedhgp.base.checks import short
from pfedhgp.base.choices import NO_PRIVACY
from pfedhgp.data.scaling import Scaling
from pfedhgp.errors import InputError, MessageError
from pfedhgp.federation.diagnosing import Diagnosing, text_of, trained_from
from pfedhgp.federation.messages import Message, hash_arrays
from pfedhgp.federation.opening import Opening, inference_of, shared_kernels
from pfedhgp.federation.phases import Best, Counted, Phase, Prepared, RunState
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.preparation import Census, Extent, after_preparation, first_phase
from pfedhgp.federation.robust import admissible, judging
from pfedhgp.federation.robust.declared import Declared
from pfedhgp.federation.robust.judging import Judged
from pfedhgp.federation.robust.limits import Inadmissible
from pfedhgp.federation.telling import Asked
from pfedhgp.federation.training import Finish, Rounds, Starts, from_the_start
from pfedhgp.inference.arrays import State, below, block_arrays, block_of
from pfedhgp.inference.cycles.exchange import CycleServer, layer_from_arrays
from pfedhgp.inference.starts import census
from pfedhgp.inference.starts.candidates import Start
from pfedhgp.inference.starts.census import Scales
from pfedhgp.inference.structured.traits import traits_of_nobody
from pfedhgp.model.blocks import GlobalBlock
from pfedhgp.model.global_posterior import from_arrays, to_arrays
from pfedhgp.model.posterior import Population

log = logging.getLogger("pfedhgp")
COUNTERS = ("round", "exchanges", "attempt", "stop_asked", "present", "compared", "learn")
"""Fields of `RunState` that a checkpoint keeps by their names."""
LATER: Mapping[str, Any] = {
    "client_loadings": False,
    "masks": False,
    "privacy": NO_PRIVACY,
    "robust": "off",
}
"""What plans of older versions do not say, because they could not choose."""


class Server:
    """Census, extent (without a domain), cycles (with a cycle layer), start, rounds, finish."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.run = RunState()
        self.current: Phase | None = first_phase(plan, self.run)
        self.asked: Message | None = None

    @property
    def phase(self) -> str | None:
        """The kind of the next request; None when done."""
        return None if self.current is None else self.current.kind

    @property
    def best(self) -> Best | None:
        return self.run.best

    @property
    def unable(self) -> tuple[str, ...]:
        """Clients that have too few rows to be asked in training: see `telling`."""
        return () if self.run.asked is None else self.run.asked.unable

    @property
    def exchanges(self) -> int:
        return self.run.exchanges

    @property
    def attempt(self) -> int:
        return self.run.attempt

    @property
    def history(self) -> list[dict[str, Any]]:
        """A record of each round."""
        return self.run.history

    def summary(self) -> dict[str, Any]:
        """What a model file says about the training."""
        best = self.run.best
        assert best is not None
        bound = None if best.bound is None else float(best.bound)
        scales = best.start.as_dict()
        found: dict[str, Any] = {"exchanges": self.exchanges, "bound": bound}
        found["starting_scales"] = scales
        if self.run.diagnosis is not None:
            found["diagnosis"] = text_of(self.run.diagnosis)
        if (asked := self.run.asked) is not None:
            told = asked.directions.shape[1]
            found["told"] = {"asked": told, "limit": asked.limit, "not_asked": len(asked.unable)}
        if self.run.left_out:
            found["left_out"] = self.run.left_out
        return found | ({"choice": self.run.choice} if self.run.choice else {})

    def stop(self) -> None:
        """Training ends with the next round."""
        self.run.stop_asked = True

    def request(self) -> Message | None:
        """What to broadcast now; the same until `gather` is called."""
        if self.current is None:
            return None
        arrays = self.current.request()
        kind, number = self.current.kind, self.run.round
        self.asked = Message(kind, number, "server", arrays, hash_arrays(arrays))
        return self.asked

    def gather(self, replies: Iterable[Message]) -> dict[str, Any] | None:
        """Takes the replies (each is summed and dropped) and moves on; returns the round's record."""
        asked, current, run = self.asked, self.current, self.run
        assert asked is not None
        assert current is not None
        total: dict[str, np.ndarray] = {}
        received, senders = 0, []
        for reply in replies:
            if (reply.kind, reply.round, reply.block) != (asked.kind, run.round, asked.block):
                raise MessageError(f"a reply from {reply.sender} belongs to another request")
            reply.check_finite()
            if isinstance(current, Diagnosing | Census):
                current.see(reply)
            received += reply.nbytes
            senders.append(reply.sender)
            if not total:
                total = dict(reply.arrays)
            elif current.kind == "census":
                total = census.merged(total, dict(reply.arrays))
            else:
                total = {name: total[name] + array for name, array in reply.arrays.items()}
        return self.take(total, senders, received)

    def admit(self, reply: Message) -> None:
        """Raises `Inadmissible` unless rows can have made the reply to the current request."""
        assert self.current is not None
        declared = admissible.check(self.plan, self.run, self.current, reply.sender, reply.arrays)
        if declared is not None:
            self.run.declared[reply.sender] = declared

    def judge(self, replies: Iterable[Message], *, admit: bool = False) -> Judged:
        """Which replies to the current request fit each other: only these go to `gather`.

        With `admit`, those that no rows can have made are left out before.
        """
        assert self.current is not None
        given, refused = list(replies), {}
        for reply in given if admit else ():
            try:
                self.admit(reply)
            except Inadmissible as error:
                refused[reply.sender] = {"why": str(error)}
        given = [reply for reply in given if reply.sender not in refused]
        found = judging.judge(self.plan, self.run, self.current, given)
        found = found._replace(left_out={**refused, **found.left_out})
        number, kind = self.exchanges + 1, self.current.kind
        about = {"exchange": number, "kind": kind, "round": self.run.round}
        for name, why in found.left_out.items():
            self.run.left_out.append({"name": name, **about, **why})
            log.warning("exchange %d, %s: left out %s: %s", number, kind, short(name), why["why"])
        for name, share in found.clipped.items():
            self.run.left_out.append({"name": name, **about, "why": judging.CLIPPED.format(share)})
        return found

    def take(
        self, total: dict[str, np.ndarray], senders: Sequence[str], received: int
    ) -> dict[str, Any] | None:
        """Takes the sum of the replies of `senders`, which had so many bytes, and moves on."""
        asked, current, run = self.asked, self.current, self.run
        assert asked is not None
        assert current is not None
        if senders:
            run.exchanges += 1
        elif current.kind != "finish":
            raise MessageError(f"no client answered the {current.kind} request")
        self.current, record = current.take(total, senders)
        run.present = list(senders) or run.present
        if record is not None:
            record |= {
                "clients": len(senders),
                "bytes_up": received,
                "bytes_down": asked.nbytes * len(senders),
            }
            run.history.append(record)
            log.info("round %d: bound %s", record["round"], record["bound"])
        return record

    def state(self) -> State:
        """The server's part of a checkpoint: all that the next exchange depends on, but for the plan."""
        run, current = self.run, self.current
        plain: dict[str, Any] = {
            "plan": self.plan.to_json(),
            "phase": self.phase,
            **{name: getattr(run, name) for name in COUNTERS},
            "history": run.history,
            "known": list(run.known),
            "declared": {name: own.to_json() for name, own in run.declared.items()},
            "left_out": run.left_out,
        }
        arrays: dict[str, np.ndarray] = below("known", run.known)
        if run.counted is not None:
            plain["clients"] = run.counted.clients
            plain["by_client"] = dict(run.counted.by_client)
            arrays |= below("census", run.counted.sums)
        if (found := run.prepared) is not None:
            arrays |= below("scaling", found.scaling.as_arrays())
            plain["scales"] = found.scales.as_dict()
            plain["shared_is_short"] = found.shared_is_short
            plain["starts"] = [start.as_dict() for start in run.starts.values()]
            plain["candidate"], plain["shortlist"] = found.candidate, list(found.shortlist)
            plain["choice"] = run.choice
            optional = {"periods": found.periods, "crowd": found.crowd}
            arrays |= {name: array for name, array in optional.items() if array is not None}
            if found.cycles is not None:
                arrays |= below("cycles", found.cycles.request())
                plain["cycles"] = found.cycles.progress()
        if isinstance(current, Diagnosing):
            part = current.state()
            arrays |= below("diagnosing", part.arrays)
            plain["diagnosing"] = dict(part.plain)
        if run.diagnosis is not None:
            arrays |= below("diagnosed", run.diagnosis.classifier.to_arrays())
            plain["diagnosed"] = text_of(run.diagnosis)
        if isinstance(current, Rounds):
            plain["turn"] = current.number
            for k, each in enumerate(current.running):
                own = f" {k}" if k else ""
                party = each.party.state()
                arrays |= block_arrays(f"started{own}", each.block)
                arrays |= below(f"trainer{own}", party.arrays)
                plain[f"trainer{own}"], plain[f"chosen{own}"] = dict(party.plain), each.number
                plain[f"start{own}"] = each.start.as_dict()
                plain[f"candidate{own}"] = each.prepared.candidate
        if run.asked is not None:
            plain["asked"] = {"limit": run.asked.limit, "unable": list(run.asked.unable)}
            arrays["asked"] = run.asked.directions
        if (best := run.best) is not None:
            kept = {"bound": best.bound, "attempt": best.attempt, "jitter": float(best.jitter)}
            kept |= {"candidate": best.prepared.candidate} if self.plan.chooses else {}
            plain["best"] = kept
            arrays |= block_arrays("best", best.shared.block)
            arrays |= below("best_moments", to_arrays(best.shared))
            arrays |= below("population", {} if best.population is None else known(best.population))
        return State(arrays, plain)

    def restore(self, state: State) -> None:
        """Puts `state` back; refuses it if it was made with another plan.

        A run of an older version kept nothing that replies could be judged by, and goes on without.
        """
        if "robust" not in state.plain["plan"]:
            self.plan = replace(self.plan, robust=LATER["robust"])
        self.run, self.current = restored(self.plan, state)


def known(population: Population) -> dict[str, np.ndarray]:
    """The parts of it that the inference knows."""
    return {n: np.asarray(a) for n, a in vars(population).items() if a is not None}


# ------------------------------------------------------------ the state of a checkpoint, read back


def restored(plan: Plan, state: State) -> tuple[RunState, Phase | None]:
    """The run as `state` has it, and its phase; refuses a state of another plan."""
    plain = state.plain
    for name, value in plan.to_json().items():
        if plain["plan"].get(name, LATER.get(name)) != value:
            raise InputError(f"`{name}` is not what the run began with: start it again")
    run = RunState(**{name: plain[name] for name in COUNTERS}, history=list(plain["history"]))
    run.known = state.part("known")
    run.declared = {n: Declared.from_json(own) for n, own in plain.get("declared", {}).items()}
    run.left_out = list(plain.get("left_out", ()))
    if "clients" not in plain:
        return run, first_phase(plan, run)
    by_client = plain.get("by_client", {})
    run.counted = Counted(state.part("census"), int(plain["clients"]), by_client)
    if "scales" not in plain:
        return run, Extent(plan, run, run.counted)
    run.starts = {i: Start(**values) for i, values in enumerate(plain["starts"])}
    run.prepared = prepared = _prepared(plan, run.counted, state)
    run.choice = list(plain.get("choice", ()))
    if "asked" in plain:
        told = plain["asked"]
        run.asked = Asked(told["limit"], state.arrays["asked"], tuple(told["unable"]))
    if "diagnosed" in plain:
        run.diagnosis = trained_from(state.part("diagnosed"), plain["diagnosed"])
    if "best" in plain:
        run.best = _best(run, prepared.about(plain["best"].get("candidate", 0)), state)
    return run, _phase(run, prepared, state)


def _phase(run: RunState, prepared: Prepared, state: State) -> Phase | None:
    kind = state.plain["phase"]
    if kind == "cycles":
        return after_preparation(run, prepared)
    if "diagnosing" in state.plain:
        part = State(state.part("diagnosing"), state.plain["diagnosing"])
        return Diagnosing.restored(run, prepared, part)
    if kind == "start":
        return Starts(run, prepared)
    if kind == "round":
        return _rounds(run, prepared, state)
    if kind is None:
        return None
    assert run.best is not None
    return Finish(run, run.best)


def _prepared(plan: Plan, counted: Counted, state: State) -> Prepared:
    plain, periods = state.plain, state.arrays.get("periods")
    cycles = None
    if "cycles" in plain:
        assert plan.cycles is not None
        layer = layer_from_arrays(state.part("cycles"))
        cycles = CycleServer.resumed(plan.cycles, plan.spec.noise, layer, plain["cycles"])
    found = Prepared(
        plan,
        counted,
        spec=plan.spec,
        scaling=Scaling(**state.part("scaling")),
        scales=Scales(**plain["scales"]),
        shared_is_short=plain["shared_is_short"],
        periods=periods,
        crowd=state.arrays.get("crowd"),
        cycles=cycles,
        shortlist=tuple(plain.get("shortlist", ())),
    )
    return found.about(plain.get("candidate", 0))


def _rounds(run: RunState, prepared: Prepared, state: State) -> Rounds:
    plain, running = state.plain, []
    for own in ("", *(f" {k}" for k in range(1, len(plain)) if f"trainer {k}" in plain)):
        model = prepared.about(plain.get(f"candidate{own}", 0))
        block = _block(state, f"started{own}", model)
        party = inference_of(prepared.plan, run.learn, prepared.cells).server(model.spec, block)
        party.restore(State(state.part(f"trainer{own}"), plain[f"trainer{own}"]))
        # Checkpoints of older versions have the start of each training in `starts` alone.
        kept = plain.get(f"start{own}")
        start = Start(**kept) if kept else run.starts[run.attempt]
        running.append(Opening(start, block, party, model, plain[f"chosen{own}"]).within(run.asked))
    if len(running) > 1:
        most = max(len(each.block.inputs) for each in running)
        running = [replace(o, prepared=replace(o.prepared, most=most)) for o in running]
    return Rounds(run, running, plain["turn"])


def _best(run: RunState, prepared: Prepared, state: State) -> Best:
    kept = state.plain["best"]
    block, moments = _block(state, "best", prepared), state.part("best_moments")
    return Best(
        bound=kept["bound"],
        attempt=kept["attempt"],
        shared=from_arrays(block, moments, kept["jitter"]),
        population=_population(run, prepared, state),
        jitter=kept["jitter"],
        start=run.starts[kept["attempt"]],
        prepared=prepared,
    )


def _population(run: RunState, prepared: Prepared, state: State) -> Population | None:
    """The population of a run that has ended; in an older version it had no traits."""
    kept: dict[str, Any] = state.part("population")
    if not kept:
        return None
    if "traits" in kept or prepared.plan.inference.name != "structured":
        return Population(**kept)
    nobody = traits_of_nobody(prepared.spec)
    start = run.starts[state.plain["best"]["attempt"]]
    return from_the_start(Population(**kept, traits=nobody), prepared, start)


def _block(state: State, name: str, prepared: Prepared) -> GlobalBlock:
    found = block_of(state, name, shared_kernels(prepared.spec, prepared.scaling))
    assert found is not None
    return found
