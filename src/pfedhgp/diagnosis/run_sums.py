"""What a class's cycles say, as sums over its runs: everything that training needs of them.

    y_bc = f_i + g_b + e_c        class, run, cycle, in the coordinates of `Coordinates`

A run (block) is a stretch of cycles under constant conditions. Sums add over sites and over folds.
Training needs nothing else of the data: class means f, the covariance S of run means and W within runs are

    f_i = Σ_b ȳ_b / B_i,   S = Σ_i [Σ_b ȳ_b ȳ_bᵀ − B_i f_i f_iᵀ] / Σ(B_i − 1)
    W = Σ_bc (y_bc − ȳ_b)(y_bc − ȳ_b)ᵀ / Σ(n_b − 1)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RunSums:
    """Sums of K classes in D coordinates. Matrices are one a class (G = K), or of all classes (G = 1).

    Each class that was added later has matrices of its own, behind those.
    """

    runs: FloatArray
    """B, (K,)"""
    cycles: FloatArray
    """Σ_b n_b, (K,)"""
    inverse: FloatArray
    """Σ_b 1/n_b, (K,)"""
    means: FloatArray
    """Σ_b ȳ_b, (K, D)"""
    between: FloatArray
    """Σ_b ȳ_b ȳ_bᵀ, (G, D, D)"""
    within: FloatArray
    """Σ_bc (y_bc − ȳ_b)(y_bc − ȳ_b)ᵀ, (G, D, D)"""
    outside: FloatArray
    """Σ_bc of what the coordinates leave out, squared, (Q,)"""

    def __add__(self, other: RunSums) -> RunSums:
        return RunSums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: RunSums) -> RunSums:
        return RunSums(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    @property
    def own(self) -> bool:
        """Whether each class has matrices of its own."""
        return len(self.between) == len(self.runs) and len(self.runs) > 1

    def pooled(self) -> RunSums:
        """The same with one matrix of all classes."""
        between, within = (part.sum(axis=0, keepdims=True) for part in (self.between, self.within))
        return RunSums(
            self.runs, self.cycles, self.inverse, self.means, between, within, self.outside
        )

    def with_class(self, other: RunSums) -> RunSums:
        """The same with one more class, whose matrices are kept apart. Nothing else changes.

        What the coordinates leave out stays that of the classes of training.
        """
        names = ("runs", "cycles", "inverse", "means", "between", "within")
        parts = {n: np.concatenate([getattr(self, n), getattr(other, n)]) for n in names}
        return replace(self, **parts)

    def as_arrays(self, prefix: str = "") -> dict[str, FloatArray]:
        """As they are sent and stored."""
        return {prefix + f.name: np.asarray(getattr(self, f.name)) for f in fields(self)}

    @staticmethod
    def from_arrays(arrays: Mapping[str, FloatArray], prefix: str = "") -> RunSums:
        """The inverse."""
        return RunSums(*(np.asarray(arrays[prefix + f.name]) for f in fields(RunSums)))


def sums_of_runs(
    found: FloatArray,
    outside: FloatArray,
    labels: IntArray,
    runs: Sequence[str],
    *,
    classes: int,
    own: bool,
    filled: Sequence[tuple[FloatArray, IntArray]] = (),
) -> RunSums:
    """The sums of cycles with coordinates (C, D), classes 0 … K−1 and the run of each.

    A run is of one class: the same name under two classes is two runs. `filled` has, for cycles that lacked
    samples, the covariance V of what was filled in and which cycles these are. Of V, a run of n cycles has
    V/n² in ȳ_b ȳ_bᵀ and the rest, V (1 − 1/n), within.
    """
    D = found.shape[1]
    counts = np.zeros((3, classes))
    means = np.zeros((classes, D))
    between = np.zeros((classes if own else 1, D, D))
    within = np.zeros_like(between)
    names = np.asarray([str(run) for run in runs])
    for k in range(classes):
        mine = np.flatnonzero(labels == k)
        if not len(mine):
            continue
        _, place, n = np.unique(names[mine], return_inverse=True, return_counts=True)
        own_means = np.zeros((len(n), D))
        np.add.at(own_means, place, found[mine])
        own_means /= n[:, None]
        gaps = found[mine] - own_means[place]
        counts[:, k] = len(n), len(mine), np.sum(1.0 / n)
        means[k] = own_means.sum(axis=0)
        at = k if own else 0
        between[at] += own_means.T @ own_means
        if len(mine) > len(n):
            within[at] += gaps.T @ gaps
        length = np.zeros(len(labels))
        length[mine] = n[place]
        for V, members in filled:
            lengths = length[members[labels[members] == k]]
            between[at] += np.sum(lengths**-2.0) * V
            within[at] += np.sum(1.0 - 1.0 / lengths) * V
    B, N, inverse = counts
    return RunSums(B, N, inverse, means, between, within, outside.sum(axis=0))
