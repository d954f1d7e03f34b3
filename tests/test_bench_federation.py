"""The arithmetic of the federation's bench, on records whose answer can be seen."""

from __future__ import annotations

import pytest
from bench.federation import ROUNDS, costs, row


def entry(kind, seconds, own, *, up=15_000, down=7_200):
    """A line of a participation log: two sites, whose own work took `own`."""
    return {
        "kind": kind,
        "seconds": seconds,
        "site_seconds": dict(zip("ab", own, strict=True)),
        "counted": ["a", "b"],
        "bytes_up": up,
        "bytes_down": down,
    }


LOG = [
    entry(
        "census", 9.0, (8.0, 1.0), up=10**9, down=10**9
    ),  # once a run: not in any round's figures
    entry("start", 30.0, (29.0, 3.0)),
    entry("round", 2.5, (0.5, 0.25)),
    entry("round", 2.25, (0.125, 0.25)),
    entry("round", 9.0, (0.25, 5.0), up=16_000),  # slow because of a site's own work
]


def test_a_round_costs_what_is_left_without_its_slowest_site():
    """Medians of (2, 2, 4) beside and of (0.5, 0.25, 5) of own work; the rest of 60 s happens once."""
    assert costs((LOG, 60.0)) == (2.0, 0.5, 60.0 - 3 * 2.5)


def test_the_row_of_the_table():
    again = [entry("round", 1.75, (0.25, 0.25))] * 2
    empty = [4.0, 100.0, 3.0, 4.0]  # one of them was disturbed
    cells, ratio = row(empty, (LOG, 60.0), (again, 23.5))
    spread = 2.0 + 52.5 / ROUNDS
    later = (1.5 + (23.5 - 2 * 1.75) / ROUNDS) / 4.0
    assert (spread, later) == (4.625, 0.625), "by hand, for 20 rounds"
    figures = ["4.0", "2.0", "0.50", "52", "4.6", "1.16", "20", "0.62", "0.50", "8.0", "3.6"]
    assert cells == figures
    assert ratio == pytest.approx(4.625 / 4.0)


def test_the_ratio_is_the_larger_of_the_two():
    """A run whose rounds overlap what happens once, by rounding of clocks, hides no costly round."""
    log = [entry("round", 8.0, (0.0, 0.0))] * 4
    _, ratio = row([4.0], (log, 31.0), (log, 31.0))
    assert ratio == 2.0
