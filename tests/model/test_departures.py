"""What is said of a client's departure."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp.model.departures import Departure, in_words

SD = (2.0, 1.0, 3.0)


@pytest.mark.parametrize(
    ("probability", "verdict"),
    [
        (0.96, "departs"),
        (0.94, "may depart"),
        (0.51, "may depart"),
        (0.49, "no sign of departing"),
        (0.06, "no sign of departing"),
        (0.04, "does not depart"),
    ],
)
def test_claims_are_made_at_95_percent(probability, verdict):
    found = Departure(0.5, 0.1, 2.0, *SD, float(np.log(probability / (1 - probability))))
    assert found.verdict == verdict
    assert found.probability == pytest.approx(probability)
    assert found.odds == pytest.approx(probability / (1 - probability))


def test_odds_are_told_as_people_say_them():
    told = [
        Departure(1.0, 0.5, 2.0, *SD, v).odds_in_words for v in (np.log(4.2), -np.log(30), 900.0)
    ]
    assert told == ["4.2 to 1 for", "30 to 1 against", "over 1000 to 1 for"]


def test_the_summary_counts_clients_and_names_the_one_that_departs_most():
    sure, unclear = Departure(3.0, 1.0, 9.0, *SD, 8.0), Departure(0.1, 0.001, 1.0, *SD, -1.0)
    assert in_words({}) is None
    assert in_words({"a": unclear, "b": sure, "c": unclear}) == (
        "of 3 clients, 1 departs, 2 show no sign of it; 'b' departs most, φ = 3 (1 to 9)"
    )
