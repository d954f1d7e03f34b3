"""The structured solver as two parties: what the server keeps and does, and what clients keep and do.

A round is one exchange. The server broadcasts θ_g, B_g, φ, ΣJ and Σh; each client improves its own block
on its cavity bound and returns its sums; the server then takes the exact step in B_g, a Newton step in
θ_g, and the closed form for φ. Kernels are held for the first rounds, while loadings and noise find
their place.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pfedhgp import linalg
from pfedhgp.errors import NumericsError, NumericsWarning
from pfedhgp.inference import client as client_step
from pfedhgp.inference.arrays import (
    block_from_arrays,
    block_to_arrays,
    stack_trees,
    statistics_from_arrays,
    statistics_to_arrays,
)
from pfedhgp.inference.averaging import Averaging, batched_average, parameters
from pfedhgp.inference.budget import round_up
from pfedhgp.inference.client import Broadcast, Info, StepOptions
from pfedhgp.inference.coordinates import theta_of, with_theta
from pfedhgp.inference.grams import accumulate
from pfedhgp.inference.parties import Arrays
from pfedhgp.inference.server import ServerOptions, improve, scale_of_deviations
from pfedhgp.inference.state import (
    State,
    below,
    block_arrays,
    block_of,
    statistics_arrays,
    statistics_of,
    tree_from_arrays,
    tree_to_arrays,
)
from pfedhgp.inference.state_posterior import batched_states, distinct_states
from pfedhgp.inference.structured import Statistics, design_of
from pfedhgp.inference.structured_posterior import client_posterior, evidence_of
from pfedhgp.inference.surrogate import Surrogate
from pfedhgp.kernels import Kernel
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows, Structure
from pfedhgp.model.posterior import ClientPosterior, GlobalPosterior, Population
from pfedhgp.model.spec import Spec
from pfedhgp.together import together

LARGEST_JITTER = 1e-2


@dataclass(frozen=True)
class Structured:
    """Settings of the structured solver."""

    rounds: int = 10
    evaluations: int = 40
    first_evaluations: int = 60
    frozen_rounds: int = 2
    radius: float = 0.3
    largest_radius: float = 0.8
    learn_inducing: bool = False
    """Whether Z_i and Z_g move while training."""
    averaging: Averaging | None = field(default_factory=Averaging)
    """Whether, and how, predictions average over a client's parameters."""
    jitter: float = 1e-8
    chunk: int = 1024
    patience: int = 4

    name = "structured"
    start_is_round = False
    knows_bound = True

    def server(self, spec: Spec, block: GlobalBlock) -> StructuredServer:
        return StructuredServer(self, spec, block)

    def clients(
        self, spec: Spec, like: Kernel, blocks: ClientBlock, rows: Rows
    ) -> StructuredClients:
        return StructuredClients(self, spec, like, blocks, rows)


class StructuredServer:
    """θ_g, B_g, φ and the last sums. `request` says what to broadcast, `gather` takes the clients' sums."""

    def __init__(self, settings: Structured, spec: Spec, block: GlobalBlock) -> None:
        self.settings, self.spec = settings, spec
        self.block = block
        self.jitter = settle_jitter(block, settings.jitter)
        self.anchor = theta_of(spec.structure, block)
        size = block.loadings.shape[1] * block.inputs.shape[0]
        self.J, self.h = jnp.zeros((size, size)), jnp.zeros(size)
        self.turn = 0
        self.radius = settings.radius
        self.before: GlobalBlock | None = None
        self.bounds: list[float] = []
        self.total: Surrogate | None = None

    def request(self) -> dict[str, np.ndarray]:
        """The arrays of the next broadcast."""
        frozen = self.turn <= self.settings.frozen_rounds
        count = self.settings.first_evaluations if frozen else self.settings.evaluations
        count = count if self.turn else 0
        return {
            **block_to_arrays(self.block),
            "J": np.asarray(self.J),
            "h": np.asarray(self.h),
            "jitter": np.asarray(self.jitter),
            "kernels_free": np.asarray(0.0 if frozen else 1.0),
            "evaluations": np.asarray(float(count)),
            "derivatives": np.asarray(1.0 if self._will_move() else 0.0),
        }

    def _will_move(self) -> bool:
        """Whether θ_g moves after this round."""
        return self._moves_before(self.turn + 1)

    def _moves_before(self, turn: int) -> bool:
        """Whether θ_g moves on the way to round `turn`: not while it is held, nor to the last round.

        Nothing could take back a step to the last round that lowers the bound. Training of a few rounds takes
        the chance.
        """
        held, rounds = self.settings.frozen_rounds, self.settings.rounds
        return held < turn < rounds or held < turn == rounds <= held + 3

    def gather(self, sums: Arrays) -> float:
        """Takes the summed statistics and returns the bound at the block that was broadcast."""
        self.total = Surrogate(self.block, statistics_from_arrays(sums, len(self.anchor)))
        bound = float(_value(self.spec.structure, self.total, self.block.loadings))
        self.bounds.append(bound)
        self.turn += 1
        return bound

    def advance(self, inputs: np.ndarray | None = None) -> None:
        """Moves the block for the next round; to other inducing inputs where given."""
        assert self.total is not None
        structure, total = self.spec.structure, self.total
        self._set_radius()
        moving = self._moves_before(self.turn)
        radius = np.float64(self.radius if moving else 0.0)
        options = ServerOptions(structure)
        new, _ = improve(options, total, self.anchor, radius, np.float64(self.jitter))
        if self._fell() and self.before is not None:
            back = with_theta(structure, new, theta_of(structure, self.before))
            new = eqx.tree_at(
                lambda b: b.loadings, back, back.loadings if structure.tied else new.loadings
            )
        if self.spec.deviation and not structure.tied:
            entries = total.sums.clients * self.block.loadings.size
            phi = scale_of_deviations(jnp.trace(total.sums.deviation_power), entries)
            new = eqx.tree_at(lambda b: b.phi, new, phi)
        if inputs is None and total.sums.d_inputs is not None and moving:
            inputs = self._moved_inputs(np.asarray(total.sums.d_inputs))
        if inputs is not None:
            new = eqx.tree_at(lambda b: b.inputs, new, jnp.asarray(inputs))
        self.jitter = max(self.jitter, settle_jitter(new, self.settings.jitter))
        self.before, self.block = self.block, new
        self.J, self.h = _carried(structure, total, new, np.float64(self.jitter))

    def _moved_inputs(self, gradient: np.ndarray) -> np.ndarray:
        """Z_g uphill by at most a tenth of its spacing times the trust radius; back where the bound fell."""
        now = np.asarray(self.block.inputs)
        if self._fell() and self.before is not None and self.before.inputs.shape == now.shape:
            return np.asarray(self.before.inputs)
        spacing = len(now) ** (-1.0 / now.shape[1])
        steepest = max(float(np.abs(gradient).max()), 1e-300)
        step = 0.1 * self.radius / self.settings.radius * spacing
        return np.clip(now + step * gradient / steepest, 0.0, 1.0)

    def finish(self) -> GlobalPosterior:
        """The exact step in B_g at the last θ_g, and q(v_g) solved there."""
        assert self.total is not None
        structure, total = self.spec.structure, self.total
        options = ServerOptions(structure)
        block, _ = improve(options, total, self.anchor, np.float64(0.0), np.float64(self.jitter))
        J, h = _carried(structure, total, block, np.float64(self.jitter))
        self.block = block
        self.bounds[-1] = float(_value(structure, total, block.loadings))
        mean, covariance = _moments(J, h)
        return GlobalPosterior(block, mean, covariance)

    def shared_nats(self) -> float:
        """What the global inducing inputs cost, per client: ½ Σ res/σ² of the global and deviation layers."""
        assert self.total is not None
        sums, B = self.total.sums, self.block.loadings
        count = max(float(sums.clients), 1.0)
        of_global = jnp.einsum("qr,rqp,pr->", B, sums.shared_residual, B)
        typical = sums.deviation_power / (count * max(B.shape[1], 1))
        of_deviation = jnp.einsum("rqp,qp->", sums.shared_residual, typical)
        return 0.5 * float(of_global + of_deviation) / count

    def population(self) -> Population:
        assert self.total is not None
        sums = self.total.sums
        count = sums.clients
        return Population(
            sums.deviation_power / count, sums.local_power / count, sums.noise / count, count
        )

    def state(self) -> State:
        """What the next exchange depends on; the sums of the last one are used up."""
        arrays = {
            **block_arrays("block", self.block),
            **block_arrays("before", self.before),
            "anchor": np.asarray(self.anchor),
            "J": np.asarray(self.J),
            "h": np.asarray(self.h),
            "bounds": np.asarray(self.bounds, np.float64),
        }
        return State(arrays, {"jitter": self.jitter, "turn": self.turn, "radius": self.radius})

    def restore(self, state: State) -> None:
        like = self.block.kernels
        block = block_of(state, "block", like)
        assert block is not None
        self.block, self.before = block, block_of(state, "before", like)
        self.anchor, self.J, self.h = (jnp.asarray(state.array(n)) for n in ("anchor", "J", "h"))
        self.bounds = state.array("bounds").tolist()
        self.jitter, self.radius = float(state.plain["jitter"]), float(state.plain["radius"])
        self.turn = int(state.plain["turn"])

    def _fell(self) -> bool:
        """Whether the last step lowered the bound by more than clients' own noise in it."""
        if len(self.bounds) < 2 or self.turn <= self.settings.frozen_rounds + 1:
            return False
        clients = float(self.total.sums.clients) if self.total else 1.0
        return self.bounds[-1] < self.bounds[-2] - 0.05 * clients

    def _set_radius(self) -> None:
        if self.turn <= self.settings.frozen_rounds + 1:
            return
        grown = min(1.7 * self.radius, self.settings.largest_radius)
        self.radius = 0.4 * self.radius if self._fell() else grown


@dataclass
class StructuredClients:
    """A batch of clients of equal shapes: their blocks, their rows and their last messages."""

    settings: Structured
    spec: Spec
    like: Kernel
    blocks: ClientBlock
    rows: Rows
    anchors: ClientBlock = field(init=False)
    own: Statistics | None = None
    own_block: GlobalBlock | None = None
    info: Info | None = None
    local_nats: np.ndarray | None = None
    jitter: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.anchors = self.blocks
        self.jitter = np.full(self.blocks.active.shape[0], self.settings.jitter)

    def answer(
        self, arrays: Arrays, kind: str, names: tuple[str, ...]
    ) -> list[dict[str, np.ndarray]]:
        """The replies to a `start` or `round` broadcast, one a client."""
        broadcast = Broadcast(
            block=block_from_arrays(arrays, self.like),
            J=jnp.asarray(arrays["J"]),
            h=jnp.asarray(arrays["h"]),
            kernels_free=jnp.asarray(arrays["kernels_free"]),
            jitter=jnp.asarray(arrays["jitter"]),
            evaluations=jnp.asarray(int(arrays["evaluations"])),
            derivatives=jnp.asarray(int(arrays["derivatives"])),
        )
        if self.own is None or self.own_block is None:
            count = self.blocks.active.shape[0]
            rest = jax.tree.map(lambda v: jnp.zeros((count, *v.shape)), (broadcast.J, broadcast.h))
        else:
            structure = self.spec.structure
            rest = client_step.batched_rest(structure, broadcast, self.own_block, self.own)
        self.own = self.improve(broadcast, rest, names)
        self.own_block = broadcast.block
        return statistics_to_arrays(self.own, derivatives=bool(arrays["derivatives"]))

    def improve(
        self, broadcast: Broadcast, rest: tuple[jax.Array, jax.Array], names: tuple[str, ...]
    ) -> Statistics:
        """Each client's step given the others' J and h; returns their sums.

        Where a client's factorisation fails, its local jitter is raised tenfold, up to 1e-2.
        """
        while True:
            blocks, sums, info = client_step.batched_step(
                self._options(),
                broadcast,
                rest,
                self.blocks,
                self.anchors,
                self.rows,
                jnp.asarray(self.jitter),
            )
            failed = ~np.isfinite(np.asarray(sums.evidence))
            if not failed.any():
                self.blocks, self.info, self.local_nats = blocks, info, np.asarray(info.local_nats)
                return sums
            if self.jitter[failed].max() >= LARGEST_JITTER:
                raise NumericsError(
                    "a factorisation failed at the largest jitter",
                    client=names[int(np.flatnonzero(failed)[0])],
                    matrix="k(Z_i, Z_i)",
                )
            warnings.warn(
                f"{failed.sum()} of {len(failed)} clients need a larger jitter: a factorisation failed",
                NumericsWarning,
                stacklevel=2,
            )
            self.jitter = np.where(failed, 10.0 * self.jitter, self.jitter)

    def _options(self) -> StepOptions:
        settings = self.settings
        return StepOptions(self.spec.structure, settings.learn_inducing, settings.chunk)

    def replace_inputs(self, inputs: list[np.ndarray | None]) -> None:
        """Gives clients other local inducing inputs; None leaves a client's as they are."""
        now = [
            np.asarray(self.blocks.inputs[i])[np.asarray(self.blocks.active[i]) > 0]
            for i in range(len(inputs))
        ]
        chosen = [old if new is None else new for old, new in zip(now, inputs, strict=True)]
        size = round_up(max(len(Z) for Z in chosen))
        padded = np.stack([np.pad(Z, ((0, size - len(Z)), (0, 0)), mode="edge") for Z in chosen])
        active = np.stack([np.arange(size) < len(Z) for Z in chosen]).astype(np.float64)
        where = lambda b: (b.inputs, b.active)  # noqa: E731
        self.blocks = eqx.tree_at(where, self.blocks, (jnp.asarray(padded), jnp.asarray(active)))
        self.anchors = eqx.tree_at(where, self.anchors, (jnp.asarray(padded), jnp.asarray(active)))

    def state(self) -> State:
        """Blocks, where their priors stand, and the statistics that were last sent, for the cavity."""
        nats = {} if self.local_nats is None else {"local_nats": np.asarray(self.local_nats)}
        return State(
            {
                **below("blocks", tree_to_arrays(self.blocks)),
                **below("anchors", tree_to_arrays(self.anchors)),
                **statistics_arrays("own", self.own),
                **block_arrays("own_block", self.own_block),
                **nats,
                "jitter": np.asarray(self.jitter),
            }
        )

    def restore(self, state: State) -> None:
        like = self.blocks
        self.blocks = tree_from_arrays(state.part("blocks"), like)
        self.anchors = tree_from_arrays(state.part("anchors"), like)
        self.own, self.own_block = (
            statistics_of(state, "own"),
            block_of(state, "own_block", self.like),
        )
        self.local_nats = state.arrays.get("local_nats")
        self.jitter = state.array("jitter")

    def last_words(
        self, shared: GlobalPosterior, found: list[ClientPosterior]
    ) -> list[dict[str, np.ndarray]]:
        """None: the statistics said it all."""
        return []

    def posteriors(
        self,
        shared: GlobalPosterior,
        jitter: float,
        rest: tuple[jax.Array, jax.Array] | None = None,
    ) -> list[ClientPosterior]:
        """What each client keeps for prediction. `rest`: the others' J and h, by default all but its own."""
        count = self.blocks.active.shape[0]
        settings, few = self.settings.averaging, self._short_of_rows()
        plain = _posteriors(
            self._options(),
            shared.block,
            self.blocks,
            self.rows,
            jnp.asarray(jitter),
            jnp.asarray(self.jitter),
        )
        found = [jax.tree.map(lambda leaf, i=i: leaf[i], plain) for i in range(count)]
        if self.spec.state_space:
            return self._with_states(shared, found, jitter)
        if settings is None or not few.any():
            return found
        averaged = batched_average(
            self._options(),
            settings,
            shared.block,
            jnp.asarray(jitter),
            self._rest_of(shared, jitter) if rest is None else rest,
            self.blocks,
            self.anchors,
            self.rows,
            jnp.asarray(self.jitter),
        )
        for i in np.flatnonzero(few):
            one = jax.tree.map(lambda leaf, i=i: leaf[i], averaged)
            if all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(one)):
                found[i] = one
        return found

    def _with_states(
        self, shared: GlobalPosterior, found: list[ClientPosterior], jitter: float
    ) -> list[ClientPosterior]:
        """Adds the local functions' states at each client's times; parameters are not averaged."""
        means = np.asarray(
            batched_states(
                self._options(),
                shared,
                jnp.asarray(jitter),
                stack_trees([p.marginal(shared)[0] for p in found]),
                self.blocks,
                self.rows,
            )
        )
        X, mask = np.asarray(self.rows.X), np.asarray(self.rows.mask)
        return [
            replace(posterior, states=distinct_states(X[i, :, 0], mask[i], means[i]))
            for i, posterior in enumerate(found)
        ]

    def _short_of_rows(self) -> np.ndarray:
        """Which clients have so few cells for their parameters that averaging over these matters."""
        if self.settings.averaging is None:
            return np.zeros(self.blocks.active.shape[0], bool)
        learned = jax.tree.leaves(parameters(self.blocks, noise=self.rows.cycles is None))
        each = sum(leaf.size for leaf in learned) / self.blocks.active.shape[0]
        cells = np.asarray(self.rows.mask).sum(axis=(1, 2))
        return (cells <= self.settings.averaging.cells * each) & (each > 0)

    def _rest_of(self, shared: GlobalPosterior, jitter: float) -> tuple[jax.Array, jax.Array]:
        """The others' J and h at the final block."""
        assert self.own is not None
        assert self.own_block is not None
        J, h = evidence_of(shared)
        final = Broadcast(
            block=shared.block,
            J=J,
            h=h,
            kernels_free=jnp.asarray(1.0),
            jitter=jnp.asarray(jitter),
            evaluations=jnp.asarray(0),
            derivatives=jnp.asarray(0),
        )
        return client_step.batched_rest(self.spec.structure, final, self.own_block, self.own)


@together(static=1)
def _posteriors(
    options: StepOptions,
    shared: GlobalBlock,
    blocks: ClientBlock,
    rows: Rows,
    jitter: jax.Array,
    local_jitter: jax.Array,
) -> ClientPosterior:
    basis = shared.basis(jitter)
    size = basis.factor.shape[0] * basis.factor.shape[1]

    def one(block: ClientBlock, rows: Rows, own: jax.Array) -> ClientPosterior:
        design = design_of(options.structure, shared, basis, block, own)
        return client_posterior(accumulate(rows, design, chunk=options.chunk), block, size)

    return jax.vmap(one)(blocks, rows, local_jitter)


@together(static=1)
def _value(structure: Structure, total: Surrogate, loadings: jax.Array) -> jax.Array:
    return total.value(structure, loadings)


@together(static=1)
def _carried(
    structure: Structure, total: Surrogate, block: GlobalBlock, jitter: float
) -> tuple[jax.Array, jax.Array]:
    return total.carried(structure, block, jitter)


_moments = together()(linalg.posterior_moments)


@together()
def _factor(block: GlobalBlock, jitter: float) -> jax.Array:
    return block.basis(jitter).factor


def settle_jitter(block: GlobalBlock, jitter: float) -> float:
    """The smallest tenfold multiple of `jitter` at which the shared kernels factorise."""
    while True:
        factor = np.asarray(_factor(block, np.float64(jitter)))
        if np.all(np.isfinite(factor)):
            return jitter
        if jitter >= LARGEST_JITTER:
            raise NumericsError(
                "a factorisation failed at the largest jitter", matrix="k(Z_g, Z_g)"
            )
        jitter *= 10.0
