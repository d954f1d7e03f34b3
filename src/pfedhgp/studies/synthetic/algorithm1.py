"""The paper's Algorithm 1 with the settings of its section "Fitted ILMM–pFedHGP configuration and training".

M = M_i = 25 on grids over the domain, ℓ_g = 2.0, ℓ_i = .35, unit variances, σ² that of the simulator, 20
rounds of 80 Adam steps at .1 and one server step at .1. The paper's learning rates are for the data's own
units, so nothing is scaled here. The paper does not say where loadings and φ start: here loadings start at
0.5·N(0, 1) and φ at 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from pfedhgp.estimator import FederatedGP
from pfedhgp.federation.plan import Plan
from pfedhgp.gp.kernels import RBF, Kernel
from pfedhgp.gp.noise import DiagonalNoise
from pfedhgp.inference.meanfield.training import MeanField, MeanFieldClients, MeanFieldServer
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows
from pfedhgp.model.spec import Spec
from pfedhgp.settings.table import ModelSettings
from pfedhgp.studies.synthetic.simulator import DOMAIN, NOISE_SD

INDUCING = 25
LOADING_SCALE = 0.5


@dataclass(frozen=True)
class AsPrinted(MeanField):
    """`mean-field` from the paper's starting values instead of ours."""

    seed: int = 0

    def server(self, spec: Spec, block: GlobalBlock) -> MeanFieldServer:
        rng = np.random.default_rng([self.seed, 0])
        loadings = LOADING_SCALE * rng.standard_normal(block.loadings.shape)
        start = GlobalBlock(
            block.kernels, _grid(block.inputs.shape[0]), jnp.asarray(loadings), jnp.ones(())
        )
        return super().server(spec, start)

    def clients(
        self, spec: Spec, like: Kernel, blocks: ClientBlock, rows: Rows
    ) -> MeanFieldClients:
        rng = np.random.default_rng([self.seed, 1])
        count, size = blocks.active.shape
        loadings, deviation = (
            jnp.asarray(LOADING_SCALE * rng.standard_normal(np.shape(array)))
            for array in (blocks.loadings, blocks.deviation)
        )
        noise = DiagonalNoise(jnp.full((count, 1), 2.0 * np.log(NOISE_SD)))
        start = eqx.tree_at(
            lambda b: (b.inputs, b.active, b.loadings, b.deviation, b.noise),
            blocks,
            (
                jnp.tile(_grid(size)[None], (count, 1, 1)),
                jnp.ones((count, size)),
                loadings,
                deviation,
                noise,
            ),
        )
        return super().clients(spec, like, start, rows)


class Algorithm1(FederatedGP):
    """A `FederatedGP` of mean-field inference that works in the data's own units."""

    def make_plan(self, settings: ModelSettings, inputs: int, outputs: int) -> Plan:
        plan = super().make_plan(settings, inputs, outputs)
        return replace(plan, scale_outputs=False, domain=(np.zeros(inputs), np.ones(inputs)))


def settings(*, rounds: int | None, seed: int) -> dict:
    """What to construct `Algorithm1` with."""
    return {
        "kernel": RBF(2.0),
        "local_kernel": RBF(0.35),
        "inducing": INDUCING,
        "local_inducing": INDUCING,
        "noise": "scalar",
        "inference": AsPrinted(seed=seed),
        "rounds": rounds,
    }


def _grid(size: int) -> jnp.ndarray:
    return jnp.linspace(*DOMAIN, size)[:, None]
