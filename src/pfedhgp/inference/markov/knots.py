"""Shared Matérn 1/2 functions at knots: what clients' evidence makes of them, in O(M R³).

A function of lengthscale ℓ is Markov: u_{j+1} = ρ_j u_j + w, w ~ N(0, 1 − ρ_j²), with
ρ_j = exp(−(z_{j+1} − z_j)/ℓ).
With evidence exp(hᵀu − ½ uᵀJu) that is separate at each knot, q(u) has a block tridiagonal precision
    Q_jj = D_j + J_j,   Q_j,j+1 = −diag(ρ_j/(1 − ρ_j²))
and elimination forwards and backwards gives means, covariances at and between neighbours, and log|Q|.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize

Array = np.ndarray
LEAST_VARIANCE = 1e-10
"""The least 1 − ρ²: knots much closer than a lengthscale would make a singular matrix."""
LOG_RANGE = np.log(20.0)
"""How far one step may move a lengthscale or a scale."""
EVALUATIONS = 20
"""Most solves of the server's step."""


class Evidence(NamedTuple):
    """exp(Σ_j h_jᵀu_j − ½ u_jᵀJ_j u_j): adds up over clients."""

    J: Float[Array, "M R R"]
    h: Float[Array, "M R"]


class KnotPosterior(NamedTuple):
    """q(u) at the knots, and log ∫ N(u; 0, K) exp(hᵀu − ½uᵀJu) du."""

    mean: Float[Array, "M R"]
    covariance: Float[Array, "M R R"]
    between: Float[Array, "M-1 R R"]
    """Cov(u_j, u_{j+1})"""
    log_partition: float

    @property
    def second(self) -> Float[Array, "M R R"]:
        """E[u_j u_jᵀ]"""
        return self.covariance + self.mean[:, :, None] * self.mean[:, None, :]


def correlations(knots: Float[Array, " M"], lengths: Float[Array, " R"]) -> Float[Array, "M-1 R"]:
    """ρ_j of each function."""
    return np.exp(-np.diff(knots)[:, None] / lengths[None, :])


def posterior(
    knots: Float[Array, " M"], lengths: Float[Array, " R"], evidence: Evidence
) -> KnotPosterior:
    """q(u) and its log partition."""
    rho = correlations(knots, lengths)
    spread = np.maximum(1.0 - rho**2, LEAST_VARIANCE)
    M, R = evidence.h.shape
    diagonal = np.zeros((M, R))
    diagonal[0] = 1.0
    diagonal[1:] = 1.0 / spread
    diagonal[:-1] += rho**2 / spread
    off = -rho / spread
    blocks = evidence.J.copy()
    index = np.arange(R)
    blocks[:, index, index] += diagonal
    inverse, right = np.empty_like(blocks), evidence.h.copy()
    log_det = 0.0
    for j in range(M):
        if j:
            o = off[j - 1]
            blocks[j] -= o[:, None] * inverse[j - 1] * o[None, :]
            right[j] -= o * (inverse[j - 1] @ right[j - 1])
        L = np.linalg.cholesky(blocks[j])
        log_det += 2.0 * np.log(L[index, index]).sum()
        half = np.linalg.inv(L)
        inverse[j] = half.T @ half
    mean, covariance, between = np.empty((M, R)), inverse.copy(), np.empty((M - 1, R, R))
    mean[-1] = inverse[-1] @ right[-1]
    for j in range(M - 2, -1, -1):
        gain = -inverse[j] * off[j][None, :]
        mean[j] = inverse[j] @ right[j] + gain @ mean[j + 1]
        between[j] = gain @ covariance[j + 1]
        covariance[j] = inverse[j] + between[j] @ gain.T
    prior = -np.log(spread).sum()
    partition = 0.5 * float(np.sum(evidence.h * mean)) - 0.5 * (log_det - prior)
    return KnotPosterior(mean, covariance, between, partition)


class Improved(NamedTuple):
    """Better lengthscales, and by how much each function's loadings grow with its variance kept at 1."""

    lengths: Float[Array, " R"]
    scales: Float[Array, " R"]


def improved(
    knots: Float[Array, " M"],
    lengths: Float[Array, " R"],
    evidence: Evidence,
    anchor: Float[Array, " R"],
    *,
    learn: bool,
) -> Improved:
    """argmax over ℓ and s of log ∫ N(u; 0, K_ℓ) exp((sh)ᵀu − ½ uᵀ(sJs)u) du, log ℓ ~ N(log anchor, 2²).

    Evidence of loadings s times as large is (sJs, sh), so this is the bound itself at the clients' other
    parameters. The slope is E_q of the slope of the integrand's logarithm, from one solve. Without `learn`
    the lengthscales stay.
    """
    R, steps = len(lengths), np.diff(knots)[:, None]
    index = np.arange(R)

    def loss(x: Array) -> tuple[float, Array]:
        own, s = np.exp(x[:R]), np.exp(x[R:])
        J, h = scaled(evidence, s)
        q = posterior(knots, own, Evidence(J, h))
        second, gap = q.second, x[:R] - np.log(anchor)
        rho = correlations(knots, own)
        spread = np.maximum(1.0 - rho**2, LEAST_VARIANCE)
        squares = second[:, index, index]
        products = q.between[:, index, index] + q.mean[:-1] * q.mean[1:]
        errors = squares[1:] - 2.0 * rho * products + rho**2 * squares[:-1]
        of_spread = 0.5 / spread - 0.5 * errors / spread**2
        of_rho = -2.0 * rho * of_spread + (rho * squares[:-1] - products) / spread
        of_lengths = np.sum(of_rho * rho * steps / own, axis=0) + 0.25 * gap
        of_scales = np.einsum("mrs,mrs->r", J, second) - np.sum(h * q.mean, axis=0)
        value = 0.125 * np.sum(gap**2) - q.log_partition
        return value, np.concatenate([of_lengths if learn else 0.0 * gap, of_scales])

    start = np.concatenate([np.log(lengths), np.zeros(R)])
    around = [(v - LOG_RANGE, v + LOG_RANGE) for v in start]
    found = minimize(
        loss, start, jac=True, method="L-BFGS-B", bounds=around, options={"maxfun": EVALUATIONS}
    )
    return Improved(np.exp(found.x[:R]), np.exp(found.x[R:]))


def scaled(evidence: Evidence, scales: Float[Array, " R"]) -> Evidence:
    """Evidence of loadings `scales` times as large."""
    J, h = evidence
    return Evidence(J * scales[:, None] * scales[None, :], h * scales)
