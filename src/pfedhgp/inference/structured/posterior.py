"""The structured solver's q(w | v_g) of one client, from its sums."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve

from pfedhgp.inference.grams import Grams
from pfedhgp.model.blocks import ClientBlock
from pfedhgp.model.posterior import ClientPosterior, GlobalPosterior


def client_posterior(grams: Grams, block: ClientBlock, k: int) -> ClientPosterior:
    """W = I + Λ_cc: offset W⁻¹η_c, G = W⁻¹Λ_cg, covariance W⁻¹; the first `k` weights are v_g."""
    eye = jnp.eye(grams.linear.shape[0] - k, dtype=grams.linear.dtype)
    factor = jnp.linalg.cholesky(grams.precision[k:, k:] + eye)
    right = jnp.concatenate([grams.linear[k:, None], grams.precision[k:, :k], eye], axis=1)
    solved = cho_solve((factor, True), right)
    covariance = solved[:, 1 + k :]
    return ClientPosterior(
        block=block,
        offset=solved[:, 0],
        G=solved[:, 1 : 1 + k],
        covariance=0.5 * (covariance + covariance.T),
    )


def evidence_of(shared: GlobalPosterior) -> tuple[jax.Array, jax.Array]:
    """What made q(v_g) of its prior: J = S⁻¹ − I, no eigenvalue below 0 by rounding, and h = S⁻¹m."""
    values, vectors = jnp.linalg.eigh(jnp.asarray(shared.covariance))
    values = jnp.clip(values, 1e-12, 1.0)
    J = (vectors * (1.0 / values - 1.0)[None, :]) @ vectors.T
    return J, J @ jnp.asarray(shared.mean) + jnp.asarray(shared.mean)
