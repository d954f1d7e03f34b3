"""The structured solver's clients, a batch of equal shapes: their steps, their sums, their posteriors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

import equinox as eqx
import jax
import numpy as np

from pfedhgp.base.arrays_of import Array
from pfedhgp.base.batching import on_host, on_numpy
from pfedhgp.gp.kernels import Kernel
from pfedhgp.gp.noise import Noise
from pfedhgp.inference.arrays import (
    State,
    block_from_arrays,
    for_some,
    statistics_to_arrays,
)
from pfedhgp.inference.jitter import not_finite, with_more_jitter
from pfedhgp.inference.lbfgs import Pairs
from pfedhgp.inference.protocols import Arrays
from pfedhgp.inference.starts.budget import round_up, spacing
from pfedhgp.inference.structured import client_state, client_step, long_series
from pfedhgp.inference.structured.bound import GlobalEvidence, Statistics
from pfedhgp.inference.structured.client_step import Broadcast, Info, StepOptions
from pfedhgp.inference.structured.coordinates import parameters
from pfedhgp.inference.structured.final_posteriors import final_posteriors
from pfedhgp.inference.structured.host import step as host
from pfedhgp.inference.structured.host.cells import Cells, residual_cost
from pfedhgp.inference.structured.host.opening_sums import CellSums
from pfedhgp.inference.structured.kept import kept_sums
from pfedhgp.inference.structured.traits import (
    SUMS,
    USUAL_NOISE,
    Expected,
    Population,
    Reference,
    TraitCurvature,
    predicted,
    traits_of,
    updated,
    wide_of,
)
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows, to_free
from pfedhgp.model.posterior import ClientPosterior, GlobalPosterior
from pfedhgp.model.spec import Spec

if TYPE_CHECKING:
    from pfedhgp.inference.structured.settings import Structured

First = TypeVar("First")
Last = TypeVar("Last")


@dataclass
class StructuredClients:
    """A batch of clients of equal shapes: their blocks, their rows and their last messages."""

    settings: Structured
    spec: Spec
    like: Kernel
    blocks: ClientBlock
    rows: Rows
    centre: np.ndarray = field(init=False)
    """Traits at the agreed start, from which those of the population are counted."""
    expected: Expected = field(init=False)
    """What a client's traits are expected to be: the population's, as all others tell it."""
    own: Statistics | None = None
    """What was last sent, see `own_sums`"""
    cell_sums: CellSums | None = None
    """Its U and y, where a smaller form of them is known"""
    own_block: GlobalBlock | None = None
    info: Info | None = None
    local_nats: np.ndarray | None = None
    pairs: Pairs = field(init=False)
    """What the last searches learned of the curvature."""
    curvature: TraitCurvature | None = None
    """In the traits, as it was last taken."""
    jitter: np.ndarray = field(init=False)
    names: tuple[str, ...] = ()
    drawn: tuple[np.ndarray, jax.Array] | None = None
    """Inducing inputs, and draws from what they leave out (see `long_series.residual_draws`)."""
    floor: np.ndarray = field(init=False)
    """The shortest local lengthscale that a client's rows can tell from noise, along each input."""

    def __post_init__(self) -> None:
        quiet = self.blocks.noise.at(np.full(self.spec.outputs, USUAL_NOISE))
        self._centre_at(
            self.blocks if self.rows.cycles is not None else replace(self.blocks, noise=quiet)
        )
        X, mask = np.asarray(self.rows.X), np.asarray(self.rows.mask)
        self.floor = np.stack([spacing(x[m.any(1)]) for x, m in zip(X, mask > 0, strict=True)])
        self.jitter = np.full(self.blocks.active.shape[0], self.settings.jitter)
        self.pairs = self.no_pairs()

    def no_pairs(self) -> Pairs:
        learned = parameters(self.blocks, inputs=self.options().learn_inputs)
        count = len(self.jitter)
        return Pairs.none(count, sum(leaf.size for leaf in jax.tree.leaves(learned)) // count)

    @cached_property
    def cells(self) -> Cells | None:
        """The rows as the host takes them; None where these clients need the compiled solver."""
        return self.rows_on_host if on_host() else None

    @cached_property
    def rows_on_host(self) -> Cells | None:
        """The same on any device; None if the host cannot compute these clients."""
        return host.host_cells(
            self.options(), on_numpy(self.rows), on_numpy(self.blocks), self.like
        )

    def on_host(
        self, shared: GlobalBlock, jitter: Array, others: GlobalEvidence, own_jitter: np.ndarray
    ) -> host.HostBatch:
        """The batch beside a global block, given the others' J and h and the clients' own jitter."""
        assert self.rows_on_host is not None
        own = host.HostClients(
            self.options(),
            on_numpy(self.rows),
            self.rows_on_host,
            on_numpy(self.blocks),
            self.expected,
            own_jitter,
            self.floor,
            self.pairs,
            self.curvature,
        )
        return host.batch_of(own, shared, float(jitter), others)

    def answer(
        self, arrays: Arrays, kind: str, names: tuple[str, ...]
    ) -> list[dict[str, np.ndarray]]:
        """The replies to a `start` or `round` broadcast, one for each client."""
        broadcast = self.broadcast_of(arrays)
        self.expect(arrays)
        small = None
        if arrays["evaluations"] or arrays["derivatives"]:
            others = None if self.settings.probes else self.others(broadcast)
            sums = self.improve(broadcast, others, names)
        else:
            sums, small = self.open(broadcast, names)
        if sums.traits is None:
            sums = replace(sums, traits=np.zeros((len(self.centre), SUMS, self.centre.shape[1])))
        if not self.settings.probes:  # the cavity needs them
            self.own = sums if small is None else replace(sums, U=np.zeros(0), y=np.zeros(0))
            self.cell_sums, self.own_block = small, broadcast.block
        return statistics_to_arrays(sums, derivatives=bool(arrays["derivatives"]))

    def broadcast_of(self, arrays: Arrays) -> Broadcast:
        """A request's arrays as the step takes them."""
        return Broadcast(
            block=block_from_arrays(arrays, self.like),
            J=np.asarray(arrays["J"]),
            h=np.asarray(arrays["h"]),
            kernels_free=arrays["kernels_free"],
            jitter=arrays["jitter"],
            evaluations=arrays["evaluations"],
            derivatives=arrays["derivatives"] if self.settings.learn_shared else None,
        )

    def forget_last_reply(self, stays: np.ndarray | None = None) -> None:
        """Clients' last sums are not in the totals: all of these are the others'.

        `stays` is true for those of the batch whose sums are; by default for none.
        """
        if stays is None or not stays.any():
            self.own = self.cell_sums = self.own_block = None
        elif (own := self.own_sums()) is not None:
            self.own = jax.tree.map(lambda a: for_some(np.asarray(a), stays), own)
            self.cell_sums = None

    def own_sums(self) -> Statistics | None:
        """What the clients last sent, whole."""
        if self.own is None or self.cell_sums is None:
            return self.own
        return replace(self.own, U=self.cell_sums.U(), y=self.cell_sums.y())

    def others(self, broadcast: Broadcast) -> GlobalEvidence:
        """The others' J and h: all but each client's own last sums; at the start the totals are 0."""
        own = self.own_sums()
        if own is None or self.own_block is None:
            count = self.blocks.active.shape[0]
            return GlobalEvidence(
                *(np.broadcast_to(v[None], (count, *v.shape)) for v in (broadcast.J, broadcast.h))
            )
        structure = self.spec.structure
        return client_step.batched_others(structure, broadcast, self.own_block, own)

    def _centre_at(self, blocks: ClientBlock) -> None:
        """Counts traits from these blocks, and expects what is expected before anyone has replied."""
        free = to_free(on_numpy(blocks))
        self.centre = traits_of(self.spec.structure, free)
        self._expect(
            np.zeros((SUMS, self.centre.shape[1])), Population.unknown(self.centre.shape[1])
        )

    def expect(self, arrays: Arrays) -> None:
        """Takes the population from a broadcast; a client's own part in it is left out."""
        if "traits" in arrays:
            self._expect(np.asarray(arrays["traits"]), Population(*np.asarray(arrays["traits_at"])))

    def _expect(self, total: np.ndarray, at: Population) -> None:
        others = np.broadcast_to(total, (len(self.centre), *total.shape))
        if self.own is not None and self.own.traits is not None:
            others = others - np.asarray(self.own.traits)
        wide = wide_of(self.spec, own_phi=self.blocks.deviation.shape[-1] > 0)
        found = predicted(others, at, wide)
        now = updated(total, at, wide)
        asked = Reference(self.centre + now.mean, np.broadcast_to(now.variance, self.centre.shape))
        self.expected = Expected(self.centre + found.mean, 1.0 / found.variance, asked)

    def improve(
        self, broadcast: Broadcast, others: GlobalEvidence | None, names: tuple[str, ...]
    ) -> Statistics:
        """Each client's step given the others' J and h (None: at q(v_g)); returns their sums."""
        if others is None:
            step = self._step_at_q(broadcast)
        else:
            step = partial(self.step, broadcast, others)
        self.blocks, sums, info = self._with_enough_jitter(step, names)
        self.info, self.local_nats = info, np.asarray(info.local_nats)
        self.pairs = Pairs(*(np.asarray(each) for each in info.pairs))
        self.curvature = info.curvature
        return sums

    def step(
        self, broadcast: Broadcast, others: GlobalEvidence, jitter: np.ndarray
    ) -> tuple[ClientBlock, Statistics, Info]:
        if self.cells is not None:
            batch = self.on_host(broadcast.block, broadcast.jitter, others, np.asarray(jitter))
            return host.step(batch, broadcast)
        return client_step.batched_step(
            self.options(),
            broadcast,
            others,
            self.blocks,
            self.expected,
            self.rows,
            jitter,
            self.floor,
            self.pairs,
        )

    def _step_at_q(
        self, broadcast: Broadcast
    ) -> Callable[[np.ndarray], tuple[ClientBlock, Statistics, Info]]:
        """The step at q(v_g); the seed of its probes is the same at all clients and in all rounds."""
        mean_and_probes = long_series.mean_and_probes(
            self.settings.probes, 0, broadcast.J, broadcast.h
        )
        return lambda jitter: client_step.batched_step_at_q(
            self.options(),
            broadcast,
            mean_and_probes,
            self._residual_draws(broadcast),
            self.blocks,
            self.expected,
            self.rows,
            jitter,
            self.floor,
            self.pairs,
        )

    def _residual_draws(self, broadcast: Broadcast) -> jax.Array | None:
        """What Z_g leaves out, drawn at the clients' rows; θ_g stays, so once for each set of inputs."""
        if not self.settings.probes:
            return None
        inputs = np.asarray(broadcast.block.inputs)
        if self.drawn is None or not np.array_equal(self.drawn[0], inputs):
            s = self.settings
            found = long_series.batched_residual_draws(
                s.probes, 0, s.chunk, broadcast.block, self.rows.X, broadcast.jitter
            )
            self.drawn = (inputs, found)
        return self.drawn[1]

    def open(
        self, broadcast: Broadcast, names: tuple[str, ...]
    ) -> tuple[Statistics, CellSums | None]:
        """The sums at the starting values, with noise that fits them, and a small form of them if known."""
        residual_draws = self._residual_draws(broadcast)

        def look(jitter: np.ndarray) -> tuple[Noise, Statistics, tuple[Array, CellSums | None]]:
            if self.cells is not None:
                count = len(self.jitter)
                nothing = GlobalEvidence(
                    *(
                        np.broadcast_to(0.0, (count, *np.shape(v)))
                        for v in (broadcast.J, broadcast.h)
                    )
                )
                noise, sums, nats, small = host.opening(
                    self.on_host(broadcast.block, broadcast.jitter, nothing, jitter)
                )
                return noise, sums, (nats, small)
            noise, sums, nats = client_step.batched_opening(
                self.options(), broadcast, self.blocks, self.rows, jitter, residual_draws
            )
            return noise, sums, (nats, None)

        noise, sums, (nats, small) = self._with_enough_jitter(look, names)
        self.blocks = eqx.tree_at(lambda b: b.noise, self.blocks, noise)
        self.local_nats = np.asarray(nats)
        return sums, small

    def _with_enough_jitter(
        self, step: Callable[[np.ndarray], tuple[First, Statistics, Last]], names: tuple[str, ...]
    ) -> tuple[First, Statistics, Last]:
        """If a client's factorisation fails, its local jitter is raised tenfold, up to 1e-2."""
        self.names = names
        while True:
            found = step(np.asarray(self.jitter))
            failed = not_finite(found[1], len(self.jitter))
            if not failed.any():
                return found
            self.jitter = with_more_jitter(self.jitter, failed, self.blocks, names)

    def options(self) -> StepOptions:
        settings = self.settings
        return StepOptions(
            self.spec.structure,
            settings.learn_inducing is True,
            settings.chunk,
            settings.probes,
            settings.learn_shared,
        )

    def replace_inputs(self, inputs: list[np.ndarray | None]) -> None:
        now = [
            np.asarray(self.blocks.inputs[i])[np.asarray(self.blocks.active[i]) > 0]
            for i in range(len(inputs))
        ]
        chosen = [old if new is None else new for old, new in zip(now, inputs, strict=True)]
        most = max(len(Z) for Z in chosen)
        size = round_up(most) if self.cells is None else most  # only compiled sizes are a ladder
        padded = np.stack([np.pad(Z, ((0, size - len(Z)), (0, 0)), mode="edge") for Z in chosen])
        active = np.stack([np.arange(size) < len(Z) for Z in chosen]).astype(np.float64)
        where = lambda b: (b.inputs, b.active)  # noqa: E731
        self.blocks = eqx.tree_at(where, self.blocks, (padded, active))
        if self.options().learn_inputs:  # there are other coordinates now
            self.pairs = self.no_pairs()

    def residual_cost(self) -> np.ndarray | None:
        """½ Σ_n R max_a b_aᵀΠb_a of each client; NaN while its kernels are where they began.

        None also where there are so few cells that these are factorised, and not the weights.
        """
        if self.cells is None or self.own_block is None or not self.spec.local_latents:
            return None
        layers = self.spec.latents * (2 if self.spec.deviation else 1)
        weights = layers * len(self.own_block.inputs)
        weights += self.spec.local_latents * self.blocks.inputs.shape[1]
        if self.cells.Y[0].size <= weights:
            return None
        free = to_free(on_numpy(self.blocks))
        now = traits_of(self.spec.structure, free)
        kernels = sum(leaf[0].size for leaf in jax.tree.leaves(free.kernels))
        moved = (now != self.centre)[:, :kernels].any(1)
        return np.where(moved, residual_cost(free.noise, self.cells, free.loadings), np.nan)

    def state(self) -> State:
        """Blocks, what is expected of them, and the statistics last sent, which the cavity needs."""
        return client_state.state_of(self)

    def restore(self, state: State) -> None:
        client_state.restore(self, state)

    def final_replies(
        self, shared: GlobalPosterior, found: list[ClientPosterior]
    ) -> list[dict[str, np.ndarray]]:
        """None: the statistics said it all."""
        return []

    def posteriors(
        self,
        shared: GlobalPosterior,
        jitter: float,
        others: GlobalEvidence | None = None,
    ) -> list[ClientPosterior]:
        """What each client keeps for prediction. `others`: their J and h, by default all but its own."""
        return final_posteriors(self, shared, jitter, others)

    kept = kept_sums
    """What each client keeps for updates, at the parameters of its posterior."""
