"""The structured solver's q(w | v_g) of one client, from its sums."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pfedhgp.base.batching import batchable
from pfedhgp.inference.grams import Grams, accumulate
from pfedhgp.inference.own_weights import condition
from pfedhgp.inference.structured.bound import GlobalEvidence, design_of
from pfedhgp.inference.structured.client_step import StepOptions
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows
from pfedhgp.model.posterior import ClientPosterior, GlobalPosterior


def client_posterior(grams: Grams, block: ClientBlock, k: int) -> ClientPosterior:
    """W = I + Λ_cc: offset W⁻¹η_c, G = W⁻¹Λ_cg, covariance W⁻¹; the first `k` weights are v_g."""
    return ClientPosterior(block, *condition(grams, k).conditional())


def evidence_of(shared: GlobalPosterior) -> GlobalEvidence:
    """What made q(v_g) of its prior: J = S⁻¹ − I, no eigenvalue below 0 by rounding, and h = S⁻¹m."""
    values, vectors = jnp.linalg.eigh(jnp.asarray(shared.covariance))
    values = jnp.clip(values, 1e-12, 1.0)
    J = (vectors * (1.0 / values - 1.0)[None, :]) @ vectors.T
    return GlobalEvidence(J, J @ jnp.asarray(shared.mean) + jnp.asarray(shared.mean))


@batchable(static=1, effort="low")
def batched_posteriors(
    options: StepOptions,
    shared: GlobalBlock,
    blocks: ClientBlock,
    rows: Rows,
    jitter: jax.Array,
    local_jitter: jax.Array,
) -> ClientPosterior:
    """`client_posterior` for a batch of clients of equal shapes, at their own blocks."""
    basis = shared.basis(jitter)
    size = basis.factor.shape[0] * basis.factor.shape[1]

    def one(block: ClientBlock, rows: Rows, own: jax.Array) -> ClientPosterior:
        design = design_of(options.structure, shared, basis, block, own)
        return client_posterior(accumulate(rows, design, chunk=options.chunk), block, size)

    if options.structure.state_space and not options.structure.deviation:
        return _without_weights(blocks, size)
    return jax.vmap(one)(blocks, rows, local_jitter)


def _without_weights(blocks: ClientBlock, size: int) -> ClientPosterior:
    """Clients that have no weights of their own: local functions are states, and there is no deviation."""
    count = blocks.active.shape[0]
    return ClientPosterior(
        block=blocks,
        offset=jnp.zeros((count, 0)),
        G=jnp.zeros((count, 0, size)),
        covariance=jnp.zeros((count, 0, 0)),
    )
