"""Quantiles over sites: how many values lie in each of many narrow bins, which adds up.

    bin of x: ⌊(log x − low)/width⌋, and values in a bin lie evenly in it

So a quantile is known to the width of a bin: 0.4% for thresholds, 6% for choosing a covariance. Values beyond
the first or last bin count as in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pfedhgp.diagnosis.typical import Typical, matched

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Bins:
    """Bins of equal width in the logarithm."""

    low: float
    high: float
    width: float

    def __len__(self) -> int:
        return round((self.high - self.low) / self.width)

    def count(self, values: FloatArray, weights: FloatArray | None = None) -> FloatArray:
        """How many of (B, V) are in each bin, (V, bins), or their `weights` (B,); NaN are not counted.

        >>> Bins(-1.0, 1.0, 1.0).count(np.array([[0.5], [2.0], [np.nan], [9.0]]))
        array([[1., 2.]])
        """
        seen = np.isfinite(values)
        with np.errstate(divide="ignore"):
            logs = np.log(np.where(seen, np.maximum(values, 0.0), 1.0))
        at = np.clip(np.floor((logs - self.low) / self.width), 0, len(self) - 1).astype(np.int64)
        out = np.zeros((values.shape[1], len(self)))
        for v in range(len(out)):
            mine = None if weights is None else weights[seen[:, v]]
            out[v] = np.bincount(at[seen[:, v], v], mine, minlength=len(self))
        return out

    @property
    def centres(self) -> FloatArray:
        """The value in the middle of each bin."""
        return np.asarray(np.exp(self.low + self.width * (np.arange(len(self)) + 0.5)))

    def values(self, counts: FloatArray) -> FloatArray:
        """Values (B, V) that have these counts, in order; NaN where a kind has fewer.

        >>> Bins(-1.0, 1.0, 1.0).values(np.array([[0.0, 2.0]])).round(3).tolist()
        [[1.284], [2.117]]
        """
        found = []
        for own in counts:
            n = own.astype(np.int64)
            bin_of = np.repeat(np.arange(len(n)), n)
            rank = np.arange(len(bin_of)) - np.repeat(np.cumsum(n) - n, n)
            inside = (rank + 0.5) / np.maximum(n[bin_of], 1)
            found.append(np.exp(self.low + self.width * (bin_of + inside)))
        out = np.full((max((len(each) for each in found), default=0), len(found)), np.nan)
        for v, each in enumerate(found):
            out[: len(each), v] = each
        return out


COARSE, FINE = Bins(-4.0, 16.0, 1.0 / 16.0), Bins(-4.0, 16.0, 1.0 / 256.0)


def typical_of_bins(counts: FloatArray, size: float) -> Typical:
    """From d²/D of held-out runs in fine bins (2, x): of their cycles, and of their means."""
    cycle, run = (matched(FINE.centres[own > 0.0] * size, own[own > 0.0], size) for own in counts)
    return Typical(*cycle, *run)
