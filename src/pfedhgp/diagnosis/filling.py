"""Training cycles that lack samples: what they are expected to be, and how uncertain that is.

    t = L c + noise,   E[c | t] = f + G (t − L f),   V = Σ − G L Σ,   G = Σ Lᵀ (L Σ Lᵀ + noise)⁻¹

The sums over runs then have E[c] and V (the E-step of EM). f is the mean of the cycle's run and Σ the
covariance within runs; a cycle that is a run of its own has its class's mean, and Σ of a new run. The first
guess is the mean curve and, of what the cycle is away from it, a line between the samples that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from pfedhgp.diagnosis.coordinates import Coordinates, interpolation
from pfedhgp.diagnosis.run_layers import Layers
from pfedhgp.diagnosis.run_sums import RunSums
from pfedhgp.inference.cycles.incomplete import groups_of

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
STEPS = 2
PATTERNS = 40
"""With more patterns of missing samples, the first guess is what counts: each pattern has a factor."""


@dataclass(frozen=True, eq=False)
class Filled:
    """Coordinates of all cycles, what is outside of them, and V with its cycles (see `sums_of_runs`)."""

    found: FloatArray
    outside: FloatArray
    spread: tuple[tuple[FloatArray, IntArray], ...] = ()


def guessed(cycles: FloatArray, labels: IntArray, runs: IntArray, grid: FloatArray) -> FloatArray:
    """Cycles (C, Q, n) without NaN: by the means of all, of the class, of the run, and a line."""
    seen = np.isfinite(cycles)
    if seen.all():
        return cycles
    count = np.maximum(seen.sum(axis=0), 1)
    overall = np.where(seen, cycles, 0.0).sum(axis=0) / count
    for q in np.flatnonzero(seen.any(axis=(0, 2)) & ~np.all(np.any(seen, axis=0), axis=1)):
        there = seen[:, q].any(axis=0)  # samples that no cycle has
        overall[q] = interpolation(grid[there], grid) @ overall[q, there]
    means = np.broadcast_to(overall, cycles.shape)
    return guessed_from(means, cycles, (labels, runs), grid)


def guessed_from(
    first: FloatArray, cycles: FloatArray, levels: Sequence[IntArray], grid: FloatArray
) -> FloatArray:
    """Cycles without NaN: by a first guess (C, Q, n), corrected by the means of each level, and a line."""
    seen, means = np.isfinite(cycles), first.copy()
    for level in (*levels, np.arange(len(cycles))):
        gaps = np.where(seen, cycles - means, 0.0)
        for k in np.unique(level):
            mine = np.flatnonzero(level == k)
            own = seen[mine].sum(axis=0)
            gap = gaps[mine].sum(axis=0) / np.maximum(own, 1)
            means[mine] += _between(gap, own > 0, grid)
    return np.where(seen, cycles, means)


def _between(values: FloatArray, there: npt.NDArray[np.bool_], grid: FloatArray) -> FloatArray:
    """Values (Q, n) where they are there, lines between them elsewhere; 0 for a channel without any."""
    out = np.zeros_like(values)
    for q, seen in enumerate(there):
        if seen.all():
            out[q] = values[q]
        elif seen.sum() == 1:
            out[q] = values[q, seen]
        elif seen.any():
            out[q] = interpolation(grid[seen], grid) @ values[q, seen]
    return out


def filled(
    space: Coordinates,
    cycles: FloatArray,
    labels: IntArray,
    runs: IntArray,
    sums_of: Callable[[Filled], RunSums],
    *,
    added: int = 0,
) -> Filled:
    """Coordinates of cycles (C, Q, n) with NaN; `sums_of` makes sums of a guess.

    The last `added` classes of the sums have no part in how cycles differ.
    """
    seen = np.isfinite(cycles)
    whole = guessed(cycles, labels, runs, space.grid)
    found = space.of(whole)
    outside = space.outside(whole, found)
    complete = seen.all(axis=(1, 2))
    now = Filled(found, outside)
    if complete.all():
        return now
    if complete.any():
        outside[~complete] = outside[complete].mean(axis=0)
    alone = np.bincount(runs)[runs] == 1
    groups = [
        (there, some, single)
        for there, members in groups_of(seen)
        for single in (False, True)
        if not there.all() and len(some := members[alone[members] == single])
    ]
    for _ in range(STEPS if len(groups) <= PATTERNS else 0):
        sums = sums_of(now)
        layers = Layers.of(sums, space.channels, added=added)
        trained = float(sums.cycles[: layers.trained].sum())
        noise = sums.outside / max(space.outside_freedom * trained, 1.0)
        means = np.where(alone[:, None], layers.means[labels], _means_of(now.found, runs))
        better, spread = now.found.copy(), []
        for there, members, single in groups:
            sigma = layers.covariance("cell", 0.1) if single else layers.within
            view = space.view(space.grid, there)
            half = view.project(sigma)  # Σ Lᵀ
            gain = cho_solve(cho_factor(view.covariance(sigma, noise), lower=True), half.T)
            gaps = view.of(np.where(there, cycles[members], 0.0)) - view.project(means[members])
            better[members] = means[members] + gaps @ gain
            spread.append((sigma - half @ gain, members))
        now = Filled(better, outside, tuple(spread))
    return now


def _means_of(found: FloatArray, runs: IntArray) -> FloatArray:
    """The mean of each cycle's run, (C, D)."""
    total = np.zeros((int(runs.max()) + 1, found.shape[1]))
    np.add.at(total, runs, found)
    return np.asarray((total / np.maximum(np.bincount(runs), 1)[:, None])[runs])
