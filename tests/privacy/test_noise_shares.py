"""Shares of noise: their sum has the promised variance, also without those who drop out or collude."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import stats

from pfedhgp.errors import InputError
from pfedhgp.federation.masks.roster import threshold_of, unmasking
from pfedhgp.privacy.accounting import MARGIN
from pfedhgp.privacy.noise_shares import (
    FEWEST_STEPS,
    GRID,
    in_total,
    log_gap,
    share_of,
    tolerated,
    with_share,
)


@pytest.mark.parametrize(("clients", "missing"), [(6, 2), (5, 0), (4, 3)])
def test_the_noise_that_stays_in_a_total_has_the_promised_variance(clients, missing):
    """χ² of the total less the shares of f clients, and of the whole total as the server knows it."""
    tau, count, below = 7.0, 600, random.Random(clients).randrange
    share = share_of(tau, clients, missing)
    parts = np.stack([with_share(np.zeros(count), share, below) for _ in range(clients)])
    for found, sd in (
        (parts[missing:].sum(axis=0), tau),
        (parts.sum(axis=0), in_total(share, clients)),
    ):
        value = stats.chi2.cdf(np.sum((found / sd) ** 2), count)
        assert 1e-3 < value < 1 - 1e-3
    assert np.array_equal(parts / GRID, np.round(parts / GRID))
    # the same test catches half of the noise
    assert stats.chi2.cdf(np.sum((parts[missing:].sum(axis=0) / (2 * tau)) ** 2), count) < 1e-6


@pytest.mark.parametrize("sigma", [0.7, 1.0, 1.4])
@pytest.mark.parametrize("count", [2, 3, 6])
def test_a_sum_of_discrete_gaussians_is_as_near_to_one_as_the_bound_says(sigma, count):
    k = np.arange(-60, 61)
    p = np.exp(-(k**2) / (2 * sigma**2))
    p /= p.sum()
    summed = p
    for _ in range(count - 1):
        summed = np.convolve(summed, p)
    wide = np.arange(-(len(summed) // 2), len(summed) // 2 + 1)
    one = np.exp(-(wide**2) / (2 * count * sigma**2))
    one /= one.sum()
    near = np.abs(wide) < 5 * sigma * math.sqrt(count)
    gap = np.abs(np.log(summed[near]) - np.log(one[near])).max()
    assert gap <= math.exp(log_gap(count, sigma))
    if count == 2 and sigma == 0.7:
        assert gap > 1e-6  # it is not zero, so the bound is needed


def test_at_the_grid_that_is_used_the_gap_is_far_below_the_margin_of_the_accounting():
    numbers = 1e12
    assert log_gap(100, FEWEST_STEPS) + math.log(numbers) < math.log(MARGIN) - 1000
    with pytest.raises(InputError, match="smaller"):
        share_of(0.5 * FEWEST_STEPS * GRID, 3, 1)
    assert share_of(0.0, 3, 1) == 0.0


def test_how_many_may_drop_out_or_collude():
    assert [tolerated(T, None) for T in (3, 4, 6, 20, 100)] == [1, 1, 2, 6, 33]
    assert tolerated(5, 4) == 4
    with pytest.raises(InputError, match="3 clients"):
        tolerated(2, None)
    with pytest.raises(InputError, match="tolerated"):
        tolerated(5, 5)


@pytest.mark.parametrize(
    ("clients", "most"), [(3, 2), (4, 1), (5, 2), (6, 3), (7, 2), (10, 3), (100, 33)]
)
def test_with_masks_fewer_are_tolerated_than_can_unmask_a_client(clients, most):
    """The server gives half of the honest clients one set of survivors, and half another."""
    assert tolerated(clients, most, unmasking(clients)) == most
    assert tolerated(clients, None, unmasking(clients)) <= most
    if most + 1 < clients:
        with pytest.raises(InputError, match=f"below {most + 1} with masks and {clients} clients"):
            tolerated(clients, most + 1, unmasking(clients))
    t, honest = threshold_of(clients), clients - most
    assert most + honest // 2 < t <= most + 1 + (honest - 1) // 2 + honest % 2


def test_values_without_noise_stay_as_they_are():
    values = np.array([0.1234567891234, 5.0])
    assert np.array_equal(with_share(values, 0.0), values)
