"""The paper's Algorithm 1 against the dense twins of its equations."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import reference as ref
from pfedhgp.gp import linalg
from pfedhgp.gp.kernels import Matern32, Matern52
from pfedhgp.gp.noise import DiagonalNoise, FullNoise
from pfedhgp.inference import lbfgs
from pfedhgp.inference.grams import accumulate
from pfedhgp.inference.meanfield import bound as mf
from pfedhgp.inference.meanfield import steps
from pfedhgp.inference.structured import bound as structured
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows, Structure, deviation_loadings
from support.compiled import times_compiled

JITTER = 1e-6
FLOOR = 1e-8  # of a Noise
SIZES = (6, 1, 5)


class Case(NamedTuple):
    """A model away from its start, three ragged clients, and the blocks that it started from."""

    options: mf.MeanFieldOptions
    state: mf.GlobalState
    clients: mf.ClientCoordinates  # stacked
    rows: Rows  # stacked, padded to the longest client
    blocks: tuple[GlobalBlock, ClientBlock]


def client(stacked, i: int):
    return jax.tree.map(lambda leaf: leaf[i], stacked)


def stack(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def padded_rows(rng: np.random.Generator, Q: int, d: int, *, missing: bool) -> Rows:
    n = max(SIZES)
    X, Y, mask = np.zeros((3, n, d)), np.zeros((3, n, Q)), np.zeros((3, n, Q))
    for i, size in enumerate(SIZES):
        X[i, :size] = rng.uniform(0, 3, (size, d))
        Y[i, :size] = rng.normal(size=(size, Q))
        mask[i, :size] = 1.0
    if missing:
        mask[0, 2, 1] = mask[2, 0, 0] = 0.0
        mask[2, 3] = 0.0
    return Rows(jnp.asarray(X), jnp.asarray(Y * mask), jnp.asarray(mask))


def noise_of(rng: np.random.Generator, Q: int, kind: str):
    if kind == "full":
        root = 0.3 * rng.normal(size=(Q, Q))
        factor = np.linalg.cholesky(0.3 * np.eye(Q) + root @ root.T)
        raw = np.tril(factor, -1) + np.diag(np.log(np.diag(factor)))
        return FullNoise(jnp.asarray(raw), FLOOR)
    count = Q if kind == "outputs" else 1
    return DiagonalNoise(jnp.asarray(np.log(rng.uniform(0.1, 0.3, count))), FLOOR)


def make(
    *,
    tied: bool = False,
    deviation: bool = True,
    R_g: int = 2,
    R_l: int = 2,
    noise: str = "full",
    seed: int = 0,
    **options,
) -> Case:
    """Scalar without loadings (`tied`), or three outputs with loadings; random factors."""
    rng = np.random.default_rng(seed)
    Q, d, M, M_l = (1, 1, 4, 5) if tied else (3, 2, 4, 3)
    R_g, R_l = (min(R_g, 1), min(R_l, 1)) if tied else (R_g, R_l)
    chosen = mf.MeanFieldOptions(Structure(deviation=deviation, tied=tied), **options)

    def loadings(R: int):
        return jnp.asarray(rng.uniform(0.7, 1.4, (Q, R)) if tied else rng.normal(size=(Q, R)))

    shared = GlobalBlock(
        kernels=Matern52(jnp.asarray(rng.uniform(0.8, 1.6, (R_g, d)))),
        inputs=jnp.asarray(rng.uniform(0, 3, (M, d))),
        loadings=loadings(R_g),
        phi=jnp.asarray(0.6),
    )
    blocks = []
    for i in range(3):
        active = np.ones(M_l)
        active[M_l - 1 :] = 0.0 if i == 1 else 1.0  # client 1 has one inducing input less
        blocks.append(
            ClientBlock(
                kernels=Matern32(jnp.asarray(rng.uniform(0.3, 0.7, (R_l, d)))),
                inputs=jnp.asarray(rng.uniform(0, 3, (M_l, d))),
                active=jnp.asarray(active),
                deviation=loadings(R_g)[:, : 0 if tied else None],  # tied: everybody has φ
                loadings=loadings(R_l),
                noise=noise_of(rng, Q, "one" if tied else noise),
            )
        )
    clients = stack([mf.client_coordinates(chosen, block, shared) for block in blocks])
    state = mf.global_coordinates(chosen, shared)
    state = eqx.tree_at(lambda s: s.q, state, random_factor(rng, state.q))
    for name in ("q_dev", "q_loc"):
        moved = []
        for i in range(3):
            factor = random_factor(rng, getattr(client(clients, i), name))
            if name == "q_loc":
                factor = unpad(factor, np.tile(np.asarray(blocks[i].active), R_l))
            moved.append(factor)
        clients = eqx.tree_at(lambda c, n=name: getattr(c, n), clients, stack(moved))
    rows = padded_rows(rng, Q, d, missing=not tied)
    return Case(chosen, state, clients, rows, (shared, stack(blocks)))


def random_factor(rng: np.random.Generator, factor: mf.Factor) -> mf.Factor:
    size = factor.mean.shape[0]
    raw = np.tril(0.3 * rng.normal(size=(size, size)), -1) + np.diag(rng.normal(-0.5, 0.5, size))
    return mf.Factor(jnp.asarray(rng.normal(size=size)), jnp.asarray(raw))


def unpad(factor: mf.Factor, active: np.ndarray) -> mf.Factor:
    """Padding keeps its prior, N(0, 1) and on its own, as training leaves it."""
    both = active[:, None] * active[None, :]
    one = np.log(np.expm1(1.0))
    raw = np.asarray(factor.raw) * both + one * np.diag(1.0 - active)
    return mf.Factor(factor.mean * active, jnp.asarray(raw))


SCALAR = {"tied": True}
MODELS = {
    "full": {},
    "diagonal-noise": {"noise": "outputs"},
    "one-noise": {"noise": "one"},
    "no-deviation": {"deviation": False},
    "no-local": {"R_l": 0},
    "global-only": {"deviation": False, "R_l": 0},
    "local-only": {"deviation": False, "R_g": 0},
    "chunks": {"chunk": 4},
    "scalar": SCALAR,
    "scalar-no-deviation": {"tied": True, "deviation": False},
    "scalar-no-local": {"tied": True, "R_l": 0},
    "scalar-local-only": {"tied": True, "deviation": False, "R_g": 0},
}
SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("full", "no-deviation", "no-local", "global-only")
]


# --------------------------------------------------- the dense twins at the same coordinates


def softplus(raw) -> np.ndarray:
    return np.logaddexp(0.0, np.asarray(raw))


def moments(factor: mf.Factor, root=None, keep=slice(None)) -> ref.Gaussian:
    raw, mean = np.asarray(factor.raw), np.asarray(factor.mean)
    L = np.tril(raw, -1) + np.diag(softplus(np.diag(raw)))
    m, S = mean[keep], (L @ L.T)[keep][:, keep]
    return (m, S) if root is None else (root @ m, root @ S @ root.T)


def data_of(case: Case) -> tuple[list, list]:
    seen = np.asarray(case.rows.mask) > 0
    Ys = np.where(seen, np.asarray(case.rows.Y), np.nan)
    return (
        [np.asarray(case.rows.X)[i, :n] for i, n in enumerate(SIZES)],
        [Ys[i, :n] for i, n in enumerate(SIZES)],
    )


def scalar_twin(case: Case) -> tuple[ref.ScalarModel, ref.Factors]:
    """The paper's scalar model and its factors of u_g, δ_i and u_i, not whitened."""
    own = [client(case.clients, i) for i in range(3)]
    tau = softplus(case.state.loadings)[0, 0]
    model = ref.ScalarModel(
        k_g=partial(
            ref.matern52,
            lengthscale=softplus(case.state.kernels.lengthscale)[0],
            variance=tau**2,
        ),
        phi=float(softplus(case.state.phi)),
        k_l=[
            partial(
                ref.matern32,
                lengthscale=softplus(c.kernels.lengthscale)[0],
                variance=softplus(c.loadings)[0, 0] ** 2,
            )
            for c in own
        ],
        Z_g=np.asarray(case.state.inputs),
        Z_l=[np.asarray(c.inputs)[np.asarray(c.active) > 0] for c in own],
        noise=[float(softplus(c.noise.log_variance)[0]) + FLOOR for c in own],
        jitter=JITTER,
    )
    L = np.linalg.cholesky(model.K_gg)
    factors = ref.Factors(
        moments(case.state.q, L),
        [moments(c.q_dev, L) for c in own],
        [
            moments(c.q_loc, np.linalg.cholesky(model.K_ll(i)), np.asarray(c.active) > 0)
            for i, c in enumerate(own)
        ],
    )
    return model, factors


def noise_twin(noise, Q: int) -> np.ndarray:
    if isinstance(noise, FullNoise):
        return np.asarray(noise.covariance(Q))
    return np.diag(np.broadcast_to(softplus(noise.log_variance) + FLOOR, (Q,)))


def twin(case: Case) -> tuple[list[ref.SparseClient], ref.Factors]:
    """Sparse clients with B̃ = √φ B_δ, and factors of v_g, v_δ/√φ and v_l."""
    structure, own = case.options.structure, [client(case.clients, i) for i in range(3)]
    phi, Q = softplus(case.state.phi), case.rows.Y.shape[2]
    link = softplus if structure.tied else np.asarray
    B_g = link(case.state.loadings)
    B_dev = [B_g if structure.tied else np.asarray(c.deviation) for c in own]
    B_l = [link(c.loadings) for c in own]
    model = ref.Model(
        k_g=[
            partial(ref.matern52, lengthscale=l) for l in softplus(case.state.kernels.lengthscale)
        ],
        k_l=[
            [partial(ref.matern32, lengthscale=l) for l in softplus(c.kernels.lengthscale)]
            for c in own
        ],
        B_g=B_g,
        B_dev=[np.sqrt(phi) * B if structure.deviation else B[:, :0] for B in B_dev],
        B_l=B_l,
        noise=[noise_twin(c.noise, Q) for c in own],
    )
    Z_l = [np.asarray(c.inputs)[np.asarray(c.active) > 0] for c in own]
    Xs, Ys = data_of(case)
    inducing = ref.Inducing(np.asarray(case.state.inputs), Z_l, JITTER)

    def local(c: mf.ClientCoordinates) -> ref.Gaussian:
        return moments(
            c.q_loc, keep=np.flatnonzero(np.tile(np.asarray(c.active), c.loadings.shape[1]))
        )

    factors = ref.Factors(
        moments(case.state.q),
        [(m / np.sqrt(phi), S / phi) for m, S in (moments(c.q_dev) for c in own)],
        [local(c) for c in own],
    )
    return ref.sparse_clients(Xs, Ys, model, inducing), factors


def pooled_elbo(options, state, clients, rows, jitter):
    """`mf.elbo` of all clients at once, with a leading axis for them."""
    shared = mf.open_global(options, state, jitter)
    terms = jax.vmap(lambda c, r: mf.client_bound(options, shared, c, r, jitter))(clients, rows)
    return mf.elbo(terms, state.q)


elbo = jax.jit(pooled_elbo, static_argnums=0)
one_bound = jax.jit(mf.client_bound, static_argnums=0)
one_update = jax.jit(steps.client_update, static_argnums=0)


def bound_of(case: Case) -> float:
    return float(elbo(case.options, case.state, case.clients, case.rows, JITTER))


def terms_of(case: Case) -> list[float]:
    shared = mf.open_global(case.options, case.state, JITTER)
    return [
        float(
            one_bound(case.options, shared, client(case.clients, i), client(case.rows, i), JITTER)
        )
        for i in range(3)
    ]


def message(case: Case, i: int) -> mf.GlobalState:
    """S̃_i at the client's coordinates as they are."""
    options = case.options._replace(local_steps=0)
    state, rows = client(start_of(case), i), client(case.rows, i)
    return one_update(options, case.state, state, rows, JITTER)[1]


def start_of(case: Case) -> steps.ClientState:
    """All clients as they are, with a fresh Adam."""
    init = optax.adam(case.options.local_rate).init
    return steps.ClientState(case.clients, jax.vmap(init)(case.clients))


def total_of(case: Case) -> mf.GlobalState:
    return jax.tree.map(lambda *parts: sum(parts), *(message(case, i) for i in range(3)))


# -------------------------------------------------------------------------- the paper's equations


def test_equivalence_proposition_5_expected_log_likelihood_is_eq_closed_form_ll():
    case = make(**SCALAR)
    model, q = scalar_twin(case)
    Xs, Ys = data_of(case)
    for i, term in enumerate(terms_of(case)):
        c = client(case.clients, i)
        value = term + float(c.q_dev.kl(jax.nn.softplus(case.state.phi))) + float(c.q_loc.kl(1.0))
        dense = ref.expected_log_likelihood(model, i, Xs[i], Ys[i][:, 0], q)
        assert value == pytest.approx(dense, rel=1e-9)


def test_equivalence_proposition_4_kl_splits_as_eq_kl_decomposition():
    """In whitened weights as in inducing values; and the joint KL is the sum of the factors'."""
    case = make(**SCALAR)
    model, q = scalar_twin(case)
    priors = [model.K_gg]
    factors, values = [q.g], [float(case.state.q.kl(1.0))]
    for i in range(3):
        c = client(case.clients, i)
        factors += [q.d[i], q.l[i]]
        priors += [model.phi * model.K_gg, model.K_ll(i)]
        values += [float(c.q_dev.kl(model.phi)), float(c.q_loc.kl(1.0))]
    for (m, S), K, value in zip(factors, priors, values, strict=True):
        assert value == pytest.approx(ref.gaussian_kl(m, S, 0.0 * m, K), rel=1e-9)
    m = np.concatenate([m for m, _ in factors])
    S, K = np.zeros((2, len(m), len(m)))
    at = 0
    for (_, S_one), K_one in zip(factors, priors, strict=True):
        block = slice(at, at := at + len(K_one))
        S[block, block], K[block, block] = S_one, K_one
    assert sum(values) == pytest.approx(ref.gaussian_kl(m, S, 0.0 * m, K), rel=1e-9)


def test_equivalence_theorem_1_bound_is_eq_elbo_explicit_decomp():
    case = make(**SCALAR)
    model, q = scalar_twin(case)
    Xs, Ys = data_of(case)
    dense = ref.meanfield_elbo(model, Xs, [Y[:, 0] for Y in Ys], q)
    assert bound_of(case) == pytest.approx(dense, rel=1e-9)


def test_equivalence_proposition_6_client_bound_is_eq_local_elbo_new_up_to_a_constant():
    """At fixed global block and σ² they differ by what no local parameter moves; σ² itself is our repair."""
    case = make(**SCALAR)
    rng = np.random.default_rng(3)

    def shake(leaf: jax.Array) -> jax.Array:
        return leaf + jnp.asarray(0.2 * rng.normal(size=leaf.shape))

    own = lambda c: (c.clients.q_dev, c.clients.kernels, c.clients.loadings)  # noqa: E731
    moved = eqx.tree_at(own, case, jax.tree.map(shake, own(case)))
    real = case.clients.active  # padding has its prior, and stays there
    mean = case.clients.q_loc.mean
    moved = eqx.tree_at(
        lambda c: c.clients.q_loc.mean, moved, jnp.where(real > 0, shake(mean), mean)
    )
    Xs, Ys = data_of(case)
    gaps = []
    for version in (case, moved):
        model, q = scalar_twin(version)
        printed = [ref.local_elbo(model, i, Xs[i], Ys[i][:, 0], q) for i in range(3)]
        gaps.append(np.asarray(terms_of(version)) - printed)
    assert np.all(np.abs(np.subtract(terms_of(moved), terms_of(case))) > 0.1)
    np.testing.assert_allclose(gaps[0], gaps[1], rtol=1e-8)


@pytest.mark.parametrize("name", MODELS)
def test_bound_equals_the_dense_one_with_loadings_missing_cells_and_any_noise(name):
    case = make(**MODELS[name])
    assert bound_of(case) == pytest.approx(ref.whitened_meanfield_elbo(*twin(case)), rel=1e-9)


def test_equivalence_proposition_7_global_gradient_is_that_of_eq_elbo_global_block():
    case = make(**SCALAR)
    Xs, Ys = data_of(case)
    start, unravel = ravel_pytree(case.state)

    def dense(vector: np.ndarray) -> float:
        model, q = scalar_twin(case._replace(state=unravel(jnp.asarray(vector))))
        return ref.global_block_elbo(model, Xs, [Y[:, 0] for Y in Ys], q)

    total = total_of(case)
    found, _ = ravel_pytree(steps.global_gradient(case.state, total))
    wanted = ref.finite_difference(dense, np.asarray(start), 1e-6)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


def test_global_gradient_with_loadings_equals_finite_differences():
    case = make()
    start, unravel = ravel_pytree(case.state)

    def dense(vector: np.ndarray) -> float:
        return ref.whitened_meanfield_elbo(*twin(case._replace(state=unravel(jnp.asarray(vector)))))

    total = total_of(case)
    found, _ = ravel_pytree(steps.global_gradient(case.state, total))
    wanted = ref.finite_difference(dense, np.asarray(start), 1e-6)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


def test_phi_gradient_is_the_closed_form_and_finite_differences_at_fixed_factors():
    """Eq. phi_gradient_explicit: −tr(K_g − Q_g)/2σ² − M/2φ + (tr S̃ + |m̃|²)/2φ²."""
    case = make(**SCALAR)
    model, q = scalar_twin(case)
    Xs, Ys = data_of(case)
    slope = float(jax.nn.sigmoid(case.state.phi))
    messages = [float(message(case, i).phi) for i in range(3)]
    for i, X in enumerate(Xs):
        m, S = moments(client(case.clients, i).q_dev)
        closed = ref.phi_gradient(model, i, X, m, S)
        assert messages[i] == pytest.approx(slope * closed, rel=1e-9)

    def dense(raw: np.ndarray) -> float:
        moved, _ = scalar_twin(eqx.tree_at(lambda c: c.state.phi, case, jnp.asarray(raw)))
        return ref.meanfield_elbo(moved, Xs, [Y[:, 0] for Y in Ys], q)

    numeric = ref.finite_difference(dense, float(case.state.phi), 1e-5)
    assert sum(messages) == pytest.approx(numeric.item(), rel=1e-7)


# ---------------------------------------------------------------------------------- federation


@pytest.mark.parametrize("name", ["full", "scalar"])
def test_federated_gradient_equals_the_pooled_one_in_a_batch_and_one_at_a_time(name):
    case = make(**MODELS[name], local_steps=0)
    pooled = jax.jit(jax.grad(pooled_elbo, argnums=1), static_argnums=0)(
        case.options, case.state, case.clients, case.rows, JITTER
    )
    _, batch, info = steps.batched_client_update(
        case.options, case.state, start_of(case), case.rows, JITTER
    )
    np.testing.assert_allclose(info.after, terms_of(case), rtol=1e-10)
    wanted, _ = ravel_pytree(pooled)
    close = {"rtol": 1e-10, "atol": 1e-10 * float(jnp.abs(wanted).max())}
    for i in range(3):
        alone, together = ravel_pytree(message(case, i))[0], ravel_pytree(client(batch, i))[0]
        np.testing.assert_allclose(together, alone, **close)
    found, _ = ravel_pytree(steps.global_gradient(case.state, total_of(case)))
    np.testing.assert_allclose(found, wanted, **close)


def run(options, blocks: tuple[GlobalBlock, ClientBlock], rows: Rows, rounds: int):
    shared, clients = blocks
    server = steps.server_init(options, shared)
    states = jax.vmap(lambda b: steps.client_init(options, b, shared))(clients)
    for _ in range(rounds):
        states, gradients, info = steps.batched_client_update(
            options, server.free, states, rows, JITTER
        )
        total = jax.tree.map(lambda g: jnp.sum(g, axis=0), gradients)
        server = steps.server_update(options, server, total)
    return server, states, info


def test_order_of_clients_does_not_matter_and_all_rounds_are_compiled_once():
    case = make(local_steps=3)
    turn = np.array([2, 0, 1])
    compiled = times_compiled(steps.batched_client_update)
    server, states, _ = run(case.options, case.blocks, case.rows, 2)
    clients, rows = jax.tree.map(lambda leaf: leaf[turn], (case.blocks[1], case.rows))
    turned, others, _ = run(case.options, (case.blocks[0], clients), rows, 2)
    back = jax.tree.map(lambda leaf: leaf[np.argsort(turn)], others)
    for a, b in ((turned, server), (back, states)):
        np.testing.assert_allclose(ravel_pytree(a.free)[0], ravel_pytree(b.free)[0], atol=1e-7)
    assert times_compiled(steps.batched_client_update) <= compiled + 1


# -------------------------------------------------------------------- beside the structured solver


def structured_bound(case: Case) -> float:
    """Σ c + log ∫ N(v; 0, I) exp(hᵀv − ½ vᵀJv) dv at the same hyperparameters."""
    shared = mf.global_block(case.options, case.state)
    basis, width = shared.basis(JITTER), case.state.q.mean.shape[0]
    c, h, J = 0.0, jnp.zeros(width), jnp.zeros((width, width))
    for i in range(3):
        block = mf.client_block(case.options, client(case.clients, i), shared)
        design = structured.design_of(case.options.structure, shared, basis, block, JITTER)
        c_i, h_i, J_i = structured.summary(accumulate(client(case.rows, i), design), width)
        c, h, J = c + c_i, h + h_i, J + J_i
    return float(c + linalg.log_partition(J, h))


@pytest.mark.parametrize("name", ["full", "no-deviation", "local-only", "scalar"])
def test_best_factors_give_the_best_mean_field_bound_and_that_is_below_structured(name):
    case = make(**MODELS[name])
    best, q = ref.best_meanfield(twin(case)[0])
    phi = softplus(case.state.phi)
    state = eqx.tree_at(lambda s: s.q, case.state, factor_of(q.g))
    clients = eqx.tree_at(
        lambda c: (c.q_dev, c.q_loc),
        case.clients,
        (
            stack([factor_of((np.sqrt(phi) * m, phi * S)) for m, S in q.d]),
            stack([factor_of(local, like=client(case.clients, i)) for i, local in enumerate(q.l)]),
        ),
    )
    above = structured_bound(case)
    assert bound_of(case) < best - 1.0
    assert bound_of(case._replace(state=state, clients=clients)) == pytest.approx(best, rel=1e-9)
    if name == "local-only":  # one factor a client: there is nothing to factorise
        assert best == pytest.approx(above, rel=1e-9)
    else:
        assert best < above - 1e-2


def factor_of(q: ref.Gaussian, like: mf.ClientCoordinates | None = None) -> mf.Factor:
    """N(m, S) in coordinates; with `like`, a client's local factor, padded as its inputs are."""
    m, S = q
    if like is not None:
        at = np.flatnonzero(np.tile(np.asarray(like.active), like.loadings.shape[1]))
        size = like.q_loc.mean.shape[0]
        mean, covariance = np.zeros(size), np.eye(size)
        mean[at], covariance[np.ix_(at, at)] = m, S
        m, S = mean, covariance
    root = np.linalg.cholesky(S)
    raw = np.tril(root, -1) + np.diag(np.log(np.expm1(np.diag(root))))
    return mf.Factor(jnp.asarray(m), jnp.asarray(raw))


def test_long_optimisation_of_the_factors_ends_at_the_best_mean_field():
    case = make(**SCALAR)
    best = ref.best_meanfield_elbo(twin(case)[0])
    start, unravel = ravel_pytree((case.state.q, case.clients.q_dev, case.clients.q_loc))

    def objective(vector):
        q, q_dev, q_loc = unravel(vector)
        state = eqx.tree_at(lambda s: s.q, case.state, q)
        clients = eqx.tree_at(lambda c: (c.q_dev, c.q_loc), case.clients, (q_dev, q_loc))
        return -pooled_elbo(case.options, state, clients, case.rows, JITTER)

    search = jax.jit(partial(lbfgs.minimize, objective, evaluations=800))
    found = search(start, movable=jnp.ones_like(start))
    assert -float(found.first_value) < best - 1.0
    assert -float(found.value) == pytest.approx(best, abs=1e-4)


# ---------------------------------------------------------------------------- steps and messages


@pytest.mark.parametrize("name", ["scalar", "local-only", *SLOW])
def test_rounds_raise_the_bound_and_stay_finite(name):
    case = make(**MODELS[name], local_steps=20, local_rate=0.05, server_rate=0.05)
    first, _, _ = run(case.options, case.blocks, case.rows, 1)
    server, states, info = run(case.options, case.blocks, case.rows, 6)
    for leaf in jax.tree.leaves((server, states)):
        assert bool(jnp.all(jnp.isfinite(leaf)))
    shared, clients = case.blocks
    begin = jax.vmap(lambda b: mf.client_coordinates(case.options, b, shared))(clients)
    before = elbo(
        case.options, mf.global_coordinates(case.options, shared), begin, case.rows, JITTER
    )
    after = elbo(case.options, server.free, states.free, case.rows, JITTER)
    assert float(after) > float(before) + 1.0
    assert bool(jnp.all(info.after > info.before - 0.5))
    if first.free.q.mean.size:
        assert float(jnp.abs(first.free.q.mean).max()) == pytest.approx(0.05, rel=1e-3)


def test_server_steps_are_plain_ascent_and_adam():
    case = make(**SCALAR)
    total = message(case, 0)
    gradient = steps.global_gradient(case.state, total)
    shared = case.blocks[0]
    for name, step in (("sgd", lambda g: 0.01 * g), ("adam", lambda g: 0.01 * jnp.sign(g))):
        options = case.options._replace(server_optimizer=name, server_rate=0.01)
        begin = eqx.tree_at(lambda s: s.free, steps.server_init(options, shared), case.state)
        found = steps.server_update(options, begin, total).free
        wanted = jax.tree.map(lambda value, g, s=step: value + s(g), case.state, gradient)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)


def test_padding_and_frozen_inputs_stay():
    case = make(local_steps=3)
    server, states, _ = run(case.options, case.blocks, case.rows, 2)
    np.testing.assert_array_equal(states.free.active, case.blocks[1].active)
    moved = np.any(states.free.inputs != case.blocks[1].inputs, axis=2)
    np.testing.assert_array_equal(moved, np.asarray(case.blocks[1].active) > 0)
    assert np.all(server.free.inputs != case.blocks[0].inputs)
    case = make(**SCALAR, learn_inputs=False)
    for_server, for_clients = jax.jit(jax.grad(pooled_elbo, argnums=(1, 2)), static_argnums=0)(
        case.options, case.state, case.clients, case.rows, JITTER
    )
    assert not np.any(for_server.inputs)
    assert not np.any(for_clients.inputs)
    assert np.all(for_clients.kernels.lengthscale)


def test_message_is_named_arrays_and_nothing_else():
    case = make()
    gradient = message(case, 0)
    arrays = steps.gradient_to_arrays(gradient)
    assert {name: array.shape for name, array in arrays.items()} == {
        "kernels.lengthscale": (2, 2),
        "inputs": (4, 2),
        "loadings": (3, 2),
        "phi": (),
        "q.mean": (8,),
        "q.raw": (36,),
    }
    sent = {name: np.asarray(array) for name, array in arrays.items()}
    back = steps.gradient_from_arrays(sent, case.state)
    assert jax.tree.structure(back) == jax.tree.structure(gradient)
    for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(gradient), strict=True):
        np.testing.assert_array_equal(a, b)


# ------------------------------------------------------------------------- blocks and posteriors


@pytest.mark.parametrize("name", ["full", "diagonal-noise", "scalar", "local-only"])
def test_blocks_come_back_from_their_coordinates(name):
    case = make(**MODELS[name])
    shared, clients = case.blocks
    found = mf.global_block(case.options, mf.global_coordinates(case.options, shared))
    pairs = [(found, shared)]
    for i in range(3):
        block = client(clients, i)
        free = mf.client_coordinates(case.options, block, shared)
        pairs.append((mf.client_block(case.options, free, shared), block))
    for a, b in pairs:
        np.testing.assert_allclose(ravel_pytree(a)[0], ravel_pytree(b)[0], rtol=1e-12)


@pytest.mark.parametrize("name", ["full", "no-deviation", "no-local", "scalar"])
def test_posteriors_are_the_factors_for_weights_of_prior_one(name):
    """The dense bound of the posteriors' own loadings and weights is the bound."""
    case = make(**MODELS[name])
    whole = mf.global_posterior(case.options, case.state)
    sparse, _ = twin(case)
    deviation, local = [], []
    for i in range(3):
        own = mf.client_posterior(case.options, client(case.clients, i), whole.block)
        B_dev = deviation_loadings(case.options.structure, whole.block, own.block)
        sparse[i] = sparse[i]._replace(B_dev=np.asarray(B_dev))
        m, S = (np.asarray(value) for value in own.marginal(whole))
        k = B_dev.shape[1] * whole.block.inputs.shape[0]
        assert not np.any(S[:k, k:])
        keep = k + np.flatnonzero(np.tile(own.block.active, own.block.loadings.shape[1]))
        deviation.append((m[:k], S[:k, :k]))
        local.append((m[keep], S[np.ix_(keep, keep)]))
    q = ref.Factors((np.asarray(whole.mean), np.asarray(whole.covariance)), deviation, local)
    assert ref.whitened_meanfield_elbo(sparse, q) == pytest.approx(bound_of(case), rel=1e-9)
