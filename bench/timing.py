"""Competitors timed in turns, so that a busy machine slows all of them alike, and medians of that."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

Timed = Callable[[], float]
"""A competitor: it runs once and returns the seconds that count."""


def timed(function: Callable[[], object], before: Callable[[], object] | None = None) -> Timed:
    """`function` as a competitor; `before` runs first and does not count."""

    def run() -> float:
        if before is not None:
            before()
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    return run


def in_turns(
    competitors: dict[str, Timed], *, seconds: float, least: int = 7, warmup: int = 3
) -> dict[str, np.ndarray]:
    """Seconds of each competitor, one after the other, again and again for `seconds` in all."""
    for run in competitors.values():
        for _ in range(warmup):
            run()
    times: dict[str, list[float]] = {name: [] for name in competitors}
    end = time.perf_counter() + seconds
    names = list(competitors)
    while time.perf_counter() < end or len(times[names[0]]) < least:
        for name in names:
            times[name].append(competitors[name]())
        names = [*names[1:], names[0]]  # nobody always follows the same neighbour
    return {name: np.array(found) for name, found in times.items()}


def medians(times: dict[str, np.ndarray]) -> dict[str, float]:
    """The median seconds of each competitor."""
    return {name: float(np.median(found)) for name, found in times.items()}


def slope(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The exponent p of the straight line seconds ∝ size^p through the points on log-log paper."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
