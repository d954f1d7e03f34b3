"""What a client sends: its sums, and how they change with θ_g and Z_g.

A client's part of the ELBO at q(v_g) = N(m, S), with the shared function held fixed at Z_g, is
    F_i(θ_g) = c_i + hᵀm − ½ tr J(S + mmᵀ)
The server needs ∂(c, h, J)/∂θ_g, the Hessian of F_i in θ_g, and, if Z_g is learned, ∂F_i/∂Z_g.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from pfedhgp.base.arrays_of import Array, namespace
from pfedhgp.gp import linalg
from pfedhgp.gp.linalg import Moments
from pfedhgp.inference.grams import accumulate
from pfedhgp.inference.own_weights import condition, squares
from pfedhgp.inference.structured.bound import (
    ClientModel,
    ClientSummary,
    GlobalEvidence,
    Statistics,
    apply_loadings,
    summary_given,
)
from pfedhgp.model.blocks import Theta, global_loadings, theta_of, with_theta

CURVATURE_STEP = 1e-5
"""In log θ_g. Truncation is 1e-7 with three periods on the inputs, and rounding no more."""
FEW_PARAMETERS = 3
"""With more, slopes around θ_g are taken in reverse: one pass each instead of one for each parameter."""


class ThetaDerivatives(NamedTuple):
    """∂c, ∂h and ∂J in θ_g, and the Hessian of F_i."""

    d_evidence: Float[Array, " P"]
    d_h: Float[Array, "P RM"]
    d_J: Float[Array, "P RM RM"]
    curvature: Float[Array, "P P"]

    @staticmethod
    def zero(parameters: int, weights: int) -> ThetaDerivatives:
        shapes = ((), (weights,), (weights, weights), (parameters,))
        return ThetaDerivatives(*(jnp.zeros((parameters, *shape)) for shape in shapes))


def statistics(
    model: ClientModel,
    others: GlobalEvidence,
    *,
    learn_inputs: bool = False,
    derivatives: Array | int | None = 1,
    residual_draws: Array | None = None,
) -> Statistics:
    """What the client sends, given the others' J and h: see `Statistics`.

    With `derivatives` 0 (it may be traced) those in θ_g are zero, and cost nothing to compute. With None they
    cost nothing to compile either, and there are none in Z_g.
    """
    found, moments = sums(model, others, residual_draws)
    if derivatives is None:
        return found
    found = replace(found, **theta_derivatives(model, moments, derivatives)._asdict())
    return replace(found, d_inputs=input_gradient(model, moments)) if learn_inputs else found


def sums(
    model: ClientModel, others: GlobalEvidence, residual_draws: Array | None = None
) -> tuple[Statistics, Moments]:
    """The statistics without derivatives, and q(v_g) as the client sees it: S⁻¹ = I + ΣJ, m = S Σh."""
    shared, B_g = model.shared, global_loadings(model.shared, model.client)
    outputs = B_g.shape[0]
    latents, size = model.basis.factor.shape[:2]
    design = model.design(residual_draws)
    grams = accumulate(model.rows, design, unloaded=True, chunk=model.chunk)
    own = condition(grams, latents * outputs * size)
    evidence, y, U = summary_given(grams, own)
    J, h = apply_loadings(U, y, B_g, latents)
    moments = linalg.posterior_moments(J + others.J, h + others.h)
    of_deviation, of_local = squares(
        model.structure, design, own.loaded(B_g).conditional().marginal(moments)
    )
    parameters = theta_of(model.structure, shared).shape[0]
    found = Statistics(
        evidence=evidence,
        U=U,
        y=y,
        shared_residual=grams.shared_residual,
        **ThetaDerivatives.zero(parameters, latents * size)._asdict(),
        deviation_power=design.B_dev @ design.B_dev.T,
        deviation_square=of_deviation,
        local_square=of_local,
        noise=model.client.noise.covariance(outputs),
        clients=jnp.ones(()),
        residual=grams.residual,
    )
    if shared.loadings_covariance is None:
        return found, moments
    spread = loadings_spread(U, moments.second, shared.loadings_covariance)
    flat = B_g.reshape(-1)
    squares_ = flat[:, None] * flat[None, :] + spread
    return replace(found, U=J, y=h, client_loadings=B_g, client_loadings_square=squares_), moments


def loadings_spread(
    U: Float[Array, "RQM RQM"], second: Float[Array, "RM RM"], prior: Float[Array, "QR QR"]
) -> Float[Array, "QR QR"]:
    """(Σ_B⁻¹ + E[∂²])⁻¹: what a client's rows leave open of vec B_g,i at q(v_g), its other parameters held.

    The bound is quadratic in B_g,i there, with −∂²/∂B_qr ∂B_ps = Σ_mk U_rqm,spk E[v_rm v_sk].
    """
    xp = namespace(U, second)
    QR, k = prior.shape[0], second.shape[0]
    M = U.shape[0] // max(QR, 1)
    R = k // max(M, 1)
    blocks = U.reshape(R, QR // max(R, 1), M, R, QR // max(R, 1), M)
    curvature = xp.einsum("rqmspk,rmsk->qrps", blocks, second.reshape(R, M, R, M))
    precision = curvature.reshape(QR, QR) + xp.linalg.inv(prior)
    return xp.linalg.inv(0.5 * (precision + precision.T))


def expected_part(found: ClientSummary, moments: Moments) -> Array:
    """F_i = c + hᵀm − ½ tr J(S + mmᵀ): the client's part of the ELBO at q(v_g) = N(m, S)."""
    return found.c + jnp.dot(moments.mean, found.h) - 0.5 * jnp.sum(moments.second * found.J)


def at_fixed_function(model: ClientModel, theta: Theta) -> ClientSummary:
    """(c, h, J) at another θ_g for the weights v₀ of the model's own basis: u = L₀v₀ stays what it is."""
    moved = model.at(with_theta(model.structure, model.shared, theta))
    origin = model.basis.factor
    if model.structure.tied:
        origin = origin * (model.shared.loadings / moved.shared.loadings).reshape(-1, 1, 1)
    design = moved.design()
    # Deviations' weights are integrated out; states' sums take both kinds of features from one.
    turned = replace(design.shared, turned=not model.structure.state_space)
    return moved.summary(replace(design, shared=turned, origin=origin))


def theta_derivatives(
    model: ClientModel, moments: Moments, wanted: Array | int
) -> ThetaDerivatives:
    """∂(c, h, J)/∂θ_g, and the Hessian of F_i by central differences of its slope; zero if not `wanted`.

    One compiled derivative serves at θ_g and around it. With many parameters the slopes around θ_g are
    taken in reverse, one pass each.
    """
    theta = theta_of(model.structure, model.shared)
    count, weights = theta.shape[0], moments.mean.shape[0]
    shifts = CURVATURE_STEP * jnp.eye(count, dtype=theta.dtype)
    points = jnp.concatenate([theta[None], theta[None] + shifts, theta[None] - shifts])
    zero = ClientSummary(*(jnp.zeros((*[weights] * axes, count)) for axes in (0, 1, 2)))

    def forward(i: Array, found: tuple) -> tuple:
        """The slope of F_i at point i; at the first, which is θ_g itself, also ∂(c, h, J)."""
        slopes, first = found
        moved = jax.jacfwd(lambda t: at_fixed_function(model, t))(points[i])
        slope = moved.c + moments.mean @ moved.h
        slope -= 0.5 * jnp.einsum("kl,klp->p", moments.second, moved.J)
        first = jax.tree.map(lambda new, old: jnp.where(i == 0, new, old), moved, first)
        return slopes.at[i].set(slope), first

    def reverse(i: Array, slopes: Array) -> Array:
        part = jax.grad(lambda t: expected_part(at_fixed_function(model, t), moments))
        return slopes.at[i + 1].set(part(points[i + 1]))

    number = len(points) if count <= FEW_PARAMETERS else 1
    empty = (jnp.zeros_like(points), zero)
    slopes, (d_c, d_h, d_J) = jax.lax.fori_loop(0, wanted * number, forward, empty)
    if number < len(points):
        slopes = jax.lax.fori_loop(0, wanted * 2 * count, reverse, slopes)
    hessian = (slopes[1 : 1 + count] - slopes[1 + count :]) / (2.0 * CURVATURE_STEP)
    return ThetaDerivatives(
        d_c, jnp.moveaxis(d_h, -1, 0), jnp.moveaxis(d_J, -1, 0), 0.5 * (hessian + hessian.T)
    )


def input_gradient(model: ClientModel, moments: Moments) -> Float[Array, "M d"]:
    """∂F_i/∂Z_g, the global weights held."""

    def part(inputs: Array) -> Array:
        moved = model.at(replace(model.shared, inputs=inputs))
        return expected_part(moved.summary(), moments)

    return jax.grad(part)(model.shared.inputs)
