"""Covariances whose correlations depend on the lag alone, against loops and against themselves."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp.diagnosis.run_layers import Layers
from pfedhgp.diagnosis.run_sums import sums_of_runs
from pfedhgp.diagnosis.stationary import lag_function, stationary_covariance
from support import reference_diagnosis as naive


def lagged(r: int, scale: float, noise: float = 0.0) -> np.ndarray:
    """A smooth covariance of lags, and noise."""
    lag = np.subtract.outer(np.arange(r), np.arange(r))
    return (1.0 - noise) * np.exp(-0.5 * (lag / scale) ** 2) + noise * np.eye(r)


def test_it_is_that_of_loops():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(18, 7))
    covariance = root @ root.T
    found, expected = stationary_covariance(covariance, 3), naive.stationary(covariance, 3)
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())
    by_channel = [np.diagonal(each).reshape(3, 6).mean(axis=1) for each in (found, covariance)]
    np.testing.assert_allclose(*by_channel)


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_stationary_covariance_stays_as_it_is(noise):
    sd, C = np.repeat([1.0, 20.0], 12), np.array([[1.0, -0.6], [-0.6, 1.0]])
    covariance = np.kron(C, lagged(12, 3.0, noise)) * np.outer(sd, sd)
    found = stationary_covariance(covariance, 2)
    np.testing.assert_allclose(found / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=2e-3)


def test_every_lag_function_is_a_covariance_and_one_place_is_enough():
    rng = np.random.default_rng(1)
    for _ in range(5):
        k = lag_function(np.corrcoef(rng.normal(size=(9, 4))))
        K = k[np.abs(np.subtract.outer(np.arange(9), np.arange(9)))]
        assert k[0] == 1.0
        assert np.linalg.eigvalsh(K)[0] > -1e-9
    np.testing.assert_array_equal(lag_function(np.zeros((3, 3))), [1.0, 0.0, 0.0])
    np.testing.assert_allclose(stationary_covariance(np.array([[4.0]]), 1), [[4.0]])


def test_few_runs_show_at_which_frequencies_runs_do_not_differ():
    """Five runs in 60 coordinates: rough directions are as narrow as they are, smooth ones wide."""
    rng, r = np.random.default_rng(2), 60
    root = np.linalg.cholesky(lagged(r, 6.0) + 1e-9 * np.eye(r))
    runs = 5.0 * rng.normal(size=(5, r)) @ root.T
    F = np.repeat(runs, 4, axis=0) + 0.1 * rng.normal(size=(20, r))
    names = [str(b) for b in np.repeat(np.arange(5), 4)]
    total = sums_of_runs(F, np.ones((20, 1)), np.zeros(20, int), names, classes=1, own=False)
    layers = Layers.of(total, 1)
    rough = np.cos(np.pi * np.arange(r)) * np.hanning(r)  # noise alone: variance 0.01
    rough /= np.linalg.norm(rough)
    smooth = np.ones(r) / np.sqrt(r)
    found = {t: layers.covariance(t, 0.3) for t in ("stationary", "cell")}
    assert rough @ found["stationary"] @ rough < 0.03
    assert rough @ found["cell"] @ rough > 1.0
    assert smooth @ found["stationary"] @ smooth > 50.0
