"""The paper's Algorithm 1 as two parties; the same calls as the structured solver's.

The server never learns the bound (clients send S̃_i and nothing else while training), so training runs for all
its rounds. With the last delivery each client answers with E[f_δ f_δᵀ], E[f_l f_lᵀ] and Σ, which unseen
clients need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from pfedhgp.base.batching import batchable
from pfedhgp.base.checks import Check, flag, number, one_of, optional, whole
from pfedhgp.base.trees import stack_trees
from pfedhgp.errors import NonFiniteError, NumericsError
from pfedhgp.gp.kernels import Kernel
from pfedhgp.inference.arrays import State, below, tree_from_arrays, tree_to_arrays
from pfedhgp.inference.jitter import (
    LARGEST_JITTER,
    LOCAL,
    next_jitter,
    not_finite,
    sufficient_jitter,
    warn_of_jitter,
    with_more_jitter,
)
from pfedhgp.inference.meanfield import bound as meanfield
from pfedhgp.inference.meanfield import steps as meanfield_steps
from pfedhgp.inference.meanfield.bound import JITTER, GlobalState, MeanFieldOptions
from pfedhgp.inference.own_weights import squares
from pfedhgp.inference.protocols import Arrays
from pfedhgp.inference.structured.bound import design_of
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows, Structure
from pfedhgp.model.kept_sums import KeptSums
from pfedhgp.model.posterior import ClientPosterior, GlobalPosterior, Population, without_unseen
from pfedhgp.model.spec import Spec

_SETTINGS: Mapping[str, Check] = {
    "rounds": whole(1),
    "local_steps": whole(1),
    "local_rate": number(above=0.0),
    "server_rate": optional(number(above=0.0)),
    "server_optimizer": one_of("adam", "sgd"),
    "learn_inducing": flag,
    "jitter": number(above=0.0),
    "chunk": whole(1),
}

RATE = 0.1
"""The paper's rate of the server's step."""
LARGEST_STEP = 10.0
"""No coordinate of Θ_global moves further in one step: inputs are in the unit box, outputs of variance 1."""


@dataclass(frozen=True)
class MeanField:
    """Settings of the mean-field inference (the paper's Algorithm 1), with the paper's values.

    Example:
        >>> from pfedhgp import FederatedGP, MeanField
        >>> model = FederatedGP(inference=MeanField(server_optimizer="sgd", local_steps=40))
    """

    rounds: int = 20
    local_steps: int = 80
    local_rate: float = 0.1
    server_rate: float | None = None
    """Rate of the server's step. None: 0.1 for Adam, as in the paper. The plain gradient is a sum over
    cells, so its rate is 0.1 over their number (rows × outputs)."""
    server_optimizer: Literal["adam", "sgd"] = "adam"
    """The server's step: "adam", or "sgd", the plain gradient."""
    learn_inducing: bool = True
    jitter: float = JITTER
    chunk: int = 4096

    name = "mean-field"
    patience = 0
    start_is_round = True
    knows_bound = False

    def __post_init__(self) -> None:
        for name, check in _SETTINGS.items():
            object.__setattr__(self, name, check(getattr(self, name), name))

    def options(self, spec: Spec) -> MeanFieldOptions:
        return MeanFieldOptions(
            structure=spec.structure,
            local_steps=self.local_steps,
            local_rate=self.local_rate,
            server_rate=RATE if self.server_rate is None else self.server_rate,
            server_optimizer=self.server_optimizer,
            learn_inputs=self.learn_inducing,
            chunk=self.chunk,
        )

    def for_cells(self, cells: int) -> MeanField:
        """The settings of a server whose clients have this many cells in all."""
        if self.server_rate is not None or self.server_optimizer == "adam":
            return self
        return replace(self, server_rate=RATE / max(cells, 1))

    def rounds_to_settle(self, spec: Spec) -> int:
        return 0

    def server(self, spec: Spec, block: GlobalBlock) -> MeanFieldServer:
        return MeanFieldServer(self, spec, block)

    def clients(
        self, spec: Spec, like: Kernel, blocks: ClientBlock, rows: Rows
    ) -> MeanFieldClients:
        return MeanFieldClients(self, spec, like, blocks, rows)


class MeanFieldServer:
    """Θ_global and its optimiser. The global KL is held here alone."""

    def __init__(self, settings: MeanField, spec: Spec, block: GlobalBlock) -> None:
        self.options = settings.options(spec)
        self.start = block
        self.now = meanfield_steps.server_init(self.options, block)
        self.jitter = sufficient_jitter(block, settings.jitter)
        self.gradient: GlobalState | None = None
        self.bounds: list[float] = []

    @property
    def block(self) -> GlobalBlock:
        return meanfield.global_block(self.options, self.now.free)

    def request(self) -> dict[str, np.ndarray]:
        """Θ_global in its unconstrained coordinates."""
        named = meanfield_steps.gradient_to_arrays(self.now.free)
        return {**below("free", named), "jitter": np.asarray(self.jitter)}

    def gather(self, sums: Arrays) -> None:
        """Takes Σ S̃_i; there is no bound to return."""
        self.gradient = meanfield_steps.gradient_from_arrays(sums, self.now.free)

    def advance(self, inputs: np.ndarray | None = None) -> None:
        """One step on eq. global_gradient; inducing inputs move with it, their number does not change."""
        assert self.gradient is not None
        assert inputs is None
        before = self.now.free
        self.now = meanfield_steps.server_update(self.options, self.now, self.gradient)
        self._expect_small_step(before)
        self.jitter = sufficient_jitter(self.block, self.jitter)

    def _expect_small_step(self, before: GlobalState) -> None:
        """A step that diverged is refused here: clients would fail on it later, and be blamed."""
        steps = jax.tree.leaves(jax.tree.map(jnp.subtract, self.now.free, before))
        if all(bool(jnp.all(jnp.abs(step) <= LARGEST_STEP)) for step in steps):
            return
        finite = all(bool(jnp.all(jnp.isfinite(step))) for step in steps)
        raise (NumericsError if finite else NonFiniteError)(
            f"the server's step diverged: give a `server_rate` below {self.options.server_rate:.3g}",
            matrix="the global block",
        )

    def finish(self) -> GlobalPosterior:
        self.advance()
        return meanfield.global_posterior(self.options, self.now.free)

    def state(self) -> State:
        """Θ_global and its optimiser's moments; the last gradient is used up."""
        return State(below("state", tree_to_arrays(self.now)), {"jitter": self.jitter})

    def restore(self, state: State) -> None:
        self.now = tree_from_arrays(state.part("state"), self.now)
        self.jitter = float(state.plain["jitter"])

    def population(self) -> Population | None:
        """Not known from gradients; the clients' final replies say it."""
        return None

    def shared_nats(self) -> float:
        """Not known from gradients."""
        return 0.0


class MeanFieldClients:
    """A batch of clients of equal shapes: their coordinates, Adam's moments and their rows."""

    local_nats: np.ndarray | None = None

    def __init__(
        self, settings: MeanField, spec: Spec, like: Kernel, blocks: ClientBlock, rows: Rows
    ) -> None:
        # Clients compile the same steps whatever the server's are.
        usual = replace(settings, server_rate=None, server_optimizer="adam")
        self.options, self.spec, self.like = usual.options(spec), spec, like
        self.blocks, self.rows = blocks, rows
        self.jitter = np.full(blocks.active.shape[0], settings.jitter)
        self.states: Any = None
        self.reference: GlobalState | None = None

    def answer(
        self, arrays: Arrays, kind: str, names: tuple[str, ...]
    ) -> list[dict[str, np.ndarray]]:
        """S̃_i of each client after its local steps."""
        broadcast = self._read(arrays)
        if kind == "start" or self.states is None:
            shared = meanfield.global_block(self.options, broadcast)
            self.states = jax.vmap(
                lambda block: meanfield_steps.client_init(self.options, block, shared)
            )(self.blocks)
        self.jitter = np.maximum(self.jitter, float(arrays["jitter"]))
        while True:
            jitter = jnp.asarray(self.jitter.max())
            states, gradient, info = meanfield_steps.batched_client_update(
                self.options, broadcast, self.states, self.rows, jitter
            )
            failed = not_finite((info.after, gradient), len(names))
            if not failed.any():
                break
            self._raise_jitter(broadcast, failed, np.isfinite(np.asarray(info.before)), names)
        self.states = states
        each = [jax.tree.map(lambda leaf, i=i: leaf[i], gradient) for i in range(len(failed))]
        return [meanfield_steps.gradient_to_arrays(one) for one in each]

    def _raise_jitter(
        self,
        broadcast: GlobalState,
        failed: np.ndarray,
        started: np.ndarray,
        names: tuple[str, ...],
    ) -> None:
        """Ten times the jitter for all clients; an error if a client's matrices had their factors."""
        shared = meanfield.global_block(self.options, broadcast)
        blocks = jax.vmap(lambda free: meanfield.client_block(self.options, free, shared))(
            self.states.free
        )
        same = np.full(len(names), self.jitter.max())
        first = int(np.flatnonzero(failed)[0])
        only = np.arange(len(names)) == first
        if started[first]:  # a step on the way failed: its matrices are not at hand
            if same[first] >= LARGEST_JITTER:
                raise NonFiniteError(
                    "the bound is not finite after the local steps: a smaller `local_rate` may help",
                    client=names[first],
                    matrix=LOCAL,
                )
            more = next_jitter(float(same[first]), names[first], LOCAL)
            warn_of_jitter(LOCAL, [names[first]], more)
        else:
            more = float(with_more_jitter(same, only, blocks, names)[first])
        self.jitter = np.full(len(names), more)

    def forget_last_reply(self, stays: np.ndarray | None = None) -> None:
        """Nothing to do: a client's step depends on Θ_global alone, not on what was summed."""

    def residual_cost(self) -> None:
        """Sizes are compiled: inputs stay."""

    def replace_inputs(self, inputs: list[np.ndarray | None]) -> None:
        """The number of local inducing inputs is fixed here: q(v_l) belongs to them."""
        raise NotImplementedError("mean-field keeps its local inducing inputs")

    def _read(self, arrays: Arrays) -> GlobalState:
        named = {k.removeprefix("free."): v for k, v in arrays.items() if k.startswith("free.")}
        size = len(named["q.mean"])
        latents = self.spec.latents
        like = self._global_like(np.zeros((size // max(latents, 1), self.spec.inputs)))
        return meanfield_steps.gradient_from_arrays(
            named, meanfield.global_coordinates(self.options, like)
        )

    def _global_like(self, inputs: np.ndarray) -> GlobalBlock:
        """A global block of the right form."""
        return GlobalBlock(
            self.like,
            jnp.asarray(inputs),
            jnp.ones((self.spec.outputs, self.spec.latents)),
            jnp.ones(()),
        )

    def posteriors(self, shared: GlobalPosterior, jitter: float) -> list[ClientPosterior]:
        """What each client keeps for prediction: its factors, independent of v_g."""
        found = [
            meanfield.client_posterior(
                self.options,
                jax.tree.map(lambda leaf, i=i: leaf[i], self.states.free),
                shared.block,
            )
            for i in range(len(self.jitter))
        ]
        return without_unseen(found, np.asarray(self.rows.mask))

    def kept(
        self, shared: GlobalPosterior, jitter: float, found: Sequence[ClientPosterior]
    ) -> list[KeptSums | None]:
        """None: factors are searched for, and are no function of sums."""
        return [None] * len(found)

    def state(self) -> State:
        """Each client's coordinates and its Adam's moments."""
        own = {} if self.states is None else below("states", tree_to_arrays(self.states))
        return State({**own, "jitter": np.asarray(self.jitter)})

    def restore(self, state: State) -> None:
        self.jitter = state.array("jitter")
        if not state.has("states"):
            return
        shared = self._global_like(np.zeros((0, self.spec.inputs)))
        form = jax.eval_shape(
            jax.vmap(lambda block: meanfield_steps.client_init(self.options, block, shared)),
            self.blocks,
        )
        self.states = tree_from_arrays(state.part("states"), form)

    def final_replies(
        self, shared: GlobalPosterior, found: list[ClientPosterior]
    ) -> list[dict[str, np.ndarray]]:
        """E[f_δ f_δᵀ], E[f_l f_lᵀ] and Σ of each client, for the population."""
        found_squares = _batched_squares(
            self.spec.structure, shared, stack_trees(found), jnp.asarray(self.jitter.max())
        )
        deviation, local = (np.asarray(square) for square in found_squares)
        return [
            {
                "deviation_square": deviation[i],
                "local_square": local[i],
                "noise": np.asarray(client.block.noise.covariance(self.spec.outputs)),
                "clients": np.ones(()),
            }
            for i, client in enumerate(found)
        ]


@batchable(static=1, effort="lowest")
def _batched_squares(
    structure: Structure, shared: GlobalPosterior, clients: ClientPosterior, jitter: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """E[f_δ f_δᵀ] and E[f_l f_lᵀ] of each client."""
    basis = shared.block.basis(jitter)

    def one(client: ClientPosterior) -> tuple[jax.Array, jax.Array]:
        design = design_of(structure, shared.block, basis, client.block, jitter)
        return squares(structure, design, client.marginal(shared))

    return jax.vmap(one)(clients)
