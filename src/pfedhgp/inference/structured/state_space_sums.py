"""A client's sums with a state-space local layer: the local functions are integrated out with the noise.

Output q has one local function of its own, b_q h_q, so that its cells have N_q = b_q² K_q + diag(σ_q²/c), and
L_q⁻¹ comes from a Kalman filter in O(n). Global and deviation layers have the same features a(x), so one
matrix an output,
    Γ_q = [A, y_q]ᵀ N_q⁻¹ [A, y_q],
gives every block of Λ and η for any loadings: Σ_q B[q,r] B'[q,s] Γ_q[r,s].
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pfedhgp.gp import state_space
from pfedhgp.gp.features import Basis
from pfedhgp.gp.kernels import Kernel
from pfedhgp.gp.linalg import LOG_2PI
from pfedhgp.gp.noise import Noise
from pfedhgp.model.blocks import Rows


def observed(
    times: Float[Array, " n"], counts: Float[Array, " n"], variance: Array
) -> tuple[state_space.Series, Array]:
    """Cells seen `counts` times with noise `variance`, and their log-likelihood but for the filter's part."""
    series = state_space.Series.of_means(times, counts, variance)
    logs = jnp.log(jnp.where(counts > 0, counts, 1.0))
    replicates = logs + (counts - series.seen) * (LOG_2PI + jnp.log(variance))
    return series, -0.5 * (jnp.sum(series.seen) * LOG_2PI + jnp.sum(replicates))


class Gammas(NamedTuple):
    """What the rows say, output by output, before any loadings."""

    gamma: Float[Array, "Q K K"]
    """Γ_q, with y last: K = RM + 1"""
    constant: Array
    """log N(y; 0, N) without its quadratic form"""
    residual: Float[Array, "R Q"]
    """Σ_n res_r(n) c_nq/σ_q², or with draws an estimate of tr(N_q⁻¹R_r)"""


class _Chunk(NamedTuple):
    """Some of the rows, in order of time."""

    X: Float[Array, "n d"]
    Y: Float[Array, "n Q"]
    mask: Float[Array, "n Q"]
    draws: Float[Array, "n Rp"]


def gammas(
    rows: Rows,
    basis: Basis,
    kernels: Kernel,
    scales: Float[Array, " Q"],
    noise: Noise,
    chunk: int,
    residual_draws: Float[Array, "n R p"] | None = None,
) -> Gammas:
    """Γ_q = [A, y_q]ᵀ N_q⁻¹ [A, y_q] for each output, by a filter in O(n).

    Rows are in order of time. `chunk` of them are filtered at a time, and once more for gradients, so that
    memory does not grow with the series.
    """
    outputs = rows.Y.shape[1]
    variances = jnp.diagonal(noise.covariance(outputs))
    latents = basis.factor.shape[0]
    size = latents * basis.factor.shape[1] + 1
    probes = 0 if residual_draws is None else residual_draws.shape[2]

    @jax.checkpoint
    def piece(carries: state_space.Carry, part: _Chunk) -> tuple[state_space.Carry, Gammas]:
        A = basis.features(part.X)
        columns = A.reshape(size - 1, len(part.X)).T

        def one(
            kernel: Kernel, scale: Array, variance: Array, carry: state_space.Carry, q: Array
        ) -> tuple[Array, Array, Array, state_space.Carry]:
            series, constant = observed(part.X[:, 0], part.mask[:, q], variance)
            with_y = jnp.concatenate([columns, part.Y[:, q][:, None], part.draws], axis=1)
            model = state_space.StateModel.of(kernel)
            white, log_det, carry = state_space.whiten(model, scale, series, with_y, carry)
            squares = jnp.sum(white[:, size:] ** 2, axis=0).reshape(latents, probes)
            white = white[:, :size]
            return white.T @ white, constant - 0.5 * log_det, jnp.sum(squares, axis=1), carry

        gamma, constant, squares, carries = jax.vmap(one)(
            kernels, scales, variances, carries, jnp.arange(outputs)
        )
        if probes:
            residual = squares.T / probes
        else:
            counts = part.mask / variances[None, :]
            residual = jnp.einsum("rn,nq->rq", basis.residual(A), counts)
        return carries, Gammas(gamma, jnp.sum(constant), residual)

    def add(total: tuple, part: _Chunk) -> tuple[tuple, None]:
        carries, sums = piece(total[0], part)
        return (carries, jax.tree.map(jnp.add, total[1], sums)), None

    width = size + latents * probes
    carries = jax.vmap(
        lambda kernel: state_space.start(state_space.StateModel.of(kernel), width, rows.X[0, 0])
    )(kernels)
    zero = Gammas(jnp.zeros((outputs, size, size)), jnp.zeros(()), jnp.zeros((latents, outputs)))
    (_, sums), _ = jax.lax.scan(add, (carries, zero), _chunks(rows, residual_draws, chunk))
    return sums


def _chunks(rows: Rows, residual_draws: Array | None, chunk: int) -> _Chunk:
    """The rows with a leading axis of chunks of equal length, the last padded with cells unseen."""
    n = rows.X.shape[0]
    draws = jnp.zeros((n, 0)) if residual_draws is None else residual_draws.reshape(n, -1)
    X, others = cut(rows.X, chunk, "edge"), (rows.Y, rows.mask, draws)
    return _Chunk(X, *(cut(array, chunk, "constant") for array in others))


def cut(array: Float[Array, "n k"], chunk: int, mode: str) -> Float[Array, "pieces m k"]:
    """Rows in pieces of equal length, at most `chunk`; the last is padded."""
    n = array.shape[0]
    pieces = -(-n // min(chunk, n))
    length = -(-n // pieces)
    padded = jnp.pad(array, ((0, pieces * length - n), (0, 0)), mode=mode)
    return padded.reshape(pieces, length, array.shape[1])


class LoadedSums(NamedTuple):
    """Λ, η and yᵀN⁻¹y of the global and deviation weights."""

    precision: Float[Array, "K K"]
    linear: Float[Array, " K"]
    quadratic: Array


def loaded(
    gamma: Float[Array, "Q K K"],
    loadings: list[Float[Array, "Q R"]],
    transform: Float[Array, "R M M"] | None,
    *,
    unloaded: bool,
) -> LoadedSums:
    """Λ, η and yᵀN⁻¹y for layers [global, deviation]; global weights unloaded as in `accumulate` if asked."""
    outputs, K = gamma.shape[0], gamma.shape[1] - 1
    B_g, B_dev = loadings
    latents = B_g.shape[1]
    M = K // max(latents, 1)
    A = gamma[:, :K, :K].reshape(outputs, latents, M, latents, M)
    y = gamma[:, :K, K].reshape(outputs, latents, M)
    d = B_dev.shape[1]
    A_dev = A[:, :, :, :d]
    if transform is None:
        A_gg, A_gd, y_g = A, A_dev, y
    else:
        half = jnp.einsum("rkm,qrmsn->qrksn", transform, A)
        A_gg, A_gd = jnp.einsum("skn,qrmsn->qrmsk", transform, half), half[:, :, :, :d]
        y_g = jnp.einsum("rkm,qrm->qrk", transform, y)
    if unloaded:
        eye = jnp.eye(outputs, dtype=gamma.dtype)
        gg = jnp.einsum("qp,qrmsn->rqmspn", eye, A_gg).reshape(latents * outputs * M, -1)
        gd = jnp.einsum("qs,qrmsn->rqmsn", B_dev, A_gd).reshape(latents * outputs * M, d * M)
        eta = jnp.einsum("qrm->rqm", y_g).reshape(-1)
    else:
        gg = jnp.einsum("qr,qs,qrmsn->rmsn", B_g, B_g, A_gg).reshape(K, K)
        gd = jnp.einsum("qr,qs,qrmsn->rmsn", B_g, B_dev, A_gd).reshape(K, d * M)
        eta = jnp.einsum("qr,qrm->rm", B_g, y_g).reshape(-1)
    dd = jnp.einsum("qr,qs,qrmsn->rmsn", B_dev, B_dev, A_dev[:, :d]).reshape(d * M, d * M)
    eta_d = jnp.einsum("qr,qrm->rm", B_dev, y[:, :d]).reshape(-1)
    precision = jnp.block([[gg, gd], [gd.T, dd]])
    return LoadedSums(precision, jnp.concatenate([eta, eta_d]), jnp.sum(gamma[:, K, K]))
