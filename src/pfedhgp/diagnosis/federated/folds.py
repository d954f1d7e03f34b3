"""Folds of whole runs that need no list of runs: a run's place is a hash of its own values.

Each site counts its runs by class and bin of the hash. From the totals everybody knows the fold of each bin,
wherever the run lies and whatever it is called. Runs of a class in one bin share a fold.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pfedhgp.diagnosis.held_out_runs import even_folds

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BINS = 4096


def bin_of_run(cycles: FloatArray, seed: int) -> int:
    """The bin of a run of cycles (C, Q, n), whose order does not matter.

    >>> bin_of_run(np.array([[[1.0]], [[2.0]]]), 0) == bin_of_run(np.array([[[2.0]], [[1.0]]]), 0)
    True
    """
    plain = np.where(np.isnan(cycles), np.nan, cycles + 0.0)  # one NaN, one zero
    each = sorted(hashlib.sha256(np.ascontiguousarray(cycle).tobytes()).digest() for cycle in plain)
    whole = hashlib.sha256(f"{seed}/".encode() + b"".join(each)).digest()
    return int.from_bytes(whole[:8], "big") % BINS


def bins_of_runs(cycles: FloatArray, runs: Sequence[str], labels: IntArray, seed: int) -> IntArray:
    """The bin of each cycle's run."""
    _, place = np.unique(run_keys(labels, runs), return_inverse=True)
    out = np.zeros(len(cycles), np.int64)
    for run in range(int(place.max(initial=-1)) + 1):
        mine = np.flatnonzero(place == run)
        out[mine] = bin_of_run(cycles[mine], seed)
    return out


def run_keys(labels: IntArray, runs: Sequence[str]) -> list[str]:
    """A name for the run of each cycle, which no run of another class has."""
    return [f"{k}/{run}" for k, run in zip(labels, runs, strict=True)]


def folds_of_bins(counts: FloatArray, names: Sequence[str], folds: int) -> FloatArray:
    """The fold of each bin, (K, BINS), from the number of runs there; −1: never held out.

    The bins of a class are dealt out in turn, so it never loses all of them to one fold. There are at most
    `folds` folds, and no more than the typical class has bins (`even_folds`). A class whose runs are in one
    bin is not held out. Classes start at different folds.
    """
    out, start = np.full(counts.shape, -1.0), 0
    folds = even_folds(np.count_nonzero(counts, axis=1).tolist(), folds)
    for k in sorted(range(len(names)), key=lambda k: names[k]):
        there = np.flatnonzero(counts[k])
        if len(there) < 2:
            continue
        out[k, there] = (start + np.arange(len(there))) % folds
        start = (start + len(there)) % folds
    return out
