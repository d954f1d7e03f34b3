"""Records of results.json: a metric's mean over runs with its 95% interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import t as student

from pfedhgp.studies.common.provenance import MADE

Record = dict[str, Any]
ANY = (-np.inf, np.inf)
POSSIBLE = {"coverage": (0.0, 1.0), "correlation": (-1.0, 1.0)}
POSSIBLE |= dict.fromkeys(("rmse", "crps", "coverr", "width", "ece"), (0.0, np.inf))
"""Ranges of metrics that have ends: an interval does not reach beyond."""


def interval(
    values: Sequence[float], within: tuple[float, float] = ANY
) -> tuple[float, list[float | None]]:
    """Mean and its 95% interval by Student's t over runs, cut at what is possible; one run has none.

    >>> interval([0.9, 1.0, 1.0], within=(0.0, 1.0))[1][1]
    1.0
    """
    array = np.asarray(values, np.float64)
    mean = float(array.mean())
    if len(array) < 2:
        return mean, [None, None]
    reach = float(student.ppf(0.975, len(array) - 1) * array.std(ddof=1) / np.sqrt(len(array)))
    low, high = within
    return mean, [max(mean - reach, low), min(mean + reach, high)]


def possible(metric: str) -> tuple[float, float]:
    """The range of a metric."""
    return POSSIBLE.get(metric, ANY)


def record_of(
    scenario: str,
    model: str,
    metric: str,
    values: Sequence[float],
    within: tuple[float, float] = ANY,
) -> Record:
    """Mean and 95% interval of a metric over runs, as one record of results.json."""
    mean, ci95 = interval(values, within)
    return {
        "scenario": scenario,
        "model": model,
        "metric": metric,
        "mean": mean,
        "ci95": ci95,
        "runs": len(values),
    }


def with_interval(found: Record, form: str) -> str:
    """A mean as a table shows it, with its interval in brackets if there is one."""
    low, high = found["ci95"]
    text = form.format(found["mean"])
    return text if low is None else f"{text} [{form.format(low)}, {form.format(high)}]"


def measured(found: Sequence[Record]) -> list[str]:
    """A row's metrics. Seconds are wall time: on a GPU runs are a batch, and they are no run's own."""
    names = list(found[0]["metrics"]) if found else []
    if any((run.get(MADE) or {}).get("device") == "gpu" for run in found):
        names = [name for name in names if name != "seconds"]
    return names
