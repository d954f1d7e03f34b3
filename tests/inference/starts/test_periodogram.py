"""A period is found from sums, whatever background lies under the wave."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from pfedhgp.inference.starts import forms
from pfedhgp.inference.starts.periodogram import (
    PERIODS,
    SPECTRA,
    by_input,
    gains,
    starting_period,
)


def client(seed: int, period: float, n: int = 40, noise: float = 0.3):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, n)
    phase = rng.uniform(0, 2 * np.pi, 2)
    slow = 3.0 * np.cos(np.pi * x)[:, None] * rng.normal(size=2)
    wave = np.sin(2 * np.pi * x[:, None] / period + phase)
    return x, slow + wave + noise * rng.normal(size=(n, 2))


@pytest.mark.parametrize("period", [0.13, 0.3, 0.45])
def test_the_period_is_found_by_all_clients_together(period):
    total = sum(gains(*client(seed, period)) for seed in range(5))
    found = starting_period(total)
    assert found.period == pytest.approx(period, rel=0.05)
    assert found.gain == total.max() > 0.0


def test_rough_functions_without_a_period_gain_nothing():
    rng = np.random.default_rng(0)
    total = np.zeros((2, len(PERIODS)))
    for _ in range(6):
        x = rng.uniform(0, 1, 40)
        gaps = np.abs(x[:, None] - x)
        K = np.exp(-0.5 * (gaps / 0.2) ** 2) + np.exp(-gaps / 0.05) + 0.01 * np.eye(40)
        total += gains(x, rng.multivariate_normal(np.zeros(40), K, size=2).T)
    assert total.max() < 0.0


def test_gains_are_differences_of_log_densities():
    """Naively: two dense Gaussians, whose common scale is at the best of the one without waves."""
    x, Y = client(3, 0.2)
    found = gains(x, Y)
    ((_, outputs),) = forms.complete(Y)
    K = forms.background(x[:, None], outputs).matrix(np.abs(x[:, None] - x))
    for index, (spectrum, own) in product((0, 17, 59), zip(SPECTRA, found, strict=True)):
        angle = 2 * np.pi * (x[:, None] - x) / PERIODS[index]
        waves = sum(v * np.cos((k + 1) * angle) for k, v in enumerate(spectrum))
        gain = 0.0
        for y in outputs.T:
            scale = y @ np.linalg.solve(K, y) / len(y)
            gain += multivariate_normal.logpdf(y, cov=scale * (K + waves))
            gain -= multivariate_normal.logpdf(y, cov=scale * K)
        assert own[index] == pytest.approx(gain, rel=1e-6, abs=1e-6)


def test_an_overtone_of_a_rich_wave_is_not_the_period():
    """Three clients with sawteeth, whose second harmonic is half as large as the first."""
    total = np.zeros((2, len(PERIODS)))
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x = rng.uniform(size=50)
        teeth = (x / 0.24 + rng.uniform()) % 1.0
        total += gains(x, (teeth + 0.1 * rng.normal(size=50))[:, None])
    assert starting_period(total).period == pytest.approx(0.24, rel=0.05)


def test_missing_cells_are_left_out_and_few_rows_say_nothing():
    x, Y = client(4, 0.3)
    holes = Y.copy()
    holes[::4, 0] = np.nan
    seen = np.isfinite(holes[:, 0])
    each = gains(x[seen], Y[seen][:, :1]) + gains(x, Y[:, 1:])
    np.testing.assert_allclose(gains(x, holes), each, rtol=1e-9)
    assert not gains(x[:6], Y[:6]).any()
    assert not gains(x, np.ones((len(x), 1))).any()


@pytest.mark.parametrize("waves", [3.3, 17.0, 61.7])
def test_any_period_is_found_along_the_input_that_has_it(waves):
    """Two inputs, of which the second has the wave; three clients of 250 rows."""
    total = np.zeros((2, 2, len(PERIODS)))
    for seed in range(3):
        x, Y = client(seed, 1.0 / waves, n=250)
        other = np.random.default_rng(seed + 50).uniform(size=250)
        total += by_input(np.stack([other, x], axis=1), Y)
    other, wave = (starting_period(total[:, j]) for j in range(2))
    assert wave.period == pytest.approx(1.0 / waves, rel=0.03)
    assert wave.gain > 10.0 > 0.0 > other.gain


def test_a_client_of_few_rows_says_nothing_good_of_short_waves():
    x, Y = client(0, 0.3, n=16)
    found = by_input(x[:, None], Y)
    short = PERIODS < 4 / 16
    for own in found[:, 0]:
        assert np.all(own[short] == min(own[~short].min(), 0.0))
        assert own[~short].max() > own[short].max()
