"""Trains the classifier of whole cycles on runs of known classes.

Everything comes from the training cycles: sums over runs, candidates judged by held-out runs, thresholds of
"none of these" by the most surprising cycle of each held-out run, and shrunken LDA beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pfedhgp.base.numerics import one_blas_thread
from pfedhgp.diagnosis import beside
from pfedhgp.diagnosis.alikeness import lag_one, warn_of_alikeness
from pfedhgp.diagnosis.candidates import (
    OWN_SIZE,
    Candidate,
    Judged,
    candidates_for,
    judged,
    kept,
    losses,
    probabilities,
)
from pfedhgp.diagnosis.coordinates import Coordinates, coordinates_per_channel, interpolation
from pfedhgp.diagnosis.decision import FALSE_ALARMS, Calibration, less_certain
from pfedhgp.diagnosis.filling import Filled, filled
from pfedhgp.diagnosis.held_out_runs import FOLDS, Cycles, Held, folds_of_runs, held_out
from pfedhgp.diagnosis.odd_channels import (
    STILL,
    warn_of_absent_channels,
    warn_of_dead_channels,
    warn_of_other_grids,
)
from pfedhgp.diagnosis.run_classifier import RunClassifier
from pfedhgp.diagnosis.run_sums import RunSums, sums_of_runs
from pfedhgp.diagnosis.strangers import ratios_of_runs, references_of
from pfedhgp.diagnosis.thresholds import limits_of_runs
from pfedhgp.diagnosis.typical import Typical, typical_of
from pfedhgp.errors import InputError, warn

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
FALLBACK = Candidate("cell", 0.3)
"""If runs are too few to judge candidates."""
TOO_FEW = (
    "too few runs to judge anything by held-out ones: probabilities are rough, and no cycle is called none "
    "of these"
)
PRIOR = 0.5
"""Of one more cycle after n that were right, ½/(n + 1) is dealt out evenly."""


@dataclass(frozen=True, eq=False)
class Training:
    """A trained classifier, and what is to be said about it."""

    classifier: RunClassifier
    facts: dict[str, Any]
    """numbers of runs and cycles, held-out scores, those of LDA"""


@dataclass(frozen=True)
class How:
    """How to train."""

    candidates: tuple[Candidate, ...] | None = None
    """None: `candidates_for`"""
    folds: int = FOLDS
    false_alarms: float = FALSE_ALARMS
    thresholds: bool = True
    rank: int | None = None
    """coordinates of a channel; None: `coordinates_per_channel`"""
    seed: int = 0


def train(
    grid: FloatArray,
    cycles: Mapping[str, FloatArray],
    runs: Mapping[str, Sequence[object]] | None,
    *,
    channels: Sequence[str],
    how: How,
) -> Training:
    """The classifier of classes {name: cycles (C, Q, n)} on the grid (n, d), NaN where missing.

    `runs` gives the run of each cycle. Without it every cycle is a run of its own.
    """
    names = tuple(cycles)
    labels = np.repeat(np.arange(len(names)), [len(cycles[name]) for name in names])
    everything = np.concatenate([cycles[name] for name in names])
    seen = [np.isfinite(cycles[name]).any(axis=0) for name in names]
    warn_of_other_grids(names, np.stack(seen), stacklevel=4)
    warn_of_absent_channels(names, np.stack(seen), channels, stacklevel=4)
    warn_of_dead_channels(cycles, channels, stacklevel=4)
    with one_blas_thread():
        space, used = _space(grid, everything, labels, channels, how)
        own_runs = _runs_of(names, cycles, runs)
        data = _cycles_of(space, everything[:, used], labels, own_runs, names, how)
        if runs is None:
            warn_of_alikeness(*lag_one(data.found, data.labels), stacklevel=5)
        total = data.sums()
        verdict = _judge(data, total, space, how)
    found, facts = verdict.found, verdict.facts
    rate = None if verdict.limits is None else how.false_alarms
    classifier = RunClassifier(
        classes=names,
        used=tuple(used),
        coordinates=space,
        sums=total if any(each.candidate.own for each in found) else total.pooled(),
        judged=found,
        reference=verdict.references[0],
        second=verdict.references[1] if len(verdict.references) > 1 else None,
        typical=verdict.typical,
        calibration=Calibration(
            thresholds=verdict.limits,
            false_alarms=rate,
            cycles=len(labels),
            prior=PRIOR,
            **facts["held_out"],
        ),
    )
    said = behind(facts)
    if said is not None:
        warn(said, stacklevel=4)
    return Training(classifier, facts)


def behind(facts: Mapping[str, Any]) -> str | None:
    """One line if LDA does better on the held-out runs, by more than half a run."""
    ours, other = facts["held_out"].get("accuracy"), facts["lda"]
    if not other or other["accuracy"] <= ours + 0.5 / facts["runs"]:
        return None
    return (
        f"on held-out runs of the training data, shrunken LDA is right about {other['accuracy']:.1%} of "
        f"cycles, this model about {ours:.1%}: consider LDA, or give more runs"
    )


def _space(
    grid: FloatArray,
    cycles: FloatArray,
    labels: IntArray,
    channels: Sequence[str],
    how: How,
) -> tuple[Coordinates, list[int]]:
    """Coordinates of the channels that move, and which those are."""
    with np.errstate(invalid="ignore"):
        flat = np.where(np.isfinite(cycles), cycles, np.nan)
    seen = np.isfinite(flat)
    centre = np.zeros(cycles.shape[1:])
    spread = np.zeros(cycles.shape[1])
    for q in range(cycles.shape[1]):
        if not seen[:, q].any():
            continue
        means = _class_means(flat[:, q], labels)
        centre[q] = without_gaps(means.mean(axis=0), grid)
        gaps = flat[:, q] - means[np.searchsorted(np.unique(labels), labels)]
        spread[q] = np.sqrt(np.nanmean(gaps**2)) or float(np.nanstd(flat[:, q]))
    size = np.nanmax(np.abs(flat), axis=(0, 2), initial=0.0, where=seen)
    still = [q for q in range(len(spread)) if spread[q] <= STILL * size[q]]
    for q in still:
        what = "has no values" if not seen[:, q].any() else "is constant"
        warn(f"channel {channels[q]!r} {what} in the training cycles: it is left out", stacklevel=5)
    used = [q for q in range(len(spread)) if q not in still]
    if not used:
        raise InputError("every channel is constant: nothing tells classes apart")
    rank = coordinates_per_channel(len(grid)) if how.rank is None else min(how.rank, len(grid))
    return Coordinates(grid, centre[used], spread[used], rank), used


def _class_means(values: FloatArray, labels: IntArray) -> FloatArray:
    """(K, n) of (C, n) with NaN; samples that a class never has are everyone's."""
    seen = np.isfinite(values)
    plain = np.where(seen, values, 0.0)
    overall = plain.sum(axis=0) / np.where(seen.any(axis=0), seen.sum(axis=0), np.nan)
    out = []
    for k in np.unique(labels):
        count = seen[labels == k].sum(axis=0)
        mean = plain[labels == k].sum(axis=0) / np.maximum(count, 1)
        out.append(np.where(count > 0, mean, overall))
    return np.stack(out)


def without_gaps(values: FloatArray, grid: FloatArray) -> FloatArray:
    there = np.isfinite(values)
    if there.all():
        return values
    if there.sum() == 1:
        return np.full_like(values, values[there][0])
    return np.asarray(interpolation(grid[there], grid) @ values[there])


def _runs_of(
    names: Sequence[str],
    cycles: Mapping[str, FloatArray],
    runs: Mapping[str, Sequence[object]] | None,
) -> list[str] | None:
    """The run of each cycle, or None if each is its own."""
    if runs is None:
        if all(len(cycles[name]) == 1 for name in names):
            raise InputError(
                "every class has one cycle: how cycles of a class differ cannot be told; give more cycles"
            )
        for name in names:
            if len(cycles[name]) == 1:
                warn(
                    f"class {name!r} has one cycle: how its cycles differ is taken from the other classes, "
                    "and it cannot be held out",
                    stacklevel=5,
                )
        return None
    different = {name: len({str(run) for run in runs[name]}) for name in names}
    if max(different.values()) == 1:
        if all(len(cycles[name]) == 1 for name in names):
            return _runs_of(names, cycles, None)
        warn(
            "every class has one run: how runs differ cannot be estimated, so each cycle counts as a run; "
            "about new runs the model will be too sure",
            stacklevel=5,
        )
        return None
    for name, count in different.items():
        if count == 1:
            warn(
                f"class {name!r} has one run: how its runs differ is taken from the other classes, and it "
                "cannot be held out",
                stacklevel=5,
            )
    return [str(run) for name in names for run in runs[name]]


def _cycles_of(
    space: Coordinates,
    cycles: FloatArray,
    labels: IntArray,
    runs: list[str] | None,
    names: Sequence[str],
    how: How,
) -> Cycles:
    """The cycles in coordinates, with folds."""
    classes = len(names)

    def sums_of(guess: Filled) -> RunSums:
        each = runs if runs is not None else [str(c) for c in range(len(labels))]
        return sums_of_runs(
            guess.found,
            guess.outside,
            labels,
            each,
            classes=classes,
            own=False,
            filled=guess.spread,
        )

    keys = [str(c) for c in range(len(labels))]
    if runs is not None:
        keys = [f"{k}/{run}" for k, run in zip(labels, runs, strict=True)]
    number = np.unique(keys, return_inverse=True)[1].reshape(-1)
    complete = filled(space, cycles, labels, number, sums_of)
    if runs is None:
        runs = _by_content(complete.found, labels)
    folds = folds_of_runs([names[k] for k in labels], runs, folds=how.folds, seed=how.seed)
    return Cycles(
        complete.found,
        complete.outside,
        labels,
        tuple(runs),
        folds,
        classes,
        space.channels,
        own=space.size <= OWN_SIZE,
        filled=complete.spread,
    )


def _by_content(found: FloatArray, labels: IntArray) -> list[str]:
    """A name for each cycle as a run of its own, by its values: the order of cycles does not matter."""
    few = np.round(found[:, : min(4, found.shape[1])], 9)
    order = np.lexsort((*few.T, labels))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return [f"{k:09d}" for k in rank]


@dataclass(frozen=True, eq=False)
class _Judgement:
    """The candidates that are averaged, those that show strangers best, thresholds, and facts."""

    found: tuple[Judged, ...]
    references: tuple[Candidate, ...]
    limits: tuple[float, ...] | None
    facts: dict[str, Any]
    typical: Typical | None = None


def _judge(data: Cycles, total: RunSums, space: Coordinates, how: How) -> _Judgement:
    """What held-out runs say."""
    tried = how.candidates or candidates_for(total, data.found.shape[1])
    facts: dict[str, Any] = {
        "runs": int(total.runs.sum()),
        "cycles": int(total.cycles.sum()),
        "judged": _enough(data),
        "held_out": {},
        "lda": None,
    }
    if not facts["judged"]:
        warn(TOO_FEW, stacklevel=5)
        only = unjudged(how.candidates, data.classes)
        first = only.candidate
        return _Judgement((only,), (first.shape,), None, facts)
    held = held_out(data, list(dict.fromkeys(each.shape for each in tried)))
    member = data.folds >= 0
    weights, truth = data.weights[member], data.labels[member]
    density = {c: held[c.shape].density(heavy=c.heavy) for c in tried}
    sums = {c: losses(each[member], truth, weights) for c, each in density.items()}
    found = kept(judged(sums, float(weights.sum())))
    share = [e.weight * probabilities(density[e.candidate], e.temperature, e.even) for e in found]
    ours = beside.scored(data, np.log(less_certain(np.sum(share, axis=0), len(data.labels), PRIOR)))
    facts["held_out"] = {"accuracy": ours.accuracy, "log_loss": ours.log_loss}
    facts["lda"] = beside.lda_beside(data).to_json()
    references = references_of(data, held, for_strangers(found), how.false_alarms)
    limits = None
    if how.thresholds:
        rate = how.false_alarms / len(references)
        limits = tuple(v for each in references for v in _limits(data, held[each], space, rate))
    return _Judgement(found, references, limits, facts, typical_of(data, held[references[0]]))


def unjudged(given: Sequence[Candidate] | None, classes: int) -> Judged:
    """The one covariance if nothing can be held out; nothing is known about it: as good as guessing."""
    first = given[0] if given else FALLBACK
    return Judged(first, 1.0, float(np.log(classes)), 1.0 / classes, 1.0)


def for_strangers(found: Sequence[Judged]) -> list[Candidate]:
    """The covariances that weigh most; a class's own, from few runs, only if there is no other."""
    some = [each for each in found if not each.candidate.own] or found
    best = [each for each in some if each.weight >= 0.5 * some[0].weight]
    return list(dict.fromkeys(each.candidate.shape for each in best))


def _limits(data: Cycles, held: Held, space: Coordinates, false_alarms: float) -> tuple[float, ...]:
    """Thresholds of "none of these" by the most surprising cycle of each held-out run."""
    outside, freedom = None, float(space.outside_freedom)
    if freedom:
        noise = np.maximum(data.outside.mean(axis=0), 1e-300)
        outside = np.mean(data.outside / noise, axis=1)
    ratio, lengths = ratios_of_runs(data, held, outside)
    counts = [held.directions[0], lengths.sum(), freedom * len(lengths), *lengths]
    return limits_of_runs(ratio, np.asarray(counts), false_alarms)


def _enough(data: Cycles) -> bool:
    """Whether without any fold there is still something that says how runs differ."""
    keys = np.asarray(data.run_keys)
    for fold in np.unique(data.folds[data.folds >= 0]):
        rest = data.folds != fold
        if len(np.unique(keys[rest])) <= len(np.unique(data.labels[rest])):
            return False
    return bool(np.any(data.folds >= 0))
