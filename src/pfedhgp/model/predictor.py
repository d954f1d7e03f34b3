"""The latents' joint posterior at any inputs, from which every prediction follows by the loadings.

A client's function is f(x) = Σ_a b_a h_a(x) over the L latents of its three layers, and
    h_a(x) = m_a(x) + T_a(x)ᵀ z + e_a(x),   z ~ N(0, I),   e_a ~ GP(0, r_a) on its own,
where T collects the posterior of the weights: with w = [v_g | v_δ | v_l],
    Cov(w) = F Fᵀ,   F = [[S½, 0], [−G S½, W⁻½]],   T_a(x) = F_aᵀ a_a(x),
and r_a(x, x') = k(x, x') − a(x)ᵀa(x') is what the inducing inputs do not carry. This is the glossary's
D S Dᵀ + H*_c W⁻¹ H*_cᵀ + R*, D = H*_g − H*_c G, in factors: PSD by construction.

Where a client's parameters were averaged, its layers also tilt with them: f(x) gains tilt(x) e, e ~ N(0, I),
which does not follow from the latents alone, because loadings are among the parameters.

An unseen client has the global layer's posterior, and latents that nothing is known of: T = 0, and
r is their prior.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from pfedhgp.base.batching import batchable
from pfedhgp.errors import NonFiniteError, NumericsError
from pfedhgp.gp.features import Basis
from pfedhgp.model import local_states
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, deviation_loadings
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.posterior import Latents, LocalStates, Moved, Tangents

LAYERS = ("global", "deviation", "local")
Each = TypeVar("Each")


class ByLayer(NamedTuple, Generic[Each]):
    """One of each layer, in the order of LAYERS."""

    shared: Each
    deviation: Each
    local: Each


class Predictor(eqx.Module):
    """m, T and r of one client. Loadings are in scaled units; an absent layer has no columns."""

    shared: Basis | None
    local: Basis | None
    loadings: ByLayer[Array]
    """(Q, R), (Q, Rd) and (Q, Rl)"""
    noise: Float[Array, "Q Q"]
    mean: Float[Array, " K"]
    half_shared: Float[Array, "K Kg"]
    """F's columns of v_g: S½ over −G S½"""
    half_own: Float[Array, "Kc Kc"]
    """F's columns of w: W⁻½"""
    known: bool = eqx.field(static=True)
    block: ClientBlock | None = None
    jitter: Array | None = None
    tangents: Tangents | None = None
    """The three of a client whose parameters were averaged."""
    states: LocalStates | None = None
    """Those of a state-space local layer. It has no local basis, and `block` is given."""

    @property
    def counts(self) -> ByLayer[int]:
        """How many latents there are."""
        return ByLayer(*(B.shape[1] for B in self.loadings))

    @property
    def slices(self) -> dict[str, slice]:
        """Where each layer's latents are, and "total"."""
        g, d, l = self.counts
        ends = (slice(0, g), slice(g, g + d), slice(g + d, g + d + l))
        return {**dict(zip(LAYERS, ends, strict=True)), "total": slice(0, g + d + l)}

    @property
    def kinds(self) -> tuple[int, ...]:
        """Which matrix of `own_covariance` is each latent's: a deviation has the global one."""
        g, d, l = self.counts
        if self.known:
            return (*range(g), *range(d), *range(g, g + l))
        return (*range(g), *[g] * d, *[g + 1] * l)

    @property
    def floats_per_row(self) -> int:
        """About how many numbers `moments` holds for one row."""
        g, d, l = self.counts
        kept = (g + d + l) * (self.half_shared.shape[1] + 1) + (d + l) * self.half_own.shape[1]
        made = sum(b.factor.shape[0] * b.factor.shape[1] for b in (self.shared, self.local) if b)
        return kept + 3 * made + (g + d + l) ** 2

    @staticmethod
    def build(model: FittedModel, client: str) -> Predictor:
        """For a client of the model, or for one that it has not seen."""
        posterior, shared = model.clients.get(client), model.shared
        B_g, m = np.asarray(shared.block.loadings), np.asarray(shared.mean)
        S_half = psd_factor(np.asarray(shared.covariance))
        basis = _basis(shared.block, model.jitter, None) if B_g.shape[1] else None
        if posterior is None:
            population = model.population
            return Predictor(
                shared=basis,
                local=None,
                loadings=ByLayer(
                    jnp.asarray(B_g),
                    _columns(population.deviation_power),
                    _columns(population.local_power),
                ),
                noise=jnp.asarray(population.noise),
                mean=jnp.asarray(m),
                half_shared=jnp.asarray(S_half),
                half_own=jnp.zeros((0, 0)),
                known=False,
            )
        block, G = posterior.block, np.asarray(posterior.G)
        if posterior.shared_mean is not None:
            m, S = (np.asarray(part) for part in posterior.view(shared))
            S_half = psd_factor(S)
        averaged = posterior.tangents is not None
        B_d = deviation_loadings(model.structure, shared.block, block)
        exact = posterior.states is not None
        local = block.loadings.shape[1] and not exact
        own = _basis(block, model.jitter_of(client), client) if local else None
        return Predictor(
            shared=basis,
            local=own,
            loadings=ByLayer(*(jnp.asarray(B) for B in (B_g, B_d, block.loadings))),
            noise=jnp.asarray(block.noise.covariance(model.outputs)),
            mean=jnp.asarray(np.concatenate([m, np.asarray(posterior.offset) - G @ m])),
            half_shared=jnp.asarray(np.concatenate([S_half, -G @ S_half])),
            half_own=jnp.asarray(psd_factor(np.asarray(posterior.covariance))),
            known=True,
            block=block if averaged or exact else None,
            jitter=jnp.asarray(np.float64(model.jitter_of(client))) if averaged else None,
            tangents=posterior.tangents,
            states=posterior.states,
        )


@batchable()
def latents(predictor: Predictor, X: Float[Array, "n d"]) -> Latents:
    """m(x), T(x) in its two parts, and r(x, x)."""
    p = predictor
    g, d, _ = p.counts
    n, rows = X.shape[0], p.mean.shape[0]
    A_g, res_g = _features(p.shared, X)
    columns = jnp.concatenate([p.mean[:, None], p.half_shared], axis=1)
    if not p.known:
        prior = p.slices["total"].stop - g
        out = _project(A_g, columns)
        moments = jnp.concatenate([out, jnp.zeros((n, prior, out.shape[2]), X.dtype)], axis=1)
        spread = jnp.concatenate([res_g.T, jnp.ones((n, prior), X.dtype)], axis=1)
        own = jnp.zeros((n, prior, 0), X.dtype)
        return Latents(moments[:, :, 0], moments[:, :, 1:], own, spread)
    A_l, res_l = _features(p.local, X)
    size = A_g.shape[1]
    parts, cut = (A_g, A_g[:d], A_l), (g * size, (g + d) * size, rows)
    starts = (0, *cut[:2])
    moments = jnp.concatenate(
        [_project(A, columns[a:b]) for A, a, b in zip(parts, starts, cut, strict=True)], axis=1
    )
    own_cut = d * size
    own = jnp.concatenate(
        [_project(A_g[:d], p.half_own[:own_cut]), _project(A_l, p.half_own[own_cut:])], axis=1
    )
    spread = jnp.concatenate([res_g, res_g[:d], res_l]).T
    found = Latents(moments[:, :, 0], moments[:, :, 1:], own, spread)
    if p.states is None or p.block is None or p.shared is None:
        return found
    B_g, B_dev, _ = p.loadings
    local = local_states.latents(
        p.states, p.block, p.noise, p.shared, B_g, B_dev, p.half_shared, p.half_own, X
    )
    return Latents(*(jnp.concatenate(pair, axis=1) for pair in zip(found, local, strict=True)))


@batchable(effort="low")
def moments(
    predictor: Predictor, X: Float[Array, "n d"]
) -> tuple[Float[Array, "n L"], Float[Array, "n L L"]]:
    """Mean and covariance of the latents at each row on its own."""
    mean, T, T_own, spread = latents(predictor, X)
    g = predictor.counts.shared
    V = jnp.einsum("nak,nbk->nab", T, T)
    V = V.at[:, g:, g:].add(jnp.einsum("nak,nbk->nab", T_own, T_own))
    eye = jnp.eye(V.shape[1], dtype=V.dtype)
    return mean, V + eye[None] * spread[:, :, None]


@batchable(effort="low")
def tilt(predictor: Predictor, X: Float[Array, "n d"]) -> Float[Array, "n 3 Q P"]:
    """What one standard deviation of each e does to the three layers at each row, in scaled units.

    Half the difference between both ends (see `Tangents`); no columns where nothing was averaged.
    """
    p = predictor
    outputs = p.noise.shape[0]
    if p.tangents is None or p.block is None or p.jitter is None:
        return jnp.zeros((X.shape[0], 3, outputs, 0), X.dtype)
    t, block, jitter = p.tangents, p.block, p.jitter
    A_g, _ = _features(p.shared, X)
    B_g, B_dev, B_loc = p.loadings

    flat, unravel = ravel_pytree(block.kernels)

    def layers(at: Moved) -> Array:
        A_l = jnp.zeros((0, 0, X.shape[0]), X.dtype)
        if p.local is not None:
            A_l = Basis.build(unravel(at.kernels), block.inputs, jitter, block.active).features(X)
        parts = ((A_g, B_g), (A_g[: B_dev.shape[1]], at.deviation), (A_l, at.loadings))
        out, start = [], 0
        for A, B in parts:
            stop = start + A.shape[0] * A.shape[1]
            out.append(_project(A, at.weights[start:stop, None])[:, :, 0] @ B.T)
            start = stop
        return jnp.stack(out, axis=1)

    point = Moved(flat, B_dev, B_loc, p.mean)
    signs = jnp.array([1.0, -1.0], X.dtype)

    def along(half: Moved, middle: Moved | None) -> Array:
        if middle is None:
            return jax.jvp(layers, (point,), (half,))[1]
        halfway = jax.tree.map(jnp.add, point, middle)
        ends = jax.vmap(
            lambda sign: layers(jax.tree.map(lambda at, h: at + sign * h, halfway, half))
        )(signs)
        return 0.5 * (ends[0] - ends[1])

    middles = None if t.middle is None else t.middle.moved
    columns = jax.lax.map(lambda pair: along(*pair), (t.moved, middles))
    return jnp.moveaxis(columns, 0, -1)


@batchable()
def own_covariance(
    predictor: Predictor, X: Float[Array, "n d"], Z: Float[Array, "m d"]
) -> Float[Array, "U n m"]:
    """r(x, z) of each different kind of latent (see `Predictor.kinds`)."""
    p = predictor
    if p.states is not None and p.block is not None:
        own = local_states.covariance(p.states, p.block, p.noise, X, Z)
    else:
        own = _residual(p.local, X, Z) if p.known else prior_covariance(p, X, Z)
    return jnp.concatenate([_residual(p.shared, X, Z), own])


@batchable()
def prior_covariance(
    predictor: Predictor, X: Float[Array, "n d"], Z: Float[Array, "m d"]
) -> Float[Array, "2 n m"]:
    """k(x, z) of a deviation and of a local function that nothing is known of, as for an unseen client."""
    same = jnp.all(X[:, None, :] == Z[None, :, :], axis=2).astype(X.dtype)
    shared = (
        same if predictor.shared is None else jnp.mean(_kernels(predictor.shared, X, Z), axis=0)
    )
    return jnp.stack([shared, same])


def psd_factor(matrix: np.ndarray) -> np.ndarray:
    """F with F Fᵀ = matrix; where Cholesky fails, from eigenvalues cut off at zero."""
    symmetric = 0.5 * (matrix + matrix.T)
    try:
        return np.linalg.cholesky(symmetric)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(symmetric)
        return vectors * np.sqrt(np.maximum(values, 0.0))


def _columns(power: Array) -> Array:
    """B with B Bᵀ = power, without columns of zeros: none for an absent layer."""
    B = psd_factor(np.asarray(power))
    return jnp.asarray(B[:, np.any(B != 0, axis=0)])


@batchable()
def _build(block: GlobalBlock | ClientBlock, jitter: Array) -> Basis:
    return block.basis(jitter)


def _basis(block: GlobalBlock | ClientBlock, jitter: float, client: str | None) -> Basis:
    basis = _build(block, np.float64(jitter))
    if not np.all(np.isfinite(basis.factor)):
        matrix = "k(Z_g, Z_g)" if client is None else "k(Z_i, Z_i)"
        if not np.all(np.isfinite(basis.gram)):
            raise NonFiniteError("a kernel is not finite there", client=client, matrix=matrix)
        message = f"the factorisation failed at the model's relative jitter of {jitter:g}"
        raise NumericsError(message, client=client, matrix=matrix)
    return basis


def _features(basis: Basis | None, X: Array) -> tuple[Array, Array]:
    """a(x) (R, M, n) and r(x, x) (R, n); nothing for an absent layer."""
    if basis is None:
        return jnp.zeros((0, 0, X.shape[0]), X.dtype), jnp.zeros((0, X.shape[0]), X.dtype)
    A = basis.features(X)
    return A, basis.residual(A)


def _project(A: Float[Array, "R M n"], columns: Float[Array, "RM k"]) -> Float[Array, "n R k"]:
    latents, size, _ = A.shape
    return jnp.einsum("rmn,rmk->nrk", A, columns.reshape(latents, size, columns.shape[1]))


def _kernels(basis: Basis, X: Array, Z: Array) -> Float[Array, "R n m"]:
    return jax.vmap(lambda kernel: kernel(X, Z))(basis.kernels)


def _residual(basis: Basis | None, X: Array, Z: Array) -> Float[Array, "R n m"]:
    if basis is None:
        return jnp.zeros((0, X.shape[0], Z.shape[0]), X.dtype)
    A, C = basis.features(X), basis.features(Z)
    return _kernels(basis, X, Z) - jnp.einsum("rmn,rmk->rnk", A, C)
