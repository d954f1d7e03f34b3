"""Competitors take turns, and long runs are not thrown away."""

from __future__ import annotations

import numpy as np
from bench.timing import in_turns


def counted(seconds: float):
    """A competitor that says it took `seconds`, plus a thousandth for each time before."""
    calls = []

    def run() -> float:
        calls.append(seconds + 0.001 * len(calls))
        return calls[-1]

    return run, calls


def test_a_long_run_counts_itself_and_a_short_one_warms_up():
    long, longs = counted(2.0)
    short, shorts = counted(0.1)
    found = in_turns({"long": long, "short": short}, seconds=0.0, least=3)
    assert len(longs) == 1 + 3  # the first of all is for compiling
    np.testing.assert_allclose(found["long"], longs[1:])
    assert len(shorts) == 1 + 2 * 3
    np.testing.assert_allclose(found["short"], shorts[2::2])


def test_very_short_runs_come_in_bursts():
    run, calls = counted(0.0)
    found = in_turns({"one": run}, seconds=0.0, least=2, burst=4)
    assert len(calls) == 1 + 2 * (1 + 4)
    assert len(found["one"]) == 8
