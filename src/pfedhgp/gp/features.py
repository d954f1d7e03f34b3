"""Whitened inducing features: a(x) = L⁻¹ k(Z, x) with L Lᵀ = k(Z, Z) + jitter, so u = L v, v ~ N(0, I)."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from pfedhgp.gp import linalg
from pfedhgp.gp.kernels import Kernel


class Basis(eqx.Module):
    """The inducing basis of a layer: R kernels on one set of M inputs, k(Z, Z) + jitter and its factor.

    `active` is 1 for a real inducing input and 0 for padding, whose features are zero: clients with
    fewer inducing inputs than the others of a batch are padded to the same shape.
    """

    kernels: Kernel
    inputs: Float[Array, "M d"]
    active: Float[Array, " M"]
    gram: Float[Array, "R M M"]
    factor: Float[Array, "R M M"]

    @staticmethod
    def build(
        kernels: Kernel, inputs: Array, jitter: Array | float, active: Array | None = None
    ) -> Basis:
        """Factorises k(Z, Z) for each latent."""
        mask = jnp.ones(inputs.shape[0], inputs.dtype) if active is None else active
        k = kernels(inputs, inputs, stacked=1)
        both = mask[:, None] * mask[None, :]
        padded = k * both[None] + jnp.diag(1.0 - mask)[None]
        gram = linalg.add_jitter(padded, jitter)
        return Basis(kernels, inputs, mask, gram, linalg.factorise(gram))

    def cross(self, X: Float[Array, "n d"]) -> Float[Array, "R M n"]:
        """k(Z, x), zero for padding."""
        k = self.kernels(self.inputs, X, stacked=1)
        return k * self.active[None, :, None]

    def features(self, X: Float[Array, "n d"]) -> Float[Array, "R M n"]:
        """a(x) = L⁻¹ k(Z, x)"""
        return linalg.whiten(self.gram, self.factor, self.cross(X))

    def residual(self, A: Float[Array, "R M n"]) -> Float[Array, "R n"]:
        """k(x, x) − |a(x)|², never below zero."""
        return jnp.maximum(1.0 - jnp.sum(A**2, axis=1), 0.0)

    def carry_from(self, old: Basis) -> Float[Array, "R M M"]:
        """T with v_old = T v for the same inputs and function values, u = L₀v_old = L v: T = L₀⁻¹L."""
        return linalg.solve_lower(old.factor, self.factor)

    def project_from(self, old: Basis) -> Float[Array, "R M0 M"]:
        """T with v_old ≈ T v for other inputs: E[u_old | u] in whitened weights, L₀⁻¹ k(Z₀, Z) L⁻ᵀ."""
        k = self.cross(old.inputs) * old.active[None, None, :]
        half = linalg.solve_lower(self.factor, k)
        return linalg.solve_lower(old.factor, jnp.swapaxes(half, 1, 2))
