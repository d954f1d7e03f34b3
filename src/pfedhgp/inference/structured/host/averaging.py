"""Averaging over ψ for a batch of clients: `structured.averaging` on the host, all nodes in long batches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from pfedhgp.inference.structured.averaging import (
    CURVATURE_STEP,
    LEVEL,
    SHORTENINGS,
    SOFTEST,
)
from pfedhgp.inference.structured.host.search import Density, gradients, heights

Array = np.ndarray
HALF = np.sqrt(3.0)


class Spread(NamedTuple):
    """N(ψ̄, FFᵀ) of a batch of clients."""

    centre: Float[Array, "c P"]
    factor: Float[Array, "c P P"]


class Ends(NamedTuple):
    """Both ends of each direction of ψ, as far as the bound allows: ψ itself and the weights' means."""

    reach: Float[Array, "c P"]
    up: Float[Array, "c P P"]
    down: Float[Array, "c P P"]
    up_weights: Float[Array, "c P K"]
    down_weights: Float[Array, "c P K"]


def gaussian(objective: Density, best: Float[Array, "c P"], reach: float) -> Spread:
    """One step from Laplace's N(ψ̂, AAᵀ) towards the Gaussian of least KL(q ‖ p)."""
    c, P = best.shape
    eye = np.broadcast_to(np.eye(P), (c, P, P))
    up, down = _slopes(objective, best, CURVATURE_STEP * eye)
    A = _laplace_factor((up - down) / (2.0 * CURVATURE_STEP))
    here = (gradients(objective, best[:, None]) @ A)[:, 0]
    up, down = (slopes @ A for slopes in _slopes(objective, best, HALF * A))
    slope = (1.0 - P / 3.0) * here + (up + down).sum(1) / 6.0
    values, vectors = _eigen(-(HALF / 6.0) * (up - down))
    values = np.clip(values, 0.25, 4.0)
    step = (vectors @ ((np.swapaxes(vectors, 1, 2) @ slope[..., None]) / values[..., None]))[..., 0]
    length = np.maximum(np.linalg.norm(step, axis=1, keepdims=True), 1e-300)
    step = step * np.minimum(1.0, reach / length)
    shift = (A @ step[..., None])[..., 0]
    shift = shift * _believable(objective, best, shift, (step**2).sum(1))[:, None]
    return Spread(best + shift, A @ (vectors / np.sqrt(values)[:, None, :]))


def _slopes(objective: Density, best: Array, A: Float[Array, "c P P"]) -> tuple[Array, Array]:
    """∇ log p at ψ̂ + Ae_p and at ψ̂ − Ae_p for each p."""
    along = np.swapaxes(A, 1, 2)
    nodes = best[:, None] + np.concatenate([along, -along], axis=1)
    up, down = np.split(gradients(objective, nodes), 2, axis=1)
    return up, down


def _laplace_factor(hessian: Float[Array, "c P P"]) -> Float[Array, "c P P"]:
    values, vectors = _eigen(-hessian)
    return vectors / np.sqrt(np.maximum(values, SOFTEST))[:, None, :]


def _eigen(matrix: Float[Array, "c P P"]) -> tuple[Array, Array]:
    """Of the symmetric part; NaN where the matrix is not finite."""
    even = 0.5 * (matrix + np.swapaxes(matrix, 1, 2))
    fine = np.isfinite(even).all((1, 2))
    values, vectors = np.linalg.eigh(np.where(fine[:, None, None], even, 0.0))
    return np.where(fine[:, None], values, np.nan), np.where(fine[:, None, None], vectors, np.nan)


def _believable(objective: Density, best: Array, shift: Array, length: Array) -> Float[Array, " c"]:
    """The largest of 1, ½, ¼, 0 for which that part of `shift` costs at most twice what a Gaussian says."""
    parts = np.array([0.0, 0.25, 0.5, 1.0])
    points = best[:, None] + parts[None, :, None] * shift[:, None]
    found = heights(objective, points).value
    allowed = found >= found[:, :1] - parts**2 * length[:, None]
    return np.max(np.where(allowed, parts, 0.0), axis=1)


def ends(objective: Density, spread: Spread, height: Float[Array, " c"]) -> Ends:
    """ψ̄ ± sFe_p, with s = 1, ½, ¼, ⅛ as far as log p allows, or 0; `height` is log p at ψ̄."""
    c, P = spread.centre.shape
    columns = np.swapaxes(spread.factor, 1, 2)
    reach = np.ones((c, P))
    value, weights = np.full((c, 2 * P), np.nan), None
    open_ = np.ones((c, P), bool)
    for _ in range(1 + SHORTENINGS):
        at = np.flatnonzero(open_.any(1))
        shifts = reach[at][:, :, None] * columns[at]
        centre = spread.centre[at][:, None]
        found = heights(
            objective.of_some(at), np.concatenate([centre + shifts, centre - shifts], axis=1)
        )
        if weights is None:
            weights = np.zeros((c, 2 * P, found.mean.shape[2]))
        value[at], weights[at] = found.value, found.mean
        rise = 0.5 * (value[:, :P] + value[:, P:]) - height[:, None]
        open_ = ~(np.abs(rise) <= LEVEL)
        if not open_.any():
            break
        reach = np.where(open_, 0.5 * reach, reach)
    assert weights is not None
    return _ended(spread, columns, np.where(open_, 0.0, reach), weights)


def _ended(spread: Spread, columns: Array, reach: Array, weights: Array) -> Ends:
    P = reach.shape[1]
    shifts, centre = reach[:, :, None] * columns, spread.centre[:, None]
    return Ends(reach, centre + shifts, centre - shifts, weights[:, :P], weights[:, P:])
