"""Whitened inducing features: a(x) = L⁻¹ k(Z, x) with L Lᵀ = k(Z, Z) + jitter, so u = L v, v ~ N(0, I)."""

from __future__ import annotations

import equinox as eqx
import numpy as np
from jaxtyping import Float

from pfedhgp.base.arrays_of import Array, namespace
from pfedhgp.gp import linalg
from pfedhgp.gp.kernels import Kernel, aligned


class Basis(eqx.Module):
    """The inducing basis of a layer: R kernels on one set of M inputs, k(Z, Z) + jitter and its factor.

    `active` is 1 for a real inducing input and 0 for padding, whose features are zero: clients with
    fewer inducing inputs than the others of a batch are padded to the same shape.

    All clients of a batch make one basis: kernels (c, R, ...), inputs (c, 1, M, d), active (c, 1, M), and
    rows X (c, 1, n, d).
    """

    kernels: Kernel
    inputs: Float[Array, "*c M d"]
    active: Float[Array, "*c M"]
    gram: Float[Array, "*c R M M"]
    factor: Float[Array, "*c R M M"]
    turned: bool = eqx.field(static=True, default=False)
    """Whether only products of features matter, because the weights are integrated out: JAX's derivatives of
    features may then be those of rotated ones"""

    @staticmethod
    def build(
        kernels: Kernel, inputs: Array, jitter: Array | float, active: Array | None = None
    ) -> Basis:
        """Factorises k(Z, Z) for each latent."""
        k = kernels(inputs, inputs, stacked=_stacked(inputs))
        xp = namespace(k, active)
        if active is None:
            mask = xp.ones(inputs.shape[:-1], inputs.dtype)
        else:
            mask = active
            k, both, padding = aligned(
                k,
                mask[..., :, None] * mask[..., None, :],
                linalg.diagonal_matrix(1.0 - mask),
            )
            k = k * both + padding
        gram = linalg.add_jitter(k, jitter)
        return Basis(kernels, inputs, mask, gram, linalg.factorise(gram))

    def cross(self, X: Float[Array, "*c n d"]) -> Float[Array, "*c R M n"]:
        """k(Z, x), zero for padding."""
        k = self.kernels(self.inputs, X, stacked=_stacked(self.inputs))
        k, mask = aligned(k, self.active[..., :, None])
        return k * mask

    def features(self, X: Float[Array, "*c n d"]) -> Float[Array, "*c R M n"]:
        """a(x) = L⁻¹ k(Z, x)"""
        k = self.cross(X)
        if self.turned and namespace(k, self.gram) is not np:
            return linalg.whiten_turned(self.gram, self.factor, k)
        return linalg.whiten(self.gram, self.factor, k)

    def features_for(
        self, X: Float[Array, "n d"], origin: Float[Array, "R M M"]
    ) -> Float[Array, "R M n"]:
        """L₀ᵀ K⁻¹ k(Z, x), the features for weights v₀ with u = L₀v₀, in JAX."""
        weights = linalg.interpolate(self.gram, self.factor, self.cross(X))
        return namespace(origin).swapaxes(origin, -1, -2) @ weights

    def residual(self, A: Float[Array, "*c R M n"]) -> Float[Array, "*c R n"]:
        """k(x, x) − |a(x)|², never below zero."""
        xp = namespace(A)
        return xp.maximum(1.0 - xp.sum(A * A, axis=-2), 0.0)

    def carry_from(self, old: Basis) -> Float[Array, "*c R M M"]:
        """T with v_old = T v for the same inputs and function values, u = L₀v_old = L v: T = L₀⁻¹L."""
        return linalg.solve_lower(old.factor, self.factor)

    def project_from(self, old: Basis) -> Float[Array, "*c R M0 M"]:
        """T with v_old ≈ T v for other inputs: E[u_old | u] in whitened weights, L₀⁻¹ k(Z₀, Z) L⁻ᵀ."""
        k, mask = aligned(self.cross(old.inputs), old.active[..., None, :])
        half = linalg.solve_lower(self.factor, k * mask)
        return linalg.solve_lower(old.factor, namespace(half).swapaxes(half, -1, -2))


def _stacked(inputs: Array) -> int:
    """How many leading axes a layer's parameters have: latents, or clients and latents."""
    return max(1, inputs.ndim - 2)
