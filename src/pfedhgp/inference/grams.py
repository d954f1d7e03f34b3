"""A client's rows, reduced to sums: everything the bound, the messages and the posterior need.

Given the weights w = [v_g | v_δ | v_l] of its layers, a client's observations are linear in them,
y = H w + ε, and its log-likelihood is −½(N log 2π + log|Σ| + yᵀΣ⁻¹y) + ηᵀw − ½ wᵀΛw with
Λ = HᵀΣ⁻¹H and η = HᵀΣ⁻¹y. H is never formed: block (r, s) of Λ is A_r (w_rs ⊙ A_s)ᵀ with the row weights
w_rs(n) = b_rᵀ P_n b_s, which is exact with missing cells and any noise.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pfedhgp.base.arrays_of import namespace
from pfedhgp.gp.features import Basis
from pfedhgp.gp.kernels import Kernel
from pfedhgp.gp.linalg import LOG_2PI, solve_lower
from pfedhgp.gp.noise import Noise, RowPrecision
from pfedhgp.inference.structured.state_space_sums import gammas, loaded
from pfedhgp.model.blocks import CycleTerm, Rows


class Design(eqx.Module):
    """What turns rows into sums: the two bases, the three loadings and the noise."""

    shared: Basis
    local: Basis | None
    B_g: Float[Array, "Q R"]
    B_dev: Float[Array, "Q Rd"]
    B_loc: Float[Array, "Q Rl"]
    noise: Noise
    origin: Float[Array, "R M M"] | None = None
    """Optional L₀ of other coordinates of the global weights, u = L₀v₀: features become L₀ᵀK⁻¹k(Z, x)."""
    exact: Kernel | None = None
    """The local kernels, one an output, of a state-space local layer; then there is no local basis."""
    residual_draws: Float[Array, "n R p"] | None = None
    """Draws from k − q of the shared latents, for a sharper residual beside exact local layers."""


class Grams(eqx.Module):
    """Λ, η and the scalars of one client's log-likelihood, weights ordered global, deviation, local."""

    precision: Float[Array, "K K"]
    linear: Float[Array, " K"]
    constant: Array
    """−½(N log 2π + log|Σ| + yᵀΣ⁻¹y)"""
    residual: Array
    """Σ over cells and layers of res/σ²: the variance that the inducing inputs do not carry"""
    shared_residual: Float[Array, "R Q Q"]
    """Σ_n res_g,r(n) P_n, from which the global layer's part of `residual` follows for any B_g"""
    explained: Float[Array, "k K"] | None = None
    """V = U H of a cycle layer, until `accumulate` has taken VᵀV out of the precision"""


def residual_of(shared_residual: Float[Array, "R Q Q"], B: Float[Array, "Q r"]) -> Array:
    """Σ_n,q res/σ² of a layer on the shared basis with loadings B: Σ_r b_rᵀ (Σ_n res_r(n) P_n) b_r."""
    R = shared_residual[: B.shape[1]]
    return namespace(R, B).einsum("qr,rqp,pr->", B, R, B)


def accumulate(rows: Rows, design: Design, *, unloaded: bool = False, chunk: int = 1024) -> Grams:
    """Λ, η and scalars over all rows, at most `chunk` of them at a time.

    With `unloaded`, the global layer is E = I_Q ⊗ a_g: its weights are ordered (latent, output, inducing
    input), and B_g is not used.
    """
    if rows.scatter is not None:
        scatter, seen = rows.scatter, rows.scatter_seen
        assert seen is not None
        without = Rows(rows.X, rows.Y, rows.mask, cycles=rows.cycles)
        sums = accumulate(without, design, unloaded=unloaded, chunk=chunk)
        spread = 0.5 * design.noise.scatter_trace(scatter, seen)
        return replace(sums, constant=sums.constant - spread)
    if design.exact is not None:
        return _with_states(rows, design, design.exact, unloaded, chunk)
    if rows.cycles is not None:
        white = Rows(rows.X, rows.Y, rows.mask)
        return _correlated(
            _by_chunks(white, design, unloaded, chunk, rows.cycles.weights), rows.cycles
        )
    return _by_chunks(rows, design, unloaded, chunk, None)


def on_host(rows: Rows, design: Design, *, chunk: int = 4096) -> Grams:
    """`accumulate` in NumPy, for rows, a basis and parameters that are NumPy's: nothing is compiled.

    Without states and without a cycle layer.
    """
    parts = []
    for start in range(0, max(len(rows.X), 1), chunk):
        turn = slice(start, start + chunk)
        piece = Rows(rows.X[turn], rows.Y[turn], rows.mask[turn])
        parts.append(_one_chunk(piece, design, False, None, xp=np))
    total = functools.reduce(lambda a, b: jax.tree.map(np.add, a, b), parts)
    if rows.scatter is None or rows.scatter_seen is None:
        return total
    spread = 0.5 * design.noise.scatter_trace(rows.scatter, rows.scatter_seen)
    return replace(total, constant=total.constant - spread)


def _with_states(rows: Rows, design: Design, kernels: Kernel, unloaded: bool, chunk: int) -> Grams:
    """Sums over the global and deviation weights alone: local functions are in the noise.

    The VFE term stays −½ Σ res/σ² with the white noise's σ²: what the global inducing inputs leave out comes
    before local functions are integrated out. It is a bound, and not the tightest: that is −½ tr(N⁻¹R) with
    the whole residual covariance R, which draws from R estimate (`design.residual_draws`).
    """
    scales, noise = jnp.diagonal(design.B_loc), design.noise
    gamma, constant, left = gammas(
        rows, design.shared, kernels, scales, noise, chunk, design.residual_draws
    )
    layers, transform = [design.B_g, design.B_dev], None
    if design.origin is not None:
        transform = jnp.swapaxes(solve_lower(design.shared.factor, design.origin), 1, 2)
    precision, linear, quadratic = loaded(gamma, layers, transform, unloaded=unloaded)
    shared_residual = left[:, :, None] * jnp.eye(rows.Y.shape[1], dtype=rows.Y.dtype)[None]
    residual = residual_of(shared_residual, design.B_g) + residual_of(shared_residual, design.B_dev)
    return Grams(precision, linear, constant - 0.5 * quadratic, residual, shared_residual)


def _correlated(sums: Grams, cycles: CycleTerm) -> Grams:
    """Λ − VᵀV, η − Vᵀt and the constant of cycles whose cells are correlated.

    The VFE term stays −½ Σ_cells c res/σ²: e_c is integrated out as the weights are, and what is left of a
    cell given both is white. (tr Σ_e⁻¹R with R the whole residual covariance is tighter; it takes n × n
    matrices at every evaluation.)
    """
    V = sums.explained
    assert V is not None
    return replace(
        sums,
        precision=sums.precision - V.T @ V,
        linear=sums.linear - V.T @ cycles.means,
        constant=sums.constant + cycles.constant,
        explained=None,
    )


def _by_chunks(
    rows: Rows, design: Design, unloaded: bool, chunk: int, weights: Array | None
) -> Grams:
    n = rows.X.shape[0]
    if n <= chunk:
        return _one_chunk(rows, design, unloaded, weights)
    pieces = -(-n // chunk)

    def cut(array: Array) -> Array:
        """With rows of zeros at the end, whose mask is zero too, so that they count for nothing."""
        others = [(0, 0)] * (array.ndim - 1)
        padded = jnp.pad(array, ((0, pieces * chunk - n), *others))
        return padded.reshape(pieces, chunk, *array.shape[1:])

    padded = jax.tree.map(cut, (rows, weights))
    part = jax.checkpoint(lambda piece: _one_chunk(piece[0], design, unloaded, piece[1]))
    zero = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
        jax.eval_shape(part, jax.tree.map(lambda a: a[0], padded)),
    )
    total, _ = jax.lax.scan(
        lambda sums, piece: (jax.tree.map(jnp.add, sums, part(piece)), None), zero, padded
    )
    return total


def _one_chunk(
    rows: Rows, design: Design, unloaded: bool, cycles: Array | None, xp: Any = jnp
) -> Grams:
    """`xp` is the library of all its arrays."""
    assert design.local is not None
    P = design.noise.rows(rows.mask)
    A_g, A_l = design.shared.features(rows.X), design.local.features(rows.X)
    A_d = A_g[: design.B_dev.shape[1]]
    res_g, res_l = design.shared.residual(A_g), design.local.residual(A_l)
    loadings = [design.B_g, design.B_dev, design.B_loc]
    weights = _weigh(P, loadings)
    parts = zip(weights, [res_g, res_g[: A_d.shape[0]], res_l], strict=True)
    residual = sum((xp.einsum("rrn,rn->", row[-1], res) for row, res in parts), xp.zeros(()))
    eye = xp.eye(rows.Y.shape[1], dtype=rows.Y.dtype)
    shared_residual = xp.einsum("rn,qpn->rqp", res_g, P.weigh(eye, eye))
    if design.origin is not None:
        A_g = design.shared.features_for(rows.X, design.origin)
    if unloaded:
        loadings[0] = xp.tile(eye, (1, A_g.shape[0]))
        A_g = xp.repeat(A_g, eye.shape[0], axis=0)
        weights = _weigh(P, loadings)
    features = [A_g, A_d, A_l]
    precision = _symmetric(
        [
            [_cross(A, w, D) for w, D in zip(row, features)]
            for A, row in zip(features, weights, strict=True)
        ]
    )
    weighted = P.apply(rows.Y)
    linear = xp.concatenate(
        [_project(A, weighted @ B) for A, B in zip(features, loadings, strict=True)]
    )
    constant = -0.5 * (xp.sum(rows.mask) * LOG_2PI + P.log_determinant + xp.sum(weighted * rows.Y))
    explained = None
    if cycles is not None:
        explained = xp.concatenate(
            [_explain(A, cycles, B) for A, B in zip(features, loadings, strict=True)], axis=1
        )
    return Grams(precision, linear, constant, residual, shared_residual, explained)


def _explain(
    A: Float[Array, "R M n"], U: Float[Array, "n Q k"], B: Float[Array, "Q R"]
) -> Float[Array, "k RM"]:
    """U H for one layer: Σ_n (U_nᵀ b_r) a_r(n)."""
    loaded = jnp.einsum("nqk,qr->rkn", U, B)
    V = jnp.einsum("rkn,rmn->krm", loaded, A)
    return V.reshape(U.shape[2], A.shape[0] * A.shape[1])


def _weigh(P: RowPrecision, loadings: list[Array]) -> list[list[Array]]:
    """The row weights w of layers i and j ≤ i, all from one product."""
    B = namespace(*loadings).concatenate(loadings, axis=1)
    w = P.weigh(B, B)
    cuts = np.cumsum([0, *(part.shape[1] for part in loadings)])
    ranges = [slice(a, b) for a, b in pairwise(cuts)]
    return [[w[own, other] for other in ranges[: i + 1]] for i, own in enumerate(ranges)]


def _cross(
    A: Float[Array, "Ra Ma n"], w: Float[Array, "Ra Rb n"], B: Float[Array, "Rb Mb n"]
) -> Array:
    """Blocks A_a (w_ab ⊙ B_b)ᵀ, as a (Ra·Ma) × (Rb·Mb) matrix."""
    weighted = w[:, :, None, :] * B[None]
    stacked = weighted.reshape(A.shape[0], B.shape[0] * B.shape[1], A.shape[2])
    if namespace(A, stacked) is np:
        found = A @ np.swapaxes(stacked, 1, 2)
    else:
        found = jnp.einsum("amn,akn->amk", A, stacked)
    return found.reshape(A.shape[0] * A.shape[1], stacked.shape[1])


def _project(A: Float[Array, "R M n"], t: Float[Array, "n R"]) -> Float[Array, " RM"]:
    """A_r t_r, stacked over latents."""
    return namespace(A, t).einsum("rmn,nr->rm", A, t).reshape(-1)


def _symmetric(lower: list[list[Array]]) -> Array:
    """The symmetric matrix whose block (i, j ≤ i) is lower[i][j]."""
    size = len(lower)
    return namespace(lower[0][0]).block(
        [[lower[i][j] if j <= i else lower[j][i].T for j in range(size)] for i in range(size)]
    )
