"""How sure a finding of a few trials is: intervals of shares, of means and of areas under a curve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

Z = NormalDist().inv_cdf(0.975)
DRAWS = 400


@dataclass(frozen=True)
class Measured:
    """A value, and the ends of its 95% interval."""

    value: float
    low: float
    high: float
    trials: int


def share(found: int, trials: int) -> Measured:
    """A share of trials, with Wilson's interval, which is right for few trials and shares near 0 or 1.

    >>> share(0, 20)
    Measured(value=0.0, low=0.0, high=0.161..., trials=20)
    """
    p, n = found / trials, trials
    middle = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z * np.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2)) / (1 + Z**2 / n)
    low, high = max(middle - half, 0.0), min(middle + half, 1.0)
    return Measured(p, 0.0 if not found else float(low), 1.0 if found == n else float(high), n)


def bootstrapped(trials: int, value: Callable[[np.ndarray], float], seed: int = 0) -> Measured:
    """`value` of the numbers of trials, with the interval of its bootstrap."""
    rng = np.random.default_rng(seed)
    drawn = [value(rng.integers(0, trials, trials)) for _ in range(DRAWS)]
    low, high = np.quantile([d for d in drawn if np.isfinite(d)], (0.025, 0.975))
    return Measured(float(value(np.arange(trials))), float(low), float(high), trials)


def beyond(there: np.ndarray, absent: np.ndarray, false: float, seed: int = 0) -> Measured:
    """Share of `there` above the cut that a share `false` of `absent` exceeds.

    The cut is estimated, too: both samples are drawn anew in the bootstrap. Wilson's interval is for those
    that are all above it, or none, where a bootstrap sees no spread.
    """

    def found(one: np.ndarray, two: np.ndarray) -> float:
        return float(np.mean(one > np.quantile(two, 1.0 - false, method="higher")))

    def again(sample: np.ndarray) -> np.ndarray:
        return sample[rng.integers(0, len(sample), len(sample))]

    rng, value = np.random.default_rng(seed), found(there, absent)
    given = share(round(value * len(there)), len(there))
    drawn = [found(again(there), again(absent)) for _ in range(DRAWS)]
    low, high = (float(end) for end in np.quantile(drawn, (0.025, 0.975)))
    return Measured(value, min(low, given.low), max(high, given.high), len(there))


def area(there: np.ndarray, absent: np.ndarray) -> float:
    """Probability that a score of `there` is above one of `absent`; ties count half.

    >>> area(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    gaps = there[:, None] - absent[None, :]
    return float(np.mean((gaps > 0) + 0.5 * (gaps == 0)))
