"""A station's own GP with waves, against dense matrices."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from pfedhgp.studies.airquality import station_gp


def test_evidence_and_moments_are_those_of_the_dense_gp() -> None:
    rng = np.random.default_rng(0)
    t = np.sort(rng.uniform(0.0, 12.0, 25))
    y = np.sin(2 * np.pi * t) + 0.3 * rng.normal(size=25)
    seen = rng.uniform(size=25) > 0.3
    length, scale, variance, spread = 1.4, 0.8, 0.05, np.array([0.5, 0.2, 0.9])
    free = jnp.log(jnp.asarray([length, scale, variance, *spread]))
    found = station_gp.waves(t)
    arguments = (t, np.where(seen, y, 0.0), seen.astype(float), found.columns)
    arguments = tuple(jnp.asarray(v) for v in arguments)
    A = found.columns * spread[found.period]
    K = A @ A.T + scale**2 * np.exp(-np.abs(t[:, None] - t[None, :]) / length)
    N = K[np.ix_(seen, seen)] + variance * np.eye(seen.sum())
    log_p = -0.5 * (
        seen.sum() * np.log(2 * np.pi)
        + np.linalg.slogdet(N)[1]
        + y[seen] @ np.linalg.solve(N, y[seen])
    )
    evidence = station_gp.log_evidence(free, *arguments, found.period)
    assert float(evidence) == pytest.approx(log_p, rel=1e-9)
    mean, total = station_gp.moments(free, *arguments, found.period)
    solved = np.linalg.solve(N, K[seen])
    np.testing.assert_allclose(mean, y[seen] @ solved, rtol=1e-7, atol=1e-9)
    expected = np.diag(K) - np.sum(K[seen] * solved, axis=0) + variance
    np.testing.assert_allclose(total, expected, rtol=1e-7)
