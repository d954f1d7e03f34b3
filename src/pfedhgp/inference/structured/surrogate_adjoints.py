"""Gradients of the server's surrogate in NumPy: in the loadings B_g, and with the Hessian in θ_g.

With m and S the moments under the collapsed bound and M₂ = S + mmᵀ, dF = mᵀdh − ½ tr(M₂ dJ). A change of
prior is one of the covariance of v₀ = T v, N(0, C) with C = L₀⁻¹K(θ)L₀⁻ᵀ latent by latent. At θ₀ it is I, so
with A_p = ∂_pC, G_p = ∂_pJ − A_p and g_p = ∂_p h − G_p m:
    ∂_p F  = ∂_p c + mᵀ∂_p h − ½ tr(M₂ ∂_pJ) + ½ tr((M₂ − I) A_p)
    ∂_pq F = C_pq + g_pᵀ S g_q + ½ tr(S G_p S G_q) + ½ tr((M₂ − I) ∂_pq C) − tr(M₂ A_p A_q) + ½ tr(A_p A_q)
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from pfedhgp.base.trees import ravel
from pfedhgp.gp import kernel_adjoints, linalg
from pfedhgp.gp.kernels import Kernel, Stacks
from pfedhgp.gp.leaf_adjoints import Geometry
from pfedhgp.inference.host_lbfgs import Loss
from pfedhgp.inference.structured.surrogate import Surrogate
from pfedhgp.model.blocks import Structure

Array = np.ndarray
STEP = 1e-5
"""Of the differences that give a kernel's second derivatives from its first, in log parameters. A wave of 60
turns moves by 2π 60 STEP at its far end: with 1e-3 the demo's Hessian in its period was 65% too large."""
FIVE_POINT = ((-2.0, 1.0 / 12.0), (-1.0, -8.0 / 12.0), (1.0, 8.0 / 12.0), (2.0, -1.0 / 12.0))


def loadings_objective(surrogate: Surrogate) -> Loss:
    """½|B|² − F(θ₀, B) and its gradient, for one search over B (Q, R), row by row."""
    sums: Any = surrogate.sums
    block = surrogate.block
    Q, R = block.loadings.shape
    M = len(sums.y) // max(Q * R, 1)
    # By the second latent s, then everything of the first: one product with b_s loads half of U.
    columns = np.moveaxis(sums.U.reshape(R, Q, M, R, Q, M), (3, 4), (0, 5))
    columns = np.ascontiguousarray(columns).reshape(R, R * Q * M * M, Q)
    y = sums.y.reshape(R, Q, M)
    residual = 0.5 * (sums.shared_residual + np.swapaxes(sums.shared_residual, 1, 2))[:R]
    before = np.einsum("qr,rqp,pr->", block.loadings, residual, block.loadings, optimize=True)
    constant = sums.evidence + 0.5 * before

    def value_and_gradient(x: Array, _: Array) -> tuple[Array, Array]:
        B = x.reshape(Q, R).T
        half = (columns @ B[:, :, None]).reshape(R, R, Q, M * M)
        blocks = (B[:, None, :] @ half).reshape(R, R, M, M)
        J = np.moveaxis(blocks, 0, 2).reshape(R * M, R * M)
        left = (residual @ B[:, :, None])[..., 0]
        gain, moments = linalg.integrate(J, (B[:, None, :] @ y).reshape(-1))
        second = np.moveaxis(moments.second.reshape(R, M, R, M), 2, 0).reshape(R, R, M * M, 1)
        uphill = (y @ moments.mean.reshape(R, M, 1) - (half @ second).sum(0))[..., 0] - left
        value = 0.5 * np.sum(B * (B + left)) - constant - gain
        return np.array([value]), (B - uphill).T.reshape(1, -1)

    return value_and_gradient


def derivatives(
    structure: Structure, surrogate: Surrogate, jitter: Any
) -> tuple[Float[Array, " P"], Float[Array, "P P"]]:
    """Gradient and Hessian of the ELBO in θ_g at the block, loadings held."""
    sums: Any = surrogate.sums
    J, h = surrogate.loaded(structure, surrogate.block)
    mean, S = moments = linalg.posterior_moments(J, h)
    surplus = moments.second - np.eye(len(h))
    A, C = _prior(structure, surrogate, jitter, surplus)
    G = sums.d_J - A
    g = sums.d_h - G @ mean
    gradient = sums.d_evidence + sums.d_h @ mean - 0.5 * _inner(sums.d_J, moments.second)
    gradient += 0.5 * _inner(A, surplus)
    SG = S @ G
    hessian = sums.curvature + g @ S @ g.T + 0.5 * C
    hessian += 0.5 * _pairs(SG, np.swapaxes(SG, 1, 2)) - _pairs(moments.second @ A, A)
    return gradient, hessian + 0.5 * _pairs(A, A)


def _prior(
    structure: Structure, surrogate: Surrogate, jitter: Any, surplus: Float[Array, "RM RM"]
) -> tuple[Float[Array, "P RM RM"], Float[Array, "P P"]]:
    """A_p, and tr((M₂ − I) ∂_pq C); the loading of a tied model scales C by τ²/τ₀², and φ is not in it."""
    block = surrogate.block
    basis = block.basis(jitter)
    R, M, _ = basis.factor.shape
    own = np.arange(R)
    tangents, latent = _tangents(block.kernels, block.inputs)
    P = len(latent)
    own_loading = block.loadings.size if structure.tied else 0
    A = np.zeros((P + own_loading + structure.tied, R, M, R, M))
    L = basis.factor[latent]
    half = linalg.solve_lower(L, linalg.add_jitter(tangents, jitter))
    A[np.arange(P), latent, :, latent] = linalg.solve_lower(L, np.swapaxes(half, 1, 2))
    C = np.zeros((len(A), len(A)))
    blocks = surplus.reshape(R, M, R, M)[own, :, own]
    half = linalg.solve_lower(basis.factor, blocks, transpose=True)
    weights = linalg.solve_lower(basis.factor, np.swapaxes(half, 1, 2), transpose=True)
    spread = jitter * np.trace(weights, axis1=1, axis2=2) / max(M, 1)  # of the jitter, on diag K
    weights = weights + spread[:, None, None] * np.eye(M)
    C[:P, :P] = _curvature(block.kernels, block.inputs, weights, latent)
    A = A.reshape(len(A), R * M, R * M)
    if own_loading:
        A[P] = 2.0 * np.eye(R * M)
        C[P, :P] = C[:P, P] = 2.0 * _inner(A[:P], surplus)
        C[P, P] = 4.0 * np.trace(surplus)
    return A, C


def _tangents(
    kernels: Kernel, Z: Float[Array, "M d"]
) -> tuple[Float[Array, "P M M"], Float[Array, " P"]]:
    """∂_p k(Z, Z) for each kernel parameter of θ_g, and the latent whose matrix it is."""
    found = kernel_adjoints.evaluate(kernels, Geometry(Z, Z)).directions()
    matrices = np.array([dK for _, dK in found]).reshape(len(found), len(Z), len(Z))
    return matrices, np.array([r for r, _ in found], int)


def _curvature(
    kernels: Kernel,
    Z: Float[Array, "M d"],
    weights: Float[Array, "R M M"],
    latent: Float[Array, " P"],
) -> Float[Array, "P P"]:
    """∂_pq Σ_r ⟨W_r, k_r(Z, Z)⟩: differences of exact slopes, each parameter moved at all latents at once."""
    flat, unravel = ravel(kernels)
    if not flat.size:
        return np.zeros((0, 0))
    R = len(weights)
    if isinstance(kernels, Stacks):
        return _of_stacks(kernels, Z, weights, latent)
    sizes = [leaf.size // R for leaf in jax.tree.leaves(kernels)]
    ends = np.cumsum(sizes)
    own = [np.tile(np.arange(end - size, end), R) for size, end in zip(sizes, ends, strict=True)]
    which = np.concatenate(own)  # p's number among the parameters of its latent
    moved = np.multiply.outer([at for at, _ in FIVE_POINT], which == np.arange(ends[-1])[:, None])
    steps = moved.reshape(len(FIVE_POINT) * ends[-1], flat.size)
    evaluation = kernel_adjoints.evaluate(
        unravel(flat * np.exp(STEP * steps)), Geometry(Z, Z), stacked=2
    )
    slopes = evaluation.pullback(np.broadcast_to(weights, (len(steps), *weights.shape)))
    each = np.concatenate([a.reshape(len(steps), -1) for a in jax.tree.leaves(slopes)], axis=1)
    share = np.array([share for _, share in FIVE_POINT]) / STEP
    differences = np.tensordot(share, each.reshape(moved.shape), 1)
    return np.where(latent[:, None] == latent, differences[which], 0.0)


def _of_stacks(
    kernels: Stacks,
    Z: Float[Array, "M d"],
    weights: Float[Array, "R M M"],
    latent: Float[Array, " P"],
) -> Float[Array, "P P"]:
    """The curvature of several stacks of one height: parameters of one do not move another."""
    height = len(weights) // len(kernels.kernels)
    found = np.zeros((len(latent), len(latent)))
    for s, stack in enumerate(kernels.kernels):
        own = slice(s * height, (s + 1) * height)
        mine = np.flatnonzero((latent >= own.start) & (latent < own.stop))
        found[np.ix_(mine, mine)] = _curvature(stack, Z, weights[own], latent[mine] - own.start)
    return found


def _inner(matrices: Float[Array, "P n n"], weights: Float[Array, "n n"]) -> Float[Array, " P"]:
    """Σ_ij (X_p)_ij W_ij"""
    return matrices.reshape(len(matrices), weights.size) @ weights.reshape(weights.size)


def _pairs(X: Float[Array, "P n n"], Y: Float[Array, "P n n"]) -> Float[Array, "P P"]:
    """Σ_ij (X_p)_ij (Y_q)_ij"""
    size = X.shape[1] * X.shape[2]
    return X.reshape(len(X), size) @ Y.reshape(len(Y), size).T
