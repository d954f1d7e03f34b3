"""Metrics against SciPy, numerical integration, scoringrules and values worked out by hand."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from scipy import integrate, stats

from pfedhgp.errors import InputError
from pfedhgp.gp import metrics


@pytest.fixture
def case():
    """y, mean (6, 3) and full covariances; two missing cells and one row without any."""
    rng = np.random.default_rng(4)
    roots = rng.normal(size=(6, 3, 3))
    cov = roots @ roots.transpose(0, 2, 1) + 0.5 * np.eye(3)
    y, mean = rng.normal(size=(6, 3)), rng.normal(size=(6, 3))
    y[1, 2] = y[4, 0] = np.nan
    y[3] = np.nan
    return y, mean, cov


def observed(y):
    return [(j, q) for j, q in np.ndindex(y.shape) if not np.isnan(y[j, q])]


def test_docstrings_examples_hold():
    assert doctest.testmod(metrics).failed == 0


def test_rmse_by_hand(case):
    assert metrics.rmse([[1.0, 5.0], [np.nan, 2.0]], [[0.0, 3.0], [9.0, 2.0]]) == pytest.approx(
        np.sqrt((1 + 4 + 0) / 3), rel=1e-15
    )
    y, mean, _ = case
    cells = [(y[c] - mean[c]) ** 2 for c in observed(y)]
    assert metrics.rmse(y, mean) == pytest.approx(np.sqrt(np.mean(cells)), rel=1e-14)


def test_nll_equals_scipys_density_of_the_observed_cells(case):
    y, mean, cov = case
    rows = []
    for j in range(6):
        seen = ~np.isnan(y[j])
        if seen.any():
            law = stats.multivariate_normal(mean[j][seen], cov[j][np.ix_(seen, seen)])
            rows.append(-law.logpdf(y[j][seen]))
    assert len(rows) == 5
    assert metrics.nll(y, mean, cov) == pytest.approx(np.mean(rows), rel=1e-13)


def test_crps_equals_the_integral_of_its_definition(case):
    y, mean, cov = case

    def score(x, m, s):
        """∫ (F(t) − 1{t ≥ x})² dt."""
        law = stats.norm(m, s)
        below = integrate.quad(lambda t: law.cdf(t) ** 2, min(m, x) - 12 * s, x, epsabs=1e-12)
        above = integrate.quad(lambda t: law.sf(t) ** 2, x, max(m, x) + 12 * s, epsabs=1e-12)
        return below[0] + above[0]

    cells = [score(y[j, q], mean[j, q], np.sqrt(cov[j, q, q])) for j, q in observed(y)]
    assert metrics.crps(y, mean, cov) == pytest.approx(np.mean(cells), rel=1e-9)


def test_crps_equals_scoringrules(case, require):
    scoringrules = require("scoringrules")
    y, mean, cov = case
    sd = np.sqrt(np.diagonal(cov, axis1=1, axis2=2))
    cells = [scoringrules.crps_normal(y[c], mean[c], sd[c]) for c in observed(y)]
    assert metrics.crps(y, mean, cov) == pytest.approx(np.mean(cells), rel=1e-12)


def test_width_and_coverage_by_hand():
    y = np.array([[0.0, 3.0], [-1.0, np.nan]])
    mean = np.array([[1.9, 0.0], [0.0, 0.0]])
    cov = np.array([np.diag([1.0, 4.0]), np.diag([0.25, 100.0])])
    # Distances in sd are 1.9, 1.5 and 2.0; the critical value is 1.96.
    assert metrics.coverage(y, mean, cov) == pytest.approx(2 / 3, rel=1e-15)
    assert metrics.coverage(y, mean, cov, level=0.8) == 0.0
    assert metrics.coverage(y, mean, cov, level=0.9) == pytest.approx(1 / 3, rel=1e-15)
    wanted = 2 * 1.959963984540054 * (1.0 + 2.0 + 0.5) / 3
    assert metrics.width(y, mean, cov) == pytest.approx(wanted, rel=1e-13)


def test_ece_is_the_mean_distance_of_coverage_from_its_level():
    # Every cell at its mean: always covered, so ECE is the mean of 1 − level, which is ½.
    ones = np.ones((4, 2, 2)) * np.eye(2)
    assert metrics.ece(np.zeros((4, 2)), np.zeros((4, 2)), ones) == pytest.approx(0.5, rel=1e-14)
    # Cells at the quantiles (k − ½)/1000 of the predictive law are calibrated to 1/1000.
    y = stats.norm.ppf((np.arange(1000) + 0.5) / 1000)[:, None]
    law = np.ones((1000, 1, 1))
    assert metrics.ece(y, np.zeros((1000, 1)), law) < 1e-3
    # With sd twice the truth's, coverage at a level is 2 Φ(2z) − 1.
    levels = np.arange(1, 20) / 20
    wanted = np.mean(2 * stats.norm.cdf(2 * stats.norm.ppf((1 + levels) / 2)) - 1 - levels)
    assert metrics.ece(y, np.zeros((1000, 1)), 4 * law) == pytest.approx(wanted, abs=1e-3)


def test_coverr_by_hand():
    clean = np.array([[1.0, 0.0], [-1.0, 0.0]])  # covariance over x: [[1, 0], [0, 0]]
    mean = np.array([[2.0, 1.0], [-2.0, -1.0]])  # [[4, 2], [2, 1]]
    cov = np.stack([np.diag([0.5, 0.5]), np.diag([1.5, 0.5])])  # mean: diag(1, .5)
    true, model = np.diag([1.1, 0.1]), np.array([[5.0, 2.0], [2.0, 1.5]])
    wanted = np.linalg.norm(model - true) / np.linalg.norm(true)
    for noise in (0.1, [0.1, 0.1], 0.1 * np.eye(2)):
        assert metrics.coverr(clean, mean, cov, noise=noise) == pytest.approx(wanted, rel=1e-14)


def test_coverr_of_the_truth_is_zero(case):
    _, mean, _ = case
    noise = np.array([0.1, 0.2, 0.3])
    cov = np.tile(np.diag(noise), (6, 1, 1))
    assert metrics.coverr(mean, mean, cov, noise=noise) == pytest.approx(0.0, abs=1e-15)


def test_evaluate_averages_over_clients_of_any_size(case):
    y, mean, cov = case
    small = metrics.Scored(y=y[:2], mean=mean[:2], cov=cov[:2])
    large = metrics.Scored(y=y, mean=mean, cov=cov)
    both = metrics.evaluate([small, large])
    assert list(both) == ["rmse", "nll", "crps", "width", "coverage", "ece"]
    for name in ("nll", "crps", "width", "coverage"):
        score = getattr(metrics, name)
        wanted = 0.5 * (score(y[:2], mean[:2], cov[:2]) + score(y, mean, cov))
        assert both[name] == pytest.approx(wanted, rel=1e-14)
    wanted = 0.5 * (metrics.rmse(y[:2], mean[:2]) + metrics.rmse(y, mean))
    assert both["rmse"] == pytest.approx(wanted, rel=1e-14)
    assert metrics.evaluate({"a": small, "b": large}) == both
    assert metrics.evaluate([large])["ece"] == pytest.approx(metrics.ece(y, mean, cov), rel=1e-14)


def test_evaluate_has_coverr_where_the_clean_signal_is_known(case):
    y, mean, cov = case
    known = metrics.Scored(y=y, mean=mean, cov=cov, clean=mean + 1.0, noise=0.01)
    wanted = metrics.coverr(mean, mean, cov, noise=0.01)  # a constant offset is no covariance
    assert metrics.evaluate([known, known])["coverr"] == pytest.approx(wanted, rel=1e-12)
    unknown = metrics.Scored(y=y, mean=mean, cov=cov)
    assert "coverr" not in metrics.evaluate([known, unknown])


def test_wrong_arrays_are_named(case):
    y, mean, cov = case
    with pytest.raises(InputError, match="`mean` has shape"):
        metrics.rmse(y, mean[:3])
    with pytest.raises(InputError, match="`cov` has shape"):
        metrics.nll(y, mean, cov[:, 0])
    with pytest.raises(InputError, match="`cov` is not positive definite"):
        metrics.nll(y, mean, -cov)
    with pytest.raises(InputError, match="no observed cell"):
        metrics.rmse(np.full((2, 1), np.nan), np.zeros((2, 1)))
    with pytest.raises(InputError, match="`clients` is empty"):
        metrics.evaluate([])
    with pytest.raises(InputError, match="`level`"):
        metrics.coverage(y, mean, cov, level=95)
