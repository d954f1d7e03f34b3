"""From evidence to a diagnosis: class probabilities, labels, and "none of these".

    P(class i | y) ∝ prior_i · exp(ℓ_i(y)/τ)                   τ = 1 unless held-out cycles ask for more
    P ← (1 − ε) P + ε/K,  ε = 1/(n + 2)                        after n held-out cycles, for K classes
    none of these where, under every class, a surprise (dᵀΣ⁻¹d − N)/√(2N) is beyond its threshold

There are four kinds of surprise: in the few directions from the class's mean towards the others' (where
classes differ, a known cycle is with one of them), within the span of the functions that the class's cycles
are made of, outside of it, and of one channel given the others within it.
τ and the thresholds come from held-out cycles of known classes (`calibrate`). τ minimises their log-loss,
which is therefore at most log K (to a millionth). Each threshold is passed, under a cycle's own class, by no
more than a share of them. A channel that now and then runs wild in every class so gets a high threshold, and
does not hide what the others say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from pfedhgp.base.numerics import with_numerics
from pfedhgp.diagnosis.evidence import Evidence, Law
from pfedhgp.errors import InputError

__all__ = ["NONE", "Calibration", "Diagnosis", "Why", "calibrate", "diagnose", "scores", "why"]

FloatArray = npt.NDArray[np.float64]
NONE = "none of these"
TEMPERATURES = tuple(float(v) for v in np.geomspace(1.0, 1e8, 161))
FLAT = 1e6
"""Times the largest difference of ℓ: a temperature at which all classes are as likely, to a millionth."""
FALSE_ALARMS = 0.01
"""The share of known cycles that may be called none of these, unless another is asked for."""
BINS = 10
"""Of confidence, for ECE."""


@dataclass(frozen=True)
class Calibration:
    """What held-out cycles of known classes say: how far to trust ℓ, and how surprising a cycle may be."""

    temperature: float = 1.0
    thresholds: tuple[float, ...] | None = None
    """Towards other classes, within the span of the class's functions, outside of it, and of each channel."""
    false_alarms: float | None = None
    """The chosen share of known cycles that may be called none of these."""
    cycles: int = 0
    accuracy: float | None = None
    log_loss: float | None = None
    """Of the held-out cycles, at this temperature."""
    margin: float | None = None
    """Where classes were left out to choose the cycle layer: see `margin`."""

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
    """What was made of C cycles under K classes."""

    classes: tuple[str, ...]
    labels: tuple[str, ...]
    """The most probable class of each cycle, or `NONE`."""
    best: npt.NDArray[np.int64]
    """The most probable class by number, whether or not the cycle is one of these."""
    log_density: FloatArray
    """ℓ, (C, K)"""
    probability: FloatArray
    """(C, K); as if the cycle were one of these."""
    surprise: FloatArray
    """(C,): of the class that fits best, in standard deviations beyond its thresholds (0 is at one of them);
    without thresholds, of the whole cycle."""
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
    """Labels and probabilities; without priors all classes are as likely, which is eq. cls-rule."""
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
        probability=_humble(np.exp(log_posterior), calibration.cycles),
        surprise=surprise,
        none=none,
        calibration=calibration,
    )


def calibrate(
    found: Evidence, labels: Sequence[str], *, false_alarms: float = FALSE_ALARMS
) -> Calibration:
    """τ and the threshold from held-out cycles of known classes.

    τ is the one of `TEMPERATURES`, or one that makes all classes as likely, with the least log-loss: where ℓ
    misleads, however sure it is, the held-out log-loss is that of not knowing, log K, and no more.

    Half of `false_alarms` is for the directions towards other classes, the other half is shared out evenly
    between the others. A threshold is the surprise that at most its share of n + 1 such cycles passes. With
    fewer cycles than that takes, the tail is drawn out from the largest twentieth (`_quantile`), no shorter
    than views have it as a rule.
    """
    if not 0.0 < false_alarms < 1.0:
        raise InputError(f"`false_alarms` must be between 0 and 1, got {false_alarms!r}")
    truth = numbered(found.classes, labels)
    flat = np.zeros(len(found.classes))
    tried = (
        *TEMPERATURES,
        max(TEMPERATURES[-1], FLAT * float(np.ptp(found.log_density, axis=1).max())),
    )
    losses = [_log_loss(_log_posterior(found.log_density, flat, t), truth) for t in tried]
    at = int(np.argmin(losses))
    own = found.surprise[np.arange(len(truth)), truth]
    shares = _shares(own, false_alarms)
    shortest = _usual_tail(own)
    limits = tuple(
        _quantile(view, share, shortest) for view, share in zip(own.T, shares, strict=True)
    )
    return Calibration(
        temperature=tried[at],
        thresholds=limits,
        false_alarms=float(false_alarms),
        cycles=len(truth),
        accuracy=float(np.mean(np.argmax(found.log_density, axis=1) == truth)),
        log_loss=float(losses[at]),
    )


def _shares(own: FloatArray, false_alarms: float) -> FloatArray:
    """Of `false_alarms` for each view (C, V) of held-out cycles; nothing for one that nobody has."""
    weights = np.asarray(np.any(np.isfinite(own), axis=0), np.float64)
    if weights[0] and weights[1:].any():
        weights[0] = weights[1:].sum()
    return np.asarray(false_alarms * weights / weights.sum())


def _usual_tail(own: FloatArray) -> float:
    """The median over views of the mean excess β by which `_quantile` draws tails out; 0 if nothing was seen.

    Of a few held-out cycles a view's own β is uncertain, and one that is short by chance alarms too often.
    """
    sorted_views = [np.sort(view[np.isfinite(view)]) for view in own.T]
    found = [_excess_of_largest(seen)[1] for seen in sorted_views if len(seen) > 1]
    return float(np.median(found)) if found else 0.0


def _excess_of_largest(seen: FloatArray) -> tuple[int, float, float]:
    """k, β and u: the k = n/20 largest of n sorted values exceed the one before them, u, by β on average."""
    n = len(seen)
    k = min(max(n // 20, 5), n - 1)
    base = float(seen[n - k - 1])
    return k, float(np.mean(seen[n - k :] - base)), base


def _quantile(values: FloatArray, share: float, shortest: float = 0.0) -> float:
    """What at most `share` of one more value passes; infinite where nothing was seen.

    Beyond the largest of n values an exponential tail, u + β log(k/(n share)), with β the mean excess of the
    k = n/20 largest over u, at least `shortest`: six views with their largest values as limits would alarm
    6/(n + 1) of the time.
    """
    seen = np.sort(values[np.isfinite(values)])
    n = len(seen)
    if not n:
        return float("inf")
    place = int(np.ceil((1.0 - share) * (n + 1))) - 1
    if place < n:
        return float(seen[place])
    if n < 2:
        return float(seen[-1])
    k, mean, base = _excess_of_largest(seen)
    drawn_out = base + max(mean, shortest) * np.log(k / (n * share))
    return float(max(seen[-1], drawn_out))


def _excess(found: Evidence, thresholds: tuple[float, ...] | None) -> FloatArray:
    """min over classes of the largest surprise beyond its threshold, (C,)."""
    surprise = found.surprise
    if thresholds is None:
        return surprise[:, :, -1 if found.novelty is None else 1].min(axis=1)
    if surprise.shape[2] != len(thresholds):
        raise InputError("thresholds are of other channels than this evidence: calibrate again")
    return np.nanmax(surprise - np.asarray(thresholds), axis=2).min(axis=1)


def margin(strangers: Evidence, known: Calibration, *, share: float) -> float:
    """How many times the distance of its threshold strangers are away, all but `share` of them.

    Of each cycle the class that fits best, and of its distances the one that is furthest beyond. Above 1
    that many are flagged.
    """
    distance, freedom = strangers.views
    with np.errstate(invalid="ignore", divide="ignore"):
        limits = freedom + np.sqrt(2.0 * freedom) * np.asarray(known.thresholds)
        ratio = np.where(freedom > 0, distance / np.maximum(limits, 1e-300), np.nan)
    return float(np.quantile(np.nanmax(ratio, axis=2).min(axis=1), share))


def numbered(classes: Sequence[str], labels: Sequence[str]) -> npt.NDArray[np.int64]:
    """Labels as places in `classes`."""
    place = {name: k for k, name in enumerate(classes)}
    for label in labels:
        if str(label) not in place:
            raise InputError(f"no class {str(label)!r} in the model; it has {', '.join(classes)}")
    return np.asarray([place[str(label)] for label in labels], np.int64)


def scores(classes: Sequence[str], truth: Sequence[str], probability: FloatArray) -> dict[str, Any]:
    """Accuracy, log-loss, ECE, F1 by class and the confusion matrix (rows: truth) of class probabilities.

    ECE is that of the label's own probability, in ten bins of equal width.

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

    `along` (n, Q) has log p(y_nq | all before it) under `chosen` less that under `other`: the terms of each
    sample and channel as the cycle unfolds, which sum to `total`. Within a sample, channels are taken in
    their order; `alone` has what each channel would say if it were the only one.
    """

    chosen: str
    other: str
    grid: FloatArray
    channels: tuple[str, ...]
    along: FloatArray
    alone: FloatArray
    total: float

    def stretches(self, count: int = 12) -> list[dict[str, Any]]:
        """The axis cut into `count` stretches, channel by channel: start, end, nats; the strongest first."""
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
        """For JSON: nats over at most `count` stretches a channel, their places, and channels alone.

        Log-likelihood differences only: no samples.
        """
        cuts = np.array_split(np.arange(len(self.grid)), min(count, len(self.grid)))
        return {
            "chosen": self.chosen,
            "other": self.other,
            "total": self.total,
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
    laws: tuple[Law, Law],
    names: tuple[str, str],
    *,
    grid: FloatArray,
    channels: Sequence[str],
    cycle: FloatArray,
) -> Why:
    """The difference of two classes' evidence of one cycle (n, Q), cell by cell and channel by channel."""
    one, two = laws
    along = one.by_cell(cycle) - two.by_cell(cycle)
    Q = cycle.shape[1]
    alone = np.full(Q, np.nan)
    for q in range(Q):
        if np.isfinite(cycle[:, q]).any():
            others = [p for p in range(Q) if p != q]
            pair = [law.without(others).score(cycle[None, :, q : q + 1])[0][0] for law in laws]
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


def _humble(probability: FloatArray, cycles: int) -> FloatArray:
    """Never surer than `cycles` held-out cycles can make one: n without a mistake leave 1 in n + 2 (Laplace).

    Where all of them are classified without fault τ stays at 1, and ℓ differs by thousands of nats. The most
    probable class stays the most probable.
    """
    if not cycles:
        return probability
    share = 1.0 / (cycles + 2.0)
    return (1.0 - share) * probability + share / probability.shape[1]


def _log_loss(log_posterior: FloatArray, truth: npt.NDArray[np.int64]) -> float:
    return float(-np.mean(log_posterior[np.arange(len(truth)), truth]))
