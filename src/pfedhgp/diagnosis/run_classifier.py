"""The classifier of whole cycles: class, run, cycle; sums of its training cycles and judged candidates.

It names the class under which a cycle of a *new run* is most probable. It holds sums and no cycles, so a
class can be added to it from sums alone, and sites that each have some runs of some classes can make it
together: their sums add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pfedhgp.base.numerics import one_blas_thread
from pfedhgp.diagnosis.candidates import (
    Candidate,
    Judged,
    distances,
    grown,
    log_density,
    metrics,
    probabilities,
)
from pfedhgp.diagnosis.coordinates import Coordinates, View
from pfedhgp.diagnosis.cycle_metric import CycleMetric
from pfedhgp.diagnosis.decision import Calibration
from pfedhgp.diagnosis.evidence import Evidence, Novelty, concatenated
from pfedhgp.diagnosis.run_layers import Layers
from pfedhgp.diagnosis.run_sums import RunSums
from pfedhgp.diagnosis.typical import Typical
from pfedhgp.errors import InputError
from pfedhgp.inference.cycles.incomplete import groups_of

FloatArray = npt.NDArray[np.float64]
BATCH = 500
"""Cycles that are compared at once."""


@dataclass(frozen=True, eq=False)
class RunClassifier:
    """What `train` makes of runs of known classes."""

    classes: tuple[str, ...]
    used: tuple[int, ...]
    """which of the model's outputs; one that never moves is left out"""
    coordinates: Coordinates
    sums: RunSums
    judged: tuple[Judged, ...]
    """the candidates that are averaged, best first"""
    reference: Candidate
    """the covariance by which "none of these" and `propose` go"""
    calibration: Calibration
    typical: Typical | None = None
    """how far held-out runs were from their class; None in models of older versions"""
    added: tuple[str, ...] = ()
    """classes that were added after training; the last ones of `classes`"""
    uncertain_means: bool = True
    """whether candidates were judged with Σ_k = (1 + 1/B_k) Σ"""
    second: Candidate | None = None
    """another covariance by which a cycle may be none of these; None if there was no choice"""
    wider_limits: bool = True
    """whether "none of these" goes by (1 + 1/B_k) Σ, too"""

    @property
    def references(self) -> tuple[Candidate, ...]:
        """The covariances by which a cycle may be none of these."""
        return (self.reference,) if self.second is None else (self.reference, self.second)

    @cached_property
    def layers(self) -> Layers:
        return Layers.of(self.sums, self.coordinates.channels, added=len(self.added))

    @property
    def directions(self) -> int:
        """Between the means of the classes of training, on which thresholds were set."""
        return len(self.classes) - len(self.added) - 1

    @property
    def noise(self) -> FloatArray:
        """The variance of a sample outside of the coordinates, (Q,); 0 if nothing is."""
        trained = self.sums.cycles[: self.layers.trained]
        freedom = self.coordinates.outside_freedom * float(trained.sum())
        return np.asarray(self.sums.outside / freedom if freedom else 0.0 * self.sums.outside)

    # ------------------------------------------------------------------------------ evidence

    def evidence(
        self,
        X: FloatArray,
        cycles: FloatArray,
        classes: Sequence[str] | None = None,
        *,
        novelty: bool = False,
    ) -> Evidence:
        """The evidence of cycles (C, n, Q) on the grid X (n, d), NaN where missing.

        `log_density` is log P without priors, so differences of it are log-odds.
        """
        given = np.moveaxis(cycles, 1, 2)[:, list(self.used)]
        seen = np.isfinite(given)
        empty = np.flatnonzero(~seen.any(axis=(1, 2)))
        if len(empty):
            raise InputError(
                f"cycle {empty[0]} has no values: all its samples are missing in the channels that decide"
            )
        which = self.numbers(classes)
        parts, order = [], []
        with one_blas_thread():
            for there, members in groups_of(seen):
                for batch in np.array_split(members, -(-len(members) // BATCH)):
                    parts.append(self._group(X, there, given[batch], which, novelty=novelty))
                    order.append(batch)
        found = concatenated(parts)
        return found.take(np.argsort(np.concatenate(order), kind="stable"))

    def numbers(self, classes: Sequence[str] | None) -> list[int]:
        """Classes as positions in `classes`; by default all of them."""
        names = self.classes if classes is None else tuple(str(name) for name in classes)
        if not names:
            raise InputError("`classes` is empty")
        for name in names:
            if name not in self.classes:
                raise InputError(
                    f"no class {name!r} in the model; it has {', '.join(self.classes[:12])}"
                )
        return [self.classes.index(name) for name in names]

    def _group(
        self,
        X: FloatArray,
        there: npt.NDArray[np.bool_],
        cycles: FloatArray,
        which: list[int],
        *,
        novelty: bool,
    ) -> Evidence:
        """The same for cycles (C, Q, n) with the same samples."""
        space = self.space(X, there)
        found, means = space.of(cycles), space.means[which]
        size, probability = found.shape[1], np.zeros((len(found), len(which)))
        known: dict[Candidate, tuple[FloatArray, FloatArray]] = {}
        for each in self.judged:
            shape = each.candidate.shape
            if shape not in known:
                metric, wider = self._metrics(shape, space, which), self.grown(shape)[which]
                known[shape] = distances(metric, found, means, wider)
            density = log_density(*known[shape], size, heavy=each.candidate.heavy)
            probability += each.weight * probabilities(density, each.temperature, each.even)
        with np.errstate(divide="ignore"):
            log_probability = np.log(np.maximum(probability, 1e-300))
        names, outside = tuple(self.classes[k] for k in which), np.zeros(len(found))
        cells = np.broadcast_to(there.sum(axis=1), (len(found), len(self.used))).copy()
        if space.view is None and self.coordinates.outside_freedom:
            beyond = self.coordinates.outside(cycles, found) / np.maximum(self.noise, 1e-300)
            outside = np.sum(beyond, axis=1)
        elif space.view is not None:  # a part of a cycle has nothing outside
            lengths = [part.stop - part.start for part in space.slices]
            cells = np.broadcast_to(lengths, cells.shape).astype(np.int64)
        out = None
        for shape in reversed(self.references if novelty else (self.reference,)):
            metric = self._metrics(shape, space, which)
            wider = self.wider(shape)[which]
            square, new = novelty_of(
                metric, found, means, wider, novelty=novelty, most=self.directions
            )
            square = square + outside[:, None]
            out = Evidence(names, log_probability, square, cells, new, out)
        assert out is not None
        return out

    def space(self, X: FloatArray, there: npt.NDArray[np.bool_]) -> Space:
        """Where cycles with these samples (Q, n) on the grid X are compared."""
        same = X.shape == self.coordinates.grid.shape and np.array_equal(X, self.coordinates.grid)
        if same and there.all():
            return Space(self.coordinates, None, self.layers.means)
        view = self.coordinates.view(X, there)
        return Space(self.coordinates, view, view.project(self.layers.means))

    def _metrics(self, shape: Candidate, space: Space, which: list[int]) -> list[CycleMetric]:
        if space.view is None:
            found = self.complete(shape)
        else:
            found = list(metrics(shape, self.layers, self.sums, view=space.view, noise=self.noise))
        return [found[k] for k in which] if shape.own else found

    def grown(self, shape: Candidate) -> FloatArray:
        """What Σ is multiplied by for each class, (K,); 1 in models of versions that did not."""
        return grown(shape, self.sums.runs) if self.uncertain_means else np.ones(len(self.classes))

    def wider(self, shape: Candidate) -> FloatArray:
        """The same for "none of these", whose thresholds older versions set without it."""
        return self.grown(shape) if self.wider_limits else np.ones(len(self.classes))

    def covariances(self, shape: Candidate, space: Space, which: Sequence[int]) -> list[FloatArray]:
        """Σ of each of these classes in a space."""
        out, wider = [], self.grown(shape)
        for k in which:
            layers = self.layers.of_class(self.sums, k) if shape.own else self.layers
            sigma = layers.covariance(shape.target, shape.shrinkage)
            sigma = sigma if space.view is None else space.view.covariance(sigma, self.noise)
            out.append(wider[k] * sigma)
        return out

    def complete(self, shape: Candidate) -> list[CycleMetric]:
        """The metrics of complete cycles, kept."""
        if shape not in self._kept:
            self._kept[shape] = list(metrics(shape, self.layers, self.sums))
        return self._kept[shape]

    @cached_property
    def _kept(self) -> dict[Candidate, list[CycleMetric]]:
        return {}

    # --------------------------------------------------------------------------------- files

    def to_arrays(self) -> dict[str, FloatArray]:
        """The arrays of a model folder."""
        space = self.coordinates
        return {
            "grid": space.grid,
            "centre": space.centre,
            "spread": space.spread,
            **self.sums.as_arrays("sums."),
        }

    def to_json(self) -> dict[str, Any]:
        """The rest of it."""
        return {
            "classes": list(self.classes),
            "used": list(self.used),
            "rank": self.coordinates.rank,
            "candidates": [each.to_json() for each in self.judged],
            "reference": vars(self.reference),
            "calibration": self.calibration.to_json(),
            "typical": None if self.typical is None else asdict(self.typical),
            "added": list(self.added),
            "uncertain_means": self.uncertain_means,
            "second": None if self.second is None else vars(self.second),
            "wider_limits": self.wider_limits,
        }

    @staticmethod
    def read(arrays: Mapping[str, FloatArray], tree: Mapping[str, Any]) -> RunClassifier:
        """The inverse of both."""
        space = Coordinates(arrays["grid"], arrays["centre"], arrays["spread"], int(tree["rank"]))
        return RunClassifier(
            classes=tuple(tree["classes"]),
            used=tuple(int(q) for q in tree["used"]),
            coordinates=space,
            sums=RunSums.from_arrays(arrays, "sums."),
            judged=tuple(Judged.from_json(each) for each in tree["candidates"]),
            reference=Candidate(**tree["reference"]),
            calibration=Calibration.from_json(tree["calibration"]),
            typical=Typical(**tree["typical"]) if tree.get("typical") else None,
            added=tuple(tree.get("added", ())),
            uncertain_means=bool(tree.get("uncertain_means", False)),
            second=Candidate(**tree["second"]) if tree.get("second") else None,
            wider_limits=bool(tree.get("wider_limits", False)),
        )


@dataclass(frozen=True, eq=False)
class Space:
    """Coordinates of complete cycles, or a view of them, and the class means there."""

    coordinates: Coordinates
    view: View | None
    means: FloatArray

    @property
    def slices(self) -> tuple[slice, ...]:
        """Where each channel is."""
        if self.view is not None:
            return self.view.slices
        r = self.coordinates.rank
        return tuple(slice(q * r, (q + 1) * r) for q in range(self.coordinates.channels))

    @property
    def places(self) -> FloatArray:
        """Where each coordinate lies along the first input."""
        if self.view is not None:
            return self.view.places
        return np.tile(self.coordinates.places[:, 0], self.coordinates.channels)

    def of(self, cycles: FloatArray) -> FloatArray:
        """Coordinates of cycles (C, Q, n) that have these samples."""
        return self.coordinates.of(cycles) if self.view is None else self.view.of(cycles)


def novelty_of(
    found: Sequence[CycleMetric],
    cycles: FloatArray,
    means: FloatArray,
    wider: FloatArray,
    *,
    novelty: bool,
    most: int,
) -> tuple[FloatArray, Novelty | None]:
    """dᵀΣ⁻¹d (C, K), and the parts of it that show whether a cycle belongs to a class at all.

    `found` has one metric for all classes, or one each; `wider` (K,) is what Σ is multiplied by for each. If
    classes were added, there are more than `most` directions between means, and the threshold is of d²/N: d²
    then counts as `most` of them.
    """
    own = [slice(None)] if len(found) == 1 else [slice(k, k + 1) for k in range(len(means))]
    pairs = [*zip(found, own, strict=True)]
    parts = [metric.distances(cycles, means[k]) for metric, k in pairs]
    square, given = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
    square, given = square / wider, given / wider[:, None]
    if not novelty:
        return square, None
    towards = np.zeros((2, *square.shape))
    for metric, k in pairs if len(means) > 1 else ():
        towards[:, :, k] = np.stack(metric.towards(cycles, means))[:, :, k]
    lengths = found[0].lengths
    share = np.minimum(towards[1], most) / np.maximum(towards[1], 1.0)
    return square, Novelty(
        towards=towards[0] * share / wider,
        directions=towards[1] * share,
        within=square,
        span=np.full_like(square, lengths.sum()),
        given_the_rest=np.where(lengths > 0, given, np.nan),
        span_each=np.broadcast_to(lengths, given.shape).copy(),
    )
