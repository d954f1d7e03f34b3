"""The banded smoother against dense matrices, and against the Kalman filter's states."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfedhgp.gp import state_space as ss
from pfedhgp.gp.banded_states import COLUMNS, BandedStates
from support import reference_states as twin
from support.state_kernels import KERNELS


def made(n: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times with ties, precisions that differ, a fifth of the times without an observation, columns."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(size=n))
    times[n // 2] = times[n // 2 - 1]
    seen = rng.uniform(size=n) < 0.8
    precision = np.where(seen, 1.0 / (noise * rng.uniform(0.5, 2.0, n)), 0.0)
    return times, precision, rng.normal(size=(n, COLUMNS + 3))


@pytest.mark.parametrize("name", KERNELS)
@settings(max_examples=8, deadline=None)
@given(n=st.integers(3, 60), noise=st.sampled_from([1e-3, 0.05, 1.0]), seed=st.integers(0, 9999))
def test_means_and_covariances_are_those_of_dense_matrices(name, n, noise, seed):
    kernel, dense = KERNELS[name]
    times, precision, A = made(n, noise, seed)
    model, b, keep = ss.StateModel.of(kernel), 1.4, precision > 0
    series = BandedStates.of(model, b, times, precision)
    h = np.asarray(model.observe)
    mean, cov = twin.posterior(
        dense(times, times),
        b * dense(times, times[keep]),
        b * b * dense(times[keep], times[keep]),
        1.0 / precision[keep],
        A[keep],
    )
    size = max(np.abs(mean).max(), 1e-3)
    found = np.einsum("s,nsk->nk", h, series.smooth(A))
    np.testing.assert_allclose(found, mean, rtol=0, atol=1e-9 * size)
    where = np.flatnonzero(~keep)
    S, covariance = series.towards(where)
    np.testing.assert_allclose(covariance, cov[:, where], rtol=0, atol=1e-12)
    np.testing.assert_allclose(S.T @ A, mean[where], rtol=0, atol=1e-9 * size)


@pytest.mark.parametrize("name", ["matern32", "sum"])
def test_states_are_the_filters(name):
    """All of the state, not the function alone, for rows closer together than a double can resolve F."""
    kernel, _ = KERNELS[name]
    times, precision, A = made(40, 0.01, 4)
    times[20:24] = times[20] + np.array([0.0, 1e-15, 2e-13, 1e-9])
    times = np.sort(times)
    model, keep = ss.StateModel.of(kernel), precision > 0
    variance = 1.0 / np.where(keep, precision, 1.0)
    series = ss.Series(*(jnp.asarray(each) for each in (times, variance, keep * 1.0)))
    expected, _ = ss.smooth(model, jnp.asarray(0.7), series, jnp.asarray(A[:, :2]))
    found = BandedStates.of(model, 0.7, times, precision).smooth(A[:, :2])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * np.abs(expected).max())


def test_a_series_without_an_observation_has_its_prior():
    kernel, dense = KERNELS["matern52"]
    times = np.array([0.1, 0.4, 0.45])
    S, covariance = BandedStates.of(ss.StateModel.of(kernel), 2.0, times, np.zeros(3)).towards(
        np.arange(3)
    )
    np.testing.assert_allclose(covariance, dense(times, times), rtol=1e-12)
    assert not S.any()
