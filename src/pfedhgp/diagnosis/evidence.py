"""Classification by evidence: a cycle goes to the client under which it is most probable.

    ℓ_i(y) = log N(y; μ_i, Σ_i),   Σ_i = H S Hᵀ + R + Σ_e,   ĉ = argmax_i ℓ_i          (eqs. cls-ll, cls-rule)

Σ_i is the whole predictive covariance of a new cycle (eq. pred_cov_classification, with correlated layers and
the cycle layer in Σ_e), see `class_gaussian`. Cycles with the same observed cells share one factor per class.
The density is that of the observed cells alone, so other grids, gaps and missing channels are all valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from pfedhgp.base.numerics import with_numerics
from pfedhgp.diagnosis.class_gaussian import ClassGaussian, towards_others
from pfedhgp.diagnosis.gaussians_of_model import ClassGaussians
from pfedhgp.errors import InputError
from pfedhgp.model.fitted import FittedModel

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Novelty:
    """Parts of dᵀΣ⁻¹d that show whether a cycle belongs to a class at all."""

    towards: FloatArray
    """In the directions from the class's mean to those of the others, (C, K)"""
    directions: FloatArray
    """How many those are, (C, K)"""
    within: FloatArray
    """In the span of the class's functions, (C, K)"""
    span: FloatArray
    """How many those are, (C, K); all cells if there is no span"""
    given_the_rest: FloatArray
    """For each channel given the others, within the span, (C, K, Q); NaN if a cycle lacks the channel"""
    span_each: FloatArray
    """How many those are, (C, K, Q)"""


@dataclass(frozen=True, eq=False)
class Evidence:
    """ℓ and dᵀΣ⁻¹d of cycles under classes, each (C, K), and how many cells each cycle has."""

    classes: tuple[str, ...]
    log_density: FloatArray
    distance: FloatArray
    cells: npt.NDArray[np.int64]
    """(C, Q): how many of each channel"""
    novelty: Novelty | None = None
    """if it was wanted"""
    also: Evidence | None = None
    """The same cycles by a second covariance"""

    @property
    def surprise(self) -> FloatArray:
        """(dᵀΣ⁻¹d − N)/√(2N), (C, K, 3 + Q): in the directions towards other classes, within the span of the
        class's functions, outside of it, and of each channel given the others; (C, K, 1), of the whole
        cycle, without novelty. Behind these are those by the second covariance, if there is one.

        About N(0, 1) for a cycle of the class, if the class is Gaussian. NaN if there are no cells.
        """
        distance, freedom = self.views
        with np.errstate(invalid="ignore", divide="ignore"):
            own = np.where(freedom > 0, (distance - freedom) / np.sqrt(2.0 * freedom), np.nan)
        return own if self.also is None else np.concatenate([own, self.also.surprise], axis=2)

    @property
    def covariances(self) -> int:
        """By how many covariances cycles may be surprising."""
        return 1 if self.also is None else 1 + self.also.covariances

    @property
    def views(self) -> tuple[FloatArray, FloatArray]:
        """dᵀΣ⁻¹d and its degrees of freedom N, each in the shape of `surprise`."""
        whole = self.distance[:, :, None]
        cells = np.broadcast_to(self.cells.sum(axis=1)[:, None, None], whole.shape)
        if self.novelty is None:
            return whole, cells.astype(np.float64)
        new = self.novelty
        outside = np.maximum(cells[:, :, 0] - new.span, 0.0)
        beyond = np.where(outside > 0, self.distance - new.within, 0.0)
        parts = (new.towards, new.within, beyond), (new.directions, new.span, outside)
        distance, freedom = (np.stack(part, axis=2) for part in parts)
        return (
            np.concatenate([distance, new.given_the_rest], axis=2),
            np.concatenate([freedom, new.span_each], axis=2),
        )

    def take(self, order: npt.NDArray[np.int64]) -> Evidence:
        """Some of the cycles, in this order."""
        new = self.novelty
        if new is not None:
            new = Novelty(*(getattr(new, f.name)[order] for f in fields(Novelty)))
        parts = (self.log_density[order], self.distance[order], self.cells[order])
        also = None if self.also is None else self.also.take(order)
        return Evidence(self.classes, *parts, new, also)


def concatenated(parts: Sequence[Evidence]) -> Evidence:
    """The cycles of several batches in one, in order."""
    new = [part.novelty for part in parts if part.novelty is not None]
    joined = None
    if len(new) == len(parts):
        joined = Novelty(
            *(np.concatenate([getattr(each, f.name) for each in new]) for f in fields(Novelty))
        )
    second = [part.also for part in parts if part.also is not None]
    return Evidence(
        parts[0].classes,
        np.concatenate([part.log_density for part in parts]),
        np.concatenate([part.distance for part in parts]),
        np.concatenate([part.cells for part in parts]),
        joined,
        concatenated(second) if len(second) == len(parts) else None,
    )


@with_numerics
def evidence(
    model: FittedModel,
    X: FloatArray,
    cycles: FloatArray,
    classes: Sequence[str] | None = None,
    *,
    novelty: bool = False,
) -> Evidence:
    """The evidence of cycles (C, n, Q) on the grid X (n, d) under each class, by default all clients.

    With `novelty` also the parts that show whether a cycle belongs to any class.
    """
    names = check_classes(model, classes)
    seen = np.isfinite(cycles)
    empty = np.flatnonzero(~seen.any(axis=(1, 2)))
    if len(empty):
        raise InputError(f"cycle {empty[0]} has no values: all its samples are missing")
    used = seen.any(axis=(0, 2))  # samples that no cycle has cost nothing
    gaussians = ClassGaussians(model, X[used], names)
    return evidence_under(
        names, (gaussians.of(name) for name in names), cycles[:, used], novelty=novelty
    )


def evidence_under(
    names: tuple[str, ...],
    gaussians: Iterable[ClassGaussian],
    cycles: FloatArray,
    *,
    novelty: bool = False,
) -> Evidence:
    """The evidence of cycles (C, n, Q) under Gaussians on their grid, one at a time."""
    scores, seen = [], []
    if novelty:  # every class is compared with the means of all others
        gaussians = list(gaussians)
    for gaussian in gaussians:
        scores.append(gaussian.score(cycles))
        if novelty:
            others = [other.mean for other in gaussians if other is not gaussian]
            parts = (
                towards_others(gaussian, others, cycles),
                gaussian.within_span(cycles),
                gaussian.given_the_rest(cycles),
            )
            seen.append([array for part in parts for array in part])
    log_density, distance = (np.stack(part, axis=1) for part in zip(*scores, strict=True))
    cells = np.isfinite(cycles).sum(axis=1)
    new = None
    if novelty:
        new = Novelty(*(np.stack(part, axis=1) for part in zip(*seen, strict=True)))
    return Evidence(names, log_density, distance, cells, new)


def check_classes(model: FittedModel, classes: Sequence[str] | None) -> tuple[str, ...]:
    """The classes by name, each a client of the model."""
    names = tuple(model.clients) if classes is None else tuple(str(name) for name in classes)
    if not names:
        raise InputError("`classes` is empty")
    for name in names:
        if name not in model.clients:
            known = ", ".join(list(model.clients)[:12])
            raise InputError(f"no class {name!r} in the model; it has {known}")
    return names
