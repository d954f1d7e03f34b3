"""The structured bound: the exact GP's limit, the paper's propositions, invariances, gradients."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import reference as ref
from pfedhgp.gp import linalg
from pfedhgp.inference.grams import accumulate
from pfedhgp.inference.rows import some_rows
from pfedhgp.inference.structured.bound import cavity_bound, design_of
from pfedhgp.inference.structured.surrogate import Surrogate
from pfedhgp.model.blocks import Rows, from_free, to_free
from support import twins


def batched_bound(problem: twins.Problem) -> float:
    """The bound of clients of equal shape, in one batch."""
    clients = twins.stacked(problem.clients)
    shared, rows = problem.shared, twins.stacked(problem.rows)
    return float(twins.elbo(problem.structure, shared, clients, rows, problem.jitter))


# ------------------------------------------------------------------------------- the exact GP's limit

EXACT = {
    "scalar": {"tied": True, "sizes": (17, 17, 17), "width": 10.0, "noise_scale": 0.05},
    "scalar, small noise": {"tied": True, "sizes": (17, 17, 17), "noise_scale": 0.02},
    "outputs, missing cells, full noise": {
        "sizes": (9, 9, 9),
        "Q": 2,
        "noise": "full",
        "missing": True,
        "noise_scale": 0.05,
    },
    "sums and products, two inputs": {
        "sizes": (9, 9, 9),
        "Q": 2,
        "d": 2,
        "k_g": twins.wave,
        "k_l": twins.matern52,
    },
}


@pytest.mark.parametrize("case", EXACT)
def test_exact_limit_of_the_bound_is_the_evidence(case):
    """Z_g the union of all inputs, Z_i = X_i, jitter 1e-12, σ² ≥ .01: 1e-6 relative."""
    problem = twins.at_the_data(twins.make_problem(**EXACT[case]))
    assert min(np.linalg.eigvalsh(S).min() for S in problem.model.noise) > 0.01
    evidence = ref.exact_log_marginal(problem.Xs, problem.Ys, problem.model)
    bound = batched_bound(problem)
    assert bound == pytest.approx(evidence, rel=1e-6)
    assert bound <= evidence + 1e-9 * abs(evidence)


def test_exact_limit_with_shared_inputs_and_ragged_clients():
    """Clients that measure at the same inputs share an inducing input; one has a single row."""
    problem = twins.make_problem(sizes=(8, 8, 1), tied=True, k_g=twins.matern52)
    Xs = [problem.Xs[0], problem.Xs[0].copy(), problem.Xs[0][3:4]]
    problem = twins.at_the_data(replace(problem, Xs=Xs))
    assert problem.shared.inputs.shape == (8, 1)
    evidence = ref.exact_log_marginal(problem.Xs, problem.Ys, problem.model)
    assert problem.bound() == pytest.approx(evidence, rel=1e-6)


@pytest.fixture(scope="module")
def small():
    """Two outputs, three clients of four rows, at the data and on a few inducing inputs."""
    sparse = twins.make_problem(
        3, sizes=(4, 4, 4), Q=2, noise="full", k_g=twins.matern52, M=3, M_l=2
    )
    return sparse, twins.at_the_data(sparse)


def implied_covariance(problem: twins.Problem) -> np.ndarray:
    """(−∇²_y ELBO)⁻¹: the covariance of all clients' cells that the bound stands for."""
    clients, rows = twins.stacked(problem.clients), twins.stacked(problem.rows)

    def bound(y):
        own = eqx.tree_at(lambda r: r.Y, rows, y.reshape(rows.Y.shape))
        return twins.total_bound(problem.structure, problem.shared, clients, own, problem.jitter)

    # The bound is quadratic in y, so its gradient at unit vectors holds the Hessian's columns.
    gradient = twins.compiled(jax.grad(bound))
    hessian = [gradient(unit) for unit in np.eye(rows.Y.size)]
    return np.linalg.inv(-np.asarray(hessian))


def test_exact_joint_covariance_is_multi_sensor_cov_main(small):
    """Eq. multi_sensor_cov_main, in the limit where nothing is left to the residual."""
    _, exact = small
    expected = ref.exact_joint_covariance(exact.Xs, exact.model)
    found = implied_covariance(exact)
    twins.assert_close(found, expected, 1e-7)
    # Between clients: B_g k_g B_gᵀ and nothing else.
    (X0, X1), B = exact.Xs[:2], exact.model.B_g
    k_g = sum(np.kron(k(X0, X1), np.outer(b, b)) for k, b in zip(exact.model.k_g, B.T, strict=True))
    twins.assert_close(found[:8, 8:16], k_g, 1e-7)


def test_exact_joint_covariance_is_the_low_rank_one_and_its_residual(small):
    """H Hᵀ + residual + noise is the same covariance on however few inducing inputs."""
    sparse, _ = small
    low_rank = implied_covariance(sparse)
    residual = np.zeros_like(low_rank)
    model, inducing = sparse.model, sparse.inducing
    for layer in ref.LAYERS:
        for i, Xi in enumerate(sparse.Xs):
            for j, Xj in enumerate(sparse.Xs):
                if layer != "global" and i != j:
                    continue
                kernels, B = model.layer(layer, i)
                Z = inducing.layer(layer, i)
                for r in range(B.shape[1]):
                    rest = ref.residual_covariance(kernels[r], Z, Xi, Xj, sparse.jitter)
                    block = np.kron(rest, np.outer(B[:, r], B[:, r]))
                    residual[8 * i : 8 * i + 8, 8 * j : 8 * j + 8] += block
    assert np.abs(residual).max() > 0.1
    twins.assert_close(low_rank + residual, ref.exact_joint_covariance(sparse.Xs, model), 1e-9)


def test_exact_joint_covariance_of_the_scalar_model_is_ilmm_mixing():
    """Eq. ilmm_mixing: H diag(k_g, φ k_g …, k_i …) Hᵀ with H = [1 | I | I]."""
    problem = twins.at_the_data(twins.make_problem(4, tied=True, sizes=(4, 4, 4)))
    tau2 = float(problem.shared.loadings[0, 0]) ** 2
    variances = [float(c.loadings[0, 0]) ** 2 for c in problem.clients]
    unit_g, unit_l = problem.model.k_g[0], [k[0] for k in problem.model.k_l]
    expected = ref.ilmm_covariance(
        problem.Xs,
        k_g=lambda x, z: tau2 * unit_g(x, z),
        phi=float(problem.shared.phi),
        k_l=[lambda x, z, k=k, v=v: v * k(x, z) for k, v in zip(unit_l, variances, strict=True)],
        noise=[S[0, 0] for S in problem.model.noise],
    )
    found = implied_covariance(problem)
    twins.assert_close(found, expected, 1e-7)
    between = tau2 * unit_g(problem.Xs[0], problem.Xs[2])
    twins.assert_close(found[:4, 8:], between, 1e-7)


# -------------------------------------------------------------------------- the paper's propositions


def test_equivalence_proposition_1_a_single_sparse_gp_has_titsias_bound():
    """One client, one layer: log N(y; 0, Q + σ²I) − tr(K − Q)/2σ², and eq. sgp_vfe at its best q."""
    problem = twins.make_problem(5, tied=True, deviation=False, R_l=0, M_l=0, sizes=(12,))
    tau = float(problem.shared.loadings[0, 0])
    unit, Z = problem.model.k_g[0], problem.inducing.Z_g
    options = {"k": lambda a, b: tau**2 * unit(a, b), "Z": Z, "jitter": problem.jitter}
    options["noise"] = problem.model.noise[0][0, 0]
    X, y = problem.Xs[0], problem.Ys[0].ravel()
    bound = problem.bound()
    assert bound == pytest.approx(ref.titsias_bound(X, y, **options), rel=1e-9)
    [(_, h, J)] = problem.summaries()
    m, S = (np.asarray(v) for v in linalg.posterior_moments(J, h))
    L = tau * np.asarray(problem.shared.basis(problem.jitter).factor[0])
    at_best = ref.sparse_gp_elbo(X, y, (L @ m, L @ S @ L.T), **options)
    assert bound == pytest.approx(at_best, rel=1e-8)
    worse = ref.sparse_gp_elbo(X, y, (L @ m + 0.01, 1.1 * L @ S @ L.T), **options)
    assert worse < at_best


def test_equivalence_proposition_2_low_rank_mean():
    """aᵀv with v = L⁻¹u is k(x, Z) K⁻¹ u, so H w is A_g (u_g + δ) + A_i u_i."""
    problem = twins.make_problem(6, tied=True, sizes=(9,))
    jitter, X = problem.jitter, problem.Xs[0]
    rng = np.random.default_rng(0)
    tau, phi = float(problem.shared.loadings[0, 0]), float(problem.shared.phi)
    own = problem.clients[0]
    shared, local = problem.shared.basis(jitter), own.basis(jitter)
    (a_g,), (a_l,) = (np.asarray(b.features(np.asarray(X))) for b in (shared, local))
    L_g, L_l = np.asarray(shared.factor[0]), np.asarray(local.factor[0])
    u_g, delta, u_l = rng.normal(size=5), rng.normal(size=5), rng.normal(size=4)
    weights = (
        np.linalg.solve(tau * L_g, u_g),
        np.linalg.solve(np.sqrt(phi) * tau * L_g, delta),
        np.linalg.solve(float(own.loadings[0, 0]) * L_l, u_l),
    )
    found = tau * a_g.T @ weights[0] + np.sqrt(phi) * tau * a_g.T @ weights[1]
    found += float(own.loadings[0, 0]) * a_l.T @ weights[2]
    A_g = ref.interpolation(problem.model.k_g[0], problem.inducing.Z_g, X, jitter)
    A_l = ref.interpolation(problem.model.k_l[0][0], problem.inducing.Z_l[0], X, jitter)
    twins.assert_close(found, ref.low_rank_mean(A_g, A_l, u_g, delta, u_l))


def test_equivalence_proposition_3_residual_traces_add_up():
    """σ² Σ res/σ² = tr(K_g − Q_g) + tr(K_δ − Q_δ) + tr(K_i − Q_i)"""
    problem = twins.make_problem(6, tied=True, sizes=(9, 9))
    tau2 = float(problem.shared.loadings[0, 0]) ** 2
    variances = [float(c.loadings[0, 0]) ** 2 for c in problem.clients]
    unit_g, unit_l = problem.model.k_g[0], [k[0] for k in problem.model.k_l]
    scalar = ref.ScalarModel(
        k_g=lambda x, z: tau2 * unit_g(x, z),
        phi=float(problem.shared.phi),
        k_l=[lambda x, z, k=k, v=v: v * k(x, z) for k, v in zip(unit_l, variances, strict=True)],
        Z_g=problem.inducing.Z_g,
        Z_l=problem.inducing.Z_l,
        noise=[S[0, 0] for S in problem.model.noise],
        jitter=problem.jitter,
    )
    for i, (client, rows) in enumerate(problem.pairs()):
        grams, _ = twins.reduced(problem.structure, problem.shared, client, rows, problem.jitter)
        trace = ref.residual_trace(scalar, i, problem.Xs[i])
        assert float(grams.residual) * scalar.noise[i] == pytest.approx(trace, rel=1e-9)


# ------------------------------------------------------------------------------------------ ordering


def test_exact_above_structured_above_best_mean_field():
    """Six clients of fifty rows on [0, 10], 25 inducing inputs each, data from the model."""
    problem = twins.make_problem(
        7,
        tied=True,
        sizes=(50,) * 6,
        M=25,
        M_l=25,
        width=10.0,
        noise_scale=0.02,
        k_g=lambda rng, d: twins.pk.RBF(np.full(d, 1.2)),
        k_l=lambda rng, d: twins.pk.RBF(np.full(d, 0.8)),
    )
    K = ref.exact_joint_covariance(problem.Xs, problem.model)
    y = np.linalg.cholesky(K) @ np.random.default_rng(8).normal(size=len(K))
    problem = replace(problem, Ys=list(y.reshape(6, 50, 1)))
    evidence = ref.log_gaussian(y, 0.0, K)
    structured = batched_bound(problem)
    mean_field = ref.best_meanfield_elbo(problem.dense)
    print(f"exact {evidence:.1f}, structured {structured:.1f}, mean field {mean_field:.1f}")
    assert mean_field + 50.0 < structured < evidence
    assert evidence - structured < 1.0


def test_invariance_nested_global_inducing_sets_never_lower_the_bound():
    problem = twins.make_problem(9, tied=True, sizes=(10, 10), M=6, k_g=twins.matern52)
    Z = problem.shared.inputs
    bounds = [
        batched_bound(
            replace(problem, shared=eqx.tree_at(lambda b: b.inputs, problem.shared, Z[:m]))
        )
        for m in (2, 6)
    ]
    assert bounds[0] < bounds[1]


@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(5)), seed=st.integers(0, 3))
def test_invariance_nested_local_inducing_sets_never_lower_the_bound(order, seed):
    """Inputs are switched on one by one, in any order, by `active`."""
    problem = twins.make_problem(seed, tied=True, sizes=(10,), M_l=5)
    bounds = []
    for m in range(6):
        active = np.zeros(5)
        active[order[:m]] = 1.0
        clients = [eqx.tree_at(lambda c: c.active, problem.clients[0], np.asarray(active))]
        bounds.append(batched_bound(replace(problem, clients=clients)))
    assert np.all(np.diff(bounds) > -1e-7)
    assert bounds[-1] > bounds[0]


# ------------------------------------------------------------------------------------- federated sums


@pytest.fixture(scope="module")
def federation() -> twins.Problem:
    return twins.make_problem(10, sizes=(7,) * 5, noise="outputs", missing=True)


@pytest.fixture(scope="module")
def messages(federation):
    return [
        twins.sums_only(federation.structure, federation.shared, c, r, federation.jitter)
        for c, r in federation.pairs()
    ]


def bound_from(federation, sums) -> float:
    surrogate = Surrogate(federation.shared, sums)
    return float(twins.surrogate_elbo(federation.structure, surrogate, federation.shared.loadings))


@settings(max_examples=25, deadline=None)
@given(order=st.permutations(range(5)), cut=st.integers(1, 4))
def test_invariance_to_the_clients_order_and_the_split_of_the_work(
    federation, messages, order, cut
):
    expected = bound_from(federation, twins.add(messages))
    shuffled = [messages[i] for i in order]
    by_halves = twins.add([twins.add(shuffled[:cut]), twins.add(shuffled[cut:])])
    assert bound_from(federation, by_halves) == pytest.approx(expected, rel=1e-10)


def test_pooled_equals_federated_equals_batched(federation, messages):
    bound = bound_from(federation, twins.add(messages))
    assert bound == pytest.approx(ref.pooled_elbo(federation.dense), rel=1e-9)
    assert bound == pytest.approx(batched_bound(federation), rel=1e-10)


def test_pooled_rows_of_a_model_without_client_layers_may_be_split_anyhow():
    """Global-only: two clients' rows are as good as one client's with both."""
    problem = twins.make_problem(11, sizes=(6, 6), deviation=False, R_l=0, M_l=0, Q=2, missing=True)
    one = problem.clients[0]
    split = replace(problem, clients=[one, one])
    merged = replace(
        problem,
        clients=[one],
        Xs=[np.concatenate(problem.Xs)],
        Ys=[np.concatenate(problem.Ys)],
    )
    assert split.bound() == pytest.approx(merged.bound(), rel=1e-12)


# ---------------------------------------------------------------------------------------- gradients

GRADIENTS = {
    "scalar, sums and products": {"tied": True, "k_l": twins.wave},
    "full noise, missing cells": {"Q": 2, "noise": "full", "missing": True},
}


class Cavities:
    """Two clients, and each one's cavity bound and gradient in all of its coordinates."""

    def __init__(self, name: str) -> None:
        self.problem = twins.make_problem(12, sizes=(7, 7), **GRADIENTS[name])
        self.starts = [ravel_pytree(to_free(c))[0] for c in self.problem.clients]
        self.unravel = ravel_pytree(to_free(self.problem.clients[0]))[1]
        self.both = twins.compiled(jax.value_and_grad(self._bound))
        frozen = eqx.tree_at(
            lambda b: b.active, jax.tree.map(np.ones_like, self.problem.clients[0]), np.zeros(4)
        )
        self.moves = np.asarray(ravel_pytree(frozen)[0]) > 0

    def _bound(self, vector, rows, J_rest, h_rest):
        problem = self.problem
        basis, client = problem.shared.basis(problem.jitter), from_free(self.unravel(vector))
        design = design_of(problem.structure, problem.shared, basis, client, problem.jitter)
        return cavity_bound(accumulate(rows, design), J_rest, h_rest)

    def one(self, i: int, vector=None):
        """Value and gradient of client i, the other one's J and h fixed."""
        _, h_rest, J_rest = self.problem.summaries()[1 - i]
        vector = self.starts[i] if vector is None else vector
        return self.both(vector, self.problem.rows[i], J_rest, h_rest)


@pytest.fixture(scope="module", params=GRADIENTS, ids=lambda name: name.replace(" ", "_"))
def cavities(request) -> Cavities:
    return Cavities(request.param)


def test_exact_gradient_of_the_cavity_bound_in_all_client_coordinates(cavities):
    """Kernels, Z_i, loadings and noise against finite differences, at the default jitter."""
    gradient = np.asarray(cavities.one(0)[1])
    expected = twins.five_point(lambda vector: cavities.one(0, vector)[0], cavities.starts[0])
    twins.assert_close(gradient[cavities.moves], expected[cavities.moves], 1e-8)


@pytest.mark.parametrize("cavities", ["full noise, missing cells"], indirect=True)
def test_equivalence_of_batched_and_single_clients_in_value_and_gradient(cavities):
    """The whole bound of a batch: each client's gradient is that of its own cavity bound."""
    problem = cavities.problem

    def whole(vectors, rows):
        clients = jax.vmap(lambda vector: from_free(cavities.unravel(vector)))(vectors)
        return twins.total_bound(problem.structure, problem.shared, clients, rows, problem.jitter)

    together, gradients = twins.compiled(jax.value_and_grad(whole))(
        np.stack(cavities.starts), twins.stacked(problem.rows)
    )
    constants = [float(c) for c, _, _ in problem.summaries()]
    for i in range(2):
        value, gradient = cavities.one(i)
        assert float(together) == pytest.approx(float(value) + constants[1 - i], rel=1e-10)
        found, expected = gradients[i][cavities.moves], gradient[cavities.moves]
        twins.assert_close(found, expected, 1e-10)


def test_exact_gradient_in_crowded_global_inducing_inputs():
    """∂ELBO/∂Z_g at the default jitter, where Z_g is so dense that K is singular but for jitter.

    There the gradient is 1e-3 and its error is absolute, about 1e-15/jitter. (Spaced inputs, to 1e-8
    relative: test_surrogate.py.)
    """
    M = 12
    problem = twins.make_problem(13, sizes=(7, 7), Q=2, M=M)
    clients, rows = twins.stacked(problem.clients), twins.stacked(problem.rows)
    K = ref.inducing_covariance(problem.model.k_g[0], problem.inducing.Z_g, problem.jitter)
    assert np.linalg.cond(K) > 1e8

    def bound(Z):
        shared = eqx.tree_at(lambda b: b.inputs, problem.shared, Z.reshape(M, 1))
        return twins.total_bound(problem.structure, shared, clients, rows, problem.jitter)

    start = np.asarray(problem.shared.inputs).ravel()
    both = twins.compiled(jax.value_and_grad(bound))
    expected = twins.five_point(lambda Z: both(Z)[0], start)
    np.testing.assert_allclose(both(start)[1], expected, rtol=1e-8, atol=1e-7)


def test_noise_at_the_opening_is_chosen_on_a_sample_of_many_rows():
    rows = Rows(jnp.arange(20.0)[:, None], jnp.ones((20, 1)), jnp.ones((20, 1)))
    assert some_rows(rows, 11) is rows
    np.testing.assert_array_equal(some_rows(rows, 6).X[:, 0], np.arange(0.0, 20.0, 3.0))
    replicated = eqx.tree_at(
        lambda r: r.scatter, rows, jnp.ones((1, 1, 1)), is_leaf=lambda leaf: leaf is None
    )
    assert some_rows(replicated, 6) is replicated  # its scatter is of all rows together
