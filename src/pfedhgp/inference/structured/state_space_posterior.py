"""The states of clients' local functions after training: smoothed, at their own times."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pfedhgp.base.batching import batchable
from pfedhgp.gp import state_space
from pfedhgp.gp.kernels import Kernel
from pfedhgp.inference.structured.client_step import StepOptions
from pfedhgp.model.blocks import ClientBlock, Rows, deviation_loadings
from pfedhgp.model.posterior import GlobalPosterior, LocalStates


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
        B_dev = deviation_loadings(options.structure, shared.block, block)
        fitted = jnp.einsum(
            "qr,rmn,rm->nq", shared.block.loadings, A, shared.mean.reshape(latents, size)
        )
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
