"""The server: agrees on scales from sums, asks for rounds, and never sees a row.

It is a small machine with two calls, so that any engine can drive it: `request()` says what to broadcast
next (None when done), `gather(replies)` takes the answers.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from pfedhgp.data.scaling import Scaling
from pfedhgp.errors import BudgetWarning, InputError, MessageError
from pfedhgp.federation.messages import Message, hash_arrays
from pfedhgp.federation.plan import Plan
from pfedhgp.inference import budget, census, initial
from pfedhgp.inference.arrays import block_to_arrays
from pfedhgp.inference.census import Scales
from pfedhgp.inference.cycle_talk import CycleServer, layer_from_arrays
from pfedhgp.inference.parties import ServerParty
from pfedhgp.inference.state import State, below, block_arrays, block_of
from pfedhgp.kernels import Kernel
from pfedhgp.model.blocks import GlobalBlock
from pfedhgp.model.posterior import GlobalPosterior, Population
from pfedhgp.model.spec import starting_kernels

log = logging.getLogger("pfedhgp")
COUNTERS = ("phase", "round", "exchanges", "attempt", "turn", "_flat", "stop_asked", "present")
"""What the server counts, and where it is."""

QUIETEST = 1e-5
"""The noise that starting budgets are laid out for, at least."""


class Server:
    """Phases: census, extent (without a domain), cycles (with a cycle layer), start, rounds, finish.

    Start, rounds and finish once a restart.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.phase: str | None = "census"
        self.round = 0
        self.exchanges = 0
        self.history: list[dict[str, Any]] = []
        self.attempt = 0
        self.best: tuple[Any, int, GlobalPosterior, Any, float] | None = None
        self._request: Message | None = None
        self._flat = 0
        self.trainer: ServerParty
        self.started: GlobalBlock
        self.turn = 0
        self.stop_asked = False
        self.present: list[str] = []
        """Whose replies the last sums are of."""
        self.cycles: CycleServer | None = None

    def request(self) -> Message | None:
        """What to broadcast now; the same until `gather` is called."""
        if self.phase is None:
            return None
        arrays = getattr(self, f"_ask_{self.phase}")()
        self._request = Message(self.phase, self.round, "server", arrays, hash_arrays(arrays))
        return self._request

    def gather(self, replies: Iterable[Message]) -> dict[str, Any] | None:
        """Takes the replies (each is summed and dropped) and moves on; returns the round's record."""
        assert self._request is not None
        total: dict[str, np.ndarray] = {}
        count = received = 0
        senders = []
        for reply in replies:
            if (reply.kind, reply.round, reply.block) != (
                self._request.kind,
                self.round,
                self._request.block,
            ):
                raise MessageError(f"a reply from {reply.sender} belongs to another request")
            reply.check_finite()
            received += reply.nbytes
            count += 1
            senders.append(reply.sender)
            for name, array in reply.arrays.items():
                total[name] = total[name] + array if name in total else array
        if count:
            self.exchanges += 1
        elif self.phase != "finish":
            raise MessageError(f"no client answered the {self.phase} request")
        if self.phase == "round" and set(senders) != set(self.present):
            self.trainer.bounds.clear()  # bounds of different clients do not compare
        self.present = senders or self.present
        record = getattr(self, f"_take_{self.phase}")(total, count)
        if record is not None:
            record |= {
                "clients": count,
                "bytes_up": received,
                "bytes_down": self._request.nbytes * count,
            }
            self.history.append(record)
            log.info("round %d: bound %s", record["round"], record["bound"])
        return record

    # census and extent ------------------------------------------------------------------------

    def _ask_census(self) -> dict[str, np.ndarray]:
        return {}

    def _take_census(self, sums: dict[str, np.ndarray], count: int) -> None:
        self.census, self.clients = sums, count
        rows = sums["rows"]
        self.x_centre = sums["x_sum"] / rows
        self.x_spread = census.pooled_spread(sums)
        if self.plan.domain is None:
            self.phase = "extent"
            return
        lower, upper = (np.asarray(side, np.float64) for side in self.plan.domain)
        self._settle(lower, upper, sums["lag_sum"], sums["lag_pairs"], 1.0)

    def _ask_extent(self) -> dict[str, np.ndarray]:
        return {"centre": self.x_centre, "spread": self.x_spread}

    def _take_extent(self, sums: dict[str, np.ndarray], count: int) -> None:
        lower, upper = census.extent(sums["histogram"], self.x_centre, self.x_spread)
        spread = self.x_spread * np.sqrt(12.0)
        varies = (upper > lower) & (spread > 0)
        ratio = (
            float(np.exp(np.mean(np.log(spread[varies] / (upper - lower)[varies]))))
            if varies.any()
            else 1.0
        )
        self._settle(lower, upper, sums["lag_sum"], sums["lag_pairs"], ratio)

    def _settle(
        self,
        lower: np.ndarray,
        upper: np.ndarray,
        lag_sum: np.ndarray,
        lag_pairs: np.ndarray,
        ratio: float,
    ) -> None:
        """Scaling and starting scales; `ratio` turns the variogram's lags into the unit box's."""
        s = self.census
        seen = np.maximum(s["y_count"], 1.0)
        centre = s["y_sum"] / seen
        variance = np.maximum(s["y_square"] / seen - centre**2, 0.0)
        if not np.all(np.isfinite(variance)):
            raise InputError("outputs are too large to be summed: rescale them")
        spread = np.sqrt(variance)
        if self.plan.spec.noise == "scalar":
            spread = np.full_like(spread, np.sqrt(np.mean(variance)))
        tiny = spread <= 1e-12 * np.maximum(np.abs(centre), 1e-300)
        spread = np.where(tiny | (spread == 0), np.maximum(np.abs(centre) * 1e-6, 1e-9), spread)
        if not self.plan.scale_outputs:
            centre, spread = np.zeros_like(centre), np.ones_like(spread)
        self.scaling = Scaling(lower, upper, centre, spread)
        found = census.starting_scales(lag_sum, lag_pairs, spread**2)
        self.scales = Scales(
            min(found.short * ratio, 0.3),
            min(found.long * ratio, 0.35),
            found.short_variance,
            found.long_variance,
            found.noise_variance,
        )
        self.phase = "start" if self.plan.cycles is None else "cycles"

    # the cycle layer --------------------------------------------------------------------------

    def _ask_cycles(self) -> dict[str, np.ndarray]:
        choice, spec = self.plan.cycles, self.plan.spec
        assert choice is not None
        if self.cycles is None:
            self.cycles = CycleServer.start(
                choice,
                noise=spec.noise,
                outputs=spec.outputs,
                inputs=spec.inputs,
                rows=self._rows_a_client(),
                scales=self.scales,
            )
        return {**self._scaling_arrays(), **self.cycles.request()}

    def _take_cycles(self, sums: dict[str, np.ndarray], count: int) -> None:
        assert self.cycles is not None
        self.cycles.gather(sums, count)
        if not self.cycles.settled:
            return
        layer = self.cycles.layer
        noise = float(np.mean(np.diagonal(layer.noise))) / max(self.cycles.cycles, 1.0)
        self.scales = replace(self.scales, noise_variance=max(noise, QUIETEST))
        log.info("cycle layer: %s, %d basis functions", layer.form, len(layer.basis.inputs))
        self.phase = "start"

    def _rows_a_client(self) -> float:
        return float(self.census["rows"][0]) / self.clients

    def _scaling_arrays(self) -> dict[str, np.ndarray]:
        return {
            name: getattr(self.scaling, name) for name in ("lower", "upper", "centre", "spread")
        }

    # training ---------------------------------------------------------------------------------

    def _ask_start(self) -> dict[str, np.ndarray]:
        plan, spec = self.plan, self.plan.spec
        seed = None if self.attempt == 0 else plan.seed + self.attempt
        inputs = self._starting_inputs()
        moment = np.eye(spec.outputs)
        cross = self.census.get("y_cross")
        if cross is not None:
            pairs = np.maximum(self.census["y_pairs"], 1.0)
            outer = self.scaling.centre[:, None] * self.scaling.centre[None, :]
            moment = (
                (cross / pairs - outer)
                / self.scaling.spread[:, None]
                / self.scaling.spread[None, :]
            )
        self._allow_for_residual(inputs)
        block = initial.global_block(spec, self.scales, moment, inputs, self.scaling.extent, seed)
        self.started = block
        self.trainer = plan.inference.server(spec, block)
        return {
            **self.trainer.request(),
            **self._scaling_arrays(),
            **({} if self.cycles is None else self.cycles.request()),
            "scales": np.array(list(self.scales.as_dict().values())),
            "attempt": np.asarray(float(self.attempt)),
        }

    def _allow_for_residual(self, inputs: np.ndarray) -> None:
        """Starts the noise no smaller than what the inducing inputs leave out.

        The bound charges that variance in units of the noise, and would else be best with no loadings at all.
        """
        spec, extent = self.plan.spec, self.scaling.extent
        if not spec.latents:
            return
        kernels = starting_kernels(
            spec.kernel, scale=self.scales.long, count=spec.latents, extent=extent
        )
        left = budget.box_residual(kernels, inputs, self.plan.inference.jitter)
        noise = max(self.scales.noise_variance, min(left * self.scales.long_variance, 0.5))
        self.scales = replace(self.scales, noise_variance=noise)

    def _starting_inputs(self) -> np.ndarray:
        plan, spec = self.plan, self.plan.spec
        rows = int(self.census["rows"][0])
        if spec.latents == 0:
            return np.zeros((0, spec.inputs))
        if plan.inducing != "auto":
            wanted = int(plan.inducing)
            if wanted > rows:
                warnings.warn(
                    f"{rows} rows in all: {rows} global inducing inputs instead of {wanted}",
                    BudgetWarning,
                    stacklevel=2,
                )
            return budget.box_points(min(wanted, rows), spec.inputs)
        kernels = starting_kernels(
            spec.kernel, scale=self.scales.long, count=spec.latents, extent=self.scaling.extent
        )
        cells = float(self.census["y_count"].sum()) / self.clients
        tolerance = budget.tolerance(self.scales.noise_variance, self.scales.long_variance, cells)
        cap = self._most_inputs()
        return budget.domain_budget(kernels, spec.inputs, tolerance, cap, plan.inference.jitter)

    def _most_inputs(self) -> int:
        """No more inducing inputs than rows; with cycles, which lie on one grid, than rows of a client."""
        rows = self.census["rows"][0] if self.cycles is None else self._rows_a_client()
        return min(self.plan.largest_inducing, max(int(rows), 1))

    def _take_start(self, sums: dict[str, np.ndarray], count: int) -> dict[str, Any]:
        record = self._record(self.trainer.gather(sums), "start")
        self.trainer.advance(self._other_inputs())
        self.phase, self.round, self._flat = "round", self.round + 1, 0
        self.turn = 2 if self.plan.inference.start_is_round else 1
        return record

    def _ask_round(self) -> dict[str, np.ndarray]:
        return self.trainer.request()

    def _take_round(self, sums: dict[str, np.ndarray], count: int) -> dict[str, Any]:
        bound = self.trainer.gather(sums)
        record = self._record(bound, "round")
        last = self.turn >= self.plan.inference.rounds or self.stop_asked
        if self._settled(bound, count) or last:
            shared = self.trainer.finish()
            bound = self.trainer.bounds[-1] if bound is not None else None
            record["bound"] = bound
            if self.best is None or (bound is not None and bound > self.best[0]):
                population = self.trainer.population()
                self.best = (bound, self.attempt, shared, population, self.trainer.jitter)
            self.attempt += 1
            again = self.attempt < self.plan.restarts and not self.stop_asked
            self.phase = "start" if again else "finish"
        else:
            self.trainer.advance(self._other_inputs())
        self.turn += 1
        self.round += 1
        return record

    def _settled(self, bound: float | None, clients: int) -> bool:
        """Whether two rounds in a row gained less than the tolerance."""
        if bound is None or len(self.trainer.bounds) < 2:
            self._flat = 0
            return False
        gain = bound - self.trainer.bounds[-2]
        self._flat = self._flat + 1 if gain < self.plan.tolerance * clients else 0
        return self._flat >= 2 and self.turn > self.plan.inference.patience

    def _other_inputs(self) -> np.ndarray | None:
        """More global inducing inputs, where the residual says that they are short."""
        plan = self.plan
        if plan.inducing != "auto" or plan.spec.latents == 0:
            return None
        size = len(self.trainer.block.inputs)
        cap = self._most_inputs()
        if self.trainer.shared_nats() <= budget.NATS or size >= cap:
            return None
        larger = min(budget.round_up(size + max(2, size // 4)), cap)
        log.info("global inducing inputs: %d instead of %d", larger, size)
        return budget.box_points(larger, plan.spec.inputs)

    def _ask_finish(self) -> dict[str, np.ndarray]:
        assert self.best is not None
        _, attempt, shared, _, jitter = self.best
        return {
            **block_to_arrays(shared.block),
            "mean": np.asarray(shared.mean),
            "covariance": np.asarray(shared.covariance),
            "jitter": np.asarray(jitter),
            "attempt": np.asarray(float(attempt)),
        }

    def _take_finish(self, sums: dict[str, np.ndarray], count: int) -> None:
        if count:
            assert self.best is not None
            means = {name: jnp.asarray(value / count) for name, value in sums.items()}
            population = Population(**{**means, "clients": jnp.asarray(float(count))})
            self.best = (*self.best[:3], population, self.best[4])
        self.phase = None

    # checkpoints ------------------------------------------------------------------------------

    def state(self) -> State:
        """The server's part of a checkpoint, between two exchanges: what it knows from sums."""
        plain: dict[str, Any] = {
            "plan": self.plan.to_json(),
            **{name: getattr(self, name) for name in COUNTERS},
            "history": self.history,
        }
        arrays: dict[str, np.ndarray] = {}
        if hasattr(self, "census"):
            plain["clients"] = self.clients
            arrays |= below("census", self.census)
            arrays |= {"x_centre": self.x_centre, "x_spread": self.x_spread}
        if hasattr(self, "scaling"):
            arrays |= below("scaling", vars(self.scaling))
            plain["scales"] = self.scales.as_dict()
        if self.cycles is not None:
            arrays |= below("cycles", self.cycles.request())
            plain["cycles"] = self.cycles.progress()
        if self.phase == "round":
            trainer = self.trainer.state()
            arrays |= block_arrays("started", self.started) | below("trainer", trainer.arrays)
            plain["trainer"] = dict(trainer.plain)
        if self.best is not None:
            bound, attempt, shared, population, jitter = self.best
            plain["best"] = {"bound": bound, "attempt": attempt, "jitter": float(jitter)}
            arrays |= block_arrays("best", shared.block)
            moments = {"mean": shared.mean, "covariance": shared.covariance}
            arrays |= below("best_moments", moments)
            arrays |= below("population", vars(population) if population is not None else {})
        return State(arrays, plain)

    def restore(self, state: State) -> None:
        """Puts `state` back; refuses where the plan is another one."""
        plain, mine = state.plain, self.plan.to_json()
        for name, value in mine.items():
            if plain["plan"].get(name) != value:
                raise InputError(f"`{name}` is not what the run began with: start it again")
        for name in COUNTERS:
            setattr(self, name, plain[name])
        self.history = list(plain["history"])
        if "clients" in plain:
            self.clients, self.census = int(plain["clients"]), state.part("census")
            self.x_centre, self.x_spread = state.array("x_centre"), state.array("x_spread")
        if "scales" in plain:
            self.scaling, self.scales = Scaling(**state.part("scaling")), Scales(**plain["scales"])
        if "cycles" in plain:
            choice = self.plan.cycles
            assert choice is not None
            layer = layer_from_arrays(state.part("cycles"))
            self.cycles = CycleServer(choice, self.plan.spec.noise, layer, **plain["cycles"])
        if "trainer" in plain:
            started = block_of(state, "started", self._kernels_like())
            assert started is not None
            self.started = started
            self.trainer = self.plan.inference.server(self.plan.spec, started)
            self.trainer.restore(State(state.part("trainer"), plain["trainer"]))
        if "best" in plain:
            self._restore_best(state)

    def _restore_best(self, state: State) -> None:
        best = state.plain["best"]
        block = block_of(state, "best", self._kernels_like())
        assert block is not None
        moments = (jnp.asarray(state.array(f"best_moments.{n}")) for n in ("mean", "covariance"))
        known = {name: jnp.asarray(array) for name, array in state.part("population").items()}
        population = Population(**known) if known else None
        shared = GlobalPosterior(block, *moments)
        self.best = (best["bound"], best["attempt"], shared, population, best["jitter"])

    def _kernels_like(self) -> Kernel:
        """Stacked kernels of the right form, for reading arrays back."""
        spec = self.plan.spec
        extent = self.scaling.extent
        return starting_kernels(spec.kernel, scale=0.2, count=spec.latents, extent=extent)

    def _record(self, bound: float | None, kind: str) -> dict[str, Any]:
        return {
            "round": self.round,
            "kind": kind,
            "attempt": self.attempt,
            "exchange": self.exchanges,
            "bound": None if bound is None else float(bound),
            "inducing": len(self.trainer.block.inputs),
        }
