"""The Gaussian integral and its derivatives, and what jitter is relative to."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from pfedhgp.gp import linalg
from support import twins


def random_precision(seed: int, k: int, rank: int | None = None) -> np.ndarray:
    """Λ = AᵀA, of full rank or not: it need only be positive semi-definite."""
    A = np.random.default_rng(seed).normal(size=(k if rank is None else rank, k))
    return A.T @ A


def closed_form(precision: np.ndarray, linear: np.ndarray) -> float:
    S = np.eye(len(linear)) + precision
    sign, logdet = np.linalg.slogdet(S)
    assert sign > 0
    return float(0.5 * linear @ np.linalg.solve(S, linear) - 0.5 * logdet)


log_partition = twins.compiled(linalg.log_partition)
gradient = twins.compiled(jax.grad(linalg.log_partition, (0, 1)))
posterior_moments = twins.compiled(linalg.posterior_moments)


# Beyond `linalg.LEAF` a triangle is inverted by halves: once, and twice with odd sizes.
SIZES = [(1, 1), (6, 6), (6, 2), (6, 0), (linalg.LEAF + 1, 70), (2 * linalg.LEAF + 3, 50)]


@pytest.mark.parametrize(("k", "rank"), SIZES)
def test_log_partition_equals_slogdet_and_solve(k, rank):
    linear = np.random.default_rng(1).normal(size=k)
    precision = random_precision(0, k, rank)
    expected = closed_form(precision, linear)
    assert float(log_partition(precision, linear)) == pytest.approx(expected, rel=1e-12, abs=1e-13)


def test_log_partition_is_a_gaussian_evidence():
    """With Λ = HᵀH and η = Hᵀy it is log N(y; 0, HHᵀ + I) − log N(y; 0, I)."""
    rng = np.random.default_rng(2)
    H, y = rng.normal(size=(5, 3)), rng.normal(size=5)
    whole = multivariate_normal(np.zeros(5), H @ H.T + np.eye(5)).logpdf(y)
    noise = multivariate_normal(np.zeros(5), np.eye(5)).logpdf(y)
    found = log_partition(H.T @ H, H.T @ y)
    assert float(found) == pytest.approx(whole - noise, rel=1e-12)


def test_log_partition_equals_quadrature_in_one_dimension():
    w, step = np.linspace(-12, 12, 200_001, retstep=True)
    integrand = np.exp(-0.5 * w**2 + 0.7 * w - 0.5 * 2.3 * w**2) / np.sqrt(2 * np.pi)
    expected = np.log(integrand.sum() * step)
    found = log_partition(np.array([[2.3]]), np.array([0.7]))
    assert float(found) == pytest.approx(expected, rel=1e-12)


def test_log_partition_of_nothing_is_zero():
    none, no_precision = jnp.zeros(0), jnp.zeros((0, 0))
    assert float(linalg.log_partition(no_precision, none)) == 0.0
    by_precision, by_linear = jax.grad(linalg.log_partition, (0, 1))(no_precision, none)
    assert by_precision.shape == (0, 0)
    assert by_linear.shape == (0,)
    mean, covariance = linalg.posterior_moments(no_precision, none)
    assert mean.shape == (0,)
    assert covariance.shape == (0, 0)


@pytest.mark.parametrize(("k", "rank"), SIZES)
def test_log_partition_gradient_is_the_posteriors_moments(k, rank):
    """∂/∂η = E[w] and ∂/∂Λ = −½ E[wwᵀ]"""
    precision, linear = random_precision(3, k, rank), np.random.default_rng(3).normal(size=k)
    S = np.linalg.inv(np.eye(k) + precision)
    mean = S @ linear
    by_precision, by_linear = gradient(precision, linear)
    moments = posterior_moments(precision, linear)
    for found, expected in [
        (by_linear, mean),
        (by_precision, -0.5 * (S + np.outer(mean, mean))),
        (moments[0], mean),
        (moments[1], S),
    ]:
        twins.assert_close(found, expected, 1e-11)
    twins.assert_close(moments[1], np.asarray(moments[1]).T, 1e-14)


def test_log_partition_derivatives_equal_finite_differences():
    """Along symmetric directions: Cholesky reads one triangle only, so others mean nothing."""
    k, rng = 4, np.random.default_rng(4)
    precision, linear = random_precision(5, k), rng.normal(size=k)
    directions = [random_precision(10 + i, k) - random_precision(20 + i, k) for i in range(3)]
    turns = rng.normal(size=(3, k))

    def along(t):
        moved = precision + sum(a * D for a, D in zip(t, directions, strict=True))
        return linalg.log_partition(moved, linear + t @ turns)

    value, first, second = (
        twins.compiled(along),
        twins.compiled(jax.grad(along)),
        twins.compiled(jax.hessian(along)),
    )
    forward = twins.compiled(jax.jacfwd(jax.jacfwd(along)))
    at = np.zeros(3)
    np.testing.assert_allclose(first(at), twins.five_point(value, at), rtol=1e-8)
    np.testing.assert_allclose(second(at), twins.five_point(first, at), rtol=1e-7)
    np.testing.assert_allclose(second(at), forward(at), rtol=1e-11)
    plain = twins.compiled(
        jax.hessian(lambda t: _plain(along_arguments(t, precision, linear, directions, turns)))
    )
    np.testing.assert_allclose(second(at), plain(at), rtol=1e-10)


def along_arguments(t, precision, linear, directions, turns):
    return precision + sum(a * D for a, D in zip(t, directions, strict=True)), linear + t @ turns


def _plain(arguments):
    """The same function without the custom rule."""
    precision, linear = arguments
    S = jnp.eye(len(linear)) + precision
    return 0.5 * linear @ jnp.linalg.solve(S, linear) - 0.5 * jnp.linalg.slogdet(S)[1]


def test_log_partition_is_batched_by_vmap():
    precisions = np.stack([random_precision(s, 3) for s in range(4)])
    linears = np.random.default_rng(6).normal(size=(4, 3))
    together = twins.compiled(jax.vmap(linalg.log_partition))(precisions, linears)
    one_by_one = [closed_form(p, v) for p, v in zip(precisions, linears, strict=True)]
    np.testing.assert_allclose(together, one_by_one, rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_jitter_is_relative_to_the_mean_of_the_diagonal(scale):
    K = scale * (random_precision(7, 4) + np.diag([0.0, 1.0, 2.0, 3.0]))
    L = np.asarray(linalg.factorise(linalg.add_jitter(jnp.asarray(K), 1e-3)))
    np.testing.assert_array_equal(L, np.tril(L))
    expected = K + 1e-3 * np.trace(K) / 4 * np.eye(4)
    np.testing.assert_allclose(L @ L.T, expected, rtol=1e-12, atol=1e-12 * scale)


def test_jitter_is_per_matrix_in_a_batch_and_rescues_a_singular_one():
    K = np.stack([np.ones((3, 3)), 100.0 * np.ones((3, 3))])
    L = np.asarray(linalg.factorise(linalg.add_jitter(jnp.asarray(K), 1e-8)))
    np.testing.assert_allclose(L[1], 10.0 * L[0], rtol=1e-7)
    np.testing.assert_allclose(L[0] @ L[0].T, K[0] + 1e-8 * np.eye(3), rtol=1e-12)


def test_cholesky_of_an_indefinite_matrix_is_nan_and_of_nothing_is_nothing():
    assert np.isnan(
        np.asarray(linalg.factorise(linalg.add_jitter(jnp.asarray([[1.0, 2.0], [2.0, 1.0]]), 1e-8)))
    ).any()
    assert linalg.factorise(linalg.add_jitter(jnp.zeros((2, 0, 0)), 1e-8)).shape == (2, 0, 0)


def test_solve_lower_both_ways():
    L = np.tril(np.random.default_rng(8).normal(size=(2, 4, 4))) + 3.0 * np.eye(4)
    B = np.random.default_rng(9).normal(size=(2, 4, 3))
    forward = linalg.solve_lower(jnp.asarray(L), jnp.asarray(B))
    back = linalg.solve_lower(jnp.asarray(L), jnp.asarray(B), transpose=True)
    np.testing.assert_allclose(L @ np.asarray(forward), B, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(np.swapaxes(L, 1, 2) @ np.asarray(back), B, rtol=1e-12, atol=1e-13)


def test_whiten_and_its_derivatives_equal_those_by_way_of_the_factor():
    """A = L⁻¹B as a function of K and B: value, gradient and second derivatives, in a batch."""
    rng = np.random.default_rng(10)
    K = np.stack([random_precision(s, 4) + np.eye(4) for s in (11, 12)])
    B, weights = rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 4, 3))
    tilt = np.stack([random_precision(s, 4) - 4.0 * np.eye(4) for s in (13, 14)])
    turn = rng.normal(size=B.shape)

    def total(t, whitened):
        moved = K + jnp.sin(t[0]) * tilt
        return jnp.sum(weights * jnp.cos(whitened(moved, B + t[1] * turn)))

    def library(K, B):
        return linalg.whiten(K, linalg.factorise(K), B)

    def plain(K, B):
        return jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(K), B, lower=True)

    def derivatives(whitened):
        def f(t):
            return total(t, whitened)

        def both(t):
            return f(t), jax.grad(f)(t), jax.jacfwd(jax.grad(f))(t), jax.jacfwd(jax.jacfwd(f))(t)

        return twins.compiled(both)(np.array([0.2, -0.1]))

    for found, expected in zip(derivatives(library), derivatives(plain), strict=True):
        twins.assert_close(found, expected, 1e-12)


def test_turned_features_have_the_derivatives_of_their_products():
    rng = np.random.default_rng(11)
    root, weights = rng.normal(size=(2, 5, 5)), rng.normal(size=(2, 7, 7))
    K, B = root @ root.swapaxes(1, 2) + 0.1 * np.eye(5), rng.normal(size=(2, 5, 7))

    def products(whiten, K, B):
        A = whiten(K, linalg.factorise(K), B)
        return jnp.sum(weights * (jnp.swapaxes(A, 1, 2) @ A))

    both = [jax.grad(lambda K, B, w=w: products(w, K, B), (0, 1)) for w in WHITENED]
    (dK, dB), (eK, eB) = (each(K, B) for each in both)
    np.testing.assert_allclose(dB, eB, rtol=1e-10, atol=1e-10)
    even = [0.5 * (a + a.swapaxes(1, 2)) for a in (dK, eK)]
    np.testing.assert_allclose(*even, rtol=1e-9, atol=1e-9)


WHITENED = (linalg.whiten_turned, linalg.whiten)


def test_interpolation_weights_and_their_derivatives():
    rng = np.random.default_rng(12)
    root, dK = rng.normal(size=(2, 5, 5)), rng.normal(size=(2, 5, 5))
    K, dK = root @ root.swapaxes(1, 2) + 0.1 * np.eye(5), dK + dK.swapaxes(1, 2)
    B, dB = rng.normal(size=(2, 2, 5, 7))
    found, moved = jax.jvp(
        lambda K, B: linalg.interpolate(K, linalg.factorise(K), B), (K, B), (dK, dB)
    )
    np.testing.assert_allclose(found, np.linalg.solve(K, B), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        moved, np.linalg.solve(K, dB - dK @ np.linalg.solve(K, B)), rtol=1e-9, atol=1e-9
    )


def test_whitens_gradient_in_every_entry_of_k():
    """A symmetric change of K, entry by entry, against finite differences."""
    K, B = random_precision(15, 3) + np.eye(3), np.random.default_rng(16).normal(size=(3, 2))
    pairs = [(i, j) for i in range(3) for j in range(i + 1)]
    units = np.zeros((len(pairs), 3, 3))
    for unit, (i, j) in zip(units, pairs, strict=True):
        unit[i, j] = unit[j, i] = 1.0

    def features(t):
        moved = K + jnp.tensordot(t, units, 1)
        return linalg.whiten(moved, linalg.factorise(moved), B).ravel()

    forward = twins.compiled(jax.jacfwd(features))(np.zeros(6))
    reverse = twins.compiled(jax.jacrev(features))(np.zeros(6))
    expected = twins.five_point(twins.compiled(features), np.zeros(6))
    twins.assert_close(forward, expected, 1e-9)
    twins.assert_close(reverse, expected, 1e-9)


# ------------------------------------------------------------------------------ NumPy beside JAX


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@pytest.mark.parametrize("k", [1, 6, linalg.LEAF + 1, 2 * linalg.LEAF + 3])
def test_the_integral_in_numpy_equals_jaxs_with_leading_axes(lead, k):
    rng = np.random.default_rng(17)
    half = rng.normal(size=(*lead, k, k))
    precision, linear = half @ np.swapaxes(half, -1, -2), rng.normal(size=(*lead, k))
    kept = precision.copy(), linear.copy()
    value, moments = linalg.integrate(precision, linear)
    for array in (value, linalg.log_partition(precision, linear), *moments):
        assert not isinstance(array, jax.Array)
    expected, theirs = twins.compiled(linalg.integrate)(precision, linear)
    for found, wanted in [
        (value, expected),
        (linalg.log_partition(precision, linear), log_partition(precision, linear)),
        (moments.mean, theirs.mean),
        (moments.covariance, theirs.covariance),
        (moments.second, theirs.second),
    ]:
        assert np.shape(found) == np.shape(wanted)
        twins.assert_close(found, wanted, 1e-11)
    np.testing.assert_array_equal(moments.covariance, np.swapaxes(moments.covariance, -1, -2))
    plain = linalg.posterior_moments(precision, linear)
    np.testing.assert_array_equal(plain.mean, moments.mean)
    np.testing.assert_array_equal(precision, kept[0])
    np.testing.assert_array_equal(linear, kept[1])
    one = closed_form(precision.reshape(-1, k, k)[0], linear.reshape(-1, k)[0])
    assert np.ravel(value)[0] == pytest.approx(one, rel=1e-11)


def test_solves_in_numpy_equal_jaxs_and_broadcast():
    rng = np.random.default_rng(18)
    K = np.stack([random_precision(s, 5) + np.eye(5) for s in range(6)]).reshape(2, 3, 5, 5)
    L = linalg.factorise(K)
    np.testing.assert_allclose(L @ np.swapaxes(L, -1, -2), K, rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(L, np.tril(L))
    twins.assert_close(L, linalg.factorise(jnp.asarray(K)), 1e-13)
    jittered = linalg.add_jitter(K, 1e-3)
    twins.assert_close(jittered, linalg.add_jitter(jnp.asarray(K), 1e-3), 1e-15)
    wide = np.asfortranarray(rng.normal(size=(3, 5, 4)))
    for A, B in [(L, wide), (L[0, 0], wide), (L, rng.normal(size=(2, 1, 5, 1))), (L, L[1, 2])]:
        kept = B.copy()
        for transpose in (False, True):
            found = linalg.solve_lower(A, B, transpose=transpose)
            by_jax = linalg.solve_lower(jnp.asarray(A), jnp.asarray(B), transpose=transpose)
            assert isinstance(found, np.ndarray)
            twins.assert_close(found, by_jax, 1e-13)
            left = np.swapaxes(A, -1, -2) if transpose else A
            wanted = np.broadcast_to(B, found.shape)
            np.testing.assert_allclose(left @ found, wanted, rtol=1e-11, atol=1e-12)
        np.testing.assert_array_equal(B, kept)
        np.testing.assert_array_equal(linalg.whiten(K, A, B), linalg.solve_lower(A, B))


def test_numpy_gives_nan_for_the_matrices_that_cannot_be_factorised():
    """One bad matrix does not spoil the others of its batch, and nothing is raised."""
    good, bad = random_precision(19, 4) + np.eye(4), np.diag([1.0, -1.0, 1.0, 1.0])
    torn = np.where(np.eye(4) > 0, np.nan, good)
    L = linalg.factorise(np.stack([good, bad, torn]))
    np.testing.assert_allclose(L[0] @ L[0].T, good, rtol=1e-13)
    assert np.isnan(L[1]).all()
    assert np.isnan(np.diag(L[2])).all()
    value, moments = linalg.integrate(np.stack([good, 2.0 * bad, torn]), np.ones((3, 4)))
    for array in (value, *moments):
        assert np.isfinite(array[0]).all()
        assert np.isnan(array[1]).all()
        assert np.isnan(array[2]).any()
    assert np.isnan(linalg.solve_lower(L, np.ones((4, 2)))[1:]).all()


def test_nothing_in_numpy_is_nothing():
    none = np.zeros((2, 0, 0))
    assert linalg.factorise(linalg.add_jitter(none, 1e-8)).shape == (2, 0, 0)
    assert linalg.solve_lower(none, np.zeros((2, 0, 3))).shape == (2, 0, 3)
    assert linalg.solve_lower(np.ones((2, 1, 1)), np.ones((2, 1, 0))).shape == (2, 1, 0)
    value, moments = linalg.integrate(none, np.zeros((2, 0)))
    np.testing.assert_array_equal(value, [0.0, 0.0])
    assert moments.covariance.shape == (2, 0, 0)
    assert float(linalg.log_partition(np.zeros((0, 0)), np.zeros(0))) == 0.0


@pytest.mark.parametrize("size", [1, 5, linalg.LARGE - 1, linalg.LARGE, linalg.LARGE + 73])
def test_small_and_large_matrices_on_the_host(size):
    """Large ones go past SciPy's wrappers."""
    rng = np.random.default_rng(size)
    A, B, r = (rng.normal(size=(2, size, *last)) for last in ((size,), (7,), ()))
    K = A @ np.swapaxes(A, 1, 2) + size * np.eye(size)
    L = linalg.factorise(K)
    np.testing.assert_allclose(L, np.linalg.cholesky(K), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(linalg.solve_lower(L, B), np.linalg.solve(L, B), atol=1e-10)
    turned = np.linalg.solve(np.swapaxes(L, 1, 2), B)
    np.testing.assert_allclose(linalg.solve_lower(L, B, transpose=True), turned, atol=1e-10)
    inverse, solved = np.linalg.inv(K), np.linalg.solve(K, r[..., None])[..., 0]
    np.testing.assert_allclose(linalg.inverse_by_factor(L), inverse, atol=1e-12)
    found = linalg.log_normal(K, r)
    np.testing.assert_allclose(found.inverse, inverse, atol=1e-12)
    np.testing.assert_allclose(found.solved, solved, atol=1e-11)
    without = linalg.log_normal(K, r, inverse=False)
    np.testing.assert_array_equal(without.value, found.value)
    np.testing.assert_array_equal(without.solved, found.solved)
    bad = linalg.factorise(np.stack([K[0], -K[1]]))
    assert np.isfinite(bad[0]).all()
    assert np.isnan(bad[1]).all()
    value, mean = linalg.log_partition_and_mean(K, r)
    expected, moments = linalg.integrate(K, r)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(mean, moments.mean, atol=1e-12)


@pytest.mark.parametrize("size", [1, 7, linalg.SMALL, linalg.SMALL + 1])
@pytest.mark.parametrize("noise", [1.0, 1e-6])
def test_many_small_matrices_are_those_of_one_at_a_time(size, noise):
    """NumPy's loop over matrices, and ours, which takes what that refuses."""
    rng = np.random.default_rng(size)
    A, r = rng.normal(size=(linalg.MANY, size, size)), rng.normal(size=(linalg.MANY, size))
    K = A @ np.swapaxes(A, 1, 2) + noise * np.eye(size)
    each = [linalg.log_normal(K[i], r[i]) for i in range(linalg.MANY)]
    for inverse in (True, False):
        found = linalg.log_normal(K, r, inverse=inverse)
        assert (found.inverse is not None) == inverse
        for i, one in enumerate(each):
            assert found.value[i] == pytest.approx(one.value, rel=1e-9)
            largest = np.abs(one.inverse).max()
            np.testing.assert_allclose(found.solved[i], one.solved, atol=1e-9 * largest)
            if inverse:
                np.testing.assert_allclose(found.inverse[i], one.inverse, atol=1e-9 * largest)
                np.testing.assert_array_equal(found.inverse[i], found.inverse[i].T)
    log, moments = linalg.integrate(K, r)
    for i in range(linalg.MANY):
        one, own = linalg.integrate(K[i], r[i])
        assert log[i] == pytest.approx(one, rel=1e-10)
        np.testing.assert_allclose(moments.mean[i], own.mean, atol=1e-10)
        np.testing.assert_allclose(moments.covariance[i], own.covariance, atol=1e-10)
    for broken in (-K[3], np.full_like(K[3], np.nan)):
        bad = np.concatenate([K[:3], broken[None], K[4:]])
        found = linalg.log_normal(bad, r)
        fine = np.isfinite(found.value)
        assert fine.sum() == linalg.MANY - 1
        assert not fine[3]
        assert np.isnan(np.diagonal(linalg.factorise(bad)[3])).all()
        assert np.isfinite(linalg.factorise(bad)[fine]).all()
