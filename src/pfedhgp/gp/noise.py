"""Observation noise N(0, Σ): per row, only the observed cells' block of Σ counts.

Runs in NumPy or in JAX, as its arrays are. Parameters may have a leading axis of clients, if the masks,
loadings and rows have it too.
"""

from __future__ import annotations

from abc import abstractmethod

import equinox as eqx
import numpy as np
from jaxtyping import Float

from pfedhgp.base.arrays_of import Array, namespace
from pfedhgp.gp import linalg
from pfedhgp.gp.linalg import diagonal_matrix

Loadings = Float[Array, "*c Q R"]
Mask = Float[Array, "*c n Q"]


class RowPrecision(eqx.Module):
    """P_n, the inverse of the observed block of Σ for each row, zero elsewhere."""

    log_determinant: eqx.AbstractVar[Array]

    @abstractmethod
    def weigh(self, a: Loadings, b: Loadings) -> Float[Array, "Ra Rb n"]:
        """w_ab(n) = a_aᵀ P_n b_b"""

    @abstractmethod
    def apply(self, Y: Float[Array, "n Q"]) -> Float[Array, "n Q"]:
        """P_n y_n"""


class DiagonalRows(RowPrecision):
    """P_n = diag(mask_n/σ²)"""

    log_determinant: Array
    precision: Float[Array, "n Q"]

    def weigh(self, a: Loadings, b: Loadings) -> Float[Array, "Ra Rb n"]:
        pairs = a[..., :, :, None] * b[..., :, None, :]
        *lead, outputs, first, last = pairs.shape
        xp = namespace(self.precision, pairs)
        flat = xp.swapaxes(pairs.reshape(*lead, outputs, first * last), -1, -2)
        weights = flat @ xp.swapaxes(self.precision, -1, -2)
        return weights.reshape(*weights.shape[:-2], first, last, weights.shape[-1])

    def apply(self, Y: Float[Array, "n Q"]) -> Float[Array, "n Q"]:
        return self.precision * Y


class FullRows(RowPrecision):
    """P_n = the inverse of Σ's observed block"""

    log_determinant: Array
    precision: Float[Array, "n Q Q"]

    def weigh(self, a: Loadings, b: Loadings) -> Float[Array, "Ra Rb n"]:
        xp = namespace(self.precision, a, b)
        left = xp.swapaxes(a, -1, -2)[..., None, :, :]
        return xp.moveaxis(left @ (self.precision @ b[..., None, :, :]), -3, -1)

    def apply(self, Y: Float[Array, "n Q"]) -> Float[Array, "n Q"]:
        return (self.precision @ Y[..., None])[..., 0]


class Noise(eqx.Module):
    """Σ in unconstrained coordinates, so that an optimiser may move its leaves freely."""

    @abstractmethod
    def covariance(self, outputs: int) -> Float[Array, "Q Q"]:
        """Σ"""

    @abstractmethod
    def rows(self, mask: Mask) -> RowPrecision:
        """P_n for each row of a mask: 0 for a missing cell, c for the mean of c observations."""

    @abstractmethod
    def at(self, variances: Float[Array, " Q"]) -> Noise:
        """Independent noise of these variances, in this form."""

    @abstractmethod
    def louder(self, log_factor: Array) -> Noise:
        """Σ times a factor"""

    @abstractmethod
    def levels(self) -> Float[Array, "*c K"]:
        """log σ² of each variance that was learned"""

    @abstractmethod
    def shifted(self, by: Float[Array, "*c K"]) -> Noise:
        """With `by` added to the levels"""

    @abstractmethod
    def at_mean(self, variances: Noise) -> Noise:
        """With the mean of each σ² where its level is Gaussian, given the coordinates' variances."""

    @abstractmethod
    def mixing(self) -> Array:
        """|L|² below its diagonal: how far noises of different outputs go together; 0 if they cannot."""

    @abstractmethod
    def scatter_trace(self, scatter: Float[Array, "G Q Q"], seen: Float[Array, "G Q"]) -> Array:
        """Σ_g tr(Σ_g⁻¹ scatter_g): what replicates add around their means, Σ_g being Σ's observed block.

        Replicates with the same observed cells (`seen` is 1) are a group. If a cell is missing, the precision
        of the others is not a block of Σ⁻¹ but the inverse of a block of Σ.
        """


class DiagonalNoise(Noise):
    """Σ = diag(floor + exp(s)); one `s` for all outputs, or one each."""

    log_variance: Float[Array, "*c K"]
    floor: float = eqx.field(static=True, default=1e-8)

    def variances(self, outputs: int) -> Float[Array, "*c Q"]:
        xp = namespace(self.log_variance)
        found = self.floor + xp.exp(self.log_variance)
        return xp.broadcast_to(found, (*found.shape[:-1], outputs))

    def covariance(self, outputs: int) -> Float[Array, "*c Q Q"]:
        return diagonal_matrix(self.variances(outputs))

    def at(self, variances: Float[Array, " Q"]) -> DiagonalNoise:
        xp = namespace(variances)
        logs = xp.log(variances)
        if self.log_variance.shape[-1] != variances.shape[-1]:
            logs = xp.mean(logs, axis=-1, keepdims=True)
        return DiagonalNoise(xp.broadcast_to(logs, self.log_variance.shape), self.floor)

    def louder(self, log_factor: Array) -> DiagonalNoise:
        return DiagonalNoise(self.log_variance + log_factor, self.floor)

    def levels(self) -> Float[Array, "*c K"]:
        return self.log_variance

    def shifted(self, by: Float[Array, "*c K"]) -> DiagonalNoise:
        return DiagonalNoise(self.log_variance + by, self.floor)

    def at_mean(self, variances: Noise) -> DiagonalNoise:
        return self.shifted(0.5 * variances.levels())

    def mixing(self) -> Array:
        return namespace(self.log_variance).zeros(self.log_variance.shape[:-1])

    def rows(self, mask: Mask) -> DiagonalRows:
        variance = self.variances(mask.shape[-1])[..., None, :]
        log_determinant = (mask * namespace(variance).log(variance)).sum(axis=(-2, -1))
        return DiagonalRows(log_determinant, mask / variance)

    def scatter_trace(self, scatter: Float[Array, "G Q Q"], seen: Float[Array, "G Q"]) -> Array:
        spread = _diagonal_of(scatter).sum(axis=-2)
        return (spread / self.variances(seen.shape[-1])).sum(axis=-1)


class FullNoise(Noise):
    """Σ = L Lᵀ + floor·I, L lower triangular with exp on its diagonal."""

    log_factor: Float[Array, "*c Q Q"]
    floor: float = eqx.field(static=True, default=1e-8)

    def covariance(self, outputs: int) -> Float[Array, "*c Q Q"]:
        raw = self.log_factor
        xp = namespace(raw)
        factor = xp.tril(raw, -1) + diagonal_matrix(xp.exp(_diagonal_of(raw)))
        floor = xp.full((*raw.shape[:-2], outputs), self.floor, raw.dtype)
        return factor @ xp.swapaxes(factor, -1, -2) + diagonal_matrix(floor)

    def at(self, variances: Float[Array, " Q"]) -> FullNoise:
        xp = namespace(variances)
        factor = diagonal_matrix(0.5 * xp.log(variances))
        return FullNoise(xp.broadcast_to(factor, self.log_factor.shape), self.floor)

    def louder(self, log_factor: Array) -> FullNoise:
        raw = self.log_factor
        xp = namespace(raw, log_factor)
        diagonal = diagonal_matrix(_diagonal_of(raw) + 0.5 * log_factor)
        return FullNoise(xp.tril(raw, -1) * xp.exp(0.5 * log_factor) + diagonal, self.floor)

    def levels(self) -> Float[Array, "*c K"]:
        return 2.0 * _diagonal_of(self.log_factor)

    def shifted(self, by: Float[Array, "*c K"]) -> FullNoise:
        return FullNoise(self.log_factor + diagonal_matrix(0.5 * by), self.floor)

    def at_mean(self, variances: Noise) -> FullNoise:
        return self.shifted(variances.levels())  # twice a coordinate's, and half of four times it

    def mixing(self) -> Array:
        return (namespace(self.log_factor).tril(self.log_factor, -1) ** 2).sum(axis=(-2, -1))

    def rows(self, mask: Mask) -> FullRows:
        count = mask.max(axis=-1)  # a row's observed cells are means of equally many
        seen = (mask > 0).astype(mask.dtype)
        factor, precision = _observed(self.covariance(mask.shape[-1]), seen)
        logs = namespace(factor).log(_diagonal_of(factor))
        log_determinant = 2.0 * (count[..., None] * logs).sum(axis=(-2, -1))
        return FullRows(log_determinant, precision * count[..., None, None])

    def scatter_trace(self, scatter: Float[Array, "G Q Q"], seen: Float[Array, "G Q"]) -> Array:
        _, precision = _observed(self.covariance(seen.shape[-1]), seen)
        return (precision * scatter).sum(axis=(-3, -2, -1))


def _observed(
    covariance: Float[Array, "*c Q Q"], seen: Float[Array, "*c n Q"]
) -> tuple[Float[Array, "*c n Q Q"], Float[Array, "*c n Q Q"]]:
    """The factor of Σ's observed block, with ones for what is missing, and the block's inverse."""
    xp = namespace(covariance, seen)
    if xp is np and seen.ndim == 2 and seen.shape[1] < 50:
        # Rows with the same cells have the same block: a pattern is one number, bit by bit.
        codes = seen @ 2.0 ** np.arange(seen.shape[1])
        _, first, pattern = np.unique(codes, return_index=True, return_inverse=True)
        if len(first) < len(seen):
            factor, precision = _observed(covariance, seen[first])
            return factor[pattern], precision[pattern]
    both = seen[..., :, None] * seen[..., None, :]
    block = covariance[..., None, :, :] * both + diagonal_matrix(1.0 - seen)
    factor = linalg.factorise(block)
    half = linalg.solve_lower(factor, diagonal_matrix(xp.ones_like(seen)))
    return factor, (xp.swapaxes(half, -1, -2) @ half) * both


def _diagonal_of(matrices: Float[Array, "*c Q Q"]) -> Float[Array, "*c Q"]:
    return namespace(matrices).diagonal(matrices, axis1=-2, axis2=-1)
