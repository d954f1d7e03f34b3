"""A client's own weights w = [v_δ | v_l] given the global ones, and how large the functions they make are.

One factorisation of W = I + Λ_cc serves all:   w | v_g ~ N(W⁻¹(η_c − Λ_cg v_g), W⁻¹)
With the weights' second moments V_rs = E[v_r v_sᵀ], u_r = L_r v_r at Z, and loadings B, E[f fᵀ] between
outputs, mean over the inducing inputs, is
    (1/M) Σ_m E[f(z_m) f(z_m)ᵀ] = B C Bᵀ,   C_rs = (1/M) Σ_m (L_r V_rs L_sᵀ)_mm.
Without data C = I, and this is the prior's BBᵀ. With data it is not: the priors decide how much of a layer is
in its loadings and how much in its weights, and fitted loadings alone are too small.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Float

from pfedhgp.base.arrays_of import Array, namespace
from pfedhgp.gp import linalg
from pfedhgp.gp.features import Basis
from pfedhgp.gp.linalg import Moments
from pfedhgp.inference.grams import Design, Grams
from pfedhgp.model.blocks import Structure
from pfedhgp.model.posterior import Conditional, Population


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


Square = Float[Array, "Q Q"]


def squares(structure: Structure, design: Design, own: Moments) -> tuple[Square, Square]:
    """E[f fᵀ] of the deviation and of the local layer, from the moments of w = [v_δ | v_l].

    Without loadings a deviation's is φ B_g², which is learned as such; states of a local layer have no
    weights, and its square is the prior's.
    """
    B_dev, B_loc = design.B_dev, design.B_loc
    cut = B_dev.shape[1] * design.shared.factor.shape[1]
    deviation, local = B_dev @ B_dev.T, B_loc @ B_loc.T
    if not structure.tied and B_dev.shape[1]:
        deviation = _square(design.shared, B_dev, own.second[:cut, :cut])
    if design.local is not None and B_loc.shape[1]:
        local = _square(design.local, B_loc, own.second[cut:, cut:])
    return deviation, local


def _square(basis: Basis, B: Float[Array, "Q R"], second: Array) -> Square:
    R, M = B.shape[1], basis.factor.shape[1]
    L, share = basis.factor[:R], basis.active / jnp.sum(basis.active)
    V = second.reshape(R, M, R, M)
    C = jnp.einsum("x,rxm,rmsk,sxk->rs", share, L, V, L, optimize=True)
    return B @ C @ B.T


def population_of(
    structure: Structure, deviation: Array, local: Array, noise: Array, clients: Array
) -> Population:
    """What an unseen client is expected to look like, from sums over T clients.

    The fitted global layer takes the mean of the deviations with it, so that what is left of them has
    (T − 1)/T of their covariance P; and its own error is that mean's, P/T.
    """
    if structure.tied:
        power, division = deviation / clients, namespace(deviation).zeros_like(deviation)
    else:
        power = deviation / namespace(clients).maximum(clients - 1.0, 1.0)
        division = power / clients
    return Population(power, local / clients, noise / clients, clients, division)
