"""A class that is added to a trained classifier, from sums over its runs. The other classes stay as they are.

    f_new = mean of its run means,   Σ_new = Σ of the classes of training

S, W, the candidates' weights and temperatures and the thresholds are those of training: between the classes
of before, every cycle has the same log-odds to the last bit. The new class's own sums are kept; covariances
of a class's own use them if it has three runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pfedhgp.base.numerics import one_blas_thread
from pfedhgp.diagnosis.coordinates import Coordinates, interpolation
from pfedhgp.diagnosis.decision import diagnose
from pfedhgp.diagnosis.evidence import Evidence
from pfedhgp.diagnosis.filling import Filled, filled
from pfedhgp.diagnosis.run_classifier import RunClassifier, novelty_of
from pfedhgp.diagnosis.run_sums import RunSums, sums_of_runs
from pfedhgp.errors import InputError

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Added:
    """The classifier with the class, and what is to be said about it."""

    classifier: RunClassifier
    facts: dict[str, Any]
    """name, runs, cycles, and `strange`: how many runs are none of these if they have no part in the mean"""


def with_class(
    classifier: RunClassifier, name: str, cycles: FloatArray, runs: Sequence[object] | None = None
) -> RunClassifier:
    """The classifier with one more class, of cycles (C, Q, n) on its grid, NaN where missing.

    `runs` gives the run of each cycle. Without it every cycle is a run of its own.
    """
    found, owners = _coordinates(classifier, cycles, runs)
    return appended(classifier, name, found, owners)


def added(
    classifier: RunClassifier, name: str, cycles: FloatArray, runs: Sequence[object] | None = None
) -> Added:
    """`with_class`, and how many of the new class's runs would be none of these, each left out in turn."""
    found, owners = _coordinates(classifier, cycles, runs)
    after = appended(classifier, name, found, owners)
    facts: dict[str, Any] = {
        "name": name,
        "runs": len(set(owners)),
        "cycles": len(cycles),
        "strange": _strange(after, found.found, owners),
    }
    return Added(after, facts)


def _coordinates(
    classifier: RunClassifier, cycles: FloatArray, runs: Sequence[object] | None
) -> tuple[Filled, list[str]]:
    """Cycles in the classifier's coordinates, and the run of each."""
    used = cycles[:, list(classifier.used)]
    empty = np.flatnonzero(~np.isfinite(used).any(axis=(1, 2)))
    if len(empty):
        raise InputError(
            f"cycle {empty[0]} has no values: all its samples are missing in the channels that decide"
        )
    used = _with_every_sample(used, classifier.coordinates)
    owners = [str(c) for c in range(len(used))] if runs is None else [str(run) for run in runs]
    number = np.unique(owners, return_inverse=True)[1].reshape(-1)
    labels = np.full(len(used), len(classifier.classes))

    def sums_of(guess: Filled) -> RunSums:
        return classifier.sums.with_class(_own_sums(guess, owners))

    with one_blas_thread():
        more = len(classifier.added) + 1
        found = filled(classifier.coordinates, used, labels, number, sums_of, added=more)
    return found, owners


def _with_every_sample(cycles: FloatArray, space: Coordinates) -> FloatArray:
    """Samples that no cycle has: as far from the mean of all classes as the samples beside them."""
    there = np.asarray(np.any(np.isfinite(cycles), axis=0))
    if there.all():
        return cycles
    out = cycles.copy()
    for q in np.flatnonzero(there.any(axis=1) & ~there.all(axis=1)).tolist():
        gap = np.nanmean(cycles[:, q, there[q]] - space.centre[q, there[q]], axis=0)
        between = np.full(len(space.grid), gap[0])
        if len(gap) > 1:
            between = interpolation(space.grid[there[q]], space.grid) @ gap
        out[:, q, ~there[q]] = (space.centre[q] + between)[~there[q]]
    return out


def _own_sums(found: Filled, owners: Sequence[str]) -> RunSums:
    """The sums of one class."""
    labels = np.zeros(len(owners), np.int64)
    return sums_of_runs(
        found.found, found.outside, labels, owners, classes=1, own=False, filled=found.spread
    )


def appended(
    classifier: RunClassifier, name: str, found: Filled, owners: Sequence[str]
) -> RunClassifier:
    """The classifier with a class whose cycles are given in its coordinates."""
    if name in classifier.classes:
        raise InputError(f"there is a class {name!r} already: choose another name")
    return replace(
        classifier,
        classes=(*classifier.classes, name),
        sums=classifier.sums.with_class(_own_sums(found, owners)),
        added=(*classifier.added, name),
    )


def _strange(classifier: RunClassifier, found: FloatArray, owners: Sequence[str]) -> int | None:
    """How many runs of the last class have a cycle that is none of these if they are left out of its mean.

    None if that cannot be told. Coordinates (C, D) alone are compared, and nothing outside of them.
    """
    calibration = classifier.calibration
    _, place, length = np.unique(owners, return_inverse=True, return_counts=True)
    if len(length) < 2 or calibration.thresholds is None:
        return None
    means = np.zeros((len(length), found.shape[1]))
    np.add.at(means, place, found)
    means /= length[:, None]
    count = 0
    with one_blas_thread():
        shapes = [*reversed(classifier.references)]
        metrics = [classifier.complete(shape) for shape in shapes]
        fewer = replace(classifier, sums=_with_runs(classifier.sums, len(length) - 1))
        wider = [fewer.wider(shape) for shape in shapes]
        for run in range(len(length)):
            mine = found[place == run]
            rest = (means.sum(axis=0) - means[run]) / (len(length) - 1)
            centres = np.concatenate([classifier.layers.means[:-1], rest[None]])
            evidence = None
            for metric, each in zip(metrics, wider, strict=True):
                square, new = novelty_of(
                    metric, mine, centres, each, novelty=True, most=classifier.directions
                )
                lengths = metric[0].lengths.astype(np.int64)
                cells = np.broadcast_to(lengths, (len(mine), len(lengths)))
                nothing = np.zeros_like(square)
                evidence = Evidence(classifier.classes, nothing, square, cells, new, evidence)
            assert evidence is not None
            count += bool(diagnose(evidence, calibration=calibration).none.any())
    return count


def _with_runs(sums: RunSums, count: int) -> RunSums:
    """The same if the last class had so many runs."""
    return replace(sums, runs=np.append(sums.runs[:-1], float(count)))
