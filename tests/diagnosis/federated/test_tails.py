"""Quantiles from counts in bins: to the width of a bin, and the same over any sites."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp.diagnosis.federated.tails import COARSE, FINE
from pfedhgp.diagnosis.thresholds import limits_of_ratios


@pytest.mark.parametrize("bins", [COARSE, FINE])
def test_values_come_back_to_the_width_of_a_bin(bins):
    rng = np.random.default_rng(0)
    values = np.exp(rng.normal(size=(200, 3)))
    values[:50, 1] = np.nan
    values[:, 2] = np.nan
    counts = bins.count(values)
    assert counts.sum(axis=1).tolist() == [200, 150, 0]
    again = bins.values(counts)
    assert again.shape == (200, 3)
    for v in (0, 1):
        seen = np.sort(values[np.isfinite(values[:, v]), v])
        np.testing.assert_allclose(again[: len(seen), v], seen, rtol=bins.width)
    assert np.isnan(again[:, 2]).all()


def test_counts_add_up_and_values_out_of_range_are_at_the_ends():
    rng = np.random.default_rng(1)
    values = np.exp(rng.normal(size=(90, 2)))
    parts = [COARSE.count(values[part]) for part in (np.s_[:10], np.s_[10:60], np.s_[60:])]
    np.testing.assert_array_equal(sum(parts), COARSE.count(values))
    ends = COARSE.count(np.array([[0.0], [1e-9], [1e30]]))
    assert (ends[0, 0], ends[0, -1]) == (2.0, 1.0)


def test_limits_from_bins_are_those_of_the_values():
    rng = np.random.default_rng(2)
    ratio = rng.chisquare(5, size=(80, 4)) / 5
    exact = limits_of_ratios(ratio, 0.01)
    np.testing.assert_allclose(
        limits_of_ratios(FINE.values(FINE.count(ratio)), 0.01), exact, rtol=0.02
    )
