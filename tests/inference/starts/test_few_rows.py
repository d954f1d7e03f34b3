"""With privacy, counts and means before training stand for five rows at least."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp.inference.starts import census, few_rows
from pfedhgp.inference.starts.told import LEAST_ROWS


def merged(x):
    X = np.asarray(x, np.float64)[:, None]
    counts = census.histogram(X, np.zeros(1), np.ones(1))
    return counts[0], few_rows.histogram(counts)[0]


@pytest.mark.parametrize("rows", [5, 23, 60, 1000])
def test_merged_cells_hold_all_rows_and_the_domain_holds_them(rows):
    counts, found = merged(np.random.default_rng(rows).normal(size=rows))
    assert found.sum() == rows
    filled, before = np.flatnonzero(found), np.flatnonzero(counts)
    assert filled[0] <= before[0]
    assert filled[-1] >= before[-1]
    if rows < 1000:
        assert filled[0] < before[0], "it does not end at a row"
        assert filled[-1] > before[-1]


def test_rows_move_no_further_than_their_cell():
    """The k-th row is put somewhere among the five or more that it is counted with."""
    counts, found = merged(np.random.default_rng(3).uniform(-1.7, 1.7, 100))
    true, put = (np.repeat(np.arange(len(c)), c.astype(int)) for c in (counts, found))
    for k in range(LEAST_ROWS, 100 - LEAST_ROWS):
        assert true[max(k - 2 * LEAST_ROWS, 0)] <= put[k] <= true[min(k + 2 * LEAST_ROWS, 99)]


def test_what_is_sent_is_the_same_for_other_rows_in_the_same_cells():
    """Rows that move within their cell, its first and last row staying, change nothing."""
    x = np.linspace(-1.0, 1.0, 40)
    other = x.copy()
    inner = np.arange(40) % 5
    other[inner == 2] += 0.04
    assert not np.array_equal(merged(x)[0], merged(other)[0])
    np.testing.assert_array_equal(merged(x)[1], merged(other)[1])


def test_many_rows_in_a_bin_stay_there():
    counts, found = merged(np.repeat([-0.5, 0.5], 50))
    np.testing.assert_array_equal(counts, found)


def test_few_pairs_are_left_out():
    sums = {"lag_sum": np.array([[3.0], [7.0]]), "lag_pairs": np.array([[4.0], [5.0]])}
    found = few_rows.lags(sums)
    assert found["lag_pairs"].tolist() == [[0.0], [5.0]]
    assert found["lag_sum"].tolist() == [[0.0], [7.0]]


def test_means_of_few_rows_are_not_sent():
    rng = np.random.default_rng(0)
    Y = rng.normal(size=(20, 3))
    Y[4:, 1] = np.nan  # four rows
    Y[:14, 2] = np.nan  # six rows, none of them with the second output
    found = few_rows.moments(census.moments(rng.normal(size=(20, 1)), Y))
    assert found["y_clients"].tolist() == [1.0, 0.0, 1.0]
    assert found["y_pairs"].tolist() == [[20.0, 0.0, 6.0], [0.0, 0.0, 0.0], [6.0, 0.0, 6.0]]
    assert found["y_mean"][1].tolist() == [0.0, 0.0, 0.0]
    assert found["y_mean"][2, 0] == pytest.approx(Y[14:, 2].mean())
