"""The attack on a start's messages: it finds the rows of small clients."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp.attacks import reconstruction
from pfedhgp.attacks.reconstruction import reconstructed, score, slopes_at, statistics_at
from support.overheard import overhear, wavy_rows


def found(heard):
    return score((heard.x, heard.y), *reconstructed(heard.answers, heard.places))


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_attacker_computes_what_a_client_sends(outputs):
    """All but the rows is public: at the true rows, the attacker's U and y are the client's own."""
    (heard, *_) = overhear(wavy_rows(3, 24, outputs), inducing=8)
    for each in heard.answers:
        U, W = statistics_at(each, heard.x)
        np.testing.assert_allclose(U, each.U, atol=1e-6 * np.abs(each.U).max())
        np.testing.assert_allclose(W.T @ heard.y.ravel(), each.y, atol=1e-6 * np.abs(each.y).max())


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_slopes_of_the_statistics(outputs):
    """Against differences of the statistics themselves."""
    (heard, *_) = overhear(wavy_rows(2, 12, outputs), inducing=6)
    each, x = heard.answers[0], heard.x
    slopes, step = slopes_at(each, x, statistics_at(each, x)[1]), 1e-5
    for i in (0, 7):
        moved = step * (np.arange(len(x)) == i)
        ends = [statistics_at(each, x + sign * moved)[0] for sign in (1.0, -1.0)]
        expected = (ends[0] - ends[1]) / (2.0 * step)
        np.testing.assert_allclose(slopes[i], expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.slow
def test_the_rows_come_back():
    """The test of the test: 60 rows, default settings, and nothing but messages."""
    for heard in overhear(wavy_rows(3, 60, 1))[:2]:
        assert len(heard.answers) == 3, "starts are compared"
        before = score((heard.x, heard.y), heard.places)
        after = found(heard)
        assert before.close < 0.5
        assert after.close > 0.95
        assert after.error < 1e-7
        assert after.explained > 0.99


def test_scores_are_by_place_in_the_order_of_the_inputs():
    x, y = np.array([0.5, 0.1, 0.9]), np.array([[1.0], [2.0], [3.0]])
    near = reconstruction.score((x, y), np.array([0.1005, 0.9, 0.52]), y[[1, 2, 0]])
    assert (near.close, near.explained) == (2 / 3, 1.0)
    assert near.error == pytest.approx(5e-4)
