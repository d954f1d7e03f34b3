"""Trains a model for diagnosis: chooses the cycle layer by class evidence, fits, and sets the thresholds.

Everything is learned from the training cycles. Folds consist of whole blocks, and the cycles of a fold are
judged by models that never saw their block. The choice and the thresholds are stored in the model's settings
("diagnosis"), so that a RUN folder has them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pfedhgp.data.tables import numeric
from pfedhgp.diagnosis.decision import FALSE_ALARMS, Calibration, calibrate
from pfedhgp.diagnosis.evidence import concatenated, evidence
from pfedhgp.diagnosis.layer_choice import (
    LEAST,
    Candidate,
    candidates_for,
    choose,
    complete,
    folds_of,
)
from pfedhgp.errors import InputError, PFedHGPWarning
from pfedhgp.estimator import FederatedGP
from pfedhgp.inference.starts import budget
from pfedhgp.model.cycle_layer import CycleBasis

FloatArray = npt.NDArray[np.float64]
KEY = "diagnosis"
FALLBACK = Candidate("free")
"""The layer if there are too few cycles to choose: any smooth covariance, one for all classes."""
TOO_FEW = "not chosen: too few cycles"
MOST, IN_ALL = 81, 340
"""Most basis functions of the cycle layer per channel, and of all channels together."""


def default_basis(samples: int, channels: int) -> int:
    """Basis functions of the cycle layer per channel: one per sample, up to a limit.

    >>> default_basis(60, 4), default_basis(1201, 4), default_basis(60, 17)
    (60, 81, 20)
    """
    return max(2, min(samples, MOST, IN_ALL // channels))


def train_diagnosis(
    data: Mapping[str, tuple[Any, Any]],
    *,
    blocks: Mapping[str, Sequence[object]] | None = None,
    inputs: str | Sequence[str] | None = None,
    outputs: str | Sequence[str] | None = None,
    candidates: Sequence[Candidate] | None = None,
    folds: int = 3,
    false_alarms: float = FALSE_ALARMS,
    thresholds: bool = True,
    make: Callable[..., FederatedGP] = FederatedGP,
    **settings: Any,
) -> FederatedGP:
    """A `FederatedGP` of classes {name: (grid, cycles (C, Q, n))}, ready to `classify`.

    `blocks` gives the production run of each cycle of each class: cycles of one block are never on both
    sides of a split. `inputs` and `outputs` name the grid's columns and the channels. `candidates` are the
    cycle layers to choose from: by default one for all classes (white, stationary, free), and if cycles are
    short and each class has 20 or more also layers of a class's own and mixed ones. If a class has fewer
    than 4 complete cycles nothing is chosen: the layer is the free one, with a warning. Without `thresholds`
    there is no "none of these" and the folds are not trained; the temperature then comes from the choice.
    `settings` are those of `FederatedGP` (with a `cycle_basis` of 40 by default), except `cycles` and
    `cycle_sharing`, which are chosen.

    Example:
        >>> import numpy as np
        >>> from pfedhgp.estimator.diagnosis_training import train_diagnosis
        >>> rng, grid = np.random.default_rng(0), np.linspace(0, 1, 12)
        >>> def cycles(shift):
        ...     wave = np.sin(6 * grid + shift) + 0.3 * rng.normal(size=(8, 1, 1))
        ...     return wave + 0.05 * rng.normal(size=(8, 1, 12))
        >>> data = {"normal": (grid, cycles(0.0)), "worn": (grid, cycles(0.6))}
        >>> model = train_diagnosis(data, cycle_basis=6, folds=2, rounds=2, thresholds=False)
        >>> model.classify(cycles(0.6)[:2], grid=grid).labels
        ('worn', 'worn')
    """
    if not 0.0 < false_alarms < 1.0:
        raise InputError(f"`false_alarms` must be between 0 and 1, got {false_alarms!r}")
    for name in ("cycles", "cycle_sharing"):
        if name in settings:
            raise InputError(f"the cycle layer is chosen: give `candidates` instead of `{name}`")
    settings = {"seed": 0, "cycle_basis": 40, **settings}
    classes = _classes_of(data, blocks, folds=folds, seed=settings["seed"])
    chosen = _choose_layer(
        classes,
        _candidates(
            candidates_for(classes.cycles, len(classes.grid)) if candidates is None else candidates
        ),
        settings["cycle_basis"],
        thresholds=thresholds,
        false_alarms=false_alarms,
    )
    domain = [(float(x.min()), float(x.max())) for x in classes.grid.T]
    common = {**chosen.layer.settings, "domain": domain, **settings}

    def fitted(cycles: Mapping[str, FloatArray]) -> FederatedGP:
        rows = {name: (classes.grid, Y) for name, Y in cycles.items()}
        return make(**common).fit(rows, inputs=inputs, outputs=outputs)

    model = fitted(classes.cycles)
    found = _held_out(classes, fitted, false_alarms) if thresholds else chosen.calibration
    stored = {
        "calibration": found.to_json(),
        "form": chosen.layer.form,
        "sharing": chosen.layer.sharing,
        "choice": chosen.how,
        "candidates": {name: score.to_json() for name, score in chosen.scores.items()},
        "folds": folds,
        "blocks": classes.blocks,
    }
    model.model_ = replace(model.model_, settings={**model.model_.settings, KEY: stored})
    return model


@dataclass(frozen=True, eq=False)
class _Classes:
    """The training cycles of all classes on one grid, and their folds."""

    grid: FloatArray
    cycles: dict[str, FloatArray]
    """(C, Q, n) by class"""
    folds: dict[str, npt.NDArray[np.int64]]
    blocks: int | None
    """how many there are, if they were given"""


@dataclass(frozen=True)
class _Choice:
    """The cycle layer, how it came about, and what each candidate scored."""

    layer: Candidate
    how: str
    scores: dict[str, Calibration]

    @property
    def calibration(self) -> Calibration:
        """The temperature that the cycles held out for the choice support, without thresholds."""
        if not self.scores:
            return Calibration()
        return replace(self.scores[str(self.layer)], thresholds=None, false_alarms=None)


def _classes_of(
    data: Mapping[str, tuple[Any, Any]],
    blocks: Mapping[str, Sequence[object]] | None,
    *,
    folds: int,
    seed: int,
) -> _Classes:
    grid, cycles = _checked(data)
    labels = [name for name, Y in cycles.items() for _ in Y]
    owners = None if blocks is None else _blocks_of(blocks, cycles)
    fold = folds_of(labels, owners, folds=folds, seed=seed)
    cuts = np.cumsum([len(Y) for Y in cycles.values()])[:-1]
    by_class = dict(zip(cycles, np.split(fold, cuts), strict=True))
    return _Classes(grid, cycles, by_class, None if owners is None else len(set(owners)))


def _choose_layer(
    classes: _Classes,
    candidates: Sequence[Candidate],
    basis: int,
    *,
    thresholds: bool,
    false_alarms: float,
) -> _Choice:
    """The candidate with the best class evidence, or the fallback if cycles are too few."""
    several = len(candidates) > 1
    few = [name for name, Y in classes.cycles.items() if complete(Y).sum() < LEAST]
    if few and several:
        layer = FALLBACK if FALLBACK in candidates else candidates[-1]
        warnings.warn(
            f"class {few[0]!r} has fewer than {LEAST} complete cycles: the cycle layer is {layer}, "
            f"{TOO_FEW}",
            PFedHGPWarning,
            stacklevel=3,
        )
        return _Choice(layer, TOO_FEW, {})
    how = "chosen" if several else "given"
    if few or not (several or not thresholds):
        return _Choice(candidates[0], how, {})
    low, high = classes.grid.min(axis=0), classes.grid.max(axis=0)
    samples = {name: np.moveaxis(Y, 1, 2) for name, Y in classes.cycles.items()}
    everything = np.concatenate(list(samples.values()))
    centre, spread = np.nanmean(everything, axis=(0, 1)), np.nanstd(everything, axis=(0, 1))
    spread = np.where(spread > 0, spread, 1.0)
    layer, scores = choose(
        (classes.grid - low) / (high - low),
        {name: (Y - centre) / spread for name, Y in samples.items()},
        classes.folds,
        CycleBasis.on(budget.box_points(basis, classes.grid.shape[1])),
        candidates=candidates,
        false_alarms=false_alarms if thresholds else None,
    )
    return _Choice(layer, how, scores)


def _held_out(
    classes: _Classes,
    fitted: Callable[[Mapping[str, FloatArray]], FederatedGP],
    false_alarms: float,
) -> Calibration:
    """Temperature and thresholds from cycles judged by models that never saw their fold."""
    parts, truth = [], []
    for k in sorted(set(np.concatenate(list(classes.folds.values())).tolist())):
        kept = {name: Y[classes.folds[name] != k] for name, Y in classes.cycles.items()}
        judge = fitted(kept).model_
        for name, Y in classes.cycles.items():
            new = np.moveaxis(Y[classes.folds[name] == k], 1, 2)
            if len(new):
                parts.append(evidence(judge, classes.grid, new, list(kept), novelty=True))
                truth += [name] * len(new)
    return calibrate(concatenated(parts), truth, false_alarms=false_alarms)


def _candidates(given: Sequence[Candidate]) -> Sequence[Candidate]:
    if isinstance(given, str | Candidate) or not isinstance(given, Sequence):
        raise InputError(f"`candidates` must be a list of `Candidate`, got {given!r:.60}")
    if not given:
        raise InputError("`candidates` is empty: name at least one cycle layer")
    for each in given:
        if not isinstance(each, Candidate):
            raise InputError(
                f"`candidates` must be a list of `Candidate`, such as Candidate('free'), got {each!r:.60}"
            )
    return given


def _checked(
    data: Mapping[str, tuple[Any, Any]],
) -> tuple[FloatArray, dict[str, FloatArray]]:
    """The grid that all classes share, and the cycles of each."""
    if not isinstance(data, Mapping):
        raise InputError(
            f"the data must be {{class: (grid, cycles)}}, got {type(data).__name__}: name the classes"
        )
    grids: dict[str, FloatArray] = {}
    arrays: dict[str, FloatArray] = {}
    for name, pair in data.items():
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise InputError(f"class {name!r} must be a pair (grid, cycles)")
        grid = numeric(pair[0], f"class {name!r}: the grid", missing=False)
        arrays[str(name)] = _cycles_of_class(str(name), pair[1], len(grid))
        grids[str(name)] = grid
    if len(arrays) < 2:
        raise InputError("a diagnosis needs at least two classes")
    first = next(iter(grids.values()))
    channels = next(iter(arrays.values())).shape[1]
    for name, grid in grids.items():
        if not np.array_equal(grid, first):
            raise InputError(
                f"class {name!r} is on another grid than the first class: use one grid for all"
            )
        if arrays[name].shape[1] != channels:
            raise InputError(
                f"class {name!r} has {arrays[name].shape[1]} channels, the first class {channels}"
            )
    constant = np.flatnonzero(np.ptp(first, axis=0) == 0.0)
    if len(constant):
        raise InputError(
            f"the grid is {first[0, constant[0]]:g} at every sample (input {constant[0] + 1}), but cycles "
            "need an axis"
        )
    return first, arrays


def _cycles_of_class(name: str, given: Any, samples: int) -> FloatArray:
    """(C, Q, n) of numbers; every cycle must have a value."""
    try:
        cycles = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"class {name!r}: cycles must be numbers, (C, Q, {samples})") from None
    if cycles.ndim != 3 or cycles.shape[2] != samples or 0 in cycles.shape:
        raise InputError(f"class {name!r}: cycles must be (C, Q, {samples}), got {cycles.shape}")
    endless = np.flatnonzero(np.isinf(cycles).any(axis=(1, 2)))
    if len(endless):
        raise InputError(f"class {name!r}: cycle {endless[0]} has an infinite value")
    empty = np.flatnonzero(np.isnan(cycles).all(axis=(1, 2)))
    if len(empty) == len(cycles):
        raise InputError(
            f"class {name!r} has no values: all samples are missing, from cycle 0 to cycle {len(empty) - 1}"
        )
    if len(empty):
        raise InputError(
            f"class {name!r}: cycle {empty[0]} has no values: all its samples are missing"
        )
    return cycles


def _blocks_of(
    blocks: Mapping[str, Sequence[object]], arrays: Mapping[str, FloatArray]
) -> list[str]:
    if not isinstance(blocks, Mapping):
        raise InputError(f"`blocks` must be {{class: blocks}}, got {type(blocks).__name__}")
    out = []
    for name, Y in arrays.items():
        if name not in blocks or len(blocks[name]) != len(Y):
            raise InputError(
                f"`blocks` must give the block of each of the {len(Y)} cycles of {name!r}"
            )
        out += [f"{name}/{block}" for block in blocks[name]]
    return out
