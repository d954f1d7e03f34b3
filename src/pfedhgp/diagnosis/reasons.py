"""Why one class rather than another: the log-odds of a cycle, split over channels and along the axis.

    −½ dᵀΣ⁻¹d − ½ log|Σ| = Σ_m log p(c_m | all coordinates before it) + constants

Coordinates come in the order of their places. The channel that is set aside (`cycle_metric`) comes last, as a
whole, at a scale of its own. It is called wild if it is further from what all others say than the threshold
of "none of these" allows, as in few known runs. With heavy tails the terms are stretched so that they still
add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular

from pfedhgp.base.numerics import one_blas_thread
from pfedhgp.diagnosis.candidates import log_density
from pfedhgp.diagnosis.cycle_metric import CycleMetric, saved
from pfedhgp.diagnosis.decision import Why
from pfedhgp.diagnosis.run_classifier import RunClassifier

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Terms:
    """−½ of d² and of log|Σ| by coordinate, and the channel that was set aside."""

    square: FloatArray
    log_det: FloatArray
    wild: int | None
    saved: float


def why_of_runs(
    classifier: RunClassifier,
    names: tuple[str, str],
    *,
    X: FloatArray,
    channels: Sequence[str],
    cycle: FloatArray,
    aside: bool = True,
) -> Why:
    """What of one cycle (n, Q) speaks for the first class rather than the second, in nats of log-odds.

    By the candidate that weighs most, at its temperature. If not `aside`, no channel is set aside.
    """
    main = classifier.judged[0]
    used = list(classifier.used)
    given = cycle.T[None, used]
    there = np.isfinite(given[0])
    with one_blas_thread():
        space = classifier.space(X, there)
        found = space.of(np.where(there, given, 0.0))[0]
        which = classifier.numbers(names)
        sigmas = classifier.covariances(main.candidate.shape, space, which)
        one, two = (
            _terms(sigma, found - space.means[k], space.slices, space.places, aside=aside)
            for sigma, k in zip(sigmas, which, strict=True)
        )
        heavy, T = main.candidate.heavy, main.temperature
        d = [-2.0 * float(np.sum(each.square)) for each in (one, two)]
        stretch = _stretch(d[0], d[1], len(found)) if heavy else 1.0
        terms = (stretch * (one.square - two.square) + one.log_det - two.log_det) / T
        along = np.where(np.isfinite(cycle), 0.0, np.nan)
        for q, part in enumerate(space.slices):
            rows = np.flatnonzero(there[q])
            at = rows[np.argmin(np.abs(X[rows, 0] - space.places[part, None]), axis=1)]
            np.add.at(along[:, used[q]], at, terms[part])
        alone = np.full(cycle.shape[1], np.nan)
        for q, part in enumerate(space.slices):
            if part.stop > part.start:
                pair = [
                    _alone(sigma[part, part], (found - space.means[k])[part], heavy=heavy)
                    for sigma, k in zip(sigmas, which, strict=True)
                ]
                alone[used[q]] = (pair[0] - pair[1]) / T
    wild = {}
    if one.wild is not None and _runs_wild(classifier, names[0], X, cycle, one.wild):
        wild[str(channels[used[one.wild]])] = 0.5 * one.saved
    return Why(
        names[0], names[1], X, tuple(channels), along, alone, float(np.sum(terms)), wild=wild
    )


def _runs_wild(
    classifier: RunClassifier, name: str, X: FloatArray, cycle: FloatArray, channel: int
) -> bool:
    """Whether a channel, given all others, is beyond its threshold; never without thresholds."""
    limits = classifier.calibration.thresholds
    if limits is None:
        return False
    surprise = classifier.evidence(X, cycle[None], novelty=True).surprise
    views = np.split(surprise[0, classifier.numbers([name])[0]], len(classifier.references))
    each = np.split(np.asarray(limits), len(classifier.references))
    at = len(views[0]) - classifier.coordinates.channels + channel
    return any(bool(v[at] > limit[at]) for v, limit in zip(views, each, strict=True))


def _terms(
    sigma: FloatArray,
    gap: FloatArray,
    slices: Sequence[slice],
    places: FloatArray,
    *,
    aside: bool,
) -> _Terms:
    metric = CycleMetric.of(sigma, slices)
    _, given = metric.distances(gap[None], np.zeros((1, len(gap))))
    gain = saved(given, metric.lengths)[0, 0]
    wild = int(np.argmax(gain)) if aside and gain.max() > 0.0 else None
    rest = np.ones(len(gap), bool)
    if wild is not None:
        rest[slices[wild]] = False
    order = np.flatnonzero(rest)[np.argsort(places[rest], kind="stable")]
    factor = np.linalg.cholesky(sigma[np.ix_(order, order)])
    square, log_det = np.zeros(len(gap)), np.zeros(len(gap))
    square[order] = -0.5 * solve_triangular(factor, gap[order], lower=True) ** 2
    log_det[order] = -np.log(np.diagonal(factor))
    if wild is None:
        return _Terms(square, log_det, None, 0.0)
    n, u = float(np.sum(~rest)), float(given[0, 0, wild])
    square[~rest] = -0.5 * (1.0 + np.log(u / n))
    log_det[~rest] = (-0.5 * metric.log_det - log_det[order].sum()) / n
    return _Terms(square, log_det, wild, float(gain[wild]))


def _stretch(one: float, two: float, size: int) -> float:
    """(D+1) (log(1+d₁) − log(1+d₂))/(d₁ − d₂), so that the terms of d² become those of heavy tails."""
    if abs(one - two) < 1e-9 * (1.0 + abs(one)):
        return (size + 1) / (1.0 + one)
    return float((size + 1) * (np.log1p(one) - np.log1p(two)) / (one - two))


def _alone(sigma: FloatArray, gap: FloatArray, *, heavy: bool) -> float:
    """ℓ of one channel on its own."""
    factor = np.linalg.cholesky(sigma)
    square = np.sum(solve_triangular(factor, gap, lower=True) ** 2)
    log_det = 2.0 * float(np.sum(np.log(np.diagonal(factor))))
    own = log_density(np.asarray([[square]]), np.zeros(1), len(gap), heavy=heavy)[0, 0]
    return float(own - 0.5 * log_det)
