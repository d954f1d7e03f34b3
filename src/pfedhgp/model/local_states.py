"""A state-space local layer at any inputs: the smoother runs once over the client's times and the new ones.

Given v, E[h_q(x)] = s_q(y) − Σ s_q(a_rm) (B_g[q,r] v_g,rm + B̃[q,r] v_δ,rm), where s_q(·) is what the smoother
makes of a column as data. So a local function depends on the other layers through s_q of their features, and
the rest of its variance, given v, is the smoother's own.

On a CPU and for a moderate number of rows `pfedhgp.model.states_at_rows` does it, and nothing is compiled.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pfedhgp.base.arrays_of import Array, namespace
from pfedhgp.base.batching import batchable, on_host, on_numpy
from pfedhgp.gp import state_space
from pfedhgp.gp.features import Basis
from pfedhgp.gp.kernels import Kernel
from pfedhgp.gp.linalg import diagonal_matrix
from pfedhgp.model.blocks import ClientBlock
from pfedhgp.model.posterior import Latents, LocalStates
from pfedhgp.model.states_at_rows import StatesAtRows, means

COLUMNS = 128
"""Columns that are smoothed at a time: each takes memory for every time of the series."""
BANDED = 2**23
"""Up to so many numbers (times and new rows multiplied) banded solves take less time than compiling."""


def latents(
    states: LocalStates,
    block: ClientBlock,
    noise: Float[Array, "Q Q"],
    basis: Basis,
    B_g: Float[Array, "Q R"],
    B_dev: Float[Array, "Q Rd"],
    half_shared: Float[Array, "K Kg"],
    half_own: Float[Array, "Kc Kc"],
    X: Float[Array, "n d"],
) -> Latents:
    """The local functions, one for each output; their spread is the variance given v."""
    if not _by_bands(states, X):
        found: Latents = compiled_latents(
            states, block, noise, basis, B_g, B_dev, half_shared, half_own, X
        )
        return found
    states, block, basis = on_numpy((states, block, basis))
    here = StatesAtRows.of(states, block, np.diagonal(noise), X[:, 0])
    features = here.on_features(basis, np.asarray(states.times))
    d, Q, n = B_dev.shape[1], len(B_g), len(X)
    shared = (B_g[:, :, None, None] * features).reshape(Q, -1, n)
    own = (B_dev[:, :, None, None] * features[:, :d]).reshape(Q, -1, n)
    T = np.swapaxes(np.concatenate([shared, own], axis=1), 1, 2) @ half_shared
    T_own = np.swapaxes(own, 1, 2) @ half_own
    spread = np.diagonal(here.covariance, axis1=1, axis2=2).T
    return Latents(
        means(block, states, X[:, 0]),
        -np.swapaxes(T, 0, 1),
        -np.swapaxes(T_own, 0, 1),
        np.maximum(spread, 0.0),
    )


def _by_bands(states: LocalStates, X: Float[Array, "n d"]) -> bool:
    """Whether the banded solves do it: NumPy arrays on a CPU, and not too many of them."""
    few = (states.times.shape[0] + X.shape[0]) * X.shape[0] <= BANDED
    return few and namespace(states.times, X) is np and on_host()


@batchable(effort="low")
def compiled_latents(
    states: LocalStates,
    block: ClientBlock,
    noise: Float[Array, "Q Q"],
    basis: Basis,
    B_g: Float[Array, "Q R"],
    B_dev: Float[Array, "Q Rd"],
    half_shared: Float[Array, "K Kg"],
    half_own: Float[Array, "Kc Kc"],
    X: Float[Array, "n d"],
) -> Latents:
    """The same by the smoother, compiled: all columns together, for any number of rows."""
    R, M = basis.factor.shape[:2]
    d = B_dev.shape[1]
    F_g = half_shared[: R * M].reshape(R, M, half_shared.shape[1])
    F_d = half_shared[R * M :].reshape(d, M, half_shared.shape[1])
    F_own = half_own.reshape(d, M, half_own.shape[1])
    merged = _Merged.of(states.times, X[:, 0])
    A = basis.features(states.times[:, None])

    def output(
        kernel: Kernel,
        scale: Array,
        variance: Array,
        counts: Array,
        means: Array,
        b: Array,
        c: Array,
    ) -> Latents:
        model = state_space.StateModel.of(kernel)
        shared = jnp.einsum("r,rmn,rmk->nk", b, A, F_g)
        shared += jnp.einsum("r,rmn,rmk->nk", c, A[:d], F_d)
        own = jnp.einsum("r,rmn,rmk->nk", c, A[:d], F_own)
        columns = merged.filled(jnp.concatenate([shared, own], axis=1))
        series = merged.series(counts, variance)
        T = -_smoothed_at(model, scale, series, columns, merged.new)
        _, covariances = state_space.smooth(model, scale, series, columns[:, :0])
        spread = jnp.einsum("s,nst,t->n", model.observe, covariances[merged.new], model.observe)
        mean = state_space.interpolate(model, states.times, means, X[:, 0]) @ model.observe
        cut = shared.shape[1]
        return Latents(mean, T[:, :cut], T[:, cut:], jnp.maximum(spread, 0.0))

    return jax.vmap(output, out_axes=1)(
        block.kernels,
        jnp.diagonal(block.loadings),
        jnp.diagonal(noise),
        states.counts.T,
        states.means,
        B_g,
        B_dev,
    )


def leaning(
    states: LocalStates,
    block: ClientBlock,
    noise: Float[Array, "Q Q"],
    columns: Float[Array, "Q n k"],
    X: Float[Array, "m d"],
) -> Float[Array, "m Q k"]:
    """−b_q² k_q(x, t)(b_q² K_q + Σ_q)⁻¹ columns: what each local function takes back of a few columns.

    The smoother's own result, by dense matrices: for a few columns that is faster than compiling it.
    """
    xp = namespace(X, columns)
    t = states.times[:, None]
    sizes = xp.diagonal(block.loadings) ** 2
    K = block.kernels(t, t, stacked=1) * sizes[:, None, None]
    across = block.kernels(X, t, stacked=1) * sizes[:, None, None]
    seen = states.counts.T > 0
    white = xp.diagonal(noise)[:, None] / xp.where(seen, states.counts.T, 1.0)
    both = seen[:, :, None] & seen[:, None, :]
    N = xp.where(both, K, 0.0) + diagonal_matrix(xp.where(seen, white, 1.0))
    solved = xp.linalg.solve(N, xp.where(seen[:, :, None], columns, 0.0))
    return -xp.moveaxis(across @ solved, 0, 1)


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
    """Cov(h_q(x), h_q(z)) given v."""
    both = np.concatenate([X, Z]) if namespace(X, Z) is np else X
    if not _by_bands(states, both):
        return compiled_covariance(states, block, noise, X, Z)
    states, block = on_numpy((states, block))
    found = StatesAtRows.of(states, block, np.diagonal(noise), both[:, 0])
    return found.covariance[:, : len(X), len(X) :]


@batchable()
def compiled_covariance(
    states: LocalStates,
    block: ClientBlock,
    noise: Float[Array, "Q Q"],
    X: Float[Array, "n d"],
    Z: Float[Array, "m d"],
) -> Float[Array, "Q n m"]:
    """The same by the smoother, compiled: k(x, z) − s_q(b_q k(·, z))(x)."""
    merged = _Merged.of(states.times, X[:, 0])

    def output(kernel: Kernel, scale: Array, variance: Array, counts: Array) -> Array:
        model = state_space.StateModel.of(kernel)
        columns = scale * kernel(merged.times[:, None], Z)
        series = merged.series(counts, variance)
        smoothed, _ = state_space.smooth(model, scale, series, columns)
        return kernel(X, Z) - jnp.einsum("s,nsm->nm", model.observe, smoothed[merged.new])

    return jax.vmap(output)(
        block.kernels, jnp.diagonal(block.loadings), jnp.diagonal(noise), states.counts.T
    )


class _Merged(NamedTuple):
    """A client's times and new ones, in order of time."""

    times: Array
    order: Array
    new: Array
    """the place of each new one"""

    @staticmethod
    def of(times: Array, new: Array) -> _Merged:
        both = jnp.concatenate([times, new])
        order = jnp.argsort(both, stable=True)
        return _Merged(both[order], order, jnp.argsort(order, stable=True)[times.shape[0] :])

    def filled(self, known: Array) -> Array:
        """What is known at the client's times, and zeros at the new ones."""
        zeros = jnp.zeros((self.new.shape[0], *known.shape[1:]))
        return jnp.concatenate([known, zeros])[self.order]

    def series(self, counts: Array, variance: Array) -> state_space.Series:
        return state_space.Series.of_means(self.times, self.filled(counts), variance)


# ---------------------------------------------------------------------------------- few lengths to compile


def padded(states: LocalStates) -> LocalStates:
    """With times at the end at which nothing was seen, so that few lengths are compiled."""
    size = round_up(len(states.times))
    extra = size - len(states.times)
    return LocalStates(
        longer(np.asarray(states.times), size),
        np.pad(states.counts, ((0, extra), (0, 0))),
        np.pad(states.means, ((0, 0), (0, extra), (0, 0)), mode="edge"),
    )


def longer(array: np.ndarray, size: int) -> np.ndarray:
    """The last row again and again, up to `size` rows."""
    wide = [(0, size - len(array)), *[(0, 0)] * (array.ndim - 1)]
    return np.pad(array, wide, mode="edge")


def round_up(n: int) -> int:
    """A power of two, or one and a half of it."""
    size = 16
    while size < n:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size
