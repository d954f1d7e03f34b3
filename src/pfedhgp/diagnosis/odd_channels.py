"""Warnings of channels that a class lacks, has elsewhere, or never moves: it may be known by that alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pfedhgp.errors import warn

FloatArray = npt.NDArray[np.float64]
STILL = 1e-12
"""A channel that moves by less than this, in units of its size, is constant."""


def warn_of_other_grids(
    names: Sequence[str], seen: npt.NDArray[np.bool_], *, stacklevel: int = 2
) -> None:
    """Names the class that lacks most samples that others have; `seen` is (K, Q, n)."""
    there = seen.any(axis=2, keepdims=True)  # a channel that a class never has is another matter
    lacking = np.sum(seen.any(axis=0) & ~seen & there, axis=2).max(axis=1)
    k = int(np.argmax(lacking))
    if lacking[k]:
        warn(
            f"class {names[k]!r} has no values at {lacking[k]} of {seen.shape[2]} samples where other "
            "classes have some: they are filled in",
            stacklevel=stacklevel,
        )


def warn_of_absent_channels(
    names: Sequence[str],
    seen: npt.NDArray[np.bool_],
    channels: Sequence[str],
    *,
    stacklevel: int = 2,
) -> None:
    """Names each channel that a class never has and others have; `seen` is (K, Q, n)."""
    there = seen.any(axis=2)
    for k, q in np.argwhere(~there & there.any(axis=0)).tolist():
        name = channels[q] if channels else str(q)
        warn(
            f"class {names[k]!r} never has channel {name!r}, which others have: it is taken to be as in all "
            "classes there, so new cycles that have it are compared with a guess; leave the channel out",
            stacklevel=stacklevel,
        )


def warn_of_dead_channels(
    cycles: Mapping[str, FloatArray], channels: Sequence[str], *, stacklevel: int = 2
) -> None:
    """Names each channel that is constant in one class and moves in another: perhaps a dead sensor."""
    still = np.zeros((len(cycles), len(channels)), bool)
    for k, Y in enumerate(cycles.values()):
        for q in range(len(channels)):
            own = Y[:, q][np.isfinite(Y[:, q])]
            still[k, q] = len(own) > 1 and float(np.ptp(own)) <= STILL * float(np.abs(own).max())
    names = list(cycles)
    for k, q in np.argwhere(still & ~still.all(axis=0)).tolist():
        warn(
            f"channel {channels[q]!r} is constant in class {names[k]!r} and moves in others: if a sensor was "
            "dead there, the class will be known by it; leave the channel out",
            stacklevel=stacklevel,
        )
