"""Centre and unit of each channel, from sums over sites: what `Coordinates` are made with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pfedhgp.diagnosis.alikeness import warn_of_alikeness
from pfedhgp.diagnosis.odd_channels import STILL
from pfedhgp.diagnosis.training import without_gaps
from pfedhgp.errors import InputError, warn

FloatArray = npt.NDArray[np.float64]


def curves_of(seen: FloatArray, total: FloatArray, grid: FloatArray) -> FloatArray:
    """The mean curve of each class and channel, (K, Q, n).

    A sample that a class never has is everyone's, and one that nobody has lies between its neighbours.
    """
    out = np.zeros_like(total)
    everyone, count = total.sum(axis=0), seen.sum(axis=0)
    for q in range(total.shape[1]):
        if not count[q].any():
            continue
        overall = np.where(count[q] > 0, everyone[q] / np.maximum(count[q], 1.0), np.nan)
        overall = without_gaps(overall, grid)
        own = total[:, q] / np.maximum(seen[:, q], 1.0)
        out[:, q] = np.where(seen[:, q] > 0, own, overall)
    return out


def units_of(
    seen: FloatArray, curves: FloatArray, gaps: FloatArray, squares: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """(unit of each channel, whether it moves): the standard deviation about the class's mean.

    If cycles of a class never differ, it is that of all values.
    """
    count = np.maximum(seen.sum(axis=(0, 2)), 1.0)
    unit = np.sqrt(gaps / count)
    mean = np.sum(seen * curves, axis=(0, 2)) / count
    apart = np.sum(seen * (curves - mean[:, None]) ** 2, axis=(0, 2)) / count
    unit = np.where(unit > 0.0, unit, np.sqrt(apart))
    size = np.sqrt(squares / count)
    return unit, np.asarray(unit > STILL * size, np.float64)


def warn_of_still(used: FloatArray, seen: FloatArray, channels: Sequence[str]) -> None:
    """Names the channels that are left out; refuses if there is no other."""
    for q in np.flatnonzero(used == 0.0).tolist():
        what = "is constant" if seen[:, q].any() else "has no values"
        name = channels[q] if channels else str(q)
        warn(f"channel {name!r} {what} in the training cycles: it is left out", stacklevel=6)
    if not used.any():
        raise InputError("every channel is constant: nothing tells classes apart")


def warn_of_neighbours(sums: Mapping[str, np.ndarray], unit: FloatArray, used: FloatArray) -> None:
    """Says when neighbouring cycles of a class are alike, at sites that do not name runs."""
    moves = used > 0
    above, below = (
        np.sum(sums[name][moves] / unit[moves] ** 2) for name in ("neighbours", "alike")
    )
    if below > 0:
        warn_of_alikeness(float(above / below), float(sums["pairs"]), stacklevel=6)
