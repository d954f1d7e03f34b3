"""What a batch of clients sends: the sums of `structured.statistics`, and how they change with θ_g.

Derivatives in θ_g are central differences: ∂(c, h, J) of the sums themselves, and the Hessian of
F_i = c + hᵀm − ½ tr J(S + mmᵀ) of its exact slope, which is pulled back from the weights' moments.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from pfedhgp.gp import linalg
from pfedhgp.gp.linalg import Moments
from pfedhgp.inference.structured.bound import ClientSummary, GlobalEvidence, Statistics
from pfedhgp.inference.structured.host import cells as cells_
from pfedhgp.inference.structured.host.features import (
    Features,
    LayerInputs,
    features_of,
    kernels_pullback,
    residual_pullback,
)
from pfedhgp.inference.structured.host.objective import LocalSums, Objective
from pfedhgp.inference.structured.host.parameters import Parameters
from pfedhgp.inference.structured.host.sums import (
    Gathered,
    Totals,
    first_loadings_pullback,
    regathered,
    sums_pullback,
    totals,
)
from pfedhgp.inference.structured.statistics import (
    CURVATURE_STEP,
    ThetaDerivatives,
    loadings_spread,
)
from pfedhgp.model.blocks import GlobalBlock, theta_of, with_theta

Array = np.ndarray


class OwnFactor(NamedTuple):
    """W = I + Λ_cc = LLᵀ of a batch of clients, with L⁻¹Λ_cg and L⁻¹η_c."""

    factor: Float[Array, "c K K"]
    cross: Float[Array, "c K k"]
    linear: Float[Array, "c K"]

    @staticmethod
    def of(precision: Array, cross: Array, linear: Array) -> OwnFactor:
        """From Λ_cc, Λ_cg and η_c."""
        factor = linalg.factorise(precision + np.eye(precision.shape[-1]))
        white = linalg.solve_lower(factor, np.concatenate([cross, linear[..., None]], axis=2))
        return OwnFactor(factor, white[..., :-1], white[..., -1])

    def summary(self, constant: Array, precision: Array, linear: Array) -> ClientSummary:
        """(c, h, J), from the constant, Λ_gg and η_g."""
        turned = np.swapaxes(self.cross, 1, 2)
        logs = np.log(np.diagonal(self.factor, axis1=1, axis2=2)).sum(1)
        c = constant + 0.5 * (self.linear**2).sum(1) - logs
        h = linear - (turned @ self.linear[..., None])[..., 0]
        return ClientSummary(c, h, precision - turned @ self.cross)

    def conditional(self) -> tuple[Array, Array, Array]:
        """W⁻¹η_c, W⁻¹Λ_cg and W⁻¹"""
        white = np.concatenate([self.cross, self.linear[..., None]], axis=2)
        solved = linalg.solve_lower(self.factor, white, transpose=True)
        return solved[..., -1], solved[..., :-1], linalg.inverse_by_factor(self.factor)


class GlobalLayer(NamedTuple):
    """The global block, the rows where a batch of clients evaluates it, and its L."""

    block: GlobalBlock
    X: Float[Array, "c n d"]
    jitter: float
    factor: Float[Array, "R M M"]

    def of_some(self, which: Array | slice) -> GlobalLayer:
        return self._replace(X=self.X[which])

    def inputs(self) -> LayerInputs:
        """For derivatives in θ_g, of which each client has its own."""
        Z = np.broadcast_to(self.block.inputs, (len(self.X), *self.block.inputs.shape))
        return LayerInputs.of(Z, self.X, None, np.full(len(Z), self.jitter))


def statistics(
    objective: Objective, at: Parameters, shared: GlobalLayer, *, derivatives: bool
) -> Statistics:
    """What the clients send at ψ."""
    layout, cells = objective.layout, objective.cells
    k = layout.shared_weights
    local, precision, found = objective.all_sums(at)
    constant = cells.log_constant(precision) - 0.5 * found.residual(local.residuals)
    gg, gc, eta = _unloaded(objective, found, precision.matrix)
    own = OwnFactor.of(found.precision[:, k:, k:], np.swapaxes(gc, 1, 2), found.linear[:, k:])
    evidence, y, U = own.summary(constant, gg, eta)
    B_g = found.B[..., : layout.latents]
    J, h = loaded_each(U, y, B_g)
    q = linalg.posterior_moments(J + objective.J, h + objective.h)
    weights = _own_moments(own, B_g, q)
    B_dev = found.B[..., layout.latents : layout.latents + layout.deviations]
    B_loc = found.B[..., layout.latents + layout.deviations :]
    dev_square, loc_square = B_dev @ np.swapaxes(B_dev, 1, 2), B_loc @ np.swapaxes(B_loc, 1, 2)
    cut, power = layout.deviation_weights, dev_square
    if layout.deviations and not objective.structure.tied:
        dev_square = _square(
            shared.factor[None, : layout.deviations], None, B_dev, weights[:, :cut, :cut]
        )
    if local.features is not None and layout.local:
        active = None if objective.local_inputs is None else objective.local_inputs.active
        loc_square = _square(local.features.factor, active, B_loc, weights[:, cut:, cut:])
    count = theta_of(objective.structure, shared.block).shape[0]
    spread = shared.block.loadings_covariance
    return Statistics(
        evidence=evidence,
        U=U if spread is None else J,
        y=y if spread is None else h,
        **({} if spread is None else _own_loadings(B_g, U, q, spread)),
        shared_residual=np.einsum(
            "cgr,cgqp->crqp", local.residuals[..., : layout.latents], precision.matrix
        ),
        **(
            theta_derivatives(_Around(objective, at, local, shared, shared.inputs(), q))
            if derivatives and count and layout.latents
            else no_derivatives(len(y), count if derivatives else 0, k)
        )._asdict(),
        deviation_power=power,
        deviation_square=dev_square,
        local_square=loc_square,
        noise=cells_.covariance_of(at.noise, cells.Y.shape[2]),
        clients=np.ones(len(y)),
        residual=found.residual(local.residuals),
    )


def _own_loadings(
    B: Float[Array, "c Q R"],
    U: Float[Array, "c RQM RQM"],
    q: Moments,
    prior: Float[Array, "QR QR"],
) -> dict[str, Array]:
    """B_g,i, and E[b bᵀ] with what the rows leave open."""
    flat = B.reshape(len(B), -1)
    spread = np.stack([loadings_spread(u, s, prior) for u, s in zip(U, q.second, strict=True)])
    return {
        "client_loadings": B,
        "client_loadings_square": flat[:, :, None] * flat[:, None, :] + spread,
    }


def loaded_each(
    U: Float[Array, "c RQM RQM"], y: Float[Array, "c RQM"], B: Float[Array, "c Q R"]
) -> GlobalEvidence:
    """J and h of each client, with its loadings."""
    c, Q, R = B.shape
    M = y.shape[1] // max(Q * R, 1)
    turned = np.swapaxes(B, 1, 2)
    half = np.einsum("crq,crqmz->crmz", turned, U.reshape(c, R, Q, M, R * Q * M), optimize=True)
    J = np.einsum("csp,czspk->czsk", turned, half.reshape(c, R * M, R, Q, M), optimize=True)
    h = np.einsum("crq,crqm->crm", turned, y.reshape(c, R, Q, M))
    return GlobalEvidence(J.reshape(c, R * M, R * M), h.reshape(c, R * M))


def no_derivatives(clients: int, parameters: int, weights: int) -> ThetaDerivatives:
    """Zeros; of no parameters where nobody asked."""
    shapes = ((), (weights,), (weights, weights), (parameters,))
    return ThetaDerivatives(*(np.zeros((clients, parameters, *shape)) for shape in shapes))


def _unloaded(
    objective: Objective, found: Totals, Pi: Float[Array, "c g Q Q"]
) -> tuple[Array, Array, Array]:
    """Λ_gg, Λ_gc and η_g where the global layer is E = I_Q ⊗ a_g, ordered (latent, output, input)."""
    layout = objective.layout
    R, M, k = layout.latents, layout.size, layout.shared_weights
    c, groups, Q, _ = Pi.shape
    G, T = found.gathered
    among = G[:, :, :k, :k].reshape(c, groups, R, M, R, M)
    gg = np.einsum("cgqp,cgrmsk->crqmspk", Pi, among, optimize=True).reshape(
        c, R * Q * M, R * Q * M
    )
    PB = Pi @ found.B[:, None]
    own = layout.weights - k
    gc = np.zeros((c, R, Q, M, own))
    for g in range(groups):
        across = found.by_feature(G[:, g, :k])[..., k:].reshape(c, R, 1, M, own)
        loads = found.by_column(PB[:, g])[..., k:].reshape(c, 1, Q, 1, own)
        gc += across * loads
    eta = np.einsum("cgrmq,cgqp->crpm", T[:, :, :k].reshape(c, groups, R, M, Q), Pi, optimize=True)
    return gg, gc.reshape(c, R * Q * M, own), eta.reshape(c, R * Q * M)


def _own_moments(own: OwnFactor, B: Float[Array, "c Q R"], q: Moments) -> Float[Array, "c K K"]:
    """E[wwᵀ] of the client's own weights, v_g ~ q."""
    K, width = own.cross.shape[1:]
    c, Q, latents = B.shape
    M = width // max(latents * Q, 1)
    cross = np.einsum("ckrqm,cqr->ckrm", own.cross.reshape(c, K, latents, Q, M), B)
    offset, G, covariance = own._replace(
        cross=cross.reshape(len(cross), K, latents * M)
    ).conditional()
    mean = offset - (G @ q.mean[..., None])[..., 0]
    return (
        covariance + G @ q.covariance @ np.swapaxes(G, 1, 2) + mean[:, :, None] * mean[:, None, :]
    )


def _square(
    factor: Float[Array, "c R M M"], active: Array | None, B: Array, second: Float[Array, "c K K"]
) -> Float[Array, "c Q Q"]:
    """E[f fᵀ] between outputs, mean over the inducing inputs (see `own_weights`)."""
    c, R, M = len(B), B.shape[2], factor.shape[-1]
    share = np.full((1, M), 1.0 / max(M, 1)) if active is None else active[:, 0] / active.sum(2)
    V = second.reshape(c, R, M, R, M)
    C = np.empty((c, R, R))
    for r in range(R):
        for s in range(R):
            moved = factor[:, r] @ V[:, r, :, s]
            C[:, r, s] = (share * np.einsum("cxk,cxk->cx", moved, factor[:, s])).sum(1)
    return B @ C @ np.swapaxes(B, 1, 2)


class _Around(NamedTuple):
    """Where derivatives in θ_g are taken: the clients at ψ, their local layer, θ_g itself and q(v_g)."""

    objective: Objective
    at: Parameters
    local: LocalSums
    shared: GlobalLayer
    inputs: LayerInputs
    q: Moments


class _AtTheta(NamedTuple):
    """The client's sums at another θ_g, the global function's values held."""

    summary: ClientSummary
    slope: Float[Array, "c P"]


def theta_derivatives(around: _Around) -> ThetaDerivatives:
    """∂(c, h, J)/∂θ_g and the Hessian of F_i, by central differences around θ_g, for one latent or more."""
    structure, block = around.objective.structure, around.shared.block
    theta = theta_of(structure, block)
    kernels = len(theta) - (2 if structure.tied else 0)

    def moved(p: int, sign: float) -> _AtTheta:
        shifted = theta.copy()
        shifted[p] += sign * CURVATURE_STEP
        there = with_theta(structure, block, shifted)
        return _at_theta(around, there) if p < kernels else _at_scale(around, there)

    ends = [(moved(p, 1.0), moved(p, -1.0)) for p in range(len(theta))]

    def difference(up: Array, down: Array) -> Array:
        return (up - down) / (2.0 * CURVATURE_STEP)

    d_c, d_h, d_J = (
        np.stack([difference(a.summary[i], b.summary[i]) for a, b in ends], axis=1)
        for i in range(3)
    )
    hessian = np.zeros((len(d_c), len(theta), len(theta)))
    for p, (up, down) in enumerate(ends):
        row = difference(up.slope, down.slope)
        hessian[:, p, len(theta) - row.shape[1] :] = row
    # Of log τ and log φ only the slopes in themselves are known; the others' rows have the rest.
    hessian[:, kernels:, :kernels] = np.swapaxes(hessian[:, :kernels, kernels:], 1, 2)
    return ThetaDerivatives(d_c, d_h, d_J, 0.5 * (hessian + np.swapaxes(hessian, 1, 2)))


def _at_scale(around: _Around, block: GlobalBlock) -> _AtTheta:
    """The same in a model without loadings where τ or φ alone moves; the slope is in log τ and log φ.

    The global function is held, so Λ and η change by B_δ = √φ τ, and the global layer's residual by τ². No
    row is seen again.
    """
    objective, at, local, shared, _, q = around
    layout, cells = objective.layout, objective.cells
    k, R, Rd = layout.shared_weights, layout.latents, layout.deviations
    moved = replace(objective, tied_deviation=np.sqrt(block.phi) * block.loadings)
    precision = cells_.precision_of(at.noise, cells)
    found = totals(layout, local.gathered, moved.loadings(at), precision.matrix)
    residuals = local.residuals.copy()
    residuals[..., :R] *= ((block.loadings / shared.block.loadings) ** 2).sum(0)
    constant = cells.log_constant(precision) - 0.5 * found.residual(residuals)
    Lambda, eta = found.precision, found.linear
    parts = OwnFactor.of(Lambda[:, k:, k:], Lambda[:, k:, :k], eta[:, k:])
    summary = parts.summary(constant, Lambda[:, :k, :k], eta[:, :k])
    mean, second = _joint(parts, q, k + layout.deviation_weights)
    of_B = first_loadings_pullback(found, mean, second, residuals, R + Rd)
    of_dev = (of_B[..., R:] * found.B[..., R : R + Rd]).sum((1, 2))
    each = np.einsum("cgaa->cga", found.W)[..., :R]
    of_tau = of_dev - (each * residuals[..., :R]).sum((1, 2))
    return _AtTheta(summary, np.stack([of_tau, 0.5 * of_dev], axis=1))


def _at_theta(around: _Around, block: GlobalBlock) -> _AtTheta:
    """(c, h, J) and the slope of F_i at `block`, for the weights v₀ of θ_g: A' = L₀ᵀK⁻¹k."""
    objective, at, local, shared, inputs, q = around
    layout, cells = objective.layout, objective.cells
    c, k, d, n = len(cells.Y), layout.shared_weights, layout.deviation_weights, cells.Y.shape[1]
    kernels = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (c, *leaf.shape)), block.kernels)
    own = features_of(kernels, inputs)
    solved = linalg.solve_lower(own.factor, own.A, transpose=True)
    turned = np.swapaxes(shared.factor, 1, 2)
    held = turned @ solved
    tied = objective.structure.tied
    if tied:
        held = held * (shared.block.loadings / block.loadings)
    raw = own.A[:, : layout.deviations].reshape(c, d, n)
    F = np.concatenate([held.reshape(c, k, n), raw, local.F[:, k:]], axis=1)
    wide = layout._replace(separate=True)
    new = slice(0, k + d)
    known = Gathered(local.gathered.G[:, :, k:, k:], local.gathered.T[:, :, k:])
    weighted = F[:, None, new] * cells.weights[:, :, None, :]
    gathered = regathered(known, F, weighted, cells.Y, new)
    moved = replace(
        objective,
        B_g=block.loadings,
        tied_deviation=np.sqrt(block.phi) * block.loadings if tied else None,
    )
    precision = cells_.precision_of(at.noise, cells)
    found = totals(wide, gathered, moved.loadings(at), precision.matrix)
    of_shared = cells.weights @ np.swapaxes(own.residual, 1, 2)
    R, Rd = layout.latents, layout.deviations
    residuals = np.concatenate(
        [of_shared, of_shared[..., :Rd], local.residuals[..., R + Rd :]], axis=2
    )
    constant = cells.log_constant(precision) - 0.5 * found.residual(residuals)
    Lambda, eta = found.precision, found.linear
    parts = OwnFactor.of(Lambda[:, k:, k:], Lambda[:, k:, :k], eta[:, k:])
    summary = parts.summary(constant, Lambda[:, :k, :k], eta[:, :k])
    mean, second = _joint(parts, q, k + d)
    bar = sums_pullback(found, cells, F, mean, second, new)
    slopes = [_of_kernels(around, block, own, solved, found, bar)]
    if tied:
        of_B = first_loadings_pullback(found, mean, second, residuals, R + Rd)
        of_dev = (of_B[..., R : R + Rd] * found.B[..., R : R + Rd]).sum((1, 2))
        of_tau = (of_B[..., :R] * found.B[..., :R]).sum((1, 2)) + of_dev
        of_tau -= (bar[:, :k] * F[:, :k]).sum((1, 2))
        slopes += [of_tau[:, None], 0.5 * of_dev[:, None]]
    return _AtTheta(summary, np.concatenate(slopes, axis=1))


def _joint(
    own: OwnFactor, q: Moments, rows: int
) -> tuple[Float[Array, "c K"], Float[Array, "c rows K"]]:
    """Mean of [v_g | w], v_g ~ q and w given v_g by the client's own rows, and the first second moments."""
    offset, G, covariance = own.conditional()
    c, k = q.mean.shape
    mean = np.concatenate([q.mean, offset - (G @ q.mean[..., None])[..., 0]], axis=1)
    second = np.empty((c, rows, mean.shape[1]))
    cross = -q.covariance @ np.swapaxes(G, 1, 2)
    second[:, :k, :k], second[:, :k, k:] = q.covariance, cross
    second[:, k:, :k] = np.swapaxes(cross[..., : rows - k], 1, 2)
    second[:, k:, k:] = covariance[:, : rows - k] - G[:, : rows - k] @ cross
    second += mean[:, :rows, None] * mean[:, None, :]
    return mean, second


def _of_kernels(
    around: _Around,
    block: GlobalBlock,
    own: Features,
    solved: Float[Array, "c R M n"],
    found: Totals,
    bar: Float[Array, "c kd n"],
) -> Float[Array, "c P"]:
    """The slope in log kernel parameters: through a = L⁻¹k, its residual, and A' = L₀ᵀK⁻¹k."""
    objective, shared = around.objective, around.shared
    layout, cells = objective.layout, objective.cells
    R, M, Rd, k = layout.latents, layout.size, layout.deviations, layout.shared_weights
    c, n = len(bar), bar.shape[2]
    each = np.einsum("cgaa->cga", found.W)
    each = each[..., :R].copy() + _padded(each[..., R : R + Rd], R)
    raw_bar = residual_pullback(own, each, cells.weights)
    raw_bar[:, :Rd] += bar[:, k:].reshape(c, Rd, M, n)
    held_bar = bar[:, :k].reshape(c, R, M, n)
    if objective.structure.tied:
        held_bar = held_bar * (shared.block.loadings / block.loadings)
    lifted = linalg.solve_lower(
        own.factor, linalg.solve_lower(own.factor, shared.factor @ held_bar), transpose=True
    )
    # Deviations depend on a by products of features alone: see `features_pullback`.
    raw = linalg.solve_lower(own.factor, raw_bar, transpose=True)
    K_bar = -(0.5 * raw + lifted) @ np.swapaxes(solved, -1, -2)
    pulled = kernels_pullback(own, around.inputs, raw + lifted, K_bar)
    return np.concatenate([leaf.reshape(c, -1) for leaf in jax.tree.leaves(pulled)], axis=1)


def _padded(values: Float[Array, "c g Rd"], latents: int) -> Array:
    return np.pad(values, ((0, 0), (0, 0), (0, latents - values.shape[2])))
