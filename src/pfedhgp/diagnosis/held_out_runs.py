"""Folds of whole runs, and what models that never saw a run say about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median_low

import numpy as np
import numpy.typing as npt

from pfedhgp.diagnosis.candidates import Candidate, log_density, metrics
from pfedhgp.diagnosis.cycle_metric import CycleMetric, without_the_wildest
from pfedhgp.diagnosis.run_layers import Layers
from pfedhgp.diagnosis.run_sums import RunSums, sums_of_runs

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
FOLDS, FEWEST_FOLDS = 7, 3
WORKERS = 2


@dataclass(frozen=True, eq=False)
class Cycles:
    """Training cycles in coordinates, with their classes, runs and folds."""

    found: FloatArray
    """(C, D)"""
    outside: FloatArray
    """(C, Q)"""
    labels: IntArray
    runs: tuple[str, ...]
    folds: IntArray
    """−1 for a class's only run, which is never held out"""
    classes: int
    channels: int
    own: bool
    filled: tuple[tuple[FloatArray, IntArray], ...] = ()
    """for cycles that lacked samples, see `sums_of_runs`"""

    def sums(self, which: npt.NDArray[np.bool_] | None = None) -> RunSums:
        """Sums over some cycles, by default all."""
        at = np.arange(len(self.labels)) if which is None else np.flatnonzero(which)
        place = np.full(len(self.labels), -1)
        place[at] = np.arange(len(at))
        filled = [(V, place[members][place[members] >= 0]) for V, members in self.filled]
        return sums_of_runs(
            self.found[at],
            self.outside[at],
            self.labels[at],
            [self.runs[c] for c in at],
            classes=self.classes,
            own=self.own,
            filled=filled,
        )

    @property
    def weights(self) -> FloatArray:
        """1/n_b for each cycle: every run weighs the same."""
        _, place, n = np.unique(self.run_keys, return_inverse=True, return_counts=True)
        return np.asarray(1.0 / n[place])

    @property
    def run_keys(self) -> list[str]:
        """A name for the run of each cycle, which no run of another class has."""
        return [f"{k}/{run}" for k, run in zip(self.labels, self.runs, strict=True)]


def even_folds(runs: Sequence[int], most: int = FOLDS) -> int:
    """How many folds: at most as many as the typical class has runs, so that each holds out a run of it.

    If a fold lacks a class, that class's mean is of more runs than those of the others, and nearer to cycles
    that are not its own: a covariance that is badly known can see which classes a fold holds out. But with
    fewer folds, models are judged that learned from fewer runs. So one class with few runs among others with
    many does not decide, and classes with fewer than three have no say: the median of the others does.

    >>> even_folds([4, 4, 9, 1, 2]), even_folds([30, 20, 3])
    (4, 7)
    """
    told = [int(n) for n in runs if n >= FEWEST_FOLDS]
    return min(most, median_low(told)) if told else most


def folds_of_runs(
    labels: Sequence[str], runs: Sequence[str], *, folds: int = FOLDS, seed: int = 0
) -> IntArray:
    """The fold of each cycle, at most `folds`: runs are dealt out whole, those of a class in turn.

    A class never loses all its runs to one fold, and a class with one run is not held out (−1). Classes
    start at different folds, so that few runs a class are not all held out at once. The folds depend on the
    names of classes and runs, and not on the order of cycles.
    """
    names, owners = np.asarray([str(v) for v in labels]), np.asarray([str(v) for v in runs])
    rng, start = np.random.default_rng(seed), 0
    folds = even_folds([len(np.unique(owners[names == name])) for name in np.unique(names)], folds)
    out = np.full(len(names), -1)
    for name in np.unique(names):
        mine = names == name
        different = np.unique(owners[mine])
        if len(different) < 2:
            continue
        order = rng.permutation(len(different))
        place = {different[b]: (start + i) % folds for i, b in enumerate(order)}
        out[mine] = [place[run] for run in owners[mine]]
        start = (start + len(different)) % folds
    return out


def over_folds(cycles: Cycles, judge: Callable[[RunSums, Layers, IntArray], None]) -> None:
    """Calls `judge(sums, layers, members)` for each fold, with the sums of all other runs."""
    total = cycles.sums()

    def one(fold: int) -> None:
        held = cycles.folds == fold
        rest = total - cycles.sums(held)
        judge(rest, Layers.of(rest, cycles.channels), np.flatnonzero(held))

    with ThreadPoolExecutor(WORKERS) as pool:
        for _ in pool.map(one, np.unique(cycles.folds[cycles.folds >= 0]).tolist()):
            pass


@dataclass(frozen=True, eq=False)
class Held:
    """What models that never saw a cycle's run say about it, under one covariance."""

    square: FloatArray
    """dᵀΣ⁻¹d, (C, K)"""
    given: FloatArray
    """each channel given the others, (C, K, Q)"""
    log_det: FloatArray
    """log|Σ|, (C, K)"""
    towards: FloatArray
    """the part of d² in the directions between class means, (C, K, 1 + K): of all classes, then without
    each in turn"""
    directions: FloatArray
    """how many those are, (1 + K,)"""
    lengths: FloatArray
    """coordinates of each channel, (Q,)"""
    grown: FloatArray
    """what Σ is multiplied by for the runs that a class's mean is of, (C, K)"""
    of_run: FloatArray
    """dᵀΣ⁻¹d of the mean of the cycle's run, under its own class, (C,)"""

    @staticmethod
    def nothing(cycles: int, classes: int, lengths: FloatArray) -> Held:
        """Zeros (ones for `grown`), to be filled fold by fold."""
        C, K, Q = cycles, classes, len(lengths)
        sizes = ((C, K), (C, K, Q), (C, K), (C, K, 1 + K), (1 + K,))
        square, given, log_det, towards, directions = (np.zeros(size) for size in sizes)
        ones, nothing = np.ones((C, K)), np.zeros(C)
        return Held(square, given, log_det, towards, directions, lengths, ones, nothing)

    def density(self, *, heavy: bool) -> FloatArray:
        """ℓ, (C, K)."""
        square, given = self.square / self.grown, self.given / self.grown[:, :, None]
        robust = without_the_wildest(square, given, self.lengths)
        size = int(self.lengths.sum())
        return log_density(robust, self.log_det + size * np.log(self.grown), size, heavy=heavy)


def held_out(cycles: Cycles, shapes: Sequence[Candidate]) -> dict[Candidate, Held]:
    """Every cycle under each covariance, by models that never saw its run; zero if it is never held out."""
    C, K, Q = len(cycles.labels), cycles.classes, cycles.channels
    lengths = np.full(Q, float(cycles.found.shape[1] // Q))

    out = {shape: Held.nothing(C, K, lengths) for shape in shapes}

    def judge(sums: RunSums, layers: Layers, members: IntArray) -> None:
        for shape, held in out.items():
            each = list(metrics(shape, layers, sums))
            write_fold(held, each, cycles, layers.means, members)

    over_folds(cycles, judge)
    return out


def write_fold(
    held: Held,
    found: Sequence[CycleMetric],
    data: Cycles,
    means: FloatArray,
    members: IntArray,
) -> None:
    """Writes what these metrics say about the cycles of one fold into `held`."""
    K, cycles, labels = len(means), data.found[members], data.labels[members]
    keys = [data.run_keys[c] for c in members]
    _, run, length = np.unique(keys, return_inverse=True, return_counts=True)
    of_runs = np.zeros((len(length), cycles.shape[1]))
    np.add.at(of_runs, run, cycles / length[run][:, None])
    for at, metric in enumerate(found):
        own = slice(None) if len(found) == 1 else slice(at, at + 1)
        held.square[members, own], held.given[members, own] = metric.distances(cycles, means[own])
        whole, _ = metric.distances(of_runs, means[own])
        mine = np.arange(K)[own][None] == labels[:, None]
        held.of_run[members] += np.sum(np.where(mine, whole[run], 0.0), axis=1)
        held.log_det[members, own] = metric.log_det
        if metric.grown is not None:
            held.grown[members] = metric.grown
        for j in range(-1, K):
            rest = np.asarray([k for k in range(K) if k != j])
            if len(rest) > 1:
                towards, count = metric.towards(cycles, means[rest])
                full = np.zeros((len(members), K))
                full[:, rest] = towards
                held.towards[members, own, 1 + j] = full[:, own]
                held.directions[1 + j] = max(held.directions[1 + j], count.max())
