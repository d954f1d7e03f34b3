"""Draws from the discrete Gaussian, against its own probabilities."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from pfedhgp.errors import InputError
from pfedhgp.privacy.discrete_gaussian import GRID, discrete_gaussian, noise, on_grid


@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(9, 4), Fraction(40)])
def test_draws_have_the_probabilities_of_the_discrete_gaussian(variance):
    below = random.Random(7).randrange
    draws = [discrete_gaussian(variance, below) for _ in range(20_000)]
    widest = math.ceil(6 * math.sqrt(variance)) + 1
    k = np.arange(-widest, widest + 1)
    p = np.exp(-(k**2) / (2 * float(variance)))
    p /= p.sum()
    counts = np.array([draws.count(each) for each in k])
    assert counts.sum() == len(draws)
    common = p * len(draws) >= 5
    seen = [*counts[common], counts[~common].sum()]
    expected = [*(p[common] * len(draws)), max(p[~common].sum() * len(draws), 1e-9)]
    _, value = stats.chisquare(
        seen[:-1], np.array(expected[:-1]) * sum(seen[:-1]) / sum(expected[:-1])
    )
    assert value > 1e-3
    assert seen[-1] < 30


def test_noise_lies_on_the_grid_and_has_its_deviation():
    found = noise(np.array([[0.5] * 2000, [8.0] * 2000]), random.Random(3).randrange)
    assert np.array_equal(found, on_grid(found))
    assert np.all(found / GRID == np.round(found / GRID))
    assert np.std(found, axis=1) == pytest.approx([0.5, 8.0], rel=0.06)


def test_the_default_is_the_operating_systems_randomness():
    assert not np.array_equal(noise(np.ones(20)), noise(np.ones(20)))


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf, 1e40])
def test_noise_that_is_not_finite_and_positive_is_refused(wrong):
    with pytest.raises(InputError, match="noise"):
        noise(np.array([1.0, wrong]))
