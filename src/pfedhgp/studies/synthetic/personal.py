"""pFedGP as the paper adapts it: personal multi-output GPs whose kernel hyperparameters are averaged.

Each client has a multi-output GP of its own (loadings, noise, an inducing input at each row: it is exact).
A round: the server broadcasts the averaged kernel; each client takes it over, improves all of its model on
its own evidence, and returns its kernel's logarithms; the server averages them (FedAvg). In the last round
the averaged kernel is held, and only loadings and noise follow it: predictions are made with the kernel
that all share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from pfedhgp.gp.kernels import Kernel
from pfedhgp.inference.protocols import Arrays
from pfedhgp.inference.structured.averaging import Averaging
from pfedhgp.inference.structured.bound import GlobalEvidence
from pfedhgp.inference.structured.client_step import Broadcast
from pfedhgp.inference.structured.settings import Structured, StructuredClients
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows
from pfedhgp.model.posterior import ClientPosterior, GlobalPosterior, Population
from pfedhgp.model.spec import Spec


@dataclass(frozen=True)
class Personal(Structured):
    """Settings; the rounds are the paper's, the search within a round is ours; predictions are plug-ins."""

    rounds: int = 20
    patience: int = 0
    averaging: Averaging | None = None

    name = "pfedgp"
    start_is_round = True
    knows_bound = False

    def server(self, spec: Spec, block: GlobalBlock) -> PersonalServer:  # type: ignore[override]
        return PersonalServer(self, block)

    def clients(self, spec: Spec, like: Kernel, blocks: ClientBlock, rows: Rows) -> PersonalClients:
        return PersonalClients(self, spec, like, blocks, rows)


class PersonalServer:
    """The averaged kernel; there is no global layer."""

    def __init__(self, settings: Personal, block: GlobalBlock) -> None:
        self.settings, self.block, self.jitter = settings, block, settings.jitter
        self.kernel = np.zeros(0)
        self.round = 0
        self.bounds: list[float] = []

    def request(self) -> dict[str, np.ndarray]:
        """log of the averaged kernel (none before the first round), and whether it is held."""
        held = self.round > 0 and self.round >= self.settings.rounds - 1
        return {
            "kernel": self.kernel,
            "kernels_free": np.asarray(0.0 if held else 1.0),
            "evaluations": np.asarray(float(self.settings.evaluations)),
        }

    def gather(self, sums: Arrays) -> None:
        self.kernel = sums["kernel"] / sums["clients"]
        self.round += 1

    def advance(self, inputs: np.ndarray | None = None) -> None:
        """The average is all there is."""

    def finish(self) -> GlobalPosterior:
        return GlobalPosterior(self.block, jnp.zeros(0), jnp.zeros((0, 0)))

    def population(self) -> Population | None:
        return None

    def shared_nats(self) -> float:
        return 0.0


class PersonalClients(StructuredClients):
    """Clients without a global layer, which use the kernel that they are sent."""

    def answer(
        self, arrays: Arrays, kind: str, names: tuple[str, ...]
    ) -> list[dict[str, np.ndarray]]:
        count = self.blocks.active.shape[0]
        if arrays["kernel"].size:
            _, unravel = _flat(self.blocks.kernels, 0)
            shared = unravel(jnp.exp(jnp.asarray(arrays["kernel"])))
            kernels = jax.tree.map(lambda leaf: jnp.tile(leaf, (count,) + (1,) * leaf.ndim), shared)
            self.blocks = eqx.tree_at(lambda b: b.kernels, self.blocks, kernels)
        outputs, d = self.spec.outputs, self.spec.inputs
        nothing = GlobalBlock(self.like, jnp.zeros((0, d)), jnp.zeros((outputs, 0)), jnp.ones(()))
        broadcast = Broadcast(
            block=nothing,
            J=jnp.zeros((0, 0)),
            h=jnp.zeros(0),
            kernels_free=arrays["kernels_free"],
            jitter=self.settings.jitter,
            evaluations=arrays["evaluations"],
            derivatives=0,
            share=0.0,
        )
        others = GlobalEvidence(jnp.zeros((count, 0, 0)), jnp.zeros((count, 0)))
        self.improve(broadcast, others, names)
        logs = [np.log(_flat(self.blocks.kernels, i)[0]) for i in range(count)]
        return [{"kernel": kernel, "clients": np.ones(())} for kernel in logs]

    def final_replies(
        self, shared: GlobalPosterior, found: list[ClientPosterior]
    ) -> list[dict[str, np.ndarray]]:
        """B_l B_lᵀ and Σ of each client, for the population."""
        outputs = self.spec.outputs
        return [
            {
                "deviation_square": np.zeros((outputs, outputs)),
                "local_square": np.asarray(client.block.loadings @ client.block.loadings.T),
                "noise": np.asarray(client.block.noise.covariance(outputs)),
                "clients": np.ones(()),
            }
            for client in found
        ]


def _flat(kernels: Kernel, client: int) -> tuple[jax.Array, Callable[[jax.Array], Kernel]]:
    """A client's kernel as a vector, and the way back."""
    return ravel_pytree(jax.tree.map(lambda leaf: leaf[client], kernels))
