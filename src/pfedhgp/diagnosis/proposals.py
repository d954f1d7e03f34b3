"""Candidate new classes among cycles that are "none of these", for a person to name.

    x = Λ^½ (c − f̄),   d² = |x|²                 the distances by which a cycle is called none of these

Units are runs, if runs are known, and single cycles if not. Held-out runs of training say how far a unit may
be from its class (`typical`): d² is about (μ/ν) χ²_ν. Units are compared in the few directions in which they
differ most. Those of U units in D coordinates hold noise of up to (μ/D) (1 + √(D/U))², even if nothing but
noise is there (Marchenko and Pastur). The noise is taken as that, as μ/ν, or as what units of known classes
vary by in this direction, whichever is most. `grouping` finds the groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from pfedhgp.base.numerics import one_blas_thread
from pfedhgp.diagnosis.added_class import appended
from pfedhgp.diagnosis.cycle_metric import CycleMetric
from pfedhgp.diagnosis.decision import Why
from pfedhgp.diagnosis.filling import Filled
from pfedhgp.diagnosis.grouping import grouped
from pfedhgp.diagnosis.reasons import why_of_runs
from pfedhgp.diagnosis.run_classifier import RunClassifier
from pfedhgp.errors import InputError
from pfedhgp.inference.cycles.incomplete import groups_of

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
DIRECTIONS = 20
"""Most directions in which units are compared."""
FREEDOM = 10.0
"""ν for models of older versions, which do not know it."""
MOST = 5000
"""Units that can be grouped: memory grows with their square."""
STRONGEST = 6
"""Stretches that are listed for a proposal."""


@dataclass(frozen=True, eq=False)
class Proposal:
    """A group of cycles that may be a new class."""

    name: str
    """"new 1" is the largest; a person gives it a better one"""
    cycles: tuple[int, ...]
    """which of the cycles that were given"""
    runs: int
    nearest: str
    """the known class whose mean is nearest"""
    central: int
    """the cycle nearest to the group's mean"""
    why: Why
    """what of the central cycle speaks for the group rather than for the nearest class"""
    stretches: tuple[dict[str, Any], ...]
    """where the group differs most: channel, start, end, nats, and `difference`, the group's mean less that
    of the nearest class in the channel's units"""

    def at(self, places: Sequence[int]) -> Proposal:
        """The same, with cycles numbered by their places in a larger set."""
        cycles = tuple(places[c] for c in self.cycles)
        return replace(self, cycles=cycles, central=places[self.central])

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """Counts, names of cycles and differences; no samples."""
        return {
            "name": self.name,
            "cycles": [str(names[c]) for c in self.cycles],
            "runs": self.runs,
            "nearest": self.nearest,
            "central": str(names[self.central]),
            "stretches": list(self.stretches),
        }


@dataclass(frozen=True, eq=False)
class Flagged:
    """Cycles that are none of these: (n, Q) each, with the grid (n, d) of each and its run."""

    grids: tuple[FloatArray, ...]
    cycles: tuple[FloatArray, ...]
    runs: tuple[str, ...] | None

    @property
    def units(self) -> list[str]:
        """What is kept together: the run of each cycle, or each cycle."""
        return [str(c) for c in range(len(self.cycles))] if self.runs is None else list(self.runs)


def propose(
    classifier: RunClassifier, flagged: Flagged, channels: Sequence[str]
) -> tuple[Proposal, ...]:
    """Groups of cycles that may be new classes, the largest first; `channels` names the model's outputs."""
    if not flagged.cycles:
        return ()
    with one_blas_thread():
        found = _coordinates(classifier, flagged)
        units = flagged.units
        names, place, length = np.unique(units, return_inverse=True, return_counts=True)
        if len(names) > MOST:
            raise InputError(
                f"{len(names)} cycles or runs are none of these, and at most {MOST} can be grouped: name "
                "the runs (`block`), or take fewer cycles"
            )
        means = np.zeros((len(names), found.shape[1]))
        np.add.at(means, place, found)
        means /= length[:, None]
        labels = _groups(classifier, means, by_run=bool(length.max() > 1))
        groups = [np.flatnonzero(labels[place] == g) for g in range(int(labels.max()) + 1)]
        groups.sort(key=lambda mine: (-len(mine), int(mine[0])))
        return tuple(
            _described(classifier, flagged, found, mine, name=f"new {place + 1}", channels=channels)
            for place, mine in enumerate(groups)
        )


def _metric(classifier: RunClassifier) -> CycleMetric:
    """Λ of the covariance by which "none of these" goes; that which all classes share."""
    return classifier.complete(replace(classifier.reference, own=False))[0]


def _groups(classifier: RunClassifier, means: FloatArray, *, by_run: bool) -> IntArray:
    """The group of each unit."""
    U, D = means.shape
    mean, freedom = float(D), min(FREEDOM, float(D))
    known = classifier.typical
    if known is not None:
        mean, freedom = (
            (known.run, known.run_freedom) if by_run else (known.cycle, known.cycle_freedom)
        )
    root = np.linalg.cholesky(_metric(classifier).precision)
    x = (means - means.mean(axis=0)) @ root
    left, size, right = np.linalg.svd(x, full_matrices=False)
    edge = (mean / D) * (1.0 + np.sqrt(D / U)) ** 2
    count = int(np.clip(np.sum(size**2 / U > edge), 1, min(DIRECTIONS, U)))
    layers = classifier.layers
    spread = layers.S if by_run else layers.S + layers.share * layers.W
    ways = root @ right[:count].T
    noise = np.maximum(np.einsum("dj,de,ej->j", ways, spread, ways, optimize=True), edge)
    noise = np.maximum(noise, mean / freedom)
    return grouped(left[:, :count] * size[:count] / np.sqrt(noise), 1.0)


def _coordinates(classifier: RunClassifier, flagged: Flagged) -> FloatArray:
    """Coordinates of all cycles; what a cycle lacks is as expected under the nearest class."""
    out = np.zeros((len(flagged.cycles), classifier.coordinates.size))
    grids: dict[bytes, list[int]] = {}
    for c, X in enumerate(flagged.grids):
        grids.setdefault(X.tobytes(), []).append(c)
    for members in grids.values():
        X = flagged.grids[members[0]]
        stacked = np.stack([flagged.cycles[c] for c in members])
        given = np.moveaxis(stacked, 1, 2)[:, list(classifier.used)]
        for there, some in groups_of(np.isfinite(given)):
            out[np.asarray(members)[some]] = _expected(classifier, X, there, given[some])
    return out


def _expected(
    classifier: RunClassifier, X: FloatArray, there: npt.NDArray[np.bool_], cycles: FloatArray
) -> FloatArray:
    """E[c | what is there] of cycles (C, Q, n) with the same samples."""
    space = classifier.space(X, there)
    seen = space.of(np.where(there, cycles, 0.0))
    if space.view is None:
        return seen
    shape, layers = classifier.reference, classifier.layers
    sigma = layers.covariance(shape.target, shape.shrinkage)
    noisy = space.view.covariance(sigma, classifier.noise)
    square, _ = CycleMetric.of(noisy, space.slices).distances(seen, space.means)
    near = np.argmin(square, axis=1)
    gain = cho_solve(cho_factor(noisy, lower=True), space.view.project(sigma).T)
    return np.asarray(layers.means[near] + (seen - space.means[near]) @ gain)


def _described(
    classifier: RunClassifier,
    flagged: Flagged,
    found: FloatArray,
    mine: IntArray,
    *,
    name: str,
    channels: Sequence[str],
) -> Proposal:
    """What a group looks like beside the nearest class, by the words of `why`.

    No channel is set aside: what is far off under the nearest class is what the group is known by.
    """
    units, metric = flagged.units, _metric(classifier)
    owners = [units[c] for c in mine]
    label = _free(name, classifier.classes)
    nothing = np.zeros((len(mine), classifier.coordinates.channels))
    after = appended(classifier, label, Filled(found[mine], nothing), owners)
    mean = after.layers.means[-1:]
    nearest = int(np.argmin(metric.distances(mean, classifier.layers.means)[0][0]))
    central = int(mine[np.argmin(metric.distances(found[mine], mean)[0][:, 0])])
    pair = (label, classifier.classes[nearest])
    X, cycle = flagged.grids[central], flagged.cycles[central]
    why = why_of_runs(after, pair, X=X, channels=channels, cycle=cycle, aside=False)
    gap = np.diff(classifier.coordinates.curves(after.layers.means[[nearest, -1]]), axis=0)[0]
    place = {channels[q]: row for row, q in enumerate(classifier.used)}
    x = classifier.coordinates.grid[:, 0]
    stretches: list[dict[str, Any]] = []
    for each in why.stretches():
        if each["channel"] in place and len(stretches) < STRONGEST and each["nats"] > 0.0:
            inside = (x >= each["start"]) & (x <= each["end"])
            own = gap[place[each["channel"]], inside]
            stretches.append({**each, "difference": float(own.mean()) if len(own) else None})
    return Proposal(
        name=label,
        cycles=tuple(int(c) for c in mine),
        runs=len(set(owners)),
        nearest=pair[1],
        central=central,
        why=why,
        stretches=tuple(stretches),
    )


def _free(name: str, taken: Sequence[str]) -> str:
    """The name, unless a class has it."""
    while name in taken:
        name = f"{name}'"
    return name
