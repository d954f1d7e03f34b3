"""The server's part of a checkpoint, between two exchanges: what it knows from sums, and nothing else."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from pfedhgp.data.scaling import Scaling
from pfedhgp.errors import InputError
from pfedhgp.federation.opening import inference_of, kernels_like
from pfedhgp.federation.phases import Best, Counted, Phase, Prepared, RunState
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.preparation import Census, Extent, after_preparation
from pfedhgp.federation.training import Finish, Rounds, Starts
from pfedhgp.inference.arrays import State, below, block_arrays, block_of
from pfedhgp.inference.cycles.exchange import CycleServer, layer_from_arrays
from pfedhgp.inference.starts.candidates import Start
from pfedhgp.inference.starts.census import Scales
from pfedhgp.model.blocks import GlobalBlock
from pfedhgp.model.posterior import GlobalPosterior, Population
from pfedhgp.model.spec import with_periods

COUNTERS = ("round", "exchanges", "attempt", "stop_asked", "present", "compared", "learn")
"""Of `RunState`, kept by their names."""


def state_of(plan: Plan, run: RunState, current: Phase | None) -> State:
    """Everything that the next exchange depends on, but for the plan itself."""
    plain: dict[str, Any] = {
        "plan": plan.to_json(),
        "phase": None if current is None else current.kind,
        **{name: getattr(run, name) for name in COUNTERS},
        "history": run.history,
    }
    arrays: dict[str, np.ndarray] = {}
    if run.counted is not None:
        plain["clients"] = run.counted.clients
        arrays |= below("census", run.counted.sums)
    if (found := run.prepared) is not None:
        arrays |= below("scaling", found.scaling.as_arrays())
        plain["scales"], plain["shared_is_short"] = found.scales.as_dict(), found.shared_is_short
        plain["starts"] = [start.as_dict() for start in run.starts.values()]
        optional = {"periods": found.periods, "crowd": found.crowd}
        arrays |= {name: array for name, array in optional.items() if array is not None}
        if found.cycles is not None:
            arrays |= below("cycles", found.cycles.request())
            plain["cycles"] = found.cycles.progress()
    if isinstance(current, Rounds):
        party = current.party.state()
        arrays |= block_arrays("started", current.started) | below("trainer", party.arrays)
        plain["trainer"] = dict(party.plain)
        plain["chosen"], plain["turn"] = current.chosen, current.number
    if (best := run.best) is not None:
        plain["best"] = {
            "bound": best.bound,
            "attempt": best.attempt,
            "jitter": float(best.jitter),
        }
        arrays |= block_arrays("best", best.shared.block)
        moments = {"mean": best.shared.mean, "covariance": best.shared.covariance}
        arrays |= below("best_moments", moments)
        arrays |= below("population", {} if best.population is None else vars(best.population))
    return State(arrays, plain)


def restored(plan: Plan, state: State) -> tuple[RunState, Phase | None]:
    """The run as `state` has it, and its phase; refuses a state of another plan."""
    plain = state.plain
    for name, value in plan.to_json().items():
        if plain["plan"].get(name) != value:
            raise InputError(f"`{name}` is not what the run began with: start it again")
    run = RunState(**{name: plain[name] for name in COUNTERS}, history=list(plain["history"]))
    if "clients" not in plain:
        return run, Census(plan, run)
    run.counted = Counted(state.part("census"), int(plain["clients"]))
    if "scales" not in plain:
        return run, Extent(plan, run, run.counted)
    run.starts = {i: Start(**values) for i, values in enumerate(plain["starts"])}
    run.prepared = prepared = _prepared(plan, run.counted, state)
    if "best" in plain:
        run.best = _best(run, prepared, state)
    return run, _phase(run, prepared, state)


def _phase(run: RunState, prepared: Prepared, state: State) -> Phase | None:
    kind = state.plain["phase"]
    if kind == "cycles":
        return after_preparation(run, prepared)
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
    return Prepared(
        plan,
        counted,
        spec=plan.spec if periods is None else with_periods(plan.spec, periods),
        scaling=Scaling(**state.part("scaling")),
        scales=Scales(**plain["scales"]),
        shared_is_short=plain["shared_is_short"],
        periods=periods,
        crowd=state.arrays.get("crowd"),
        cycles=cycles,
    )


def _rounds(run: RunState, prepared: Prepared, state: State) -> Rounds:
    plain, spec = state.plain, prepared.spec
    started = _block(state, "started", prepared)
    party = inference_of(prepared.plan, run.learn, prepared.cells).server(spec, started)
    party.restore(State(state.part("trainer"), plain["trainer"]))
    return Rounds(run, prepared, party, started, plain["chosen"], plain["turn"])


def _best(run: RunState, prepared: Prepared, state: State) -> Best:
    kept = state.plain["best"]
    moments = (jnp.asarray(state.array(f"best_moments.{n}")) for n in ("mean", "covariance"))
    known = {name: jnp.asarray(array) for name, array in state.part("population").items()}
    return Best(
        bound=kept["bound"],
        attempt=kept["attempt"],
        shared=GlobalPosterior(_block(state, "best", prepared), *moments),
        population=Population(**known) if known else None,
        jitter=kept["jitter"],
        start=run.starts[kept["attempt"]],
        prepared=prepared,
    )


def _block(state: State, name: str, prepared: Prepared) -> GlobalBlock:
    found = block_of(state, name, kernels_like(prepared.spec, prepared.scaling))
    assert found is not None
    return found
