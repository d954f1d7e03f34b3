"""From evidence to a diagnosis: class probabilities, labels, and "none of these".

    P(class i | y) ∝ prior_i · exp(ℓ_i(y)/τ)                   τ = 1 unless held-out cycles ask for more
    P ← (1 − ε) P + ε/K,  ε = 1/(n + 2)                        after n held-out cycles, for K classes
    none of these if, under every class, a surprise (dᵀΣ⁻¹d − N)/√(2N) exceeds its threshold

There are four kinds of surprise: in the few directions from the class's mean towards those of the others
(where a known cycle must agree with one class), within the span of the class's functions, outside of it, and
of one channel given the others within it.
τ and the thresholds come from held-out cycles of known classes (`calibrate`). τ minimises their log-loss,
which is therefore at most log K (to a millionth). At most a given share of them exceeds a threshold under
their own class. So a channel that is wild now and then in every class gets a high threshold, and does not
hide what the other channels show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from pfedhgp.base.numerics import with_numerics
from pfedhgp.diagnosis.class_gaussian import ClassGaussian
from pfedhgp.diagnosis.evidence import Evidence
from pfedhgp.diagnosis.thresholds import thresholds_of
from pfedhgp.errors import InputError
from pfedhgp.model.words import InputAxis

FloatArray = npt.NDArray[np.float64]
NONE = "none of these"
TEMPERATURES = tuple(float(v) for v in np.geomspace(1.0, 1e8, 161))
FLAT = 1e6
"""This times the largest difference of ℓ is a temperature at which all classes are equally likely."""
FALSE_ALARMS = 0.01
"""Default share of known cycles that may be called none of these."""
BINS = 10
"""Bins of confidence, for ECE."""


def check_class_name(name: str) -> None:
    """Refuses the one name that says that a cycle is of no class."""
    if name == NONE:
        raise InputError(f"no class can be called {NONE!r}: that is said of cycles of no class")


@dataclass(frozen=True)
class Calibration:
    """What held-out cycles of known classes show: how far to trust ℓ, and how surprising a cycle may be."""

    temperature: float = 1.0
    thresholds: tuple[float, ...] | None = None
    """towards other classes, within the span of the class's functions, outside of it, and for each channel;
    then the same for a second covariance, if there is one"""
    false_alarms: float | None = None
    """share of known cycles that may be called none of these"""
    cycles: int = 0
    prior: float = 1.0
    """of one more cycle after n that were right, prior/(n + 2 prior) is dealt out evenly"""
    accuracy: float | None = None
    log_loss: float | None = None
    """of the held-out cycles at this temperature"""

    def to_json(self) -> dict[str, Any]:
        limits = self.thresholds  # JSON has no infinity: a channel never seen has no threshold
        plain = None if limits is None else [v if np.isfinite(v) else None for v in limits]
        return {**vars(self), "thresholds": plain}

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> Calibration:
        known = {name: tree[name] for name in Calibration.__dataclass_fields__ if name in tree}
        limits = known.get("thresholds")
        if limits is not None:
            known["thresholds"] = tuple(np.inf if v is None else float(v) for v in limits)
        return Calibration(**known)


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis:
    """The result for C cycles and K classes."""

    classes: tuple[str, ...]
    labels: tuple[str, ...]
    """The most probable class of each cycle, or `NONE`."""
    best: npt.NDArray[np.int64]
    """The most probable class by number, whether or not the cycle is one of these."""
    log_density: FloatArray
    """ℓ, (C, K)"""
    probability: FloatArray
    """(C, K), assuming that the cycle is of one of these classes"""
    surprise: FloatArray
    """(C,): standard deviations above the thresholds of the best fitting class (0: at a threshold); without
    thresholds, the surprise of the whole cycle"""
    none: npt.NDArray[np.bool_]
    calibration: Calibration

    def __repr__(self) -> str:
        return f"Diagnosis(cycles={len(self.labels)}, classes={', '.join(self.classes)})"


def diagnose(
    found: Evidence,
    *,
    priors: Mapping[str, float] | None = None,
    calibration: Calibration | None = None,
) -> Diagnosis:
    """Labels and probabilities; without priors all classes are equally likely, which is eq. cls-rule."""
    calibration = calibration or Calibration()
    log_posterior = _log_posterior(
        found.log_density, _log_priors(found.classes, priors), calibration.temperature
    )
    best = np.argmax(log_posterior, axis=1)
    surprise = _excess(found, calibration.thresholds)
    none = (surprise > 0.0) & (calibration.thresholds is not None)
    labels = tuple(NONE if gone else found.classes[k] for gone, k in zip(none, best, strict=True))
    return Diagnosis(
        classes=found.classes,
        labels=labels,
        best=best,
        log_density=found.log_density,
        probability=less_certain(np.exp(log_posterior), calibration.cycles, calibration.prior),
        surprise=surprise,
        none=none,
        calibration=calibration,
    )


def calibrate(
    found: Evidence, labels: Sequence[str], *, false_alarms: float = FALSE_ALARMS
) -> Calibration:
    """τ and the thresholds from held-out cycles of known classes.

    τ has the least log-loss among `TEMPERATURES` and one at which all classes are equally likely. So even if
    ℓ is confidently wrong, the held-out log-loss is at most log K, that of not knowing.

    Half of `false_alarms` goes to the directions towards other classes; the other kinds share the other half
    equally. If surprises go by two covariances, each has half of it. A threshold is the surprise that at most
    its share of n + 1 such cycles exceeds. If there are too few cycles for that, the tail is extrapolated
    from the largest twentieth (`quantile`), and is at least as long as the median over all kinds.
    """
    if not 0.0 < false_alarms < 1.0:
        raise InputError(f"`false_alarms` must be between 0 and 1, got {false_alarms!r}")
    truth = numbered(found.classes, labels)
    flat = np.zeros(len(found.classes))
    hottest = max(TEMPERATURES[-1], FLAT * float(np.ptp(found.log_density, axis=1).max()))
    tried = (*TEMPERATURES, hottest)
    losses = [_log_loss(_log_posterior(found.log_density, flat, t), truth) for t in tried]
    at = int(np.argmin(losses))
    own = found.surprise[np.arange(len(truth)), truth]
    parts = np.split(own, found.covariances, axis=1)
    limits = [thresholds_of(part, false_alarms / len(parts)) for part in parts]
    return Calibration(
        temperature=tried[at],
        thresholds=tuple(limit for each in limits for limit in each),
        false_alarms=float(false_alarms),
        cycles=len(truth),
        accuracy=float(np.mean(np.argmax(found.log_density, axis=1) == truth)),
        log_loss=float(losses[at]),
    )


def _excess(found: Evidence, thresholds: tuple[float, ...] | None) -> FloatArray:
    """The largest surprise above its threshold, for the class where that is least, (C,)."""
    surprise = found.surprise
    if thresholds is None:
        return surprise[:, :, -1 if found.novelty is None else 1].min(axis=1)
    if surprise.shape[2] != len(thresholds):
        raise InputError(
            "the thresholds belong to other channels than these cycles: calibrate again"
        )
    return np.nanmax(surprise - np.asarray(thresholds), axis=2).min(axis=1)


def numbered(classes: Sequence[str], labels: Sequence[str]) -> npt.NDArray[np.int64]:
    """Labels as positions in `classes`."""
    place = {name: k for k, name in enumerate(classes)}
    for label in labels:
        if str(label) not in place:
            raise InputError(f"no class {str(label)!r} in the model; it has {', '.join(classes)}")
    return np.asarray([place[str(label)] for label in labels], np.int64)


def scores(classes: Sequence[str], truth: Sequence[str], probability: FloatArray) -> dict[str, Any]:
    """Accuracy, log-loss, ECE, F1 by class and the confusion matrix (rows: truth) of class probabilities.

    ECE uses the label's own probability in ten bins of equal width.

    >>> found = scores(["a", "b"], ["a", "b"], np.array([[0.9, 0.1], [0.6, 0.4]]))
    >>> found["accuracy"], found["confusion"]
    (0.5, [[1, 0], [1, 0]])
    """
    target = numbered(classes, truth)
    guess, sure = np.argmax(probability, axis=1), np.max(probability, axis=1)
    right = guess == target
    bin_of = np.minimum((sure * BINS).astype(int), BINS - 1)
    gaps = [abs(float(np.sum(right[bin_of == b]) - np.sum(sure[bin_of == b]))) for b in range(BINS)]
    confusion = np.zeros((len(classes), len(classes)), int)
    np.add.at(confusion, (target, guess), 1)
    hits = np.diagonal(confusion)
    f1 = 2.0 * hits / np.maximum(confusion.sum(0) + confusion.sum(1), 1)
    with np.errstate(divide="ignore"):
        log_probability = np.log(np.maximum(probability, 1e-300))
    return {
        "accuracy": float(np.mean(right)),
        "log_loss": _log_loss(log_probability, target),
        "ece": float(sum(gaps) / len(target)),
        "f1": {name: float(v) for name, v in zip(classes, f1, strict=True)},
        "confusion": confusion.tolist(),
    }


@dataclass(frozen=True, eq=False)
class Why:
    """Why one cycle is `chosen` rather than `other`: log-likelihood differences, in nats.

    `along` (n, Q) is log p(y_nq | everything before it) under `chosen` less that under `other`: one term for
    each sample and channel, with sum `total`. Within a sample, channels come in order. `alone` is the
    difference that each channel would have on its own.
    """

    chosen: str
    other: str
    grid: FloatArray
    channels: tuple[str, ...]
    along: FloatArray
    alone: FloatArray
    total: float
    wild: Mapping[str, float] = field(default_factory=dict)
    """A channel that runs wild under `chosen`, and the nats by which it would have counted against it."""
    axis: InputAxis | None = None
    """What the grid runs along, for labels"""

    def stretches(self, count: int = 12) -> list[dict[str, Any]]:
        """The axis in `count` stretches for each channel: start, end, nats; the strongest first."""
        cuts = np.array_split(np.arange(len(self.grid)), min(count, len(self.grid)))
        found = [
            {
                "channel": self.channels[q],
                "start": float(self.grid[rows[0], 0]),
                "end": float(self.grid[rows[-1], 0]),
                "nats": float(np.nansum(self.along[rows, q])),
            }
            for q in range(self.along.shape[1])
            for rows in cuts
        ]
        return sorted(found, key=lambda each: -each["nats"])

    def condensed(self, count: int = 60) -> dict[str, Any]:
        """For JSON: nats over at most `count` stretches per channel, their positions, and channels alone.

        These are log-likelihood differences; there are no samples.
        """
        cuts = np.array_split(np.arange(len(self.grid)), min(count, len(self.grid)))
        return {
            "chosen": self.chosen,
            "other": self.other,
            "total": self.total,
            "wild": dict(self.wild),
            "channels": list(self.channels),
            "alone": [float(v) if np.isfinite(v) else None for v in self.alone],
            "places": [float(self.grid[rows, 0].mean()) for rows in cuts],
            "nats": [
                [float(np.nansum(self.along[rows, q])) for rows in cuts]
                for q in range(len(self.channels))
            ],
        }


@with_numerics
def why(
    gaussians: tuple[ClassGaussian, ClassGaussian],
    names: tuple[str, str],
    *,
    grid: FloatArray,
    channels: Sequence[str],
    cycle: FloatArray,
) -> Why:
    """The difference between two classes' evidence of one cycle (n, Q), by cell and by channel."""
    one, two = gaussians
    along = one.by_cell(cycle) - two.by_cell(cycle)
    Q = cycle.shape[1]
    alone = np.full(Q, np.nan)
    for q in range(Q):
        if np.isfinite(cycle[:, q]).any():
            others = [p for p in range(Q) if p != q]
            pair = [
                gaussian.without(others).score(cycle[None, :, q : q + 1])[0][0]
                for gaussian in gaussians
            ]
            alone[q] = pair[0] - pair[1]
    return Why(names[0], names[1], grid, tuple(channels), along, alone, float(np.nansum(along)))


def _log_priors(classes: Sequence[str], priors: Mapping[str, float] | None) -> FloatArray:
    if priors is None:
        return np.zeros(len(classes))
    if not isinstance(priors, Mapping):
        raise InputError(f"`priors` must be {{class: weight}}, got {type(priors).__name__}")
    numbered(classes, list(priors))
    try:
        values = np.asarray([float(priors.get(name, 0.0)) for name in classes])
    except (TypeError, ValueError):
        raise InputError("`priors` must give every class a number above 0") from None
    if not np.all(np.isfinite(values)) or np.any(values <= 0):
        raise InputError("`priors` must give every class a number above 0")
    return np.log(values / values.sum())


def _log_posterior(
    log_density: FloatArray, log_prior: FloatArray, temperature: float
) -> FloatArray:
    joint = log_density / temperature + log_prior
    return joint - logsumexp(joint, axis=1, keepdims=True)


def less_certain(probability: FloatArray, cycles: int, prior: float = 1.0) -> FloatArray:
    """Limits probabilities to what n held-out cycles can support: n successes leave 1 in n + 2
    (Laplace), or with a prior of ½ half of 1 in n + 1 (Krichevsky and Trofimov).

    If all of them are classified correctly τ stays at 1, and ℓ differs by thousands of nats. The most
    probable class stays the same.
    """
    if not cycles:
        return probability
    share = prior / (cycles + 2.0 * prior)
    return (1.0 - share) * probability + share / probability.shape[1]


def _log_loss(log_posterior: FloatArray, truth: npt.NDArray[np.int64]) -> float:
    return float(-np.mean(log_posterior[np.arange(len(truth)), truth]))
