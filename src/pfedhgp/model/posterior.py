"""What prediction needs, and nothing else: no rows.

Given v_g, a client's weights w = [v_δ | v_l] are N(offset − G v_g, covariance): with the structured solver
offset = W⁻¹H_cᵀΣ⁻¹y, G = W⁻¹H_cᵀΣ⁻¹H_g and covariance = W⁻¹; with mean-field G is 0.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from pfedhgp.model.blocks import ClientBlock, GlobalBlock


class GlobalPosterior(eqx.Module):
    """q(v_g) = N(mean, covariance) at the block's θ_g; weights ordered (latent, inducing input)."""

    block: GlobalBlock
    mean: Float[Array, " RM"]
    covariance: Float[Array, "RM RM"]


class ClientPosterior(eqx.Module):
    """q(w | v_g) of one client; weights ordered deviation (latent, inducing input), then local."""

    block: ClientBlock
    offset: Float[Array, " K"]
    G: Float[Array, "K RM"]
    covariance: Float[Array, "K K"]

    def marginal(self, shared: GlobalPosterior) -> tuple[Float[Array, " K"], Float[Array, "K K"]]:
        """m_c = offset − G m and S_c = W⁻¹ + G S Gᵀ"""
        mean = self.offset - self.G @ shared.mean
        return mean, self.covariance + self.G @ shared.covariance @ self.G.T


class Population(eqx.Module):
    """Means over clients of B̃B̃ᵀ, B_l B_lᵀ and Σ: what an unseen client is expected to look like."""

    deviation_power: Float[Array, "Q Q"]
    local_power: Float[Array, "Q Q"]
    noise: Float[Array, "Q Q"]
    clients: Float[Array, ""]


def zero_like_weights(K: int, RM: int) -> tuple[Array, Array, Array]:
    """(offset, G, covariance) of a client that has seen nothing: its prior."""
    return jnp.zeros(K), jnp.zeros((K, RM)), jnp.eye(K)
