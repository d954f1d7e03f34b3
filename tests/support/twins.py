"""One problem in two forms: the library's blocks, and the naive model of tests/reference.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import reference as ref
from pfedhgp.gp import kernels as pk
from pfedhgp.gp.noise import DiagonalNoise, FullNoise, Noise
from pfedhgp.inference.grams import Grams, accumulate
from pfedhgp.inference.structured.bound import (
    GlobalEvidence,
    Statistics,
    apply_loadings,
    design_of,
    summary,
)
from pfedhgp.inference.structured.bound import elbo as structured_elbo
from pfedhgp.inference.structured.surrogate import Surrogate
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows, Structure

Array = np.ndarray
MakeKernel = Callable[[np.random.Generator, int], pk.Kernel]

BASE = {
    pk.RBF: ref.rbf,
    pk.Matern12: ref.matern12,
    pk.Matern32: ref.matern32,
    pk.Matern52: ref.matern52,
    pk.RationalQuadratic: ref.rational_quadratic,
    pk.Periodic: ref.periodic,
}


# ------------------------------------------------------------------------------------------ kernels


def dense_kernel(kernel: pk.Kernel) -> ref.Kernel:
    """The naive NumPy function of a library kernel, walked through its tree."""
    if isinstance(kernel, pk.Scaled):
        inner, variance = dense_kernel(kernel.kernel), float(kernel.variance)
        return lambda X, Z: variance * inner(X, Z)
    if isinstance(kernel, pk.Product):
        factors = [dense_kernel(part) for part in kernel.kernels]
        return lambda X, Z: np.prod([k(X, Z) for k in factors], axis=0)
    if isinstance(kernel, pk.Sum):
        parts = [dense_kernel(part) for part in kernel.kernels]
        raw = [1.0, *(float(r) for r in kernel.ratios)]
        return lambda X, Z: sum(w * k(X, Z) for w, k in zip(raw, parts, strict=True)) / sum(raw)
    names = {"alpha", "period"} & set(vars(kernel))
    options = {name: np.asarray(getattr(kernel, name)) for name in ("lengthscale", *names)}
    columns = slice(None) if kernel.dims is None else list(kernel.dims)
    twin = partial(BASE[type(kernel)], **options)
    return lambda X, Z: twin(np.asarray(X)[:, columns], np.asarray(Z)[:, columns])


def rbf(rng: np.random.Generator, d: int) -> pk.Kernel:
    return pk.RBF(rng.uniform(0.8, 1.6, d))


def matern52(rng: np.random.Generator, d: int) -> pk.Kernel:
    return pk.Matern52(rng.uniform(0.5, 1.2, d))


def matern32(rng: np.random.Generator, d: int) -> pk.Kernel:
    return pk.Matern32(rng.uniform(0.3, 0.7, d))


def wave(rng: np.random.Generator, d: int) -> pk.Kernel:
    """A sum of a decaying wave and a rational quadratic: every kind of node but a scale."""
    decay, period = pk.Matern12(rng.uniform(2, 3, d)), rng.uniform(1, 2, d)
    periodic = pk.Periodic(rng.uniform(0.7, 1.5, d), period=period)
    rough = pk.RationalQuadratic(rng.uniform(0.5, 1.0, d), rng.uniform(0.5, 2.0))
    _, unit = pk.split_scale(rng.uniform(0.5, 1) * (decay * periodic) + rng.uniform(0.2, 1) * rough)
    return unit


def seasonal(rng: np.random.Generator, d: int) -> pk.Kernel:
    """A trend and a season, in learned proportions."""
    season = pk.Periodic(rng.uniform(0.7, 1.5, d), period=rng.uniform(1.5, 2.5, d))
    return pk.split_scale(0.6 * pk.RBF(rng.uniform(0.8, 1.6, d)) + 0.4 * season)[1]


# ------------------------------------------------------------------------------------------ problem


@dataclass(frozen=True)
class Problem:
    """Library blocks of a few clients, and the same numbers for the reference."""

    structure: Structure
    shared: GlobalBlock
    clients: Sequence[ClientBlock]
    Xs: Sequence[Array]
    Ys: Sequence[Array]
    jitter: float = 1e-8

    @property
    def rows(self) -> list[Rows]:
        return [rows_of(X, Y) for X, Y in zip(self.Xs, self.Ys, strict=True)]

    @property
    def k(self) -> int:
        """The number of global weights."""
        return self.shared.loadings.shape[1] * self.shared.inputs.shape[0]

    @property
    def model(self) -> ref.Model:
        return model_of(self.structure, self.shared, self.clients)

    @property
    def inducing(self) -> ref.Inducing:
        Z_l = [np.asarray(c.inputs)[np.asarray(c.active) > 0] for c in self.clients]
        return ref.Inducing(np.asarray(self.shared.inputs), Z_l, self.jitter)

    @property
    def dense(self) -> list[ref.SparseClient]:
        return ref.sparse_clients(self.Xs, self.Ys, self.model, self.inducing)

    def pairs(self):
        return zip(self.clients, self.rows, strict=True)

    def summaries(self) -> list[tuple[Array, Array, Array]]:
        """(c, h, J) of every client, by the library."""
        return [reduced(self.structure, self.shared, c, r, self.jitter)[1] for c, r in self.pairs()]

    def bound(self) -> float:
        """The library's ELBO, from the summed unloaded statistics."""
        sums = add(
            [sums_only(self.structure, self.shared, c, r, self.jitter) for c, r in self.pairs()]
        )
        surrogate = Surrogate(self.shared, sums)
        return float(surrogate_elbo(self.structure, surrogate, self.shared.loadings))


def rows_of(X: Array, Y: Array) -> Rows:
    """NaN cells become 0 with mask 0."""
    seen = ~np.isnan(Y)
    return Rows(np.asarray(X), np.asarray(np.where(seen, Y, 0.0)), np.asarray(seen * 1.0))


def model_of(
    structure: Structure, shared: GlobalBlock, clients: Sequence[ClientBlock]
) -> ref.Model:
    """The reference's model, spelled out here and not by the library's own `deviation_loadings`."""
    B_g = np.asarray(shared.loadings)
    Q, R = B_g.shape

    def latents(stack: pk.Kernel, count: int) -> list[ref.Kernel]:
        leaves = jax.tree.map(np.asarray, stack)
        return [dense_kernel(pk.unstack(leaves, r)) for r in range(count)]

    def deviation(client: ClientBlock) -> Array:
        if not structure.deviation:
            return np.zeros((Q, 0))
        own = np.asarray(client.deviation)  # tied: √(φ_i/φ)
        return float(shared.phi) ** 0.5 * B_g * own if structure.tied else own

    return ref.Model(
        k_g=latents(shared.kernels, R),
        k_l=[latents(c.kernels, c.loadings.shape[1]) for c in clients],
        B_g=B_g,
        B_dev=[deviation(c) for c in clients],
        B_l=[np.asarray(c.loadings) for c in clients],
        noise=[covariance(c.noise, Q) for c in clients],
    )


def covariance(noise: Noise, Q: int) -> Array:
    """Σ in NumPy from the noise's own coordinates."""
    if isinstance(noise, DiagonalNoise):
        s = np.asarray(noise.log_variance)
        return np.diag(np.resize(noise.floor + np.exp(s), Q))
    raw = np.asarray(noise.log_factor)
    L = np.tril(raw, -1) + np.diag(np.exp(np.diag(raw)))
    return L @ L.T + noise.floor * np.eye(Q)


def make_noise(kind: str, rng: np.random.Generator, Q: int, scale: float) -> Noise:
    """`scale` is about the variance."""
    if kind == "full":
        raw = 0.3 * np.sqrt(scale) * rng.normal(size=(Q, Q))
        np.fill_diagonal(raw, 0.5 * np.log(scale) + 0.2 * rng.normal(size=Q))
        return FullNoise(np.asarray(raw))
    size = {"scalar": 1, "outputs": Q}[kind]
    return DiagonalNoise(np.asarray(np.log(scale) + 0.3 * rng.normal(size=size)))


def latents_of(make: MakeKernel, rng: np.random.Generator, d: int, count: int) -> pk.Kernel:
    """`count` stacked kernels; none at all is a stack with a leading axis of zero."""
    kernels = stacked([make(rng, d) for _ in range(max(count, 1))])
    return jax.tree.map(lambda leaf: leaf[:count], kernels)


def own_deviation(rng: np.random.Generator, Q: int, R: int, *, tied: bool) -> Array:
    """B̃ of a client at random; without loadings √(φ_i/φ) = 1. Draws the same numbers either way."""
    drawn = 0.6 * rng.normal(size=(Q, R))
    return np.ones((Q, R)) if tied else drawn


def make_problem(
    seed: int = 0,
    *,
    sizes: Sequence[int] = (7, 7, 7),
    Q: int = 3,
    R: int = 2,
    R_l: int = 2,
    d: int = 1,
    M: int = 5,
    M_l: int = 4,
    deviation: bool = True,
    tied: bool = False,
    noise: str = "scalar",
    noise_scale: float = 0.1,
    missing: bool = False,
    k_g: MakeKernel = rbf,
    k_l: MakeKernel = matern32,
    jitter: float = 1e-8,
    width: float = 3.0,
) -> Problem:
    """Random blocks and random data; tied is the scalar model, whose sizes it sets, with φ_i = φ."""
    rng = np.random.default_rng(seed)
    if tied:
        Q, R, R_l = 1, 1, min(R_l, 1)
    loadings = rng.uniform(0.7, 1.4, (1, 1)) if tied else rng.normal(size=(Q, R))
    shared = GlobalBlock(
        kernels=latents_of(k_g, rng, d, R),
        inputs=np.asarray(spread(rng, M, d, width)),
        loadings=np.asarray(loadings),
        phi=np.asarray(rng.uniform(0.2, 0.6)),
    )
    clients = [
        ClientBlock(
            kernels=latents_of(k_l, rng, d, R_l),
            inputs=np.asarray(spread(rng, M_l, d, width)),
            active=np.ones(M_l),
            deviation=own_deviation(rng, Q, R, tied=tied),
            loadings=np.asarray(rng.normal(size=(Q, R_l))),
            noise=make_noise(noise, rng, Q, noise_scale),
        )
        for _ in sizes
    ]
    Xs = [rng.uniform(0, width, (n, d)) for n in sizes]
    Ys = [rng.normal(size=(n, Q)) for n in sizes]
    if missing:
        for Y in Ys:
            Y[rng.uniform(size=Y.shape) < 0.25] = np.nan
        Ys[0][len(Ys[0]) // 2] = np.nan
    return Problem(Structure(deviation=deviation, tied=tied), shared, clients, Xs, Ys, jitter)


def spread(rng: np.random.Generator, count: int, d: int, width: float) -> Array:
    """Points over [0, width]^d, evenly in the first dimension."""
    points = rng.uniform(0, width, (count, d))
    points[:, 0] = (np.arange(count) + rng.uniform(0.2, 0.8, count)) * width / max(count, 1)
    return points


def at_the_data(problem: Problem, jitter: float = 1e-12) -> Problem:
    """Z_g the union of all inputs and Z_i = X_i: where every bound is the evidence."""
    union = np.unique(np.concatenate(problem.Xs), axis=0)
    clients = [
        eqx.tree_at(lambda c: (c.inputs, c.active), c, (np.asarray(X), np.ones(len(X))))
        for c, X in zip(problem.clients, problem.Xs, strict=True)
    ]
    shared = eqx.tree_at(lambda b: b.inputs, problem.shared, np.asarray(union))
    return replace(problem, shared=shared, clients=clients, jitter=jitter)


# ----------------------------------------------------------------------------- compiled once, shared

# XLA's optimiser takes longer on these tiny problems than all the arithmetic.
# (Blocks and results are NumPy arrays for the same reason: arithmetic on them compiles nothing.)
compiled = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@partial(compiled, static_argnums=0, static_argnames=("unloaded", "chunk"))
def _reduced(
    structure: Structure,
    shared: GlobalBlock,
    client: ClientBlock,
    rows: Rows,
    jitter: float,
    *,
    unloaded: bool = False,
    chunk: int = 4096,
) -> tuple[Grams, tuple]:
    basis = shared.basis(jitter)
    design = design_of(structure, shared, basis, client, jitter)
    grams = accumulate(rows, design, unloaded=unloaded, chunk=chunk)
    Q, R = shared.loadings.shape
    return grams, summary(grams, R * basis.inputs.shape[0] * (Q if unloaded else 1))


def reduced(*arguments, **options) -> tuple[Grams, tuple]:
    """(Grams, (c, h, J)) of one client; with `unloaded`, (c, y, U)."""
    return jax.device_get(_reduced(*arguments, **options))


def sums_only(
    structure: Structure, shared: GlobalBlock, client: ClientBlock, rows: Rows, jitter: float
) -> Statistics:
    """A client's Statistics without the derivatives, which take long to compile."""
    grams, (evidence, y, U) = reduced(structure, shared, client, rows, jitter, unloaded=True)
    nothing = np.zeros(0)
    return Statistics(
        evidence=evidence,
        U=U,
        y=y,
        shared_residual=grams.shared_residual,
        d_evidence=nothing,
        d_h=nothing,
        d_J=nothing,
        curvature=nothing,
        deviation_power=nothing,
        deviation_square=nothing,
        local_square=nothing,
        noise=nothing,
        clients=np.ones(()),
        residual=grams.residual,
    )


def add(trees: Sequence):
    """The leaf-wise sum: what the server does with messages."""
    return jax.tree.map(lambda *leaves: np.sum(leaves, axis=0), *trees)


@partial(compiled, static_argnums=0)
def surrogate_elbo(structure: Structure, surrogate: Surrogate, loadings: Array) -> Array:
    return surrogate.elbo(structure, loadings)


loaded = compiled(apply_loadings, static_argnums=3)


def stacked(trees: Sequence):
    """Clients of equal shape, with a leading axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def total_bound(
    structure: Structure, shared: GlobalBlock, clients: ClientBlock, rows: Rows, jitter: float
) -> Array:
    """The ELBO of stacked clients, from their (c, h, J) in one batch."""
    basis = shared.basis(jitter)

    def one(client: ClientBlock, own: Rows):
        design = design_of(structure, shared, basis, client, jitter)
        return summary(accumulate(own, design), basis.factor.shape[0] * basis.factor.shape[1])

    c, h, J = jax.vmap(one)(clients, rows)
    return structured_elbo(jnp.sum(c), GlobalEvidence(jnp.sum(J, 0), jnp.sum(h, 0)))


elbo = compiled(total_bound, static_argnums=0)


# -------------------------------------------------------------------------------------- derivatives


def five_point(f: Callable[[Array], Array], x: Array, eps: float = 1e-3) -> Array:
    """∂f/∂x by the fourth-order stencil, x's axis last; errors are about ε⁴f⁗'/30 + u|f|/ε."""
    x = np.asarray(x, dtype=float)
    columns = []
    for k in range(len(x)):
        step = np.zeros(len(x))
        step[k] = eps
        near = np.asarray(f(x + step)) - np.asarray(f(x - step))
        far = np.asarray(f(x + 2 * step)) - np.asarray(f(x - 2 * step))
        columns.append((8.0 * near - far) / (12.0 * eps))
    return np.stack(columns, axis=-1)


def assert_close(found, expected, rel: float = 1e-9) -> None:
    """max|found − expected| ≤ rel · max|expected|: relative to the array, not to each entry."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert np.all(np.isfinite(found))
    scale = np.max(np.abs(expected), initial=1e-300)
    np.testing.assert_allclose(found, expected, rtol=0, atol=rel * scale)
