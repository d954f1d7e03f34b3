"""A client's search at the broadcast q(v_g) = N(m, S): long series with state-space local layers.

    E_q log N(y; H v, N) = log N(y; H m, N) − ½ tr(N⁻¹ H S Hᵀ),   tr ≈ mean_k z_kᵀN⁻¹z_k,   z_k = H S^½ ε_k

The columns y − H m and z_k are made once a round; an evaluation then filters 1 + p columns instead of R M + 1,
and no Gram matrix is formed. It is the M-step of EM: where rounds settle, they settle where the bound's slope in
the client's parameters is zero, up to the probes' error. Only for models without a deviation layer, whose weights
would have to be held too.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pfedhgp import linalg, state_space
from pfedhgp.features import Basis
from pfedhgp.inference.state_grams import observed
from pfedhgp.kernels import Kernel
from pfedhgp.model.blocks import ClientBlock, Rows
from pfedhgp.together import together


class Held(eqx.Module):
    """A client's rows as seen from q(v_g): what the search works on."""

    columns: Float[Array, "n Q k"]
    """y − H m, then z_k"""
    residual: Float[Array, " Q"]
    """Σ_n Σ_r B_g[q,r]² res_r(n) c_nq"""


@together(static=2)
def points(
    probes: int, seed: int, J: Float[Array, "K K"], h: Float[Array, " K"]
) -> Float[Array, "K k"]:
    """m, and S^½ε_k for `probes` rows of signs ε_k: S = (I + J)⁻¹, m = S h."""
    L = linalg.factorise(J + jnp.eye(J.shape[0], dtype=J.dtype))
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(J.shape[0], probes))
    mean = linalg.solve_lower(L, h[:, None])
    right = jnp.concatenate([mean, jnp.asarray(signs, J.dtype)], axis=1)
    return linalg.solve_lower(L, right, transpose=True)


def hold(
    rows: Rows,
    basis: Basis,
    loadings: Float[Array, "Q R"],
    at: Float[Array, "K k"],
    chunk: int,
) -> Held:
    """One pass over the rows' features, `chunk` rows at a time."""
    latents, size = basis.factor.shape[:2]
    columns = at.reshape(latents, size, at.shape[1])
    n = rows.X.shape[0]
    pieces = -(-n // min(chunk, n))
    length = -(-n // pieces)
    extra = pieces * length - n
    X = jnp.pad(rows.X, ((0, extra), (0, 0)), mode="edge").reshape(pieces, length, -1)
    counts = jnp.pad(rows.mask, ((0, extra), (0, 0))).reshape(pieces, length, -1)

    def piece(part: tuple[Array, Array]) -> tuple[Array, Array]:
        x, c = part
        A = basis.features(x)
        fitted = jnp.einsum("qr,rmn,rmk->nqk", loadings, A, columns, optimize=True)
        return fitted, jnp.einsum("qr,rn,nq->q", loadings**2, basis.residual(A), c)

    fitted, residual = jax.lax.map(piece, (X, counts))
    fitted = fitted.reshape(pieces * length, *fitted.shape[2:])[:n]
    return Held(fitted.at[:, :, 0].set(rows.Y - fitted[:, :, 0]), residual.sum(0))


def expected_bound(held: Held, client: ClientBlock, rows: Rows) -> Array:
    """E_q log N(y; H v, N) − ½ Σ res/σ², up to a constant in the client's parameters."""
    outputs = rows.Y.shape[1]
    variances = jnp.diagonal(client.noise.covariance(outputs))

    def one(kernel: Kernel, scale: Array, variance: Array, counts: Array, columns: Array) -> Array:
        series, constant = observed(rows.X[:, 0], counts, variance)
        model = state_space.StateModel.of(kernel)
        start = state_space.start(model, columns.shape[1], rows.X[0, 0])
        white, log_det, _ = state_space.whiten(model, scale, series, columns, start)
        squares = jnp.sum(white**2, axis=0)
        trace = jnp.mean(squares[1:]) if squares.shape[0] > 1 else 0.0
        return constant - 0.5 * (log_det + squares[0] + trace)

    each = jax.vmap(one)(
        client.kernels,
        jnp.diagonal(client.loadings),
        variances,
        rows.mask.T,
        jnp.moveaxis(held.columns, 1, 0),
    )
    value = jnp.sum(each) - 0.5 * jnp.sum(held.residual / variances)
    if rows.scatter is not None:
        value -= 0.5 * client.noise.within(rows.scatter, rows.scatter_seen)
    return value
