"""Totals about a public centre give the census that clients' own means give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfedhgp.errors import InputError
from pfedhgp.inference.starts import census, totals


def agreed(clients):
    """Centre and units, from two questions about magnitudes."""
    d, Q = clients[0][0].shape[1], clients[0][1].shape[1]
    known = {"x_centre": np.zeros(d), "y_centre": np.zeros(Q)}
    for _ in range(2):
        asked = [totals.magnitudes(X, Y, known) for X, Y in clients]
        total = {name: sum(each[name] for each in asked) for name in asked[0]}
        units = totals.units_of(total)
        before, known = known, totals.centres_of(total, known)
    return {**before, **units}


def draw(seed: int, offset: float, scale: float):
    rng = np.random.default_rng(seed)
    clients = []
    for i in range(int(rng.integers(3, 7))):
        n = int(rng.integers(1, 30))
        X = offset + scale * rng.normal(i, 1.0, (n, 2))
        Y = offset + scale * rng.normal(-i, 2.0, (n, 3))
        Y[rng.uniform(size=Y.shape) < 0.2] = np.nan
        clients.append((X, Y))
    clients[0][1][:, 0] = np.nan  # this one never saw the first output
    return clients


@given(
    seed=st.integers(0, 10_000),
    offset=st.sampled_from([0.0, 1.0, -1e3, 1e6]),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
)
def test_totals_give_the_merged_census(seed, offset, scale):
    clients = draw(seed, offset, scale)
    known = agreed(clients)
    expected = census.moments(*clients[0])
    for X, Y in clients[1:]:
        expected = census.merged(expected, census.moments(X, Y))
    parts = [totals.moments(X, Y, known) for X, Y in clients]
    assert max(np.max(np.abs(p["x_total"])) for p in parts) <= 30.0  # in units: at most the rows
    found = totals.whole({n: sum(p[n] for p in parts) for n in parts[0]}, known)
    assert set(found) == set(expected) - {"observations"}  # nobody checks totals by site
    for name in ("rows", "y_clients", "y_pairs"):
        np.testing.assert_array_equal(found[name], expected[name])
    size = abs(offset) + scale
    np.testing.assert_allclose(found["x_sum"], expected["x_sum"], rtol=1e-9, atol=1e-8 * scale)
    np.testing.assert_allclose(found["y_mean"], expected["y_mean"], rtol=1e-9, atol=1e-8 * scale)
    atol = 1e-7 * scale**2 + 1e-12 * size * scale
    np.testing.assert_allclose(found["y_cross"], expected["y_cross"], rtol=1e-6, atol=atol)
    x = np.concatenate([X for X, _ in clients])
    np.testing.assert_allclose(
        census.pooled_spread(found), x.std(axis=0), rtol=1e-6, atol=1e-12 * size
    )


def test_magnitudes_are_counts_of_clients():
    X, Y = np.array([[3.0], [5.0]]), np.array([[0.1, np.nan], [-0.2, np.nan]])
    found = totals.magnitudes(X, Y, {"x_centre": np.zeros(1), "y_centre": np.zeros(2)})
    assert np.flatnonzero(found["x_magnitude"][0]) + totals.LOWEST == [3]
    assert np.flatnonzero(found["y_magnitude"][0]) + totals.LOWEST == [-2]
    assert found["x_mantissa"][0].sum() == 0.5
    assert not found["y_magnitude"][1].any()
    np.testing.assert_array_equal(totals.units_of(found)["y_unit"], [0.25, 1.0])


def test_numbers_that_do_not_fit_are_refused():
    known = {"x_centre": np.zeros(1), "y_centre": np.zeros(1)}
    with pytest.raises(InputError, match="rescale"):
        totals.magnitudes(np.array([[1e30]]), np.zeros((1, 1)), known)


def test_sums_by_lag_go_into_units_and_back():
    known = {"y_unit": np.array([2.0, 0.5])}
    sums = {"lag_sum": np.ones((3, 2)), "lag_pairs": np.ones((3, 2))}
    sent = totals.in_units(sums, known)
    np.testing.assert_array_equal(sent["lag_sum"][0], [0.25, 4.0])
    back = totals.in_data_units(sent, known)
    np.testing.assert_array_equal(back["lag_sum"], sums["lag_sum"])
    np.testing.assert_array_equal(sent["lag_pairs"], sums["lag_pairs"])
