"""Fixed point in Z_2⁶⁴: sums are exact to 2^−f a site, and wrap around without harm."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfedhgp.errors import NumericsError
from pfedhgp.federation.masks.fixed_point import bound_of, decoded, encoded, places


@pytest.mark.parametrize(
    ("sites", "bound", "expected"),
    [(1, 1.0, 32), (2, 2.0**29, 32), (2, 2.0**30, 31), (3, 2.0**30, 30), (100, 2.0**37, 18)],
)
def test_the_number_of_places(sites, bound, expected):
    assert places(sites, bound) == expected
    assert sites * bound * 2.0 ** places(sites, bound) <= 2.0**62


def test_numbers_that_cannot_be_summed_have_no_places():
    with pytest.raises(ValueError, match="do not fit"):
        places(100, 2.0**60)


@given(seed=st.integers(0, 2**32 - 1), sites=st.integers(3, 100))
def test_a_sum_is_the_plain_sum_to_the_last_place(seed, sites):
    rng = np.random.default_rng(seed)
    shapes = {"noise": (2, 2), "U": (5,), "evidence": (), "other 1.noise": (1, 1)}
    size = {name: bound_of(name, sites) for name in shapes}
    replies = [
        {
            n: rng.uniform(-1, 1, s) * size[n] * 2.0 ** -rng.integers(0, 60)
            for n, s in shapes.items()
        }
        for _ in range(sites)
    ]
    total = np.sum([encoded(reply, shapes, sites) for reply in replies], axis=0, dtype=np.uint64)
    found = decoded(total, shapes, sites)
    assert list(found) == list(shapes)
    for name in shapes:
        exact = np.vectorize(math.fsum, signature="(n)->()")(
            np.stack([reply[name] for reply in replies], axis=-1)
        )
        step = 2.0 ** -places(sites, size[name])
        np.testing.assert_allclose(found[name], exact, rtol=1e-15, atol=0.5 * sites * step)


def test_whole_numbers_are_exact_and_signs_survive():
    shapes = {"rows": (3,)}
    values = np.array([1.0, -7.0, 2.0**34])
    total = sum(encoded({"rows": values}, shapes, 3) for _ in range(3)).astype(np.uint64)
    np.testing.assert_array_equal(decoded(total, shapes, 3)["rows"], 3.0 * values)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**38, -(2.0**38)])
def test_what_does_not_fit_is_refused_by_name(bad):
    with pytest.raises(NumericsError, match="`U`"):
        encoded({"U": np.array([0.0, bad])}, {"U": (2,)}, 5)


def test_a_total_of_another_length_is_refused():
    with pytest.raises(ValueError, match="3 numbers where 2"):
        decoded(np.zeros(3, np.uint64), {"U": (2,)}, 5)


def test_other_starts_have_the_bounds_of_their_fields():
    assert bound_of("other 2.noise", 8) == bound_of("noise", 8) == 2.0**27
    assert bound_of("first.T", 8) == bound_of("T", 8) == 2.0**33


@pytest.mark.parametrize("sites", [3, 10, 99, 100])
def test_totals_are_right_to_a_millionth(sites):
    """Half a step a site, in the coarser of the two kinds of fields."""
    assert 0.5 * sites * 2.0 ** -places(sites, bound_of("U", sites)) < 1e-6
    assert places(sites, bound_of("noise", sites)) == 32
