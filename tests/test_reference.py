"""The naive twins against each other, against closed forms and against other libraries."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import cdist
from sklearn.gaussian_process import kernels as sk

import reference as ref


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def problem(
    seed: int = 0,
    *,
    sizes=(6, 1, 5),
    Q: int = 3,
    R_l: int = 2,
    d: int = 2,
    missing: bool = True,
    noise_scale: float = 0.3,
    R_g: int = 2,
) -> tuple[list, list, ref.Model]:
    """Ragged clients, two inputs, a full noise matrix each, and missing cells (one whole row)."""
    rng = np.random.default_rng(seed)
    T = len(sizes)
    Xs = [rng.uniform(0, 3, (n, d)) for n in sizes]
    Ys = [rng.normal(size=(n, Q)) for n in sizes]
    if missing:
        Ys[0][2, 1] = np.nan
        Ys[2][3, :] = np.nan
        Ys[2][0, 0] = np.nan
    roots = [rng.normal(size=(Q, Q)) for _ in range(T)]
    lengths = rng.uniform(0.8, 1.6, (R_g, d))
    model = ref.Model(
        k_g=[partial(ref.matern52, lengthscale=l) for l in lengths],
        k_l=[
            [partial(ref.matern32, lengthscale=rng.uniform(0.3, 0.7, d)) for _ in range(R_l)]
            for _ in range(T)
        ],
        B_g=rng.normal(size=(Q, R_g)),
        B_dev=[0.7 * rng.normal(size=(Q, R_g)) for _ in range(T)],
        B_l=[rng.normal(size=(Q, R_l)) for _ in range(T)],
        noise=[noise_scale * (np.eye(Q) + 0.2 * A @ A.T) for A in roots],
    )
    return Xs, Ys, model


def coarse(Xs, *, M: int = 4, M_l: int = 3, jitter: float = 1e-8, seed: int = 1) -> ref.Inducing:
    rng = np.random.default_rng(seed)
    d = Xs[0].shape[1]
    return ref.Inducing(
        Z_g=rng.uniform(0, 3, (M, d)),
        Z_l=[rng.uniform(0, 3, (M_l, d)) for _ in Xs],
        jitter=jitter,
    )


def at_the_data(Xs, *, jitter: float = 1e-12) -> ref.Inducing:
    return ref.Inducing(Z_g=np.concatenate(Xs), Z_l=Xs, jitter=jitter)


def structured(clients) -> float:
    return ref.structured_elbo([ref.client_statistics_dense(*client) for client in clients])


# ---------------------------------------------------------------------------------------- kernels


@pytest.mark.parametrize(
    ("twin", "other"),
    [
        (ref.rbf, sk.RBF([0.5, 1.7])),
        (ref.matern12, sk.Matern([0.5, 1.7], nu=0.5)),
        (ref.matern32, sk.Matern([0.5, 1.7], nu=1.5)),
        (ref.matern52, sk.Matern([0.5, 1.7], nu=2.5)),
    ],
)
def test_kernels_equal_scikit_learns(rng, twin, other):
    X, Z = rng.normal(size=(5, 2)), rng.normal(size=(4, 2))
    K = twin(X, Z, lengthscale=[0.5, 1.7], variance=1.3)
    np.testing.assert_allclose(K, 1.3 * other(X, Z), rtol=1e-13)
    np.testing.assert_allclose(np.diag(twin(X, X, lengthscale=1.0)), 1.0, rtol=1e-15)


def test_rational_quadratic_equals_its_closed_form_and_scikit_learns(rng):
    X, Z, l = rng.normal(size=(5, 2)), rng.normal(size=(4, 2)), np.array([0.5, 1.7])
    K = ref.rational_quadratic(X, Z, lengthscale=l, alpha=0.8, variance=1.3)
    np.testing.assert_allclose(K, 1.3 * sk.RationalQuadratic(1.0, 0.8)(X / l, Z / l), rtol=1e-13)
    closed = 1.3 * (1 + cdist(X / l, Z / l, "sqeuclidean") / 1.6) ** -0.8
    np.testing.assert_allclose(K, closed, rtol=1e-13)
    nearly_rbf = ref.rational_quadratic(X, Z, lengthscale=l, alpha=1e7)
    np.testing.assert_allclose(nearly_rbf, ref.rbf(X, Z, lengthscale=l), rtol=1e-4)


def test_periodic_is_a_product_over_dimensions_of_scikit_learns(rng):
    X, Z = rng.normal(size=(5, 2)), rng.normal(size=(4, 2))
    K = ref.periodic(X, Z, lengthscale=[0.5, 1.7], period=[3.0, 0.9], variance=1.3)
    one, two = sk.ExpSineSquared(0.5, 3.0), sk.ExpSineSquared(1.7, 0.9)
    np.testing.assert_allclose(K, 1.3 * one(X[:, :1], Z[:, :1]) * two(X[:, 1:], Z[:, 1:]))
    shifted = ref.periodic(X + np.array([3.0, -0.9]), Z, lengthscale=[0.5, 1.7], period=[3.0, 0.9])
    np.testing.assert_allclose(1.3 * shifted, K, rtol=1e-12)


# ------------------------------------------------------------------------------ Gaussians, features


def test_log_gaussian_equals_scipys(rng):
    A, y, m = rng.normal(size=(4, 4)), rng.normal(size=4), rng.normal(size=4)
    S = A @ A.T + np.eye(4)
    expected = stats.multivariate_normal(m, S).logpdf(y)
    assert ref.log_gaussian(y, m, S) == pytest.approx(expected, rel=1e-13)


def test_gaussian_kl_equals_quadrature_and_splits_over_independent_blocks(rng):
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    x = 0.4 + np.sqrt(0.7) * nodes
    difference = stats.norm(0.4, np.sqrt(0.7)).logpdf(x) - stats.norm(-1.0, 1.5).logpdf(x)
    expected = weights @ difference / np.sqrt(2 * np.pi)
    one = (np.array([0.4]), np.array([[0.7]]), np.array([-1.0]), np.array([[2.25]]))
    assert ref.gaussian_kl(*one) == pytest.approx(expected, rel=1e-12)

    def draw(n):
        A = rng.normal(size=(n, n))
        return rng.normal(size=n), A @ A.T + np.eye(n)

    # Prop. kl_decomp: KL of the product is the sum of KLs.
    q, p = [draw(n) for n in (2, 3, 1)], [draw(n) for n in (2, 3, 1)]
    whole = []
    for factors in (q, p):
        S = np.zeros((6, 6))
        S[:2, :2], S[2:5, 2:5], S[5:, 5:] = (S_ for _, S_ in factors)
        whole += [np.concatenate([m for m, _ in factors]), S]
    parts = sum(ref.gaussian_kl(*a, *b) for a, b in zip(q, p, strict=True))
    assert ref.gaussian_kl(*whole) == pytest.approx(parts, rel=1e-12)


def test_finite_difference_of_a_cubic():
    x = np.array([[0.5, -1.0], [2.0, 3.0]])
    gradient = ref.finite_difference(lambda v: float(np.sum(v**3)), x, 1e-5)
    np.testing.assert_allclose(gradient, 3 * x**2, rtol=1e-8)


def test_features_give_nystroms_covariance_and_residual(rng):
    k = partial(ref.matern32, lengthscale=[0.6, 0.9], variance=2.5)
    Z, X = rng.normal(size=(4, 2)), rng.normal(size=(6, 2))
    A = ref.features(k, Z, X, 1e-3)
    K_zz = k(Z, Z) + 1e-3 * 2.5 * np.eye(4)  # the jitter is relative to the mean of the diagonal
    nystrom = k(X, Z) @ np.linalg.inv(K_zz) @ k(Z, X)
    np.testing.assert_allclose(A @ A.T, nystrom, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(ref.residual(k, Z, X, 1e-3), 2.5 - np.diag(nystrom), rtol=1e-12)
    np.testing.assert_allclose(ref.residual(k, X, X, 1e-14), 0.0, atol=1e-12)
    interpolated = ref.interpolation(k, Z, X, 1e-3) @ K_zz @ ref.interpolation(k, Z, X, 1e-3).T
    np.testing.assert_allclose(interpolated, nystrom, rtol=1e-12, atol=1e-14)


def test_stack_features_places_every_entry(rng):
    A, B = [rng.normal(size=(5, 3)), rng.normal(size=(5, 3))], rng.normal(size=(4, 2))
    H = ref.stack_features(A, B)
    assert H.shape == (20, 6)
    for n, q, r, m in np.ndindex(5, 4, 2, 3):
        assert H[n * 4 + q, r * 3 + m] == B[q, r] * A[r][n, m]


# --------------------------------------------------------------------------- the structured bound


@pytest.mark.parametrize("missing", [False, True])
def test_structured_bound_summed_over_clients_equals_the_pooled_one(missing):
    Xs, Ys, model = problem(missing=missing)
    clients = ref.sparse_clients(Xs, Ys, model, coarse(Xs))
    assert structured(clients) == pytest.approx(ref.pooled_elbo(clients), rel=1e-12)
    assert structured(clients[::-1]) == pytest.approx(structured(clients), rel=1e-12)


def test_structured_bound_is_below_the_evidence_and_reaches_it_at_the_data():
    Xs, Ys, model = problem()
    exact = ref.exact_log_marginal(Xs, Ys, model)
    assert structured(ref.sparse_clients(Xs, Ys, model, coarse(Xs))) < exact - 1.0
    full = structured(ref.sparse_clients(Xs, Ys, model, at_the_data(Xs)))
    assert full == pytest.approx(exact, rel=1e-9)


def test_a_row_without_cells_changes_nothing():
    Xs, Ys, model = problem()
    inducing = coarse(Xs)
    kept = [0, 1, 2, 4]  # row 3 of client 2 has no cell
    fewer = ref.sparse_clients([*Xs[:2], Xs[2][kept]], [*Ys[:2], Ys[2][kept]], model, inducing)
    clients = ref.sparse_clients(Xs, Ys, model, inducing)
    assert structured(clients) == pytest.approx(structured(fewer), rel=1e-13)


def test_residual_term_with_diagonal_noise_is_the_sum_of_res_over_variance():
    Xs, Ys, model = problem()
    variances = np.array([0.2, 0.5, 0.9])
    model = replace(model, noise=[np.diag(variances)] * 3)
    for client in ref.sparse_clients(Xs, Ys, model, coarse(Xs)):
        expected = 0.0
        for (n, q), y in np.ndenumerate(client.Y):
            if not np.isnan(y):
                res = sum(
                    (client.B_g[q, r] ** 2 + client.B_dev[q, r] ** 2) * client.res_g[r][n]
                    + client.B_l[q, r] ** 2 * client.res_l[r][n]
                    for r in range(2)
                )
                expected -= 0.5 * res / variances[q]
        assert client.residual_term == pytest.approx(expected, rel=1e-12)


def test_unloaded_statistics_give_those_of_any_loading(rng):
    Xs, Ys, model = problem()
    for client in ref.sparse_clients(Xs, Ys, model, coarse(Xs)):
        unloaded = ref.unloaded_statistics_dense(client)
        B = rng.normal(size=(3, 2))
        wanted = ref.client_statistics_dense(*client._replace(B_g=B))
        J = np.einsum("qr,ps,rqmspl->rmsl", B, B, unloaded["U"]).reshape(8, 8)
        h = np.einsum("qr,rqm->rm", B, unloaded["e"]).reshape(8)
        np.testing.assert_allclose(J, wanted["J"], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(h, wanted["h"], rtol=1e-10, atol=1e-12)


def test_a_layer_without_columns_equals_a_layer_of_zeros():
    Xs, Ys, model = problem()
    none, zero = [np.zeros((3, 0))] * 3, [np.zeros((3, 2))] * 3
    for name in ("B_dev", "B_l"):
        values = []
        for loading in (none, zero):
            reduced = replace(model, **{name: loading})
            if name == "B_l" and loading is none:
                reduced = replace(reduced, k_l=[[], [], []])
            values.append(structured(ref.sparse_clients(Xs, Ys, reduced, coarse(Xs))))
            values.append(ref.exact_log_marginal(Xs, Ys, reduced))
        assert values[0] == pytest.approx(values[2], rel=1e-12)
        assert values[1] == pytest.approx(values[3], rel=1e-12)


def test_local_only_needs_no_global_weights():
    Xs, Ys, model = problem()
    alone = replace(model, k_g=[], B_g=np.zeros((3, 0)), B_dev=[np.zeros((3, 0))] * 3)
    bound = structured(ref.sparse_clients(Xs, Ys, alone, at_the_data(Xs)))
    assert bound == pytest.approx(ref.exact_log_marginal(Xs, Ys, alone), rel=1e-9)


# ----------------------------------------------------------------------- the exact GP and the ILMM


def scalar_problem(seed: int = 3, *, sizes=(5, 7, 1), jitter: float = 1e-8, M: int = 4):
    """The paper's scalar model, and the same with loadings 1, √φ and 1."""
    rng = np.random.default_rng(seed)
    T = len(sizes)
    Xs = [rng.uniform(0, 4, (n, 1)) for n in sizes]
    ys = [np.sin(X[:, 0]) + 0.3 * rng.normal(size=len(X)) for X in Xs]
    k_g = partial(ref.matern52, lengthscale=1.5, variance=1.4)
    k_l = [partial(ref.matern32, lengthscale=0.3 + 0.1 * i, variance=0.5 + i) for i in range(T)]
    noise = [0.1 + 0.05 * i for i in range(T)]
    scalar = ref.ScalarModel(
        k_g=k_g,
        phi=0.6,
        k_l=k_l,
        Z_g=np.linspace(0, 4, M)[:, None],
        Z_l=[np.linspace(0, 4, 5)[:, None]] * T,
        noise=noise,
        jitter=jitter,
    )
    model = ref.Model(
        k_g=[k_g],
        k_l=[[k] for k in k_l],
        B_g=np.ones((1, 1)),
        B_dev=[np.full((1, 1), np.sqrt(0.6))] * T,
        B_l=[np.ones((1, 1))] * T,
        noise=[np.full((1, 1), s) for s in noise],
    )
    inducing = ref.Inducing(scalar.Z_g, scalar.Z_l, jitter)
    return Xs, ys, scalar, model, inducing


def test_joint_covariance_of_every_pair_of_cells():
    Xs, _, model = problem()
    K = ref.exact_joint_covariance(Xs, model)
    cells = [(i, n, q) for i, X in enumerate(Xs) for n in range(len(X)) for q in range(3)]
    for a, (i, n, q) in enumerate(cells):
        for b, (j, m, p) in enumerate(cells):
            x, z = Xs[i][n : n + 1], Xs[j][m : m + 1]
            value = sum(model.B_g[q, r] * model.B_g[p, r] * model.k_g[r](x, z) for r in range(2))
            if i == j:
                for r in range(2):
                    value += model.B_dev[i][q, r] * model.B_dev[i][p, r] * model.k_g[r](x, z)
                    value += model.B_l[i][q, r] * model.B_l[i][p, r] * model.k_l[i][r](x, z)
                if n == m:
                    value += model.noise[i][q, p]
            assert K[a, b] == pytest.approx(value.item(), rel=1e-12, abs=1e-14)


def test_ilmm_mixing_equals_the_joint_covariance():
    Xs, _, scalar, model, _ = scalar_problem()
    H_form = ref.ilmm_covariance(
        Xs, k_g=scalar.k_g, phi=scalar.phi, k_l=scalar.k_l, noise=scalar.noise
    )
    np.testing.assert_allclose(H_form, ref.exact_joint_covariance(Xs, model), rtol=1e-13)


def test_covariance_between_different_clients_is_the_global_kernel_alone():
    Xs, _, scalar, model, _ = scalar_problem()
    K = ref.exact_joint_covariance(Xs, model)
    np.testing.assert_allclose(K[:5, 5:12], scalar.k_g(Xs[0], Xs[1]), rtol=1e-13)
    np.testing.assert_allclose(K[:5, 12:], scalar.k_g(Xs[0], Xs[2]), rtol=1e-13)


def test_exact_posterior_equals_conditioning_the_joint_covariance():
    Xs, Ys, model = problem()
    X_star = np.random.default_rng(5).uniform(0, 3, (4, 2))
    layers = ref.exact_posterior(2, X_star, Xs, Ys, model)
    # The new rows belong to client 2, the last one, and have no cells: the last 12 of the joint.
    joint = ref.exact_joint_covariance([*Xs[:2], np.concatenate([Xs[2], X_star])], model)
    y = np.concatenate([Y.ravel() for Y in Ys])
    seen, new = np.flatnonzero(~np.isnan(y)), np.arange(len(y), len(y) + 12)
    gain = joint[np.ix_(new, seen)] @ np.linalg.inv(joint[np.ix_(seen, seen)])
    cov = joint[np.ix_(new, new)] - gain @ joint[np.ix_(seen, new)]
    cov -= np.kron(np.eye(4), model.noise[2])
    np.testing.assert_allclose(layers.mean["total"].ravel(), gain @ y[seen], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(layers.cov["total", "total"], cov, atol=1e-11)
    everything = np.block([[layers.cov[a, b] for b in ref.LAYERS] for a in ref.LAYERS])
    assert np.linalg.eigvalsh(everything).min() > -1e-10


def test_unseen_client_gets_the_global_layer_and_prior_variance():
    Xs, Ys, model = problem()
    Xs, Ys = [Xs[0], np.zeros((0, 2)), Xs[2]], [Ys[0], np.zeros((0, 3)), Ys[2]]
    X_star = np.array([[0.5, 1.0], [2.0, 2.5]])
    layers = ref.exact_posterior(1, X_star, Xs, Ys, model)
    assert np.all(layers.mean["deviation"] == 0.0)
    assert np.all(layers.mean["local"] == 0.0)
    prior = ref.layer_covariance(model, "local", 1, X_star, 1, X_star)
    np.testing.assert_allclose(layers.cov["local", "local"], prior)
    np.testing.assert_array_equal(layers.cov["global", "local"], 0.0)
    sparse = ref.sparse_posterior(1, X_star, Xs, Ys, model, at_the_data(Xs))
    np.testing.assert_allclose(sparse.mean["total"], layers.mean["total"], atol=1e-8)


# -------------------------------------------------------------------------------------- prediction


@pytest.mark.parametrize("client", [0, 1, 2])
def test_sparse_posterior_at_the_data_equals_the_exact_one(client):
    Xs, Ys, model = problem()
    X_star = np.random.default_rng(5).uniform(0, 3, (4, 2))
    exact = ref.exact_posterior(client, X_star, Xs, Ys, model)
    sparse = ref.sparse_posterior(client, X_star, Xs, Ys, model, at_the_data(Xs))
    for a in exact.mean:
        np.testing.assert_allclose(sparse.mean[a], exact.mean[a], atol=1e-8)
    for pair in exact.cov:
        np.testing.assert_allclose(sparse.cov[pair], exact.cov[pair], atol=1e-8)


def test_weights_posterior_equals_its_precision_form():
    Xs, Ys, model = problem()
    clients = ref.sparse_clients(Xs, Ys, model, coarse(Xs))
    m, S, slices = ref.weights_posterior(clients)
    precision, linear = np.eye(len(m)), np.zeros(len(m))
    for i, client in enumerate(clients):
        H = np.zeros((len(client.y), len(m)))
        H[:, slices[0]], H[:, slices[i + 1]] = client.H_g, client.H_c
        precision += H.T @ np.linalg.solve(client.Sigma, H)
        linear += H.T @ np.linalg.solve(client.Sigma, client.y)
    np.testing.assert_allclose(S @ precision, np.eye(len(m)), atol=1e-10)
    np.testing.assert_allclose(m, np.linalg.solve(precision, linear), rtol=1e-9, atol=1e-11)
    m_g, S_g = ref.solve_global([ref.client_statistics_dense(*client) for client in clients])
    np.testing.assert_allclose(m[slices[0]], m_g, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(S[slices[0], slices[0]], S_g, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("i", [0, 2])
def test_designs_prediction_formulas_equal_the_one_big_conditioning(i):
    """Design 5: G, m_c, S_c, D, and Cov(g, b) = −H*_g S G_bᵀ H*_bᵀ."""
    Xs, Ys, model = problem()
    inducing = coarse(Xs)
    X_star = np.random.default_rng(5).uniform(0, 3, (4, 2))
    layers = ref.sparse_posterior(i, X_star, Xs, Ys, model, inducing)
    clients = ref.sparse_clients(Xs, Ys, model, inducing)
    m, S = ref.solve_global([ref.client_statistics_dense(*client) for client in clients])
    own = clients[i]
    C = own.H_c @ own.H_c.T + own.Sigma
    W = np.eye(own.H_c.shape[1]) + own.H_c.T @ np.linalg.solve(own.Sigma, own.H_c)
    G = own.H_c.T @ np.linalg.solve(C, own.H_g)
    m_c = np.linalg.solve(W, own.H_c.T @ np.linalg.solve(own.Sigma, own.y - own.H_g @ m))
    S_c = np.linalg.inv(W) + G @ S @ G.T
    new = ref.sparse_clients([X_star], [np.zeros((4, 3))], _only(model, i), _only_z(inducing, i))[0]
    R = {}
    for a in ref.LAYERS:
        (kernels, B), Z = model.layer(a, i), inducing.layer(a, i)
        R[a] = sum(
            np.kron(
                ref.residual_covariance(kernels[r], Z, X_star, X_star, inducing.jitter),
                np.outer(B[:, r], B[:, r]),
            )
            for r in range(2)
        )
    D = new.H_g - new.H_c @ G
    total = D @ S @ D.T + new.H_c @ np.linalg.solve(W, new.H_c.T) + sum(R.values())
    mean = (new.H_g @ m + new.H_c @ m_c).reshape(4, 3)
    np.testing.assert_allclose(layers.mean["total"], mean, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(layers.cov["total", "total"], total, rtol=1e-9, atol=1e-10)
    cov_g = new.H_g @ S @ new.H_g.T + R["global"]
    np.testing.assert_allclose(layers.cov["global", "global"], cov_g, rtol=1e-9, atol=1e-10)
    width = new.H_d.shape[1]
    for b, H, block in (
        ("deviation", new.H_d, slice(0, width)),
        ("local", new.H_l, slice(width, None)),
    ):
        mean_b = (H @ m_c[block]).reshape(4, 3)
        np.testing.assert_allclose(layers.mean[b], mean_b, rtol=1e-8, atol=1e-10)
        cov_b = H @ S_c[block, block] @ H.T + R[b]
        np.testing.assert_allclose(layers.cov[b, b], cov_b, rtol=1e-8, atol=1e-10)
        cross = -new.H_g @ S @ G[block].T @ H.T
        np.testing.assert_allclose(layers.cov["global", b], cross, rtol=1e-8, atol=1e-10)


def _only(model: ref.Model, i: int) -> ref.Model:
    return ref.Model(
        model.k_g, [model.k_l[i]], model.B_g, [model.B_dev[i]], [model.B_l[i]], [model.noise[i]]
    )


def _only_z(inducing: ref.Inducing, i: int) -> ref.Inducing:
    return ref.Inducing(inducing.Z_g, [inducing.Z_l[i]], inducing.jitter)


# --------------------------------------------------------------------------------- one sparse GP


def one_gp(rng):
    X = np.sort(rng.uniform(0, 5, (12, 1)), axis=0)
    y = np.sin(X[:, 0]) + 0.2 * rng.normal(size=12)
    k = partial(ref.matern52, lengthscale=1.1, variance=1.7)
    exact = ref.log_gaussian(y, 0.0, k(X, X) + 0.04 * np.eye(12))
    return X, y, k, exact


def test_titsias_bound_equals_the_evidence_at_the_data_and_grows_with_the_set(rng):
    X, y, k, exact = one_gp(rng)
    at_data = ref.titsias_bound(X, y, k=k, Z=X, noise=0.04, jitter=1e-13)
    assert at_data == pytest.approx(exact, rel=1e-8)
    nested = [ref.titsias_bound(X, y, k=k, Z=X[:M], noise=0.04, jitter=1e-12) for M in range(1, 13)]
    assert np.all(np.diff(nested) > -1e-8)
    assert nested[0] < exact - 10.0


def test_titsias_bound_is_the_best_of_proposition_1(rng):
    X, y, k, _ = one_gp(rng)
    Z, setting = np.linspace(0, 5, 5)[:, None], {"k": k, "noise": 0.04, "jitter": 1e-8}
    K, A = ref.inducing_covariance(k, Z, 1e-8), ref.interpolation(k, Z, X, 1e-8)
    S = np.linalg.inv(np.linalg.inv(K) + A.T @ A / 0.04)
    m = S @ A.T @ y / 0.04
    bound = ref.titsias_bound(X, y, Z=Z, **setting)
    best = ref.sparse_gp_elbo(X, y, (m, S), Z=Z, **setting)
    assert best == pytest.approx(bound, rel=1e-10)
    assert ref.sparse_gp_elbo(X, y, (m + 0.05, S), Z=Z, **setting) < bound - 1e-3
    assert ref.sparse_gp_elbo(X, y, (m, 1.2 * S), Z=Z, **setting) < bound - 1e-3


def test_structured_bound_of_one_global_layer_is_titsias(rng):
    X, y, k, _ = one_gp(rng)
    nothing = np.zeros((1, 0))
    model = ref.Model([k], [[]], np.ones((1, 1)), [nothing], [nothing], [np.full((1, 1), 0.04)])
    Z = np.linspace(0, 5, 5)[:, None]
    clients = ref.sparse_clients([X], [y[:, None]], model, ref.Inducing(Z, [Z], 1e-8))
    bound = ref.titsias_bound(X, y, k=k, Z=Z, noise=0.04, jitter=1e-8)
    assert structured(clients) == pytest.approx(bound, rel=1e-12)


# -------------------------------------------------------------------------------------- mean field


def random_factors(scalar: ref.ScalarModel, T: int, seed: int = 11) -> ref.Factors:
    """Any q, whitened: N(m̃, S̃) with v_δ ~ N(0, I) a priori."""
    rng = np.random.default_rng(seed)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        A = 0.3 * rng.normal(size=(n, n))
        return rng.normal(size=n), A @ A.T + 0.1 * np.eye(n)

    M = len(scalar.Z_g)
    return ref.Factors(
        draw(M), [draw(M) for _ in range(T)], [draw(len(scalar.Z_l[i])) for i in range(T)]
    )


def unwhiten(scalar: ref.ScalarModel, q: ref.Factors) -> ref.Factors:
    L = np.linalg.cholesky(scalar.K_gg)

    def by(root, factor):
        return root @ factor[0], root @ factor[1] @ root.T

    return ref.Factors(
        by(L, q.g),
        [by(np.sqrt(scalar.phi) * L, factor) for factor in q.d],
        [by(np.linalg.cholesky(scalar.K_ll(i)), factor) for i, factor in enumerate(q.l)],
    )


def test_expected_log_likelihood_equals_quadrature_over_every_cell():
    Xs, ys, scalar, _, _ = scalar_problem()
    q = unwhiten(scalar, random_factors(scalar, 3))
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    for i, (X, y) in enumerate(zip(Xs, ys, strict=True)):
        A_g, A_l = scalar.A_g(X), scalar.A_l(i, X)
        mean = A_g @ q.g[0] + A_g @ q.d[i][0] + A_l @ q.l[i][0]
        # The marginal variance of f_n: posterior of the inducing values, and what they leave open.
        cov = A_g @ (q.g[1] + q.d[i][1]) @ A_g.T + A_l @ q.l[i][1] @ A_l.T
        cov += 1.6 * ref.residual_covariance(scalar.k_g, scalar.Z_g, X, X, scalar.jitter)
        cov += ref.residual_covariance(scalar.k_l[i], scalar.Z_l[i], X, X, scalar.jitter)
        expected = 0.0
        for n in range(len(y)):
            f = mean[n] + np.sqrt(cov[n, n]) * nodes
            log_p = stats.norm(f, np.sqrt(scalar.noise[i])).logpdf(y[n])
            expected += weights @ log_p / np.sqrt(2 * np.pi)
        value = ref.expected_log_likelihood(scalar, i, X, y, q)
        assert value == pytest.approx(expected, rel=1e-11)


def test_low_rank_mean_is_the_conditional_mean_of_the_joint_prior(rng):
    """Prop. low_rank: E[f_tot | u_g, δ, u] by conditioning Cov(f_tot, u_g, δ, u)."""
    Xs, _, scalar, _, _ = scalar_problem(jitter=0.0)
    X, phi = Xs[1], scalar.phi
    u_g, delta, u_l = rng.normal(size=4), rng.normal(size=4), rng.normal(size=5)
    K_xg, K_xl = scalar.k_g(X, scalar.Z_g), scalar.k_l[1](X, scalar.Z_l[1])
    prior = np.zeros((13, 13))
    prior[:4, :4], prior[4:8, 4:8], prior[8:, 8:] = scalar.K_gg, phi * scalar.K_gg, scalar.K_ll(1)
    cross = np.hstack([K_xg, phi * K_xg, K_xl])
    wanted = cross @ np.linalg.solve(prior, np.concatenate([u_g, delta, u_l]))
    mean = ref.low_rank_mean(scalar.A_g(X), scalar.A_l(1, X), u_g, delta, u_l)
    np.testing.assert_allclose(mean, wanted, rtol=1e-10)
    # Prop. covariance: the trace of what conditioning leaves is the sum of the three traces.
    total = (1 + phi) * scalar.k_g(X, X) + scalar.k_l[1](X, X)
    left = np.trace(total - cross @ np.linalg.solve(prior, cross.T))
    assert ref.residual_trace(scalar, 1, X) == pytest.approx(left, rel=1e-10)


def test_meanfield_bound_is_the_same_whitened_and_not():
    Xs, ys, scalar, model, inducing = scalar_problem()
    clients = ref.sparse_clients(Xs, [y[:, None] for y in ys], model, inducing)
    q = random_factors(scalar, 3)
    plain = ref.meanfield_elbo(scalar, Xs, ys, unwhiten(scalar, q))
    assert ref.whitened_meanfield_elbo(clients, q) == pytest.approx(plain, rel=1e-11)


def test_global_block_differs_from_the_bound_by_a_constant_of_the_global_block():
    Xs, ys, scalar, _, _ = scalar_problem()
    q = unwhiten(scalar, random_factors(scalar, 3))
    other = replace(
        scalar, k_g=partial(ref.rbf, lengthscale=0.8, variance=0.9), phi=1.9, Z_g=scalar.Z_g + 0.1
    )
    moved = q._replace(g=(q.g[0] + 0.3, 1.5 * q.g[1]))

    def constant(model, factors):
        whole = ref.meanfield_elbo(model, Xs, ys, factors)
        return whole - ref.global_block_elbo(model, Xs, ys, factors)

    assert constant(other, moved) == pytest.approx(constant(scalar, q), rel=1e-10)


def test_phi_gradient_equals_finite_differences_at_fixed_deviations():
    Xs, ys, scalar, _, _ = scalar_problem()
    q = unwhiten(scalar, random_factors(scalar, 3))

    def bound(phi: np.ndarray) -> float:
        return ref.meanfield_elbo(replace(scalar, phi=float(phi)), Xs, ys, q)

    L = np.linalg.cholesky(scalar.K_gg)
    closed = 0.0
    for i, X in enumerate(Xs):
        m = np.linalg.solve(L, q.d[i][0])
        S = np.linalg.solve(L, np.linalg.solve(L, q.d[i][1]).T)
        closed += ref.phi_gradient(scalar, i, X, m, S)
    numeric = ref.finite_difference(bound, scalar.phi, 1e-5)
    assert closed == pytest.approx(numeric.item(), rel=1e-7)


def test_best_meanfield_is_stationary_and_has_the_exact_means():
    Xs, ys, _, model, inducing = scalar_problem()
    clients = ref.sparse_clients(Xs, [y[:, None] for y in ys], model, inducing)
    best, q = ref.best_meanfield(clients, from_zero=True)
    assert ref.best_meanfield_elbo(clients) == pytest.approx(best, rel=1e-12)
    m, _, slices = ref.weights_posterior(clients)
    np.testing.assert_allclose(q.g[0], m[slices[0]], atol=1e-8)
    for i in range(3):
        own = np.concatenate([q.d[i][0], q.l[i][0]])
        np.testing.assert_allclose(own, m[slices[i + 1]], atol=1e-8)

    def bound(scale: np.ndarray) -> float:
        moved = ref.Factors(
            (q.g[0] + scale[0], np.exp(scale[1]) * q.g[1]),
            [(a + scale[2], np.exp(scale[3]) * S) for a, S in q.d],
            [(a + scale[4], np.exp(scale[5]) * S) for a, S in q.l],
        )
        return ref.whitened_meanfield_elbo(clients, moved)

    np.testing.assert_allclose(ref.finite_difference(bound, np.zeros(6), 1e-5), 0.0, atol=1e-6)
    rng = np.random.default_rng(2)
    assert all(bound(0.1 * rng.normal(size=6)) < best for _ in range(5))


@pytest.mark.parametrize("seed", range(3))
def test_best_meanfield_is_below_structured_is_below_exact(seed):
    Xs, ys, _, model, inducing = scalar_problem(seed)
    Ys = [y[:, None] for y in ys]
    clients = ref.sparse_clients(Xs, Ys, model, inducing)
    exact = ref.exact_log_marginal(Xs, Ys, model)
    assert ref.best_meanfield_elbo(clients) < structured(clients) - 1e-2 < exact


def test_best_meanfield_with_loadings_and_missing_cells_is_below_structured():
    Xs, Ys, model = problem()
    clients = ref.sparse_clients(Xs, Ys, model, coarse(Xs))
    assert ref.best_meanfield_elbo(clients) < structured(clients) - 1e-2


# ------------------------------------------------------------------------------------------ cycles


@pytest.mark.parametrize("C", [1, 2, 5])
def test_cycles_from_sums_equal_cycles_one_by_one(rng, C):
    """Design 2, with a cycle-level kernel over two outputs of four grid points."""
    grid = np.linspace(0, 1, 4)[:, None]
    b = rng.normal(size=(2, 2))
    K = np.kron(ref.rbf(grid, grid, lengthscale=0.4), b @ b.T)
    K_e = np.kron(ref.matern32(grid, grid, lengthscale=0.3), np.array([[0.3, 0.1], [0.1, 0.2]]))
    Sigma_e = K_e + np.kron(np.eye(4), np.diag([0.05, 0.2]))
    Y = rng.normal(size=(C, 8))
    dense = ref.cycles_log_evidence_dense(Y, K, Sigma_e)
    assert ref.cycles_log_evidence(Y, K, Sigma_e) == pytest.approx(dense, rel=1e-12)


def test_cycles_bound_is_titsias_on_repeated_rows_and_once_is_not_a_bound(rng):
    C, X = 6, np.linspace(0, 5, 7)[:, None]
    k, Z = partial(ref.matern32, lengthscale=0.9), np.array([[1.0], [4.0]])
    f = np.linalg.cholesky(k(X, X)) @ rng.normal(size=7)
    Y = f + 0.5 * rng.normal(size=(C, 7))
    A, res = ref.features(k, Z, X, 1e-8), ref.residual(k, Z, X, 1e-8)
    bound = ref.cycles_elbo_dense(Y, A @ A.T, 0.25 * np.eye(7), res, 0.25)
    repeated = ref.titsias_bound(np.tile(X, (C, 1)), Y.ravel(), k=k, Z=Z, noise=0.25, jitter=1e-8)
    assert bound == pytest.approx(repeated, rel=1e-11)
    # The residual's trace taken once instead of C times passes the evidence where the low-rank part
    # explains the data.
    noise = 4.0
    Y = np.tile(A @ np.array([1.0, -1.0]), (20, 1))
    low = ref.cycles_log_evidence(Y, A @ A.T, noise * np.eye(7))
    exact = ref.cycles_log_evidence(Y, k(X, X), noise * np.eye(7))
    assert low - 0.5 * 20 * np.sum(res) / noise < exact < low - 0.5 * np.sum(res) / noise
