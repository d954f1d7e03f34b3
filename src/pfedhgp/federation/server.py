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

from pfedhgp.errors import BudgetWarning, MessageError
from pfedhgp.federation import preparation, server_state
from pfedhgp.federation.messages import Message, hash_arrays
from pfedhgp.federation.opening import Frame, Opening, opened, too_few, warn_of_fewer
from pfedhgp.federation.plan import Plan
from pfedhgp.gp.kernels import Kernel
from pfedhgp.inference import ending
from pfedhgp.inference.arrays import block_to_arrays
from pfedhgp.inference.cycles.exchange import CycleServer
from pfedhgp.inference.function_sizes import population_of
from pfedhgp.inference.protocols import ServerParty
from pfedhgp.inference.starts import budget, candidates, census, shared_scale
from pfedhgp.inference.starts.candidates import Start
from pfedhgp.inference.starts.periodogram import starting_period
from pfedhgp.inference.state import State, below
from pfedhgp.model.blocks import GlobalBlock
from pfedhgp.model.posterior import GlobalPosterior, Population
from pfedhgp.model.spec import Spec, starting_kernels, with_periods

log = logging.getLogger("pfedhgp")
LARGEST_INDUCING = 256
"""The most global inducing inputs of an automatic budget, unless the plan says otherwise."""
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
        self.party: ServerParty
        self.started: GlobalBlock
        self.openings: list[Opening] = []
        self.starts: dict[int, Start] = {}
        """Where each attempt started."""
        self.chosen = 0
        self.compared = False
        self.learn = False
        self.shared_is_short = False
        self.spec: Spec = plan.spec
        self.crowd: tuple[np.ndarray, np.ndarray] | None = None
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
            if not total:
                total = dict(reply.arrays)
            elif self.phase == "census":
                total = census.merged(total, dict(reply.arrays))
            else:
                total = {name: total[name] + array for name, array in reply.arrays.items()}
        if count:
            self.exchanges += 1
        elif self.phase != "finish":
            raise MessageError(f"no client answered the {self.phase} request")
        if self.phase == "round" and set(senders) != set(self.present):
            self.party.bounds.clear()  # bounds of different clients do not compare
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
        self._agree_scaling(lower, upper, sums, upper - lower)

    def _ask_extent(self) -> dict[str, np.ndarray]:
        asked = {"centre": self.x_centre, "spread": self.x_spread}
        bins = shared_scale.bins_for(self._rows_a_client())
        if bins and self._chooses_between_clients():
            asked["bins"] = np.asarray(float(bins))
        return asked

    def _chooses_between_clients(self) -> bool:
        plan = self.plan
        several = self.clients > 1 and plan.cycles is None
        return several and plan.inference.knows_bound and candidates.asks_between_clients(plan.spec)

    def _take_extent(self, sums: dict[str, np.ndarray], count: int) -> None:
        lower, upper = census.extent(sums["histogram"], self.x_centre, self.x_spread)
        self.crowd = census.crowd(sums["histogram"], self.x_centre, self.x_spread)
        self._agree_scaling(lower, upper, sums, self.x_spread * np.sqrt(12.0))

    def _agree_scaling(
        self,
        lower: np.ndarray,
        upper: np.ndarray,
        sums: dict[str, np.ndarray],
        width: np.ndarray,
    ) -> None:
        """Scaling and starting scales; clients took lags and waves in units of `width`."""
        self.scaling = preparation.scaling_of(self.plan, self.census, lower, upper)
        self.scales = preparation.scales_of(self.scaling, sums, width)
        self.shared_is_short = preparation.shared_is_short(self.scaling, self.scales, sums, width)
        if "waves" in sums:
            periods = np.array([starting_period(total) for total in sums["waves"]])
            self.take_periods(periods * np.where(width > 0, width, 1.0))
        self.phase = "start" if self.plan.cycles is None else "cycles"

    def take_periods(self, periods: np.ndarray) -> None:
        """Open periods start where waves explain most, in the data's units."""
        self.periods = periods
        self.spec = with_periods(self.plan.spec, periods)

    def _cells(self) -> np.ndarray:
        """Observed cells of each output."""
        return np.diagonal(self.census["y_pairs"])

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
        if not self.cycles.done:
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
        plan, frame = self.plan, self._frame()
        seed = None if self.attempt == 0 else plan.seed + self.attempt
        wanted = self._wanted_starts()
        if self.attempt == 0:
            warn_of_fewer(plan, self.spec, frame)
        if self.attempt == 0 and getattr(plan.inference, "learn_inducing", False) == "auto":
            self.learn = too_few(plan, self.spec, frame, wanted[0])
        found = [
            opened(plan, self.spec, frame, start, seed=seed, learn=self.learn) for start in wanted
        ]
        most = candidates.LARGEST_MESSAGE // max(self.spec.latents * self.spec.outputs, 1)
        self.openings = found[:1] + [o for o in found[1:] if len(o.block.inputs) <= most]
        asked: dict[str, np.ndarray] = {}
        for k, opening in enumerate(self.openings):
            own = {**opening.party.request(), "scales": opening.start.as_array()}
            asked |= below(f"other {k}", own) if k else own
        return {
            **asked,
            **self._scaling_arrays(),
            **({} if self.cycles is None else self.cycles.request()),
            **({} if self.spec is plan.spec else {"periods": self.periods}),
            **({} if self.crowd is None else {"crowd": np.stack(self.crowd)}),
            **({"learn": np.ones(())} if self.learn else {}),
            "attempt": np.asarray(float(self.attempt)),
        }

    def _wanted_starts(self) -> list[Start]:
        """Those that the first exchange compares, or another one for a restart."""
        plan = self.plan
        if self.attempt == 0:
            return candidates.first(
                self.spec,
                self.scales,
                compare=plan.inference.knows_bound,
                shared_is_short=self.shared_is_short,
            )
        return [
            candidates.again(
                self.scales,
                self.starts[0],
                compared=self.compared or not self.spec.tied,
                attempt=self.attempt,
                seed=plan.seed,
            )
        ]

    def _frame(self) -> Frame:
        pairs = np.maximum(self.census["y_pairs"], 1.0)
        spread = self.scaling.spread[:, None] * self.scaling.spread[None, :]
        return Frame(
            extent=self.scaling.extent,
            moment=self.census["y_cross"] / pairs / spread,
            cells=float(self._cells().sum()) / self.clients,
            most=self._most_inputs(),
            rows=int(self.census["rows"][0]),
        )

    def _most_inputs(self) -> int:
        """No more inducing inputs than rows; with cycles, which lie on one grid, than rows of a client."""
        rows = self.census["rows"][0] if self.cycles is None else self._rows_a_client()
        return min(self._largest(), max(int(rows), 1))

    def _largest(self) -> int:
        """What the plan allows; by default less where messages, of the size (R Q M)², would be long."""
        if self.plan.largest_inducing is not None:
            return self.plan.largest_inducing
        each = max(self.spec.latents * self.spec.outputs, 1)
        return int(np.clip(candidates.LARGEST_MESSAGE // each, 128, LARGEST_INDUCING))

    def _take_start(self, sums: dict[str, np.ndarray], count: int) -> dict[str, Any]:
        replies = State(sums)
        own = {name: array for name, array in sums.items() if not name.startswith("other ")}
        parts = [own, *(replies.part(f"other {k}") for k in range(1, len(self.openings)))]
        bounds = [o.party.gather(part) for o, part in zip(self.openings, parts, strict=True)]
        best = candidates.best_of(bounds, float(self._cells().sum()))
        self._take_opening(best, bounds)
        record = self._record(bounds[best], "start")
        self.party.advance(self._other_inputs())
        self.phase, self.round, self._flat = "round", self.round + 1, 0
        self.turn = 2 if self.plan.inference.start_is_round else 1
        return record

    def _take_opening(self, best: int, bounds: list[float | None]) -> None:
        """Training goes on from one of the starts."""
        chosen = self.openings[best]
        if len(bounds) > 1:
            self.compared = True
            log.info("starts: bounds %s, number %d is taken", bounds, best)
        self.chosen, self.starts[self.attempt] = best, chosen.start
        self.party, self.started = chosen.party, chosen.block
        self.openings = []

    def _ask_round(self) -> dict[str, np.ndarray]:
        """Where starts were compared and the first was not the best, clients hear which one was."""
        which = {"chosen": np.asarray(float(self.chosen))} if self.chosen else {}
        return {**self.party.request(), **which}

    def _take_round(self, sums: dict[str, np.ndarray], count: int) -> dict[str, Any]:
        bound = self.party.gather(sums)
        record = self._record(bound, "round")
        last = self.turn >= self.plan.inference.rounds or self.stop_asked
        converged = self._converged(bound, count)
        if converged or last:
            self._warn_of_cap()
            shared = self.party.finish()
            bound = self.party.bounds[-1] if bound is not None else None
            record["bound"] = bound
            record["ended"] = ending.how(
                self.party.bounds,
                converged=converged,
                asked=self.stop_asked,
                slack=self.plan.tolerance * count,
            )
            if self.best is None or (bound is not None and bound > self.best[0]):
                population = self._of_those_who_saw(self.party.population())
                self.best = (bound, self.attempt, shared, population, self.party.jitter)
            self.attempt += 1
            again = self.attempt < self.plan.restarts and not self.stop_asked
            self.phase = "start" if again else "finish"
        else:
            self.party.advance(self._other_inputs())
        self.turn += 1
        self.round += 1
        return record

    def _of_those_who_saw(self, population: Population | None) -> Population | None:
        """Means over the clients that observed an output: loadings of the others are zero, not small.

        Of T clients T_q did: sums were divided by T, and for deviations by T − 1 (see `population_of`), where
        T_q and T_q − 1 are right.
        """
        if population is None:
            return None
        T, T_q = self.clients, np.maximum(self.census["y_clients"], 1.0)
        up = np.sqrt(T / T_q)
        own = up if self.spec.structure.tied else np.sqrt(max(T - 1, 1) / np.maximum(T_q - 1, 1))
        local, deviation = (jnp.asarray(np.outer(v, v)) for v in (up, own))
        return replace(
            population,
            deviation_power=population.deviation_power * deviation,
            local_power=population.local_power * local,
            division=population.division * deviation * local,
        )

    def _converged(self, bound: float | None, clients: int) -> bool:
        """Whether two rounds in a row gained less than the tolerance, and no round before was better."""
        if bound is None or len(self.party.bounds) < 2:
            self._flat = 0
            return False
        bounds, slack = self.party.bounds, self.plan.tolerance * clients
        self._flat = self._flat + 1 if bound - bounds[-2] < slack else 0
        patient = self.turn > self.plan.inference.patience
        return self._flat >= 2 and patient and ending.may_end(bounds, slack)

    def _other_inputs(self) -> np.ndarray | None:
        """More global inducing inputs, where the residual says that they are short."""
        plan = self.plan
        if plan.inducing != "auto" or plan.spec.latents == 0:
            return None
        size = len(self.party.block.inputs)
        cap = self._most_inputs()
        if self.party.shared_nats() <= budget.NATS or size >= cap:
            return None
        larger = min(budget.round_up(size + max(2, size // 4)), cap)
        log.info("global inducing inputs: %d instead of %d", larger, size)
        return budget.box_points(larger, plan.spec.inputs)

    def _warn_of_cap(self) -> None:
        """Says so where automatic inducing inputs ended at their largest number, and are too few."""
        size, largest = len(self.party.block.inputs), self._largest()
        if self.plan.inducing != "auto" or size < largest or not self.spec.latents:
            return
        nats = self.party.shared_nats()
        if nats > budget.NATS:
            warnings.warn(
                f"{largest} global inducing inputs, the most allowed, are too few for the data's "
                f"lengthscales ({nats:.1f} nats a client are lost): raise `largest_inducing`",
                BudgetWarning,
                stacklevel=2,
            )

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
            population = population_of(
                self.spec.structure,
                jnp.asarray(sums["deviation_square"]),
                jnp.asarray(sums["local_square"]),
                jnp.asarray(sums["noise"]),
                jnp.asarray(float(count)),
            )
            self.best = (*self.best[:3], self._of_those_who_saw(population), self.best[4])
        self.phase = None

    # checkpoints ------------------------------------------------------------------------------

    def state(self) -> State:
        """The server's part of a checkpoint."""
        return server_state.state_of(self)

    def restore(self, state: State) -> None:
        """Puts `state` back; refuses where the plan is another one."""
        server_state.restore(self, state)

    def kernels_like(self) -> Kernel:
        """Stacked kernels of the right form, for reading arrays back."""
        spec, extent = self.spec, self.scaling.extent
        return starting_kernels(spec.kernel, scale=0.2, count=spec.latents, extent=extent)

    def _record(self, bound: float | None, kind: str) -> dict[str, Any]:
        return {
            "round": self.round,
            "kind": kind,
            "attempt": self.attempt,
            "exchange": self.exchanges,
            "bound": None if bound is None else float(bound),
            "inducing": len(self.party.block.inputs),
        }
