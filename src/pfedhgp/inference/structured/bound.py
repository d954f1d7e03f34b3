"""The structured solver's mathematics for one client: its weights are integrated out exactly.

Given v_g, y_i ~ N(H_g v_g, C_i) with C_i = H_c H_cᵀ + Σ_i, so that a client is summed up by
    J_i = H_gᵀ C_i⁻¹ H_g,  h_i = H_gᵀ C_i⁻¹ y_i,  c_i = log N(y_i; 0, C_i) − ½ Σ res/σ²
and   ELBO = Σ c_i + ½ hᵀ S h − ½ log|I + Σ J_i|,  S⁻¹ = I + Σ J_i.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pfedhgp.gp import linalg
from pfedhgp.gp.features import Basis
from pfedhgp.inference.function_sizes import own_moments, squares
from pfedhgp.inference.grams import Design, Grams, accumulate
from pfedhgp.inference.structured.coordinates import Theta, theta_of, with_theta
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows, Structure, deviation_loadings

# In log θ_g. At 1e-3 the truncation is 1e-6 (RBF) to 2e-3 (three periods), a hundredfold of this.
CURVATURE_STEP = 1e-4
FEW_PARAMETERS = 3
"""With more, slopes around θ_g are taken in reverse: one pass each instead of one a parameter."""


class Statistics(eqx.Module):
    """What a client sends after its step, at the broadcast θ_g; sums over clients mean the same.

    `U` and `y` are EᵀC⁻¹E and EᵀC⁻¹y with E = I_Q ⊗ a_g, ordered (latent, output, inducing input), from
    which J and h follow for any B_g. Derivatives are in θ_g with the shared function's values at Z_g
    held fixed.
    """

    evidence: Array
    U: Float[Array, "RQM RQM"]
    y: Float[Array, " RQM"]
    shared_residual: Float[Array, "R Q Q"]
    d_evidence: Float[Array, " P"]
    d_h: Float[Array, "P RM"]
    d_J: Float[Array, "P RM RM"]
    curvature: Float[Array, "P P"]
    deviation_power: Float[Array, "Q Q"]
    """B̃B̃ᵀ, from which φ follows"""
    deviation_square: Float[Array, "Q Q"]
    local_square: Float[Array, "Q Q"]
    """E[f fᵀ] of both layers, mean over their inducing inputs"""
    noise: Float[Array, "Q Q"]
    clients: Array
    residual: Array
    d_inputs: Float[Array, "M d"] | None = None
    """∂/∂Z_g of the client's part at its q(v_g), weights held; only where Z_g is learned"""


def design_of(
    structure: Structure,
    shared: GlobalBlock,
    basis: Basis,
    client: ClientBlock,
    jitter: Array | float,
    residual_draws: Array | None = None,
) -> Design:
    """The client's linear model at the current parameters."""
    return Design(
        shared=basis,
        local=None if structure.state_space else client.basis(jitter),
        B_g=shared.loadings,
        B_dev=deviation_loadings(structure, shared, client),
        B_loc=client.loadings,
        noise=client.noise,
        exact=client.kernels if structure.state_space else None,
        residual_draws=residual_draws,
    )


def cavity_bound(grams: Grams, J_rest: Array, h_rest: Array) -> Array:
    """The ELBO as this client sees it: the others' J and h fixed, its own part integrated exactly.

    (Up to the other clients' constants.) One integral over its own and the global weights together.
    """
    k = J_rest.shape[0]
    precision = grams.precision.at[:k, :k].add(J_rest)
    linear = grams.linear.at[:k].add(h_rest)
    return grams.constant - 0.5 * grams.residual + linalg.log_partition(precision, linear)


def summary(grams: Grams, k: int) -> tuple[Array, Array, Array]:
    """(c, h, J) of one client from its Grams; the first `k` weights are the global layer's."""
    cc, cg, gg = grams.precision[k:, k:], grams.precision[k:, :k], grams.precision[:k, :k]
    eta_c, eta_g = grams.linear[k:], grams.linear[:k]
    factor = jnp.linalg.cholesky(cc + jnp.eye(cc.shape[0], dtype=cc.dtype))
    white = linalg.solve_lower(factor, jnp.concatenate([cg, eta_c[:, None]], axis=1))
    J = gg - white[:, :k].T @ white[:, :k]
    h = eta_g - white[:, :k].T @ white[:, k]
    log_evidence = 0.5 * jnp.dot(white[:, k], white[:, k]) - jnp.sum(jnp.log(jnp.diagonal(factor)))
    return grams.constant - 0.5 * grams.residual + log_evidence, h, J


def at_fixed_function(
    theta: Theta,
    structure: Structure,
    shared: GlobalBlock,
    basis: Basis,
    client: ClientBlock,
    rows: Rows,
    jitter: Array | float,
    chunk: int,
    local_jitter: Array | float | None = None,
) -> tuple[Array, Array, Array]:
    """(c, h, J) at another θ_g, for the weights v₀ of the reference basis: u = L₀ v₀ stays what it is."""
    moved = with_theta(structure, shared, theta)
    new = moved.basis(jitter)
    transform = jnp.swapaxes(basis.carry_from(new), 1, 2)
    if structure.tied:
        transform = transform * (shared.loadings / moved.loadings)[None]
    design = design_of(
        structure, moved, new, client, jitter if local_jitter is None else local_jitter
    )
    design = eqx.tree_at(lambda d: d.transform, design, transform, is_leaf=lambda v: v is None)
    return summary(
        accumulate(rows, design, chunk=chunk), basis.factor.shape[0] * basis.factor.shape[1]
    )


def statistics(
    structure: Structure,
    shared: GlobalBlock,
    basis: Basis,
    client: ClientBlock,
    rows: Rows,
    J_rest: Array,
    h_rest: Array,
    jitter: Array | float,
    chunk: int,
    local_jitter: Array | float | None = None,
    learn_inputs: bool = False,
    derivatives: Array | int | None = 1,
    residual_draws: Array | None = None,
) -> Statistics:
    """What the client sends: see `Statistics`. `jitter` is the shared basis's, and the client's unless given.

    Without `derivatives` (0; it may be traced) those in θ_g are zero, and cost nothing to compute; with None
    they cost nothing to compile either, and there are none in Z_g.
    """
    latents, size = basis.factor.shape[:2]
    outputs = shared.loadings.shape[0]
    own_jitter = jitter if local_jitter is None else local_jitter
    design = design_of(structure, shared, basis, client, own_jitter, residual_draws)
    grams = accumulate(rows, design, unloaded=True, chunk=chunk)
    evidence, y, U = summary(grams, latents * outputs * size)
    theta = theta_of(structure, shared)
    J, h = apply_loadings(U, y, shared.loadings, latents)
    mean, covariance = linalg.posterior_moments(J + J_rest, h + h_rest)
    own = own_moments(grams, shared.loadings, mean, covariance)
    of_deviation, of_local = squares(structure, design, *own)
    count, k = theta.shape[0], latents * size
    found = Statistics(
        evidence=evidence,
        U=U,
        y=y,
        shared_residual=grams.shared_residual,
        d_evidence=jnp.zeros(count),
        d_h=jnp.zeros((count, k)),
        d_J=jnp.zeros((count, k, k)),
        curvature=jnp.zeros((count, count)),
        deviation_power=design.B_dev @ design.B_dev.T,
        deviation_square=of_deviation,
        local_square=of_local,
        noise=client.noise.covariance(outputs),
        clients=jnp.ones(()),
        residual=grams.residual,
    )
    if derivatives is None:
        return found

    def pieces(value: Theta) -> tuple[Array, Array, Array]:
        return at_fixed_function(
            value, structure, shared, basis, client, rows, jitter, chunk, own_jitter
        )

    second = covariance + mean[:, None] * mean[None, :]

    shifts = CURVATURE_STEP * jnp.eye(count, dtype=theta.dtype)
    points = jnp.concatenate([theta[None], theta[None] + shifts, theta[None] - shifts])
    empty = (
        jnp.zeros_like(points),
        jnp.zeros(count),
        jnp.zeros((*h.shape, count)),
        jnp.zeros((*J.shape, count)),
    )

    def differentiate(i: Array, found: tuple) -> tuple:
        """One compiled derivative serves at θ and, by central differences, for the curvature around it."""
        d_c, d_h, d_J = jax.jacfwd(pieces)(points[i])
        slope = d_c + mean @ d_h - 0.5 * jnp.einsum("kl,klp->p", second, d_J)
        first = jax.tree.map(
            lambda new, old: jnp.where(i == 0, new, old), (d_c, d_h, d_J), found[1:]
        )
        return (found[0].at[i].set(slope), *first)

    def expected(value: Theta) -> Array:
        c, h, J = pieces(value)
        return c + jnp.dot(mean, h) - 0.5 * jnp.sum(second * J)

    forward = len(points) if count <= FEW_PARAMETERS else 1
    slopes, d_c, d_h, d_J = jax.lax.fori_loop(0, derivatives * forward, differentiate, empty)
    if forward < len(points):
        slopes = jax.lax.fori_loop(
            0,
            derivatives * 2 * count,
            lambda i, found: found.at[i + 1].set(jax.grad(expected)(points[i + 1])),
            slopes,
        )
    curvature = (slopes[1 : 1 + count] - slopes[1 + count :]) / (2.0 * CURVATURE_STEP)

    def at_inputs(inputs: Array) -> Array:
        moved = eqx.tree_at(lambda b: b.inputs, shared, inputs)
        own = design_of(structure, moved, moved.basis(jitter), client, own_jitter)
        c, h, J = summary(accumulate(rows, own, chunk=chunk), latents * size)
        return c + jnp.dot(h, mean) - 0.5 * jnp.sum(J * second)

    moved = (
        d_c,
        jnp.moveaxis(d_h, -1, 0),
        jnp.moveaxis(d_J, -1, 0),
        0.5 * (curvature + curvature.T),
    )
    found = eqx.tree_at(lambda s: (s.d_evidence, s.d_h, s.d_J, s.curvature), found, moved)
    if not learn_inputs:
        return found
    slope = jax.grad(at_inputs)(shared.inputs)
    return eqx.tree_at(lambda s: s.d_inputs, found, slope, is_leaf=lambda v: v is None)


def apply_loadings(U: Array, y: Array, B: Float[Array, "Q R"], latents: int) -> tuple[Array, Array]:
    """J and h for loadings B from the unloaded U and y."""
    outputs = B.shape[0]
    M = y.shape[0] // max(latents * outputs, 1)
    U6 = U.reshape(latents, outputs, M, latents, outputs, M)
    half = jnp.einsum("qr,rqmspk->rmspk", B, U6)
    J = jnp.einsum("ps,rmspk->rmsk", B, half).reshape(latents * M, latents * M)
    h = jnp.einsum("qr,rqm->rm", B, y.reshape(latents, outputs, M)).reshape(-1)
    return J, h
