"""A state-space local layer at any inputs: the smoother runs once over the client's times and the new ones.

Given v, E[h_q(x)] = s_q(y) − Σ s_q(a_rm) (B_g[q,r] v_g,rm + B̃[q,r] v_δ,rm), where s_q(·) is what the smoother
makes of a column as data. So a local function depends on the other layers through s_q of their features, and
the rest of its variance, given v, is the smoother's own.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pfedhgp.gp import state_space
from pfedhgp.gp.features import Basis
from pfedhgp.gp.kernels import Kernel
from pfedhgp.model.blocks import ClientBlock
from pfedhgp.model.posterior import LocalStates

COLUMNS = 128
"""Columns that are smoothed at a time: each takes memory for every time of the series."""


def latents(
    states: LocalStates,
    block: ClientBlock,
    noise: Float[Array, "Q Q"],
    basis: Basis,
    loadings: tuple[Array, Array, Array],
    half_shared: Float[Array, "K Kg"],
    half_own: Float[Array, "Kc Kc"],
    X: Float[Array, "n d"],
) -> tuple[Float[Array, "n Q k"], Float[Array, "n Q Kc"], Float[Array, "n Q"]]:
    """Mean and T (as columns of one array), T of the client's own weights, and the variance given v."""
    B_g, B_dev, _ = loadings
    R, M = basis.factor.shape[:2]
    d = B_dev.shape[1]
    F_g = half_shared[: R * M].reshape(R, M, half_shared.shape[1])
    F_d = half_shared[R * M :].reshape(d, M, half_shared.shape[1])
    F_own = half_own.reshape(d, M, half_own.shape[1])
    n, count = states.times.shape[0], X.shape[0]
    union, order, new = _union(states.times, X[:, 0])
    A = basis.features(states.times[:, None])

    def output(
        kernel: Kernel,
        scale: Array,
        variance: Array,
        counts: Array,
        means: Array,
        b: Array,
        c: Array,
    ) -> tuple[Array, Array, Array]:
        model = state_space.StateModel.of(kernel)
        shared = jnp.einsum("r,rmn,rmk->nk", b, A, F_g)
        shared += jnp.einsum("r,rmn,rmk->nk", c, A[:d], F_d)
        own = jnp.einsum("r,rmn,rmk->nk", c, A[:d], F_own)
        columns = jnp.concatenate([shared, own], axis=1)
        padded = jnp.concatenate([columns, jnp.zeros((count, columns.shape[1]))])[order]
        series = _series(union, order, counts, variance, n)
        T = -_smoothed_at(model, scale, series, padded, new)
        _, covariances = state_space.smooth(model, scale, series, padded[:, :0])
        spread = jnp.einsum("s,nst,t->n", model.observe, covariances[new], model.observe)
        mean = state_space.interpolate(model, states.times, means, X[:, 0]) @ model.observe
        both = jnp.concatenate([mean[:, None], T[:, : shared.shape[1]]], axis=1)
        return both, T[:, shared.shape[1] :], jnp.maximum(spread, 0.0)

    both, own, spread = jax.vmap(output)(
        block.kernels,
        jnp.diagonal(block.loadings),
        jnp.diagonal(noise),
        states.counts.T,
        states.means,
        B_g,
        B_dev,
    )
    return jnp.moveaxis(both, 0, 1), jnp.moveaxis(own, 0, 1), spread.T


def _smoothed_at(
    model: state_space.StateModel,
    scale: Array,
    series: state_space.Series,
    columns: Float[Array, "n k"],
    where: Array,
) -> Float[Array, "m k"]:
    """What the smoother makes of each column, at some of the times; a few columns at a time, for memory."""
    k = columns.shape[1]
    blocks = max(-(-k // COLUMNS), 1)
    width = -(-k // blocks)
    padded = jnp.pad(columns, ((0, 0), (0, blocks * width - k)))

    def block(part: Array) -> Array:
        states, _ = state_space.smooth(model, scale, series, part)
        return jnp.einsum("s,nsk->nk", model.observe, states[where])

    parts = jnp.moveaxis(padded.reshape(len(columns), blocks, width), 1, 0)
    found = jax.lax.map(block, parts)
    return jnp.moveaxis(found, 0, 1).reshape(where.shape[0], blocks * width)[:, :k]


def covariance(
    states: LocalStates,
    block: ClientBlock,
    noise: Float[Array, "Q Q"],
    X: Float[Array, "n d"],
    Z: Float[Array, "m d"],
) -> Float[Array, "Q n m"]:
    """Cov(h_q(x), h_q(z)) given v: k(x, z) − s_q(b_q k(·, z))(x)."""
    n = states.times.shape[0]
    union, order, new = _union(states.times, X[:, 0])

    def output(kernel: Kernel, scale: Array, variance: Array, counts: Array) -> Array:
        model = state_space.StateModel.of(kernel)
        columns = scale * kernel(union[:, None], Z)
        series = _series(union, order, counts, variance, n)
        smoothed, _ = state_space.smooth(model, scale, series, columns)
        return kernel(X, Z) - jnp.einsum("s,nsm->nm", model.observe, smoothed[new])

    return jax.vmap(output)(
        block.kernels, jnp.diagonal(block.loadings), jnp.diagonal(noise), states.counts.T
    )


def _union(times: Array, new: Array) -> tuple[Array, Array, Array]:
    """Both in order of time, the order, and the place of each new one."""
    both = jnp.concatenate([times, new])
    order = jnp.argsort(both, stable=True)
    places = jnp.argsort(order, stable=True)
    return both[order], order, places[times.shape[0] :]


def _series(
    union: Array, order: Array, counts: Array, variance: Array, n: int
) -> state_space.Series:
    padded = jnp.concatenate([counts, jnp.zeros(order.shape[0] - n)])[order]
    return state_space.Series.of_means(union, padded, variance)
