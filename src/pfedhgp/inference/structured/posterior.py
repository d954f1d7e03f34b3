"""What training leaves of each client: the structured solver's q(w | v_g), and states of local functions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pfedhgp.base.arrays_of import Array
from pfedhgp.base.batching import batchable
from pfedhgp.gp import state_space
from pfedhgp.gp.kernels import Kernel
from pfedhgp.inference.grams import Grams, accumulate
from pfedhgp.inference.own_weights import condition
from pfedhgp.inference.structured.bound import GlobalEvidence, design_of
from pfedhgp.inference.structured.client_step import StepOptions
from pfedhgp.model.blocks import (
    ClientBlock,
    GlobalBlock,
    Rows,
    deviation_loadings,
    global_loadings,
)
from pfedhgp.model.posterior import ClientPosterior, GlobalPosterior, LocalStates


def client_posterior(grams: Grams, block: ClientBlock, k: int) -> ClientPosterior:
    """W = I + Λ_cc: offset W⁻¹η_c, G = W⁻¹Λ_cg, covariance W⁻¹; the first `k` weights are v_g."""
    return ClientPosterior(block, *condition(grams, k).conditional())


def evidence_of(shared: GlobalPosterior) -> GlobalEvidence:
    """What made q(v_g) of its prior: J = S⁻¹ − I, no eigenvalue below 0 by rounding, and h = S⁻¹m."""
    values, vectors = np.linalg.eigh(np.asarray(shared.covariance))
    values = np.clip(values, 1e-12, 1.0)
    J = (vectors * (1.0 / values - 1.0)[None, :]) @ vectors.T
    mean = np.asarray(shared.mean)
    return GlobalEvidence(J, J @ mean + mean)


@batchable(static=1, effort="low")
def batched_posteriors(
    options: StepOptions,
    shared: GlobalBlock,
    blocks: ClientBlock,
    rows: Rows,
    jitter: jax.Array,
    local_jitter: jax.Array,
) -> ClientPosterior:
    """`client_posterior` for a batch of clients of equal shapes, at their own blocks."""
    basis = shared.basis(jitter)
    size = basis.factor.shape[0] * basis.factor.shape[1]

    def one(block: ClientBlock, rows: Rows, own: jax.Array) -> ClientPosterior:
        design = design_of(options.structure, shared, basis, block, own)
        return client_posterior(accumulate(rows, design, chunk=options.chunk), block, size)

    if options.structure.state_space and not options.structure.deviation:
        return _without_weights(blocks, size)
    return jax.vmap(one)(blocks, rows, local_jitter)


def _without_weights(blocks: ClientBlock, size: int) -> ClientPosterior:
    """Clients that have no weights of their own: local functions are states, and there is no deviation."""
    count = blocks.active.shape[0]
    return ClientPosterior(
        block=blocks,
        offset=jnp.zeros((count, 0)),
        G=jnp.zeros((count, 0, size)),
        covariance=jnp.zeros((count, 0, 0)),
    )


@batchable(static=1)
def batched_states(
    options: StepOptions,
    shared: GlobalPosterior,
    jitter: Array,
    weights: Float[Array, "clients K"],
    blocks: ClientBlock,
    rows: Rows,
) -> Float[Array, "clients Q n s"]:
    """E[x_q(t)] at every row: smoothing y − H E[v], which is exact because it is linear in v."""
    basis = shared.block.basis(jitter)
    latents, size = basis.factor.shape[:2]

    def one(block: ClientBlock, rows: Rows, own: Array) -> Array:
        A = basis.features(rows.X)
        B_g = global_loadings(shared.block, block)
        B_dev = deviation_loadings(options.structure, shared.block, block)
        fitted = jnp.einsum("qr,rmn,rm->nq", B_g, A, shared.mean.reshape(latents, size))
        deviation = own.reshape(B_dev.shape[1], size)
        fitted += jnp.einsum("qr,rmn,rm->nq", B_dev, A[: B_dev.shape[1]], deviation)
        variances = jnp.diagonal(block.noise.covariance(rows.Y.shape[1]))

        def output(
            kernel: Kernel, scale: Array, variance: Array, left: Array, count: Array
        ) -> Array:
            series = state_space.Series.of_means(rows.X[:, 0], count, variance)
            model = state_space.StateModel.of(kernel)
            return state_space.smooth(model, scale, series, left[:, None])[0][:, :, 0]

        return jax.vmap(output)(
            block.kernels,
            jnp.diagonal(block.loadings),
            variances,
            (rows.Y - fitted).T,
            rows.mask.T,
        )

    return jax.vmap(one)(blocks, rows, weights)


def distinct_states(times: np.ndarray, mask: np.ndarray, means: np.ndarray) -> LocalStates:
    """Each time once, with what was observed there in all; times without an observation are dropped."""
    kept = mask.any(axis=1)
    distinct, first, which = np.unique(times[kept], return_index=True, return_inverse=True)
    counts = np.zeros((len(distinct), mask.shape[1]))
    np.add.at(counts, which, mask[kept])
    return LocalStates(
        jnp.asarray(distinct), jnp.asarray(counts), jnp.asarray(means[:, kept][:, first])
    )
