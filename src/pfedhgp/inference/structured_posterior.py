"""The structured solver's q(w | v_g) of one client, from its sums."""

from __future__ import annotations

import jax.numpy as jnp
from jax.scipy.linalg import cho_solve

from pfedhgp.inference.grams import Grams
from pfedhgp.model.blocks import ClientBlock
from pfedhgp.model.posterior import ClientPosterior


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
