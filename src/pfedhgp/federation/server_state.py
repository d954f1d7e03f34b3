"""The server's part of a checkpoint, between two exchanges: what it knows from sums, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from pfedhgp.data.scaling import Scaling
from pfedhgp.errors import InputError
from pfedhgp.federation.opening import inference_of
from pfedhgp.inference.cycles.exchange import CycleServer, layer_from_arrays
from pfedhgp.inference.starts.candidates import Start
from pfedhgp.inference.starts.census import Scales
from pfedhgp.inference.state import State, below, block_arrays, block_of
from pfedhgp.model.posterior import GlobalPosterior, Population

if TYPE_CHECKING:
    from pfedhgp.federation.server import Server

COUNTERS = (
    *("phase", "round", "exchanges", "attempt", "turn", "_flat", "stop_asked", "present"),
    *("chosen", "compared", "learn", "shared_is_short"),
)
"""What the server counts, and where it is."""


def state_of(server: Server) -> State:
    """The server's part of a checkpoint, between two exchanges: what it knows from sums."""
    plain: dict[str, Any] = {
        "plan": server.plan.to_json(),
        **{name: getattr(server, name) for name in COUNTERS},
        "history": server.history,
    }
    arrays: dict[str, np.ndarray] = {}
    if hasattr(server, "census"):
        plain["clients"] = server.clients
        arrays |= below("census", server.census)
        arrays |= {"x_centre": server.x_centre, "x_spread": server.x_spread}
    if hasattr(server, "scaling"):
        arrays |= below("scaling", vars(server.scaling))
        plain["scales"] = server.scales.as_dict()
        plain["starts"] = [start.as_dict() for start in server.starts.values()]
        arrays |= {} if server.spec is server.plan.spec else {"periods": server.periods}
        arrays |= {} if server.crowd is None else {"crowd": np.stack(server.crowd)}
    if server.cycles is not None:
        arrays |= below("cycles", server.cycles.request())
        plain["cycles"] = server.cycles.progress()
    if server.phase == "round":
        own = server.party.state()
        arrays |= block_arrays("started", server.started) | below("trainer", own.arrays)
        plain["trainer"] = dict(own.plain)
    if server.best is not None:
        bound, attempt, shared, population, jitter = server.best
        plain["best"] = {"bound": bound, "attempt": attempt, "jitter": float(jitter)}
        arrays |= block_arrays("best", shared.block)
        moments = {"mean": shared.mean, "covariance": shared.covariance}
        arrays |= below("best_moments", moments)
        arrays |= below("population", vars(population) if population is not None else {})
    return State(arrays, plain)


def restore(server: Server, state: State) -> None:
    """Puts `state` back; refuses where the plan is another one."""
    plain, mine = state.plain, server.plan.to_json()
    for name, value in mine.items():
        if plain["plan"].get(name) != value:
            raise InputError(f"`{name}` is not what the run began with: start it again")
    for name in COUNTERS:
        setattr(server, name, plain[name])
    server.history = list(plain["history"])
    if "clients" in plain:
        server.clients, server.census = int(plain["clients"]), state.part("census")
        server.x_centre, server.x_spread = state.array("x_centre"), state.array("x_spread")
    if "scales" in plain:
        server.scaling, server.scales = Scaling(**state.part("scaling")), Scales(**plain["scales"])
        server.starts = {i: Start(**values) for i, values in enumerate(plain["starts"])}
        if "periods" in state.arrays:
            server.take_periods(state.array("periods"))
        if "crowd" in state.arrays:
            server.crowd = (state.array("crowd")[0], state.array("crowd")[1])
    if "cycles" in plain:
        choice = server.plan.cycles
        assert choice is not None
        layer = layer_from_arrays(state.part("cycles"))
        server.cycles = CycleServer.resumed(choice, server.plan.spec.noise, layer, plain["cycles"])
    if "trainer" in plain:
        started = block_of(state, "started", server.kernels_like())
        assert started is not None
        server.started = started
        cells = int(server.census["rows"][0]) * server.spec.outputs
        settings = inference_of(server.plan, server.learn, cells)
        server.party = settings.server(server.spec, started)
        server.party.restore(State(state.part("trainer"), plain["trainer"]))
    if "best" in plain:
        _restore_best(server, state)


def _restore_best(server: Server, state: State) -> None:
    best = state.plain["best"]
    block = block_of(state, "best", server.kernels_like())
    assert block is not None
    moments = (jnp.asarray(state.array(f"best_moments.{n}")) for n in ("mean", "covariance"))
    known = {name: jnp.asarray(array) for name, array in state.part("population").items()}
    population = Population(**known) if known else None
    shared = GlobalPosterior(block, *moments)
    server.best = (best["bound"], best["attempt"], shared, population, best["jitter"])
