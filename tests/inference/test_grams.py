"""A client's sums against the dense matrices that they replace: every structure of the model."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import reference as ref
from pfedhgp.inference.grams import accumulate
from pfedhgp.inference.structured.bound import GlobalEvidence, cavity_bound, design_of, elbo
from pfedhgp.inference.structured.surrogate import Surrogate
from pfedhgp.model.blocks import Rows, from_free, to_free
from support import twins

CASES = {
    "scalar": {"tied": True},
    "outputs": {},
    "missing cells, noise per output": {"noise": "outputs", "missing": True},
    "missing cells, full noise": {"noise": "full", "missing": True},
    "two inputs, sums and products": {"d": 2, "k_g": twins.wave, "k_l": twins.matern52},
    "one row, full noise": {"sizes": (1, 1), "noise": "full"},
    "no deviation": {"deviation": False, "missing": True},
    "no local": {"R_l": 0, "M_l": 0, "missing": True},
    "global only": {"deviation": False, "R_l": 0, "M_l": 0, "noise": "full"},
    "local only": {"deviation": False, "R": 0, "noise": "outputs", "missing": True},
}

cavity = twins.compiled(cavity_bound)


@pytest.fixture(scope="module", params=CASES, ids=lambda name: name.replace(" ", "_"))
def problem(request) -> twins.Problem:
    return twins.make_problem(**{"sizes": (7, 7), **CASES[request.param]})


def test_exact_grams_equal_dense_products(problem):
    """Λ = HᵀΣ⁻¹H, η = HᵀΣ⁻¹y, −½(N log 2π + log|Σ| + yᵀΣ⁻¹y) and Σ tr(P_n R_n)"""
    for client, rows, dense in zip(problem.clients, problem.rows, problem.dense, strict=True):
        grams, _ = twins.reduced(problem.structure, problem.shared, client, rows, problem.jitter)
        H, y, P = np.hstack([dense.H_g, dense.H_c]), dense.y, np.linalg.inv(dense.Sigma)
        twins.assert_close(grams.precision, H.T @ P @ H)
        twins.assert_close(grams.precision, grams.precision.T, 1e-14)
        twins.assert_close(grams.linear, H.T @ P @ y)
        constant = ref.log_gaussian(y, 0.0, dense.Sigma)
        assert float(grams.constant) == pytest.approx(constant, rel=1e-9)
        assert float(grams.residual) == pytest.approx(-2.0 * dense.residual_term, rel=1e-9)
        twins.assert_close(grams.shared_residual, naive_shared_residual(dense))


def naive_shared_residual(dense: ref.SparseClient) -> np.ndarray:
    """Σ_n res_r(n) P_n, row by row."""
    Q = dense.Y.shape[1]
    total = np.zeros((len(dense.A_g), Q, Q))
    for n, row in enumerate(dense.Y):
        seen = np.flatnonzero(~np.isnan(row))
        block = np.ix_(seen, seen)
        for r, res in enumerate(dense.res_g):
            total[r][block] += res[n] * np.linalg.inv(dense.noise_cov[block])
    return total


def test_exact_client_statistics_equal_the_dense_twin(problem):
    """J = H_gᵀC⁻¹H_g, h = H_gᵀC⁻¹y, c = log N(y; 0, C) − ½ Σ res/σ²"""
    for (c, h, J), dense in zip(problem.summaries(), problem.dense, strict=True):
        expected = ref.client_statistics_dense(*dense)
        assert float(c) == pytest.approx(expected["c"], rel=1e-9)
        twins.assert_close(h, expected["h"])
        twins.assert_close(J, expected["J"])


def test_exact_unloaded_statistics_give_any_loadings(problem):
    """U = EᵀC⁻¹E and EᵀC⁻¹y against the dense twin, and `load` against statistics at random B_g."""
    Q, R = problem.shared.loadings.shape
    M = problem.shared.inputs.shape[0]
    B = np.random.default_rng(5).normal(size=(Q, R))
    for client, rows, dense in zip(problem.clients, problem.rows, problem.dense, strict=True):
        _, (c, y, U) = twins.reduced(
            problem.structure, problem.shared, client, rows, problem.jitter, unloaded=True
        )
        assert float(c) == pytest.approx(ref.client_statistics_dense(*dense)["c"], rel=1e-9)
        J, h = twins.loaded(U, y, np.asarray(B), R)
        moved = ref.client_statistics_dense(*dense._replace(B_g=B))
        twins.assert_close(J, moved["J"])
        twins.assert_close(h, moved["h"])
        if R:
            expected = ref.unloaded_statistics_dense(dense)
            twins.assert_close(U.reshape(R, Q, M, R, Q, M), expected["U"])
            twins.assert_close(y.reshape(R, Q, M), expected["e"])


def test_elbo_equals_the_naive_ones(problem):
    """Summed over clients: the bound of section 3.1, and log N of all cells at once."""
    bound = problem.bound()
    federated = ref.structured_elbo([ref.client_statistics_dense(*d) for d in problem.dense])
    assert bound == pytest.approx(federated, rel=1e-9)
    assert bound == pytest.approx(ref.pooled_elbo(problem.dense), rel=1e-9)


def test_pooled_bound_at_other_loadings_needs_no_new_statistics(problem):
    """F(θ₀, B) for any B_g; a scalar model's is a part of θ_g, and moves the deviation too."""
    B = np.random.default_rng(6).normal(size=problem.shared.loadings.shape)
    if problem.structure.tied:
        B = np.asarray(problem.shared.loadings)
    sums = twins.add(
        [
            twins.sums_only(problem.structure, problem.shared, c, r, problem.jitter)
            for c, r in problem.pairs()
        ]
    )
    surrogate = Surrogate(problem.shared, sums)
    found = twins.surrogate_elbo(problem.structure, surrogate, np.asarray(B))
    expected = ref.pooled_elbo([d._replace(B_g=B) for d in problem.dense])
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_equivalence_cavity_bound_and_the_others_constants_is_the_whole_bound(problem):
    bound, parts = problem.bound(), problem.summaries()
    c, h, J = (sum(v) for v in zip(*parts, strict=True))
    for (client, rows), own in zip(problem.pairs(), parts, strict=True):
        grams, _ = twins.reduced(problem.structure, problem.shared, client, rows, problem.jitter)
        seen = cavity(grams, J - own[2], h - own[1])
        assert float(seen + c - own[0]) == pytest.approx(bound, rel=1e-10)
    collapsed = elbo(c, GlobalEvidence(J, h))
    assert float(collapsed) == pytest.approx(bound, rel=1e-10)


# ---------------------------------------------------------------------------- padding and chunks


def full_problem() -> twins.Problem:
    return twins.make_problem(sizes=(7,), **CASES["missing cells, full noise"])


def test_invariance_to_masked_rows():
    problem = full_problem()
    (client,), (rows,) = problem.clients, problem.rows
    more = Rows(
        np.concatenate([rows.X[:2], rows.X, np.full((3, 1), 1e4)]),
        np.pad(rows.Y, ((2, 3), (0, 0))),
        np.pad(rows.mask, ((2, 3), (0, 0))),
    )
    plain, padded = (
        twins.reduced(problem.structure, problem.shared, client, r, 1e-8, unloaded=True)
        for r in (rows, more)
    )
    for one, two in zip(jax.tree.leaves(plain), jax.tree.leaves(padded), strict=True):
        twins.assert_close(two, one, 1e-13)


def test_invariance_to_inactive_local_inputs():
    problem = full_problem()
    (client,), (rows,) = problem.clients, problem.rows
    wide = eqx.tree_at(
        lambda c: (c.inputs, c.active),
        client,
        (np.pad(client.inputs, ((0, 2), (0, 0)), mode="edge"), np.pad(client.active, (0, 2))),
    )
    _, plain = twins.reduced(problem.structure, problem.shared, client, rows, 1e-8)
    _, padded = twins.reduced(problem.structure, problem.shared, wide, rows, 1e-8)
    for one, two in zip(plain, padded, strict=True):
        twins.assert_close(two, one, 1e-12)


def test_invariance_to_chunks_in_value_and_gradient():
    """Seven rows at once or in pieces of three, which do not divide them."""
    problem = twins.make_problem(sizes=(7,), Q=2, noise="outputs", missing=True, M=4)
    (client,), (rows,) = problem.clients, problem.rows
    start, unravel = ravel_pytree(to_free(client))
    J_rest, h_rest = np.eye(problem.k), np.ones(problem.k)

    def bound(vector, size):
        client = from_free(unravel(vector))
        basis = problem.shared.basis(1e-8)
        design = design_of(problem.structure, problem.shared, basis, client, 1e-8)
        return cavity_bound(accumulate(rows, design, chunk=size), J_rest, h_rest)

    both = twins.compiled(jax.value_and_grad(bound), static_argnums=1)
    whole, pieces = both(start, 100), both(start, 3)
    assert float(pieces[0]) == pytest.approx(float(whole[0]), rel=1e-12)
    twins.assert_close(pieces[1], whole[1], 1e-10)


def test_invariance_of_unloaded_sums_to_chunks():
    problem = full_problem()
    (client,), (rows,) = problem.clients, problem.rows
    whole, pieces = (
        twins.reduced(problem.structure, problem.shared, client, rows, 1e-8, unloaded=True, chunk=s)
        for s in (4096, 2)
    )
    for one, two in zip(jax.tree.leaves(whole), jax.tree.leaves(pieces), strict=True):
        twins.assert_close(two, one, 1e-12)


def test_equivalence_of_a_likelihood_at_given_weights():
    """Eq. hierarchical_likelihood: log p(y | u_g, δ, u) is constant + ηᵀw − ½ wᵀΛw."""
    problem = twins.make_problem(tied=True, sizes=(7, 7))
    tau, phi = float(problem.shared.loadings[0, 0]), float(problem.shared.phi)
    rng = np.random.default_rng(8)
    M, M_l = len(problem.inducing.Z_g), len(problem.inducing.Z_l[0])
    v_g, v_d, v_l = rng.normal(size=M), rng.normal(size=M), rng.normal(size=M_l)
    for i, (client, rows) in enumerate(problem.pairs()):
        grams, _ = twins.reduced(problem.structure, problem.shared, client, rows, problem.jitter)
        w = np.concatenate([v_g, v_d, v_l])
        found = grams.constant + grams.linear @ w - 0.5 * w @ grams.precision @ w
        k_g, k_l = problem.model.k_g[0], problem.model.k_l[i][0]
        L_g = np.linalg.cholesky(ref.inducing_covariance(k_g, problem.inducing.Z_g, problem.jitter))
        Z_l = problem.inducing.Z_l[i]
        L_l = np.linalg.cholesky(ref.inducing_covariance(k_l, Z_l, problem.jitter))
        mean = ref.low_rank_mean(
            ref.interpolation(k_g, problem.inducing.Z_g, problem.Xs[i], problem.jitter),
            ref.interpolation(k_l, Z_l, problem.Xs[i], problem.jitter),
            tau * L_g @ v_g,
            np.sqrt(phi) * tau * L_g @ v_d,
            float(client.loadings[0, 0]) * L_l @ v_l,
        )
        y = problem.Ys[i].ravel()
        expected = ref.log_gaussian(y, mean, problem.model.noise[i][0, 0] * np.eye(len(y)))
        assert float(found) == pytest.approx(expected, rel=1e-9)


def test_exact_bound_of_a_tied_model_whose_client_has_its_own_phi():
    """Without loadings a client's deviation is √φ_i τ: a larger φ for one client alone is the same."""
    problem = twins.make_problem(tied=True, sizes=(7,))
    own = eqx.tree_at(lambda c: c.deviation, problem.clients[0], np.full((1, 1), 1.7))
    larger = eqx.tree_at(lambda s: s.phi, problem.shared, problem.shared.phi * 1.7**2)
    found = replace(problem, clients=[own]).bound()
    assert found == pytest.approx(replace(problem, shared=larger).bound(), rel=1e-12)
    assert found != pytest.approx(problem.bound(), rel=1e-3)
