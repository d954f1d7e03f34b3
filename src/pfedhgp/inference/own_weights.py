"""A client's own weights w = [v_δ | v_l] given the global ones: one factorisation of W = I + Λ_cc.

w | v_g ~ N(W⁻¹(η_c − Λ_cg v_g), W⁻¹)
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from pfedhgp.gp import linalg
from pfedhgp.inference.grams import Grams
from pfedhgp.model.posterior import Conditional


class OwnWeights(eqx.Module):
    """W = L Lᵀ, Λ_cg and η_c of one client."""

    factor: Float[Array, "K K"]
    """L"""
    cross: Float[Array, "K k"]
    """Λ_cg"""
    linear: Float[Array, " K"]
    """η_c"""

    @property
    def log_determinant(self) -> Array:
        """log|W|"""
        return 2.0 * jnp.sum(jnp.log(jnp.diagonal(self.factor)))

    def whitened(self) -> tuple[Float[Array, "K k"], Float[Array, " K"]]:
        """L⁻¹Λ_cg and L⁻¹η_c"""
        both = jnp.concatenate([self.cross, self.linear[:, None]], axis=1)
        white = linalg.solve_lower(self.factor, both)
        return white[:, :-1], white[:, -1]

    def loaded(self, B_g: Float[Array, "Q R"]) -> OwnWeights:
        """The same for loadings B_g, from Grams whose global layer is unloaded."""
        Q, R = B_g.shape
        K, k = self.cross.shape
        M = k // max(Q * R, 1)
        cross = jnp.einsum("krqm,qr->krm", self.cross.reshape(K, R, Q, M), B_g)
        return OwnWeights(self.factor, cross.reshape(K, R * M), self.linear)

    def conditional(self) -> Conditional:
        """q(w | v_g): offset W⁻¹η_c, G = W⁻¹Λ_cg and covariance W⁻¹."""
        K, k = self.cross.shape
        eye = jnp.eye(K, dtype=self.factor.dtype)
        right = jnp.concatenate([self.linear[:, None], self.cross, eye], axis=1)
        solved = cho_solve((self.factor, True), right)
        covariance = solved[:, 1 + k :]
        return Conditional(solved[:, 0], solved[:, 1 : 1 + k], 0.5 * (covariance + covariance.T))


def condition(grams: Grams, k: int) -> OwnWeights:
    """Factorises W = I + Λ_cc; the first `k` weights of the Grams are the global ones."""
    cc = grams.precision[k:, k:]
    factor = jnp.linalg.cholesky(cc + jnp.eye(cc.shape[0], dtype=cc.dtype))
    return OwnWeights(factor, grams.precision[k:, :k], grams.linear[k:])
