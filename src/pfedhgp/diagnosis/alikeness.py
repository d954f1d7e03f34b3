"""Whether neighbouring cycles of a class are alike, as cycles of one run are: their lag-one correlation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pfedhgp.errors import warn

DEPENDENT, CLEAR = 0.2, 3.0
"""A lag-one correlation above this, and above so many standard errors, is said."""


def lag_one(found: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> tuple[float, int]:
    """The correlation of neighbouring cycles of a class about its mean, and over how many pairs."""
    above, below, pairs = 0.0, 0.0, 0
    scale = found.std(axis=0)
    for k in np.unique(labels):
        mine = found[labels == k] / np.where(scale > 0, scale, 1.0)
        gaps = mine - mine.mean(axis=0)
        above += float(np.sum(gaps[1:] * gaps[:-1]))
        below += float(np.sum(gaps**2)) * (len(gaps) - 1) / max(len(gaps), 1)
        pairs += max(len(gaps) - 1, 0)
    return (above / below if below > 0 else 0.0), pairs


def warn_of_alikeness(rho: float, pairs: float, *, stacklevel: int = 2) -> None:
    """Says so if a lag-one correlation over so many pairs is large and no accident."""
    if rho > DEPENDENT and rho > CLEAR / np.sqrt(max(pairs, 1)):
        warn(
            f"neighbouring cycles of a class are alike (lag-one correlation {rho:.2f}), as cycles of one run "
            "are: name the run of each cycle (`block`), or probabilities will be too sure",
            stacklevel=stacklevel,
        )
