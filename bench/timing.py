"""Competitors timed in turns, so that a busy machine slows all of them alike, and medians of that."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Timed = Callable[[], float]
"""A competitor: it runs once and returns the seconds that count."""
_clock = [time.perf_counter]


def now() -> float:
    """Seconds by the clock, or of processor time."""
    return _clock[0]()


def by_processor() -> None:
    """Counts processor time from here on: for busy machines, where competitors must have one thread."""
    _clock[0] = time.process_time


def timed(function: Callable[[], object], before: Callable[[], object] | None = None) -> Timed:
    """`function` as a competitor; `before` runs first and does not count."""

    def run() -> float:
        if before is not None:
            before()
        start = now()
        function()
        return now() - start

    return run


def in_turns(
    competitors: dict[str, Timed], *, seconds: float, least: int = 5, burst: int = 4
) -> dict[str, np.ndarray]:
    """Seconds of each competitor, taking turns for about `seconds` and at least `least` rounds.

    A turn is a pause, in which another's idle threads stop spinning, a run that does not count, and
    up to `burst` runs that do (one, where runs are long; a run of a second or more counts itself).
    """
    times: dict[str, list[float]] = {name: [] for name in competitors}
    for run in competitors.values():
        run()
    names, rounds, end = list(competitors), 0, time.perf_counter() + seconds
    while time.perf_counter() < end or rounds < least:
        for name in names:
            time.sleep(0.003)
            first = competitors[name]()
            if first >= 1.0:  # caches are warm after a thousandth of it
                times[name].append(first)
                continue
            count = burst if first < 0.02 else 1
            times[name] += [competitors[name]() for _ in range(count)]
        names = [*names[1:], names[0]]  # nobody always follows the same neighbour
        rounds += 1
    return {name: np.array(found) for name, found in times.items()}


class Summary(NamedTuple):
    """The median, and the tenth percentile: what a less busy machine would show."""

    median: float
    quiet: float


def summarise(times: dict[str, np.ndarray]) -> dict[str, Summary]:
    """Median and tenth percentile of each competitor's seconds."""
    return {
        name: Summary(float(np.median(found)), float(np.percentile(found, 10)))
        for name, found in times.items()
    }


def ratio(slow: Summary, fast: Summary) -> Summary:
    """How many times `slow` takes what `fast` takes."""
    return Summary(slow.median / fast.median, slow.quiet / fast.quiet)


def slope(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The exponent p of the straight line seconds ∝ size^p through the points on log-log paper."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
