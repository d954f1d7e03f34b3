"""A client's search at the broadcast q(v_g) = N(m, S): long series with state-space local layers.

    E_q log N(y; H v, N) = log N(y; H m, N) − ½ tr(N⁻¹ H S Hᵀ),   tr ≈ mean_k z_kᵀN⁻¹z_k,   z_k = H S^½ ε_k

The columns y − H m and z_k are made once in a round. An evaluation then filters a few columns instead of
R M + 1, and forms no Gram matrix. What the inducing inputs leave out costs −½ tr(N⁻¹R) with R = k − q. That
is less than −½ tr(R)/σ², because local functions can take some of it up; draws from R estimate it too.
It is the M-step of EM: when the rounds no longer change anything, the bound's slope in the client's
parameters is zero, up to the draws' error. It works only without a deviation layer, whose weights would have
to be held too, and with θ_g held.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pfedhgp.base.batching import batchable
from pfedhgp.gp import linalg, state_space
from pfedhgp.gp.features import Basis
from pfedhgp.gp.kernels import Kernel
from pfedhgp.inference.structured.state_space_sums import cut, observed
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows

FINER = 3
"""How much denser than Z the inputs are on which the rest of the shared functions is drawn."""


class SearchColumns(eqx.Module):
    """The shared functions at a client's rows as seen from q(v_g): what the search works on."""

    each: Float[Array, "n R k"]
    """a(x)ᵀ m, then a(x)ᵀ S^½ε_k, then ζ_k: draws from what the inducing inputs leave out"""
    probes: int = eqx.field(static=True)

    def columns(self, Y: Float[Array, "n Q"], B: Float[Array, "Q R"]) -> Float[Array, "n Q k"]:
        """y − H m, then z_k, then Σ_r B[q,r] ζ_rk"""
        loaded = jnp.einsum("qr,nrk->nqk", B, self.each)
        return loaded.at[:, :, 0].set(Y - loaded[:, :, 0])


@batchable(static=2)
def mean_and_probes(
    probes: int, seed: int, J: Float[Array, "K K"], h: Float[Array, " K"]
) -> Float[Array, "K k"]:
    """m, and S^½ε_k for `probes` rows of signs ε_k: S = (I + J)⁻¹, m = S h."""
    L = linalg.factorise(J + jnp.eye(J.shape[0], dtype=J.dtype))
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(J.shape[0], probes))
    mean = linalg.solve_lower(L, h[:, None])
    right = jnp.concatenate([mean, jnp.asarray(signs, J.dtype)], axis=1)
    return linalg.solve_lower(L, right, transpose=True)


def residual_draws(
    block: GlobalBlock, X: Float[Array, "n d"], probes: int, seed: int, jitter: Array, chunk: int
) -> Float[Array, "n R p"]:
    """Draws ζ_r ~ GP(0, k_r − q_r): functions on inducing inputs `FINER` times as dense, zero on Z.

    A factor for [Z; the others] has the factor for Z in its corner, so later columns are what Z leaves out:
    ζ(x) = k(x, Z_f) L_f⁻ᵀ [0; ε]. What the finer inputs leave out in turn is neglected.
    """
    Z = block.inputs
    places = np.arange(1, FINER) / FINER
    between = jnp.concatenate([Z[:-1] + f * (Z[1:] - Z[:-1]) for f in places])
    fine = jnp.concatenate([Z, between])
    basis = Basis.build(block.kernels, fine, jitter)
    latents = basis.factor.shape[0]
    signs = np.random.default_rng([seed, 1]).choice(
        [-1.0, 1.0], size=(latents, len(between), probes)
    )
    drawn = jnp.concatenate([jnp.zeros((latents, len(Z), probes)), jnp.asarray(signs)], axis=1)
    weights = linalg.solve_lower(basis.factor, drawn, transpose=True)

    def piece(x: Array) -> Array:
        return jnp.einsum("rmn,rmp->nrp", basis.cross(x), weights)

    return _by_chunks(piece, X, chunk)


def _by_chunks(piece: Callable[[Array], Array], X: Float[Array, "n d"], chunk: int) -> Array:
    """`piece` of all rows, `chunk` of them at a time."""
    found = jax.lax.map(piece, cut(X, chunk, "edge"))
    return found.reshape(found.shape[0] * found.shape[1], *found.shape[2:])[: X.shape[0]]


@batchable(static=3)
def batched_residual_draws(
    probes: int, seed: int, chunk: int, block: GlobalBlock, X: Float[Array, "c n d"], jitter: Array
) -> Float[Array, "c n R p"]:
    """`residual_draws` at the rows of each client: the same functions for all of them."""
    return jax.lax.map(lambda x: residual_draws(block, x, probes, seed, jitter, chunk), X)


def search_columns(
    rows: Rows,
    basis: Basis,
    at: Float[Array, "K k"],
    left: Float[Array, "n R p"],
    chunk: int,
) -> SearchColumns:
    """One pass over the rows' features."""
    latents, size = basis.factor.shape[:2]
    columns = at.reshape(latents, size, at.shape[1])

    def piece(x: Array) -> Array:
        return jnp.einsum("rmn,rmk->nrk", basis.features(x), columns)

    fitted = _by_chunks(piece, rows.X, chunk)
    return SearchColumns(jnp.concatenate([fitted, left], axis=2), at.shape[1] - 1)


def expected_bound(
    search: SearchColumns, B_g: Float[Array, "Q R"], client: ClientBlock, rows: Rows
) -> Array:
    """E_q log N(y; H v, N) − ½ tr(N⁻¹R), up to a constant in the client's parameters."""
    outputs = rows.Y.shape[1]
    variances = jnp.diagonal(client.noise.covariance(outputs))

    def one(kernel: Kernel, scale: Array, variance: Array, counts: Array, columns: Array) -> Array:
        series, constant = observed(rows.X[:, 0], counts, variance)
        model = state_space.StateModel.of(kernel)
        start = state_space.start(model, columns.shape[1], rows.X[0, 0])
        white, log_det, _ = state_space.whiten(model, scale, series, columns, start)
        squares = jnp.sum(white**2, axis=0)
        trace = jnp.sum(squares[1:]) / search.probes
        return constant - 0.5 * (log_det + squares[0] + trace)

    each = jax.vmap(one)(
        client.kernels,
        jnp.diagonal(client.loadings),
        variances,
        rows.mask.T,
        jnp.moveaxis(search.columns(rows.Y, B_g), 1, 0),
    )
    value = jnp.sum(each)
    if rows.scatter is not None and rows.scatter_seen is not None:
        value -= 0.5 * client.noise.scatter_trace(rows.scatter, rows.scatter_seen)
    return value
