"""Observed cells in groups that share one precision: yᵀP_n y = Σ_g m_g(n) yᵀΠ_g y.

With diagonal noise a group is a set of outputs that are missing in the same rows, and Π_g = diag(1/σ²) there.
With full noise it is a pattern of observed cells, and Π_g the inverse of Σ's block. A client's sums then need
rows only through F diag(m_g) Fᵀ, F diag(m_g) Y and Yᵀ diag(m_g) Y, once for each group.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from pfedhgp.gp.linalg import LOG_2PI
from pfedhgp.gp.noise import DiagonalNoise, FullNoise, Noise
from pfedhgp.model.blocks import Rows

Array = np.ndarray
MOST_GROUPS = 8
"""With more patterns of observed cells than this, the compiled solver weighs row by row."""


class Cells(NamedTuple):
    """The cells of a batch of clients, in groups that all of them share."""

    weights: Float[Array, "c g n"]
    """m_g(n): how many observations a row's cells of the group are the mean of"""
    Y: Float[Array, "c n Q"]
    squares: Float[Array, "c g Q Q"]
    """Σ_n m_g(n) y yᵀ, and the scatter of replicates around their means"""
    counts: Float[Array, "c g"]
    """Σ_n m_g(n)"""
    outputs: Float[Array, "g Q"]
    """1 for the outputs that a group has"""

    def of(self, which: Array | slice) -> Cells:
        """The cells of some clients."""
        weights, Y, squares, counts = (part[which] for part in self[:4])
        return Cells(weights, Y, squares, counts, self.outputs)

    def log_constant(self, precision: Precision) -> Float[Array, " c"]:
        """−½ (N log 2π + log|Σ| + yᵀΣ⁻¹y)"""
        logs = self.outputs.sum(1) * LOG_2PI + precision.log_determinant
        quadratic = np.einsum("cgqp,cgqp->c", precision.matrix, self.squares)
        return -0.5 * ((self.counts * logs).sum(1) + quadratic)


class Precision(NamedTuple):
    """Π_g and log|Σ_g| of a batch of clients."""

    matrix: Float[Array, "c g Q Q"]
    log_determinant: Float[Array, "c g"]


def cells_of(rows: Rows, *, full: bool) -> Cells | None:
    """A batch's cells in groups; None if there are too many patterns of observed cells."""
    mask, Y = np.asarray(rows.mask), np.asarray(rows.Y)
    found = _by_pattern(mask) if full else _by_output(mask)
    if found is None:
        return None
    outputs, weights = found
    weighted = weights[:, :, :, None] * Y[:, None]
    both = outputs[:, :, None] * outputs[:, None, :]
    squares = np.swapaxes(weighted, 2, 3) @ Y[:, None] * both
    cells = Cells(weights, Y, squares, weights.sum(2), outputs)
    return cells if rows.scatter is None else _with_scatter(cells, rows, full)


def _by_output(mask: Float[Array, "c n Q"]) -> tuple[Array, Array]:
    """Outputs whose masks are equal at all clients are one group."""
    Q = mask.shape[2]
    first = [
        next(p for p in range(q + 1) if np.array_equal(mask[..., p], mask[..., q]))
        for q in range(Q)
    ]
    chosen = sorted(set(first))
    outputs = np.array([[1.0 if own == g else 0.0 for own in first] for g in chosen])
    return outputs.reshape(len(chosen), Q), np.moveaxis(mask[..., chosen], 2, 1).copy()


def _by_pattern(mask: Float[Array, "c n Q"]) -> tuple[Array, Array] | None:
    """Rows with the same observed cells are one group; rows without any are in none."""
    seen = mask > 0
    patterns = np.unique(seen.reshape(-1, mask.shape[2]), axis=0)
    patterns = patterns[patterns.any(1)]
    if len(patterns) > MOST_GROUPS:
        return None
    if not len(patterns):
        patterns = np.ones((1, mask.shape[2]), bool)
    same = (seen[:, None] == patterns[None, :, None]).all(3)
    return patterns.astype(np.float64), same * mask.max(2)[:, None]


def _with_scatter(cells: Cells, rows: Rows, full: bool) -> Cells | None:
    """Adds what replicates scatter around their means; groups that no row has get weights of zero."""
    scatter, patterns = np.asarray(rows.scatter), np.asarray(rows.scatter_seen)
    if not full:
        own = np.einsum("csqq,gq->cgq", scatter, cells.outputs)
        return cells._replace(squares=cells.squares + own[..., None] * np.eye(own.shape[2]))
    for client in range(len(scatter)):
        for own, pattern in zip(scatter[client], patterns[client], strict=True):
            if not own.any():
                continue
            at = np.flatnonzero((cells.outputs == pattern).all(1))
            if not len(at):
                cells = _with_group(cells, pattern)
                at = np.array([len(cells.outputs) - 1])
            cells.squares[client, at[0]] += own
    return cells if len(cells.outputs) <= MOST_GROUPS else None


def _with_group(cells: Cells, pattern: Float[Array, " Q"]) -> Cells:
    c, _, n = cells.weights.shape
    Q = len(pattern)
    return Cells(
        np.concatenate([cells.weights, np.zeros((c, 1, n))], 1),
        cells.Y,
        np.concatenate([cells.squares, np.zeros((c, 1, Q, Q))], 1),
        np.concatenate([cells.counts, np.zeros((c, 1))], 1),
        np.concatenate([cells.outputs, pattern[None]]),
    )


def precision_of(noise: Noise, cells: Cells) -> Precision:
    """Π_g of each client's noise, whose arrays have the leading axis of clients."""
    outputs = cells.outputs
    if isinstance(noise, DiagonalNoise):
        variances = _variances(noise, outputs.shape[1])[:, None]
        matrix = (outputs / variances)[..., None] * np.eye(outputs.shape[1])
        return Precision(matrix, (outputs * np.log(variances)).sum(2))
    covariance = covariance_of(noise, outputs.shape[1])
    both = outputs[:, :, None] * outputs[:, None, :]
    block = covariance[:, None] * both + np.eye(outputs.shape[1]) * (1.0 - outputs)[:, :, None]
    return Precision(np.linalg.inv(block) * both, np.linalg.slogdet(block)[1])


def residual_cost(noise: Noise, cells: Cells, B: Float[Array, "c Q r"]) -> Float[Array, " c"]:
    """½ r max_a Σ_n b_aᵀP_n b_a: the most nats that a mean residual of 1 costs a layer with loadings B."""
    Pi = precision_of(noise, cells).matrix
    each = np.einsum("cqa,cgqp,cpa,cg->ca", B, Pi, B, cells.counts, optimize=True)
    return 0.5 * B.shape[2] * each.max(1, initial=0.0)


def noise_pullback(
    noise: Noise, cells: Cells, precision: Precision, bar: Float[Array, "c g Q Q"]
) -> Float[Array, "c k"]:
    """The gradient in the noise's coordinates of ⟨bar, Π⟩ − ½ Σ_g counts_g log|Σ_g|."""
    matrix, counts = precision.matrix, cells.counts
    even = 0.5 * (bar + np.swapaxes(bar, 2, 3))
    of_covariance = -(matrix @ even @ matrix + 0.5 * counts[..., None, None] * matrix).sum(1)
    return covariance_pullback(noise, of_covariance)


def covariance_of(noise: Noise, outputs: int) -> Float[Array, "c Q Q"]:
    """Σ of each client"""
    if isinstance(noise, DiagonalNoise):
        return _variances(noise, outputs)[:, :, None] * np.eye(outputs)
    assert isinstance(noise, FullNoise)
    factor = _factor(noise)
    return factor @ np.swapaxes(factor, 1, 2) + noise.floor * np.eye(outputs)


def covariance_pullback(noise: Noise, bar: Float[Array, "c Q Q"]) -> Float[Array, "c k"]:
    """The gradient in the noise's coordinates of ⟨bar, Σ⟩."""
    if isinstance(noise, DiagonalNoise):
        slope = np.einsum("cqq->cq", bar) * (_variances(noise, bar.shape[2]) - noise.floor)
        return slope.sum(1, keepdims=True) if noise.log_variance.shape[1] == 1 else slope
    assert isinstance(noise, FullNoise)
    factor = _factor(noise)
    lower = np.tril((bar + np.swapaxes(bar, 1, 2)) @ factor)
    index = np.arange(factor.shape[1])
    lower[:, index, index] *= factor[:, index, index]
    return lower.reshape(len(lower), -1)


def _variances(noise: DiagonalNoise, outputs: int) -> Float[Array, "c Q"]:
    found = noise.floor + np.exp(noise.log_variance)
    return np.broadcast_to(found, (len(found), outputs))


def _factor(noise: FullNoise) -> Float[Array, "c Q Q"]:
    raw = np.asarray(noise.log_factor)
    index = np.arange(raw.shape[1])
    factor = np.tril(raw, -1)
    factor[:, index, index] = np.exp(raw[:, index, index])
    return factor


def beyond_means(cells: Cells) -> Cells:
    """The cells with what replicates add to their means alone."""
    weighted = cells.weights[:, :, :, None] * cells.Y[:, None]
    both = cells.outputs[:, :, None] * cells.outputs[:, None, :]
    of_means = np.swapaxes(weighted, 2, 3) @ cells.Y[:, None] * both
    rows = (cells.weights > 0).sum(2)
    return cells._replace(squares=cells.squares - of_means, counts=cells.counts - rows)


def log_counts(cells: Cells) -> Float[Array, " c"]:
    """Σ log m over observed cells"""
    logs = np.log(np.where(cells.weights > 0, cells.weights, 1.0)).sum(2)
    return (logs * cells.outputs.sum(1)).sum(1)
