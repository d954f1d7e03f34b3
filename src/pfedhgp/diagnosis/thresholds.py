"""How surprising a known cycle, or a known run, may be: thresholds of "none of these"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def thresholds_of(own: FloatArray, false_alarms: float) -> tuple[float, ...]:
    """The threshold of each kind of surprise (C, V), of cycles or of runs under their own class."""
    shares, shortest = _shares(own, false_alarms), median_tail(own)
    return tuple(quantile(view, share, shortest) for view, share in zip(own.T, shares, strict=True))


def largest_of_runs(own: FloatArray, runs: Sequence[object]) -> FloatArray:
    """The largest surprise of each run (B, V): what a false alarm in any of its cycles takes."""
    _, place = np.unique([str(run) for run in runs], return_inverse=True)
    out = np.full((int(place.max()) + 1, own.shape[1]), -np.inf)
    np.maximum.at(out, place, np.where(np.isfinite(own), own, -np.inf))
    return np.where(np.isneginf(out), np.nan, out)


MANY_RUNS = 40
"""With so many runs distances are extrapolated; with fewer, smaller powers of them, which reach further."""


def limits_of_ratios(ratio: FloatArray, false_alarms: float) -> FloatArray:
    """The limit of each kind of dᵀΣ⁻¹d/N, (V,), from the largest of each run (B, V).

    How runs differ is estimated from runs: with few of them the ratio has the long tail of an F
    distribution. So `quantile` extrapolates (d²/N)^λ with λ = ½ if there are `MANY_RUNS`, and λ near 0, as
    for logarithms, if there are few.
    """
    power = 0.5 * min(len(ratio) / MANY_RUNS, 1.0)
    found = np.asarray(thresholds_of(ratio**power, false_alarms))
    return np.asarray(found ** (1.0 / power))


def limits_of_runs(
    ratio: FloatArray, freedom: FloatArray, false_alarms: float
) -> tuple[float, ...]:
    """The same as thresholds of surprise, (dᵀΣ⁻¹d − N)/√(2N) with N = `freedom` (V,)."""
    there = freedom > 0  # a kind that no cycle has gets no threshold
    limits = np.where(there, limits_of_ratios(ratio, false_alarms), np.inf)
    return tuple(
        np.where(there, (limits - 1.0) * np.sqrt(np.where(there, 0.5 * freedom, 1.0)), np.inf)
    )


def _shares(own: FloatArray, false_alarms: float) -> FloatArray:
    """The share of `false_alarms` of each kind of surprise (C, V); 0 for one that no cycle has."""
    weights = np.asarray(np.any(np.isfinite(own), axis=0), np.float64)
    if weights[0] and weights[1:].any():
        weights[0] = weights[1:].sum()
    return np.asarray(false_alarms * weights / weights.sum())


def median_tail(own: FloatArray) -> float:
    """The median over kinds of the mean excess β with which `quantile` extrapolates; 0 without cycles.

    With few held-out cycles each β is uncertain, and one that is too small by chance alarms too often.
    """
    sorted_views = [np.sort(view[np.isfinite(view)]) for view in own.T]
    found = [_excess_of_largest(seen)[1] for seen in sorted_views if len(seen) > 1]
    return float(np.median(found)) if found else 0.0


def _excess_of_largest(seen: FloatArray) -> tuple[int, float, float]:
    """k, β and u: the k = n/20 largest of n sorted values exceed the one before them, u, by β on average."""
    n = len(seen)
    k = min(max(n // 20, 5), n - 1)
    base = float(seen[n - k - 1])
    return k, float(np.mean(seen[n - k :] - base)), base


def quantile(values: FloatArray, share: float, shortest: float = 0.0) -> float:
    """The value that one more draw exceeds with probability at most `share`; infinite without values.

    Above the largest of n values the tail is exponential, u + β log(k/(n share)), with β the mean excess of
    the k = n/20 largest over u, at least `shortest`. If six kinds had their largest value as threshold, they
    would alarm 6/(n + 1) of the time.
    """
    seen = np.sort(values[np.isfinite(values)])
    n = len(seen)
    if not n:
        return float("inf")
    place = int(np.ceil((1.0 - share) * (n + 1))) - 1
    if place < n:
        return float(seen[place])
    if n < 2:
        return float(seen[-1])
    k, mean, base = _excess_of_largest(seen)
    extrapolated = base + max(mean, shortest) * np.log(k / (n * share))
    return float(max(seen[-1], extrapolated))
