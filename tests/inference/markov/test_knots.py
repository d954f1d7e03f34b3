"""q(u) at the knots against dense matrices, and the server's step against finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from scipy.optimize import approx_fprime

import reference
from pfedhgp.inference.markov import knots
from pfedhgp.inference.markov.knots import Evidence

M, LENGTHS = 11, np.array([0.2, 0.5, 0.05])
R = len(LENGTHS)


@pytest.fixture
def places_and_evidence():
    rng = np.random.default_rng(0)
    places = np.sort(rng.uniform(size=M))
    half = rng.normal(size=(M, R, R))
    return places, Evidence(half @ np.swapaxes(half, 1, 2), rng.normal(size=(M, R)))


def dense(places, lengths, evidence):
    """Mean, covariance and log partition, weights ordered (function, knot)."""
    X = places[:, None]
    K = scipy.linalg.block_diag(*(reference.matern12(X, X, lengthscale=v) for v in lengths))
    J, h = np.zeros((R, M, R, M)), evidence.h.T.reshape(-1)
    for m in range(M):
        J[:, m, :, m] = evidence.J[m]
    J = J.reshape(R * M, R * M)
    S = np.linalg.inv(np.linalg.inv(K) + J)
    log = 0.5 * h @ S @ h - 0.5 * np.linalg.slogdet(np.eye(R * M) + K @ J)[1]
    return (S @ h).reshape(R, M), S.reshape(R, M, R, M), log


def test_exact_posterior_at_the_knots_is_the_dense_one(places_and_evidence):
    places, evidence = places_and_evidence
    q = knots.posterior(places, LENGTHS, evidence)
    mean, S, log = dense(places, LENGTHS, evidence)
    np.testing.assert_allclose(q.mean, mean.T, rtol=1e-10, atol=1e-12)
    for m in range(M):
        np.testing.assert_allclose(q.covariance[m], S[:, m, :, m], rtol=1e-9, atol=1e-12)
    for m in range(M - 1):
        np.testing.assert_allclose(q.between[m], S[:, m, :, m + 1], rtol=1e-9, atol=1e-12)
    assert q.log_partition == pytest.approx(log, rel=1e-10)


def test_the_servers_step_ends_where_the_bound_is_flat(places_and_evidence):
    """Slopes in log ℓ and log s of the dense log partition, with the prior, are nothing at the step's end."""
    places, _ = places_and_evidence
    rng = np.random.default_rng(1)
    X = places[:, None]
    factors = [np.linalg.cholesky(reference.matern12(X, X, lengthscale=v)) for v in LENGTHS]
    u = np.stack([1.5 * L @ rng.normal(size=M) for L in factors], axis=1)
    small = Evidence(np.tile(4.0 * np.eye(R), (M, 1, 1)), 4.0 * u + 2.0 * rng.normal(size=(M, R)))
    found = knots.improved(places, LENGTHS, small, LENGTHS, learn=True)

    def bound(x):
        lengths, s = np.exp(x[:R]), np.exp(x[R:])
        log = dense(places, lengths, knots.scaled(small, s))[2]
        return log - 0.125 * np.sum((x[:R] - np.log(LENGTHS)) ** 2)

    x = np.log(np.concatenate([found.lengths, found.scales]))
    start = np.concatenate([np.log(LENGTHS), np.zeros(R)])
    assert bound(x) > bound(start)
    free = np.abs(x - start) < knots.LOG_RANGE - 1e-6
    slope = approx_fprime(x, bound, 1e-6)
    assert np.abs(slope[free]).max() < 0.02 * max(
        1.0, np.abs(approx_fprime(start, bound, 1e-6)).max()
    )


def test_lengthscales_stay_where_they_are_not_learned(places_and_evidence):
    places, evidence = places_and_evidence
    found = knots.improved(places, LENGTHS, evidence, LENGTHS, learn=False)
    np.testing.assert_allclose(found.lengths, LENGTHS, rtol=1e-12)
