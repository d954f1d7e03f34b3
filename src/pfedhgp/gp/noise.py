"""Observation noise N(0, Σ): per row, only the observed cells' block of Σ counts."""

from __future__ import annotations

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float

from pfedhgp.base.arrays_of import Array

Loadings = Float[Array, "Q R"]
Mask = Float[Array, "n Q"]


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
        pairs = a[:, :, None] * b[:, None, :]
        return jnp.einsum("nq,qab->abn", self.precision, pairs)

    def apply(self, Y: Float[Array, "n Q"]) -> Float[Array, "n Q"]:
        return self.precision * Y


class FullRows(RowPrecision):
    """P_n = the inverse of Σ's observed block"""

    log_determinant: Array
    precision: Float[Array, "n Q Q"]

    def weigh(self, a: Loadings, b: Loadings) -> Float[Array, "Ra Rb n"]:
        return jnp.einsum("qa,nqp,pb->abn", a, self.precision, b)

    def apply(self, Y: Float[Array, "n Q"]) -> Float[Array, "n Q"]:
        return jnp.einsum("nqp,np->nq", self.precision, Y)


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
    def log_gap(self, other: Noise) -> Array:
        """|log σ² − log σ'²|² over what was learned: how far two noises of one form lie apart."""

    @abstractmethod
    def scatter_trace(self, scatter: Float[Array, "G Q Q"], seen: Float[Array, "G Q"]) -> Array:
        """Σ_g tr(Σ_g⁻¹ scatter_g): what replicates add around their means, Σ_g being Σ's observed block.

        Replicates with the same observed cells (`seen` is 1) are a group. If a cell is missing, the precision
        of the others is not a block of Σ⁻¹ but the inverse of a block of Σ.
        """


class DiagonalNoise(Noise):
    """Σ = diag(floor + exp(s)); one `s` for all outputs, or one each."""

    log_variance: Float[Array, " K"]
    floor: float = eqx.field(static=True, default=1e-8)

    def variances(self, outputs: int) -> Float[Array, " Q"]:
        return jnp.broadcast_to(self.floor + jnp.exp(self.log_variance), (outputs,))

    def covariance(self, outputs: int) -> Float[Array, "Q Q"]:
        return jnp.diag(self.variances(outputs))

    def at(self, variances: Float[Array, " Q"]) -> DiagonalNoise:
        logs = jnp.log(variances)
        if self.log_variance.shape[-1] != variances.shape[-1]:
            logs = jnp.mean(logs, axis=-1, keepdims=True)
        return DiagonalNoise(jnp.broadcast_to(logs, self.log_variance.shape), self.floor)

    def louder(self, log_factor: Array) -> DiagonalNoise:
        return DiagonalNoise(self.log_variance + log_factor, self.floor)

    def log_gap(self, other: Noise) -> Array:
        assert isinstance(other, DiagonalNoise)
        return jnp.sum((self.log_variance - other.log_variance) ** 2)

    def rows(self, mask: Mask) -> DiagonalRows:
        variance = self.variances(mask.shape[1])
        return DiagonalRows(jnp.sum(mask * jnp.log(variance)[None, :]), mask / variance[None, :])

    def scatter_trace(self, scatter: Float[Array, "G Q Q"], seen: Float[Array, "G Q"]) -> Array:
        spread = jnp.einsum("gqq->q", scatter)
        return jnp.sum(spread / self.variances(seen.shape[1]))


class FullNoise(Noise):
    """Σ = L Lᵀ + floor·I, L lower triangular with exp on its diagonal."""

    log_factor: Float[Array, "Q Q"]
    floor: float = eqx.field(static=True, default=1e-8)

    def covariance(self, outputs: int) -> Float[Array, "Q Q"]:
        raw = self.log_factor
        factor = jnp.tril(raw, -1) + jnp.diag(jnp.exp(jnp.diagonal(raw)))
        return factor @ factor.T + self.floor * jnp.eye(outputs, dtype=raw.dtype)

    def at(self, variances: Float[Array, " Q"]) -> FullNoise:
        factor = jnp.diag(0.5 * jnp.log(variances))
        return FullNoise(jnp.broadcast_to(factor, self.log_factor.shape), self.floor)

    def louder(self, log_factor: Array) -> FullNoise:
        raw = self.log_factor
        diagonal = jnp.diag(jnp.diagonal(raw) + 0.5 * log_factor)
        return FullNoise(jnp.tril(raw, -1) * jnp.exp(0.5 * log_factor) + diagonal, self.floor)

    def log_gap(self, other: Noise) -> Array:
        """The factor's diagonal holds ½ log σ², so its differences count twice; others as they are."""
        assert isinstance(other, FullNoise)
        gap = jnp.tril(self.log_factor - other.log_factor)
        return jnp.sum(gap**2) + 3.0 * jnp.sum(jnp.diagonal(gap) ** 2)

    def rows(self, mask: Mask) -> FullRows:
        count = jnp.max(mask, axis=1)  # a row's observed cells are means of equally many
        seen = (mask > 0).astype(mask.dtype)
        factor, precision = _observed(self.covariance(mask.shape[1]), seen)
        log_det = 2.0 * jnp.sum(count[:, None] * jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)))
        return FullRows(log_det, precision * count[:, None, None])

    def scatter_trace(self, scatter: Float[Array, "G Q Q"], seen: Float[Array, "G Q"]) -> Array:
        _, precision = _observed(self.covariance(seen.shape[1]), seen)
        return jnp.einsum("gqp,gqp->", precision, scatter)


def _observed(
    covariance: Float[Array, "Q Q"], seen: Float[Array, "n Q"]
) -> tuple[Float[Array, "n Q Q"], Float[Array, "n Q Q"]]:
    """The factor of Σ's observed block, with ones for what is missing, and the block's inverse."""
    both = seen[:, :, None] * seen[:, None, :]
    eye = jnp.eye(seen.shape[1], dtype=seen.dtype)
    block = covariance[None] * both + eye[None] * (1.0 - seen)[:, :, None]
    factor = jnp.linalg.cholesky(block)
    half = jnp.linalg.inv(factor)
    return factor, jnp.einsum("nkq,nkp->nqp", half, half) * both
