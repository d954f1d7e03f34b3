"""Filters of local drifts against dense matrices."""

from __future__ import annotations

import numpy as np

import reference
from pfedhgp.inference.markov.drifts import Drifts, filtered, smoothed, whiten


def case():
    rng = np.random.default_rng(1)
    times = np.sort(rng.uniform(0, 3, size=(2, 9)), axis=1)
    counts = rng.integers(0, 3, size=(2, 9)).astype(float)
    at = Drifts(np.array([0.4, 2.0]), np.array([0.7, 0.2]), np.array([0.3, 0.1]))
    return times, counts, at, rng.normal(size=(2, 9, 3))


def dense(times, counts, at, k):
    seen = counts[k] > 0
    t = times[k, seen][:, None]
    K = at.variance[k] * reference.matern12(t, t, lengthscale=at.length[k])
    return seen, K + np.diag(at.noise[k] / counts[k, seen])


def test_exact_whitening_is_that_of_dense_matrices():
    times, counts, at, columns = case()
    white, log_det = whiten(filtered(at, times, counts), columns, counts)
    for k in range(2):
        seen, N = dense(times, counts, at, k)
        A = columns[k, seen]
        np.testing.assert_allclose(
            np.einsum("na,nb->ab", white[:, k], white[:, k]),
            A.T @ np.linalg.solve(N, A),
            rtol=1e-10,
        )
        np.testing.assert_allclose(log_det[k], np.linalg.slogdet(N)[1], rtol=1e-10)


def test_exact_smoothed_drift_is_the_conditional_mean_at_every_time():
    times, counts, at, columns = case()
    series = np.where(counts > 0, columns[..., 0], 0.0)
    found = smoothed(filtered(at, times, counts), series)
    for k in range(2):
        seen, N = dense(times, counts, at, k)
        cross = at.variance[k] * reference.matern12(
            times[k][:, None], times[k, seen][:, None], lengthscale=at.length[k]
        )
        expected = cross @ np.linalg.solve(N, series[k, seen])
        np.testing.assert_allclose(found[k], expected, rtol=1e-9, atol=1e-12)
