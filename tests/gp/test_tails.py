"""Tails of residuals: learned from them, exact where the model is right, and kept in files."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pfedhgp.gp import tails
from pfedhgp.gp.tails import LENGTHS, Tails


def drawn(seed: int, n: int = 300) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=n)


def test_the_t_distribution_is_the_likeliest_one():
    z = 0.5 * np.random.default_rng(0).standard_t(2.5, size=400)
    heaviness, scale = tails.student(z)
    nu, _, s = stats.t.fit(z, floc=0)
    ours = stats.t.logpdf(z, 1 / heaviness, scale=scale).sum()
    assert ours == pytest.approx(stats.t.logpdf(z, nu, scale=s).sum(), abs=0.3)
    assert scale == pytest.approx(s, rel=0.05)


def test_a_model_that_fits_keeps_what_it_says():
    kept = [tails.student(drawn(seed)) == (0.0, 1.0) for seed in range(100)]
    assert np.mean(kept) > 0.95
    spells = [tails.learned(drawn(seed), drawn(seed)).squares[-1] == 1.0 for seed in range(60)]
    assert np.mean(spells) > 0.85  # Ljung and Box's test finds something in 1 of 20


def test_scores_of_heavy_residuals_are_gaussian():
    rng = np.random.default_rng(1)
    known = tails.learned(0.5 * rng.standard_t(2.5, size=400), drawn(2, 400))
    g = known.scores(0.5 * rng.standard_t(2.5, size=20_000))
    for level in (0.05, 0.01):
        assert np.mean(2 * stats.norm.sf(np.abs(g)) < level) == pytest.approx(level, rel=0.5)
    assert np.all(np.diff(known.scores(np.linspace(-60.0, 60.0, 200))) > 0)


def test_spells_make_sums_spread_as_much_as_is_said():
    """Quiet and loud spells, about eight rows long: the variance of sums over stretches, by simulation."""
    rng = np.random.default_rng(3)
    level = np.zeros(40_000)
    for t in range(1, len(level)):
        level[t] = 0.8 * level[t - 1] + 0.3 * rng.normal()
    v = np.exp(level) * rng.normal(size=len(level))
    known = tails.learned(v[:40_000], v)
    g2 = known.scores(v) ** 2
    for w, factor in zip(LENGTHS, known.squares, strict=True):
        sums = np.convolve(g2, np.ones(w), "valid")
        assert factor == pytest.approx(np.var(sums) / (w * np.var(g2)), rel=0.2)
    assert known.squares[-1] > 1.5


def test_steps_of_white_noise_are_those_that_were_drawn():
    y = drawn(4, 4000)
    known, nominal = tails.learned(y, y), tails.as_the_model_says(1.0)
    np.testing.assert_allclose(known.steps_mean, nominal.steps_mean, rtol=0.1)
    np.testing.assert_allclose(known.steps_shape, nominal.steps_shape, rtol=0.35)


def test_numbers_come_back_from_an_array():
    known = tails.learned(drawn(5), drawn(6))
    again = Tails.from_array(known.to_array())
    assert len(known.to_array()) == tails.WIDTH
    np.testing.assert_array_equal(again.to_array(), known.to_array())
