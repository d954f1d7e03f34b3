"""The latents' joint posterior at any inputs, from which every prediction follows by the loadings.

A client's function is f(x) = Σ_a b_a h_a(x) over the L latents of its three layers, and
    h_a(x) = m_a(x) + T_a(x)ᵀ z + e_a(x),   z ~ N(0, I),   e_a ~ GP(0, r_a) on its own,
where T collects the posterior of the weights: with w = [v_g | v_δ | v_l],
    Cov(w) = F Fᵀ,   F = [[S½, 0], [−G S½, W⁻½]],   T_a(x) = F_aᵀ a_a(x),
and r_a(x, x') = k(x, x') − a(x)ᵀa(x') is what the inducing inputs do not carry. This is the glossary's
D S Dᵀ + H*_c W⁻¹ H*_cᵀ + R*, D = H*_g − H*_c G, in factors: PSD by construction.

Where a client's parameters were averaged, its layers also tilt with them: f(x) gains tilt(x) e, e ~ N(0, I),
which does not follow from the latents alone, because loadings are among the parameters.

All of it runs in NumPy on a CPU, and compiled on other devices. Only a state-space local layer and tangents
that are derivatives are compiled everywhere.

An unseen client has the global layer's posterior, and latents that nothing is known of: T = 0, and
r is their prior.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pfedhgp.base.arrays_of import Array, namespace
from pfedhgp.base.batching import batchable, on_numpy
from pfedhgp.base.trees import ravel
from pfedhgp.errors import NonFiniteError, NumericsError
from pfedhgp.gp.features import Basis
from pfedhgp.gp.kernels import Kernel, Stacks
from pfedhgp.gp.linalg import diagonal_matrix, psd_factor
from pfedhgp.model import loadings_tilt, local_states
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, deviation_loadings, global_loadings
from pfedhgp.model.fitted import FittedModel, typical_kernels
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
    loadings_half: Float[Array, "Q R P"] | None = None
    """Cov(vec B_g,i) = Σ_p of products: what is not known of the client's own loadings on the shared
    functions. An unseen client's is Σ_B."""
    typical: Kernel | None = None
    """Local kernels of a typical client; None: nobody knows them."""

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
    def partly_compiled(self) -> bool:
        """Whether the host, too, compiles a part: a state-space local layer, or tangents without a middle."""
        slopes = self.tangents is not None and self.tangents.middle is None
        return self.states is not None or slopes

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
        posterior, shared = model.clients.get(client), on_numpy(model.shared)
        m, B_g = shared.mean, shared.block.loadings
        S_half = psd_factor(shared.covariance)
        basis = _basis(shared.block, model.jitter, None) if B_g.shape[1] else None
        if posterior is None:
            population = model.population
            return Predictor(
                shared=basis,
                local=None,
                loadings=ByLayer(
                    B_g, _columns(population.deviation_power), _columns(population.local_power)
                ),
                noise=np.asarray(population.noise),
                mean=m,
                half_shared=S_half,
                half_own=np.zeros((0, 0)),
                known=False,
                loadings_half=_loadings_half(shared.block),
                typical=typical_kernels(model),
            )
        posterior = on_numpy(posterior)
        block, G = posterior.block, posterior.G
        if posterior.shared_mean is not None:
            m, S = posterior.view(shared)
            S_half = psd_factor(S)
        averaged = posterior.tangents is not None
        B_g = global_loadings(shared.block, block)
        B_d = deviation_loadings(model.structure, shared.block, block)
        exact = posterior.states is not None
        local = block.loadings.shape[1] and not exact
        own = _basis(block, model.jitter_of(client), client) if local else None
        return Predictor(
            shared=basis,
            local=own,
            loadings=ByLayer(B_g, B_d, block.loadings),
            noise=block.noise.covariance(model.outputs),
            mean=np.concatenate([m, posterior.offset - G @ m]),
            half_shared=np.concatenate([S_half, -G @ S_half]),
            half_own=psd_factor(posterior.covariance),
            known=True,
            block=block if averaged or exact else None,
            jitter=np.float64(model.jitter_of(client)) if averaged else None,
            tangents=posterior.tangents,
            # A series that grows by `update` has few lengths to compile; one without updates keeps its own.
            states=local_states.padded(posterior.states)
            if posterior.states is not None and posterior.loadings_half is None
            else posterior.states,
            loadings_half=None
            if posterior.loadings_half is None
            else np.moveaxis(posterior.loadings_half, 0, 2),
            typical=typical_kernels(model),
        )


@batchable(host=True)
def latents(predictor: Predictor, X: Float[Array, "n d"]) -> Latents:
    """m(x), T(x) in its two parts, and r(x, x)."""
    p, xp = predictor, namespace(X)
    g, d, _ = p.counts
    n, rows = X.shape[0], p.mean.shape[0]
    A_g, res_g = _features(p.shared, X)
    columns = xp.concatenate([p.mean[:, None], p.half_shared], axis=1)
    if not p.known:
        prior = p.slices["total"].stop - g
        out = _project(A_g, columns)
        moments = xp.concatenate([out, xp.zeros((n, prior, out.shape[2]), X.dtype)], axis=1)
        spread = xp.concatenate([res_g.T, xp.ones((n, prior), X.dtype)], axis=1)
        own = xp.zeros((n, prior, 0), X.dtype)
        return Latents(moments[:, :, 0], moments[:, :, 1:], own, spread)
    A_l, res_l = _features(p.local, X)
    size = A_g.shape[1]
    parts, cut = (A_g, A_g[:d], A_l), (g * size, (g + d) * size, rows)
    starts = (0, *cut[:2])
    moments = xp.concatenate(
        [_project(A, columns[a:b]) for A, a, b in zip(parts, starts, cut, strict=True)], axis=1
    )
    own_cut = d * size
    own = xp.concatenate(
        [_project(A_g[:d], p.half_own[:own_cut]), _project(A_l, p.half_own[own_cut:])], axis=1
    )
    spread = xp.concatenate([res_g, res_g[:d], res_l]).T
    found = Latents(moments[:, :, 0], moments[:, :, 1:], own, spread)
    if p.states is None or p.block is None or p.shared is None:
        return found
    B_g, B_dev, _ = p.loadings
    local = local_states.latents(
        p.states, p.block, p.noise, p.shared, B_g, B_dev, p.half_shared, p.half_own, X
    )
    return Latents(*(xp.concatenate(pair, axis=1) for pair in zip(found, local, strict=True)))


@batchable(effort="low", host=True)
def moments(
    predictor: Predictor, X: Float[Array, "n d"]
) -> tuple[Float[Array, "n L"], Float[Array, "n L L"]]:
    """Mean and covariance of the latents at each row on its own."""
    mean, T, T_own, spread = latents(predictor, X)
    xp, g = namespace(X), predictor.counts.shared
    own = T_own @ xp.swapaxes(T_own, 1, 2)
    V = T @ xp.swapaxes(T, 1, 2) + xp.pad(own, ((0, 0), (g, 0), (g, 0)))
    return mean, V + diagonal_matrix(spread)


@batchable(effort="low", host=True)
def tilt(predictor: Predictor, X: Float[Array, "n d"]) -> Float[Array, "n 3 Q P"]:
    """What one standard deviation of each e does to the three layers at each row, in scaled units.

    Half the difference between both ends (see `Tangents`); no columns where nothing was averaged.
    """
    p, t, xp = predictor, predictor.tangents, namespace(X)
    if p.loadings_half is not None:
        return _of_loadings(p, p.loadings_half, X)
    if t is None or p.block is None:
        return xp.zeros((X.shape[0], 3, p.noise.shape[0], 0), X.dtype)
    if t.middle is None:
        return on_numpy(_derivative(p, X)) if xp is np else _derivative(p, X)
    point, A_g = _point(p), _features(p.shared, X)[0]

    def along(half: Moved, middle: Moved) -> Array:
        ends = (
            xp.stack([a + m + h, a + m - h]) for a, m, h in zip(point, middle, half, strict=True)
        )
        upper, lower = _layers(p, A_g, X, Moved(*ends))
        return 0.5 * (upper - lower)

    if xp is np:  # one direction at a time in both libraries: each has features of its own
        columns = np.stack([along(*pair) for pair in zip(_each(t.moved), _each(t.middle.moved))])
    else:
        columns = jax.lax.map(lambda pair: along(*pair), (t.moved, t.middle.moved))
    return xp.moveaxis(columns, (0, -1), (-1, 0))


@batchable(effort="low")
def _derivative(predictor: Predictor, X: Float[Array, "n d"]) -> Float[Array, "n 3 Q P"]:
    """`tilt` by files of earlier versions, whose tangents are derivatives."""
    p = predictor
    assert p.tangents is not None
    A_g = _features(p.shared, X)[0]

    def layers(at: Moved) -> Array:
        return _layers(p, A_g, X, Moved(*(part[None] for part in at)))[0]

    def along(half: Moved) -> Array:
        return jax.jvp(layers, (_point(p),), (half,))[1]

    return jnp.moveaxis(jax.lax.map(along, p.tangents.moved), (0, -1), (-1, 0))


def _point(p: Predictor) -> Moved:
    """What predictions are made of at the mean parameters."""
    assert p.block is not None
    own = p.loadings.shared if p.block.global_loadings is not None else p.loadings.shared[:, :0]
    return Moved(ravel(p.block.kernels)[0], p.loadings.deviation, p.loadings.local, p.mean, own)


def _of_loadings(
    p: Predictor, half: Float[Array, "Q R P"], X: Float[Array, "n d"]
) -> Float[Array, "n 3 Q C"]:
    """See `loadings_tilt`; a model without shared functions has no loadings."""
    assert p.shared is not None
    size = p.shared.factor.shape[0] * p.shared.factor.shape[1]
    weights = namespace(X).concatenate([p.mean[:size, None], p.half_shared[:size]], axis=1)
    known = p.states is not None and p.block is not None
    own = (p.states, p.block, p.noise) if known else None
    return loadings_tilt.tilt(p.shared, weights, half, own, X)  # type: ignore[arg-type]


def _loadings_half(block: GlobalBlock) -> Float[Array, "Q R P"] | None:
    if block.loadings_covariance is None:
        return None
    half = psd_factor(np.asarray(block.loadings_covariance))
    return half.reshape(*np.shape(block.loadings), half.shape[1])


def _layers(
    p: Predictor, A_g: Float[Array, "R M n"], X: Float[Array, "n d"], at: Moved
) -> Float[Array, "e 3 Q n"]:
    """The three layers' means at some parameters, which have a leading axis."""
    block, xp = p.block, namespace(X, at.weights)
    assert block is not None
    A_l = xp.zeros((1, 0, 0, X.shape[0]), X.dtype)
    if p.local is not None:
        kernels = ravel(block.kernels)[1](at.kernels)
        inputs, active = block.inputs[None, None], block.active[None, None]
        A_l = Basis.build(kernels, inputs, p.jitter, active).features(X[None, None])
    B_g = at.global_loadings if at.global_loadings.shape[-1] else p.loadings.shared
    parts = ((A_g, B_g), (A_g[: at.deviation.shape[-1]], at.deviation), (A_l, at.loadings))
    out, start = [], 0
    for A, B in parts:
        count, size = A.shape[-3:-1]
        stop = start + count * size
        weights = at.weights[:, start:stop].reshape(len(at.weights), count, 1, size)
        out.append(B @ (weights @ A)[:, :, 0])
        start = stop
    return xp.stack(out, axis=1)


@batchable(host=True)
def own_covariance(
    predictor: Predictor, X: Float[Array, "n d"], Z: Float[Array, "m d"]
) -> Float[Array, "U n m"]:
    """r(x, z) of each different kind of latent (see `Predictor.kinds`)."""
    p = predictor
    if p.states is not None and p.block is not None:
        own = local_states.covariance(p.states, p.block, p.noise, X, Z)
    else:
        own = _residual(p.local, X, Z) if p.known else prior_covariance(p, X, Z)
    return namespace(X).concatenate([_residual(p.shared, X, Z), own])


@batchable(host=True)
def prior_covariance(
    predictor: Predictor, X: Float[Array, "n d"], Z: Float[Array, "m d"]
) -> Float[Array, "2 n m"]:
    """k(x, z) of a deviation and of a local function that nothing is known of, as for an unseen client."""
    xp = namespace(X)
    same = xp.all(X[:, None, :] == Z[None, :, :], axis=2).astype(X.dtype)
    shared = local = same
    if predictor.shared is not None:
        kernels = predictor.shared.kernels
        own = kernels.kernels[1] if isinstance(kernels, Stacks) else kernels
        shared = xp.mean(own(X, Z, stacked=1), axis=0)
    if predictor.typical is not None:
        local = xp.mean(predictor.typical(X, Z, stacked=1), axis=0)
    return xp.stack([shared, local])


def _columns(power: Array) -> np.ndarray:
    """B with B Bᵀ = power, without columns of zeros: none for an absent layer."""
    B = psd_factor(np.asarray(power))
    return B[:, np.any(B != 0, axis=0)]


def _each(moved: Moved) -> Iterator[Moved]:
    """Those of one direction after the other."""
    return (Moved(*parts) for parts in zip(*moved, strict=True))


@batchable(host=True)
def _build(block: GlobalBlock | ClientBlock, jitter: Array) -> Basis:
    return block.basis(jitter)


def _basis(block: GlobalBlock | ClientBlock, jitter: float, client: str | None) -> Basis:
    basis: Basis = on_numpy(_build(block, np.float64(jitter)))
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
        zeros = namespace(X).zeros
        return zeros((0, 0, X.shape[0]), X.dtype), zeros((0, X.shape[0]), X.dtype)
    A = basis.features(X)
    return A, basis.residual(A)


def _project(A: Float[Array, "R M n"], columns: Float[Array, "RM k"]) -> Float[Array, "n R k"]:
    latents, size, _ = A.shape
    xp = namespace(A, columns)
    each = columns.reshape(latents, size, columns.shape[1])
    return xp.swapaxes(xp.swapaxes(A, 1, 2) @ each, 0, 1)


def _residual(basis: Basis | None, X: Array, Z: Array) -> Float[Array, "R n m"]:
    if basis is None:
        return namespace(X).zeros((0, X.shape[0], Z.shape[0]), X.dtype)
    A, C = basis.features(X), basis.features(Z)
    return basis.kernels(X, Z, stacked=1) - namespace(A).swapaxes(A, 1, 2) @ C
