"""Sums before training: exact far from zero, in any order, and they tell when few rows stretch the domain."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from scipy.optimize import nnls

from pfedhgp.inference.starts import census

MOMENTS = ("y_pairs", "y_mean", "y_cross", "y_clients", "rows")


def parts(offset: float, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Clients of 1 to 9 rows with two outputs, a third of the cells missing; the second lacks output 1."""
    rng = np.random.default_rng(seed)
    made = []
    for i, n in enumerate((9, 4, 1, 6)):
        Y = (
            offset + i + rng.integers(-512, 512, size=(n, 2)) / 256.0
        )  # exact at any offset below 2^43
        Y[rng.uniform(size=Y.shape) < 0.3] = np.nan
        if i == 1:
            Y[:, 1] = np.nan
        made.append((rng.uniform(size=(n, 1)), Y))
    return made


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e12])
def test_merged_moments_are_those_of_all_rows(offset):
    """Against pooled rows with the offset taken away first; sums of squares would lose all digits at 1e12."""
    clients = parts(offset)
    total = reduce(census.merged, [census.moments(X, Y) for X, Y in clients])
    Y = np.concatenate([Y for _, Y in clients]) - offset
    for q in range(2):
        for p in range(2):
            both = np.isfinite(Y[:, q]) & np.isfinite(Y[:, p])
            a, b = Y[both, q], Y[both, p]
            assert total["y_pairs"][q, p] == both.sum()
            assert total["y_mean"][q, p] - offset == pytest.approx(a.mean(), abs=1e-3)
            exact = np.sum((a - a.mean()) * (b - b.mean()))
            assert total["y_cross"][q, p] == pytest.approx(exact, rel=1e-3, abs=1e-3)
    assert total["y_clients"].tolist() == [
        sum(np.isfinite(Y[:, q]).any() for _, Y in clients) for q in range(2)
    ]


def test_merging_does_not_depend_on_the_order():
    found = [census.moments(X, Y) for X, Y in parts(3.0)]
    one, two = reduce(census.merged, found), reduce(census.merged, found[::-1])
    for name in MOMENTS:
        np.testing.assert_allclose(one[name], two[name], rtol=1e-12, atol=1e-12)


def binned(X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    centre, spread = X.mean(0), X.std(0)
    return census.histogram(X, centre, spread), centre, spread


def test_a_crowd_is_told_from_one_stray_row():
    rng = np.random.default_rng(1)
    X = rng.uniform(0.0, 10.0, (80, 2))
    assert census.limits_of_most_rows(*binned(X)) is None
    X[7, 1] = 900.0
    found = census.limits_of_most_rows(*binned(X))
    assert found is not None
    lower, upper = found
    inside = (lower <= X) & (upper >= X)
    assert inside[:, 0].all()
    assert np.flatnonzero(~inside[:, 1]).tolist() == [7]


def test_two_groups_of_rows_are_no_strays():
    X = np.concatenate([np.linspace(0, 1, 40), np.linspace(50, 51, 40)])[:, None]
    assert census.limits_of_most_rows(*binned(X)) is None


def test_a_wave_on_a_coarse_grid_is_no_noise():
    """Twelve even rows of a wave and a half: the variogram falls again, and once went to the noise whole."""
    x = np.linspace(0.0, 10.0, 12)
    sums = census.variogram(x[:, None] / 10.0, np.sin(x)[:, None])
    found = census.starting_scales(sums["lag_sum"], sums["lag_pairs"], np.array([np.sin(x).var()]))
    assert found.noise_variance < 0.01 < 0.5 < found.short_variance + found.long_variance
    assert 0.05 < found.short < 0.3  # the wave's own scale is .16


def test_a_single_row_has_no_pairs():
    for sums in census.variogram(np.array([[0.4]]), np.array([[1.0, 2.0]])).values():
        assert sums.dtype == np.float64
        assert sums.shape[1] == 2
        assert not sums.any()


def test_non_negative_least_squares_agree_with_scipys():
    rng = np.random.default_rng(3)
    A = rng.normal(size=(40, 12, 3))
    b = rng.normal(size=12)
    A[0], A[1] = np.abs(A[0]), -np.abs(A[1]) * np.abs(b[:, None])
    found, misfit = census.non_negative(A, b)
    wanted = [nnls(each, b) for each in A]
    np.testing.assert_allclose(found, [x for x, _ in wanted], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(misfit, [left for _, left in wanted], rtol=1e-12)
    assert np.count_nonzero(found, axis=1).min() == 0  # some clamped, some free
    assert np.count_nonzero(found, axis=1).max() == 3
