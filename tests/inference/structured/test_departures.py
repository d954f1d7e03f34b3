"""From a client's evidence to φ_i, its interval and the odds."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp.gp.kernels import RBF
from pfedhgp.inference.structured.departures import (
    GRID,
    LENGTHSCALE,
    QUANTILES,
    WEAK,
    Evidence,
    departures,
    size_of_global,
)
from pfedhgp.model.blocks import GlobalBlock
from pfedhgp.model.posterior import GlobalPosterior


def shared(phi: float = 0.7, size: int = 6, seed: int = 0) -> GlobalPosterior:
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(size, size))
    covariance = np.linalg.inv(np.eye(size) + 20.0 * half @ half.T)
    inputs = np.linspace(0.0, 1.0, size)[:, None]
    block = GlobalBlock(RBF(np.full((1, 1), 0.3)), inputs, np.array([[1.3]]), np.asarray(phi))
    return GlobalPosterior(block, rng.normal(size=size), covariance)


def test_the_size_of_the_global_function_has_the_bounds_own_density():
    """Against log ∫ N(v; 0, P) exp(hᵀv − ½vᵀJv) dv, P = r²I and any constant; and the prior of log r."""
    given = shared()
    S = np.asarray(given.covariance)
    J, h = np.linalg.inv(S) - np.eye(len(S)), np.linalg.solve(S, given.mean)
    found = size_of_global(given)
    at = [40, 80, 110]
    K = np.exp(-0.5 * ((given.block.inputs - given.block.inputs.T) / 0.3) ** 2)
    constant = np.linalg.solve(np.linalg.cholesky(K + 1e-8 * np.eye(len(S))), np.ones(len(S)))
    expected = []
    for t in found.values[at]:
        prior = np.exp(t) * np.eye(len(S)) + 1e6 * np.outer(constant, constant)
        bound = 0.5 * h @ np.linalg.solve(np.linalg.inv(prior) + J, h)
        bound -= 0.5 * np.linalg.slogdet(np.eye(len(S)) + prior @ J)[1]
        expected.append(bound - 0.5 * (0.5 * t / 2.0) ** 2)
    np.testing.assert_allclose(np.diff(np.log(found.weights[at])), np.diff(expected), atol=1e-4)


def test_interval_and_odds_are_those_of_many_draws():
    """A Gaussian evidence times the weak prior, in closed form; the global size by draws."""
    given, rng = shared(), np.random.default_rng(1)
    where, precision, none = 0.8, 1.0 / 0.9**2, -4.0
    sizes = -0.5 * precision * (GRID - where) ** 2
    found = departures(Evidence(sizes[None], np.array([none])), given)[0]
    total = precision + WEAK**-2
    centre = (precision * where + np.log(0.7) * WEAK**-2) / total
    scale = size_of_global(given)
    r2 = rng.choice(scale.values, size=400_000, p=scale.weights)
    r2 = r2 + LENGTHSCALE * rng.normal(size=r2.size)
    draws = centre + rng.normal(size=r2.size) / np.sqrt(total) - r2
    np.testing.assert_allclose(np.log(found[:3]), np.quantile(draws, QUANTILES), atol=0.06)
    spread = 0.9**2 + WEAK**2
    evidence = np.log(0.9) - 0.5 * np.log(spread) - 0.5 * (where - np.log(0.7)) ** 2 / spread
    own = centre + np.sqrt(1.0 / total) * np.array([-1.96, 0.0, 1.96])
    np.testing.assert_allclose(2.0 * np.log(found[3:6] / 1.3), own, atol=0.06)
    assert found[6] == pytest.approx(evidence - none, abs=0.02)


def test_rows_that_say_nothing_leave_the_odds_even():
    found = departures(Evidence(np.full((1, len(GRID)), -3.0), np.array([-3.0])), shared())[0]
    assert found[6] == pytest.approx(0.0, abs=1e-6)
    assert found[0] < 0.01 < 10.0 < found[2]


def test_an_evidence_that_is_not_finite_gives_none():
    broken = Evidence(np.full((1, len(GRID)), np.nan), np.zeros(1))
    assert np.isnan(departures(broken, shared())).all()
