"""A period is found from sums, whatever slow background lies under the wave."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp.inference.starts.periodogram import PERIODS, by_input, explained, starting_period


def client(seed: int, period: float, n: int = 40, noise: float = 0.3):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, n)
    phase = rng.uniform(0, 2 * np.pi, 2)
    slow = 3.0 * np.cos(np.pi * x)[:, None] * rng.normal(size=2)
    wave = np.sin(2 * np.pi * x[:, None] / period + phase)
    return x, slow + wave + noise * rng.normal(size=(n, 2))


@pytest.mark.parametrize("period", [0.13, 0.3, 0.45])
def test_the_period_is_found_by_all_clients_together(period):
    total = sum(explained(*client(seed, period)) for seed in range(5))
    assert starting_period(total) == pytest.approx(period, rel=0.05)


def test_shares_are_those_of_least_squares():
    x, Y = client(3, 0.2)
    found = explained(x, Y)
    base = np.cos(np.pi * np.outer(x, np.arange(5)))
    for index in (0, 17, 59):
        angle = 2 * np.pi * x / PERIODS[index]
        design = np.column_stack([base, np.cos(angle), np.sin(angle)])
        share = 0.0
        for y in Y.T:
            before, after = (
                np.sum((y - D @ np.linalg.lstsq(D, y, rcond=None)[0]) ** 2) for D in (base, design)
            )
            share += 1.0 - after / before
        assert found[index] == pytest.approx(share, rel=1e-8)


def test_missing_cells_are_left_out_and_few_rows_say_nothing():
    x, Y = client(4, 0.3)
    holes = Y.copy()
    holes[::4, 0] = np.nan
    seen = np.isfinite(holes[:, 0])
    each = explained(x[seen], Y[seen][:, :1]) + explained(x, Y[:, 1:])
    np.testing.assert_allclose(explained(x, holes), each, rtol=1e-12)
    assert not explained(x[:6], Y[:6]).any()
    assert not explained(x, np.ones((len(x), 1))).any()


@pytest.mark.parametrize("waves", [3.3, 17.0, 61.7])
def test_any_period_is_found_along_the_input_that_has_it(waves):
    """Two inputs, of which the second has the wave; four clients of 250 rows."""
    total = np.zeros((2, len(PERIODS)))
    for seed in range(4):
        x, Y = client(seed, 1.0 / waves, n=250)
        other = np.random.default_rng(seed + 50).uniform(size=250)
        total += by_input(np.stack([other, x], axis=1), Y)
    found = [starting_period(each) for each in total]
    assert found[1] == pytest.approx(1.0 / waves, rel=0.03)
    assert total[1].max() > 3.0 * total[0].max()


def test_a_client_of_few_rows_says_nothing_of_short_waves():
    x, Y = client(0, 0.3, n=16)
    found = by_input(x[:, None], Y)
    assert np.all(found[:, PERIODS < 4 / 16] == 0.0)
    assert found.max() > 0.0
