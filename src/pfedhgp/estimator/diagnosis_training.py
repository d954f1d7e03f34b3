"""A model for diagnosis: the cycle layer chosen by class evidence, the model trained, thresholds held out.

Everything is learned from the training cycles: folds are made of whole blocks, a fold's cycles are judged by
models that never saw their block, and what is reported of the choice and of the thresholds is in the model's
settings ("diagnosis"), so that a RUN folder carries it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pfedhgp.data.tables import numeric
from pfedhgp.diagnosis.decision import FALSE_ALARMS, Calibration, calibrate
from pfedhgp.diagnosis.evidence import evidence, stacked
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
"""Where cycles are too few to choose by: smooth in any way, one for all classes."""
TOO_FEW = "not chosen: too few cycles"
MOST, IN_ALL = 81, 340
"""Basis functions of the cycle layer a channel, and of all channels together."""


def usual_basis(samples: int, channels: int) -> int:
    """Basis functions of the cycle layer a channel: one a sample, within what can be afforded.

    >>> usual_basis(60, 4), usual_basis(1201, 4), usual_basis(60, 17)
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
    cycle_basis: int = 40,
    seed: int = 0,
    make: Callable[..., FederatedGP] = FederatedGP,
    **settings: Any,
) -> FederatedGP:
    """A `FederatedGP` of classes {name: (grid, cycles (C, Q, n))}, ready to `classify`.

    `blocks` says, for each class, which run of production each cycle is of: cycles of one block are never
    on both sides of a split. `inputs` and `outputs` name the grid's columns and the channels. Layers to
    choose from are `candidates`: by default one for all classes (white, stationary, free), and with short
    cycles and 20 or more of each class also layers of a class's own and mixed ones. With fewer than 4
    complete cycles of a class nothing is chosen: the free layer is taken, and said to be. Without
    `thresholds` there is no "none of these", and the folds are not trained: the temperature is then that of
    the choice. `settings` are those of `FederatedGP`, but for `cycles` and `cycle_sharing`, which are chosen.

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
    grids, arrays = _checked(data)
    names = list(arrays)
    labels = [name for name in names for _ in arrays[name]]
    owners = None if blocks is None else _blocks_of(blocks, arrays)
    fold = folds_of(labels, owners, folds=folds, seed=seed)
    cuts = np.cumsum([len(arrays[name]) for name in names])[:-1]
    by_class = dict(zip(names, np.split(fold, cuts), strict=True))
    if candidates is None:
        candidates = candidates_for(arrays, len(grids[names[0]]))
    candidates = _candidates(candidates)
    chosen: Candidate = candidates[0]
    judged: dict[str, Calibration] = {}
    how = "chosen" if len(candidates) > 1 else "given"
    few = [name for name in names if complete(arrays[name]).sum() < LEAST]
    if few and len(candidates) > 1:
        chosen, how = FALLBACK if FALLBACK in candidates else candidates[-1], TOO_FEW
        warnings.warn(
            f"class {few[0]!r} has fewer than {LEAST} complete cycles: the cycle layer is {chosen}, "
            f"{TOO_FEW}",
            PFedHGPWarning,
            stacklevel=2,
        )
    if not few and (len(candidates) > 1 or not thresholds):
        chosen, judged = _choice(
            grids[names[0]],
            arrays,
            by_class,
            candidates,
            cycle_basis,
            false_alarms=false_alarms if thresholds else None,
        )
    common = {
        **chosen.settings,
        "cycle_basis": cycle_basis,
        "domain": [(float(x.min()), float(x.max())) for x in grids[names[0]].T],
        "seed": seed,
        **settings,
    }
    columns: dict[str, Any] = {"inputs": inputs, "outputs": outputs}
    model = make(**common).fit({name: (grids[name], arrays[name]) for name in names}, **columns)
    # Without thresholds the folds are not trained: the choice's own held-out cycles set the temperature.
    found = (
        replace(judged[str(chosen)], thresholds=None, false_alarms=None)
        if judged
        else Calibration()
    )
    if thresholds:
        parts, truth = [], []
        for k in range(folds):
            kept = {n: (grids[n], arrays[n][by_class[n] != k]) for n in names}
            judge = make(**common).fit(kept, **columns).model_
            for n in names:
                new = arrays[n][by_class[n] == k]
                if len(new):
                    parts.append(
                        evidence(judge, grids[n], np.moveaxis(new, 1, 2), names, novelty=True)
                    )
                    truth += [n] * len(new)
        found = calibrate(stacked(parts), truth, false_alarms=false_alarms)
    kept_settings = {
        "calibration": found.to_json(),
        "form": chosen.form,
        "sharing": chosen.sharing,
        "choice": how,
        "candidates": {name: score.to_json() for name, score in judged.items()},
        "folds": folds,
        "blocks": None if owners is None else len(set(owners)),
    }
    model.model_ = replace(model.model_, settings={**model.model_.settings, KEY: kept_settings})
    return model


def _choice(
    grid: FloatArray,
    arrays: Mapping[str, FloatArray],
    folds: Mapping[str, npt.NDArray[np.int64]],
    candidates: Sequence[Candidate],
    size: int,
    *,
    false_alarms: float | None,
) -> tuple[Candidate, dict[str, Calibration]]:
    low, high = grid.min(axis=0), grid.max(axis=0)
    everything = np.concatenate([np.moveaxis(Y, 1, 2) for Y in arrays.values()])
    centre, spread = np.nanmean(everything, axis=(0, 1)), np.nanstd(everything, axis=(0, 1))
    spread = np.where(spread > 0, spread, 1.0)
    scaled = {name: (np.moveaxis(Y, 1, 2) - centre) / spread for name, Y in arrays.items()}
    basis = CycleBasis.on(budget.box_points(size, grid.shape[1]))
    return choose(
        (grid - low) / (high - low),
        scaled,
        folds,
        basis,
        candidates=candidates,
        false_alarms=false_alarms,
    )


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


def _checked(data: Mapping[str, tuple[Any, Any]]) -> tuple[dict, dict]:
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
            raise InputError(f"class {name!r} is on another grid than the first: train on one grid")
        if arrays[name].shape[1] != channels:
            raise InputError(
                f"class {name!r} has {arrays[name].shape[1]} channels, the first class {channels}"
            )
    constant = np.flatnonzero(np.ptp(first, axis=0) == 0.0)
    if len(constant):
        raise InputError(
            f"the grid is {first[0, constant[0]]:g} at every sample (input {constant[0] + 1}): cycles need "
            "an axis"
        )
    return grids, arrays


def _cycles_of_class(name: str, given: Any, samples: int) -> FloatArray:
    """(C, Q, n) of numbers, each cycle with a value at least."""
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
            f"class {name!r} has no value: every sample is missing, from cycle 0 to cycle {len(empty) - 1}"
        )
    if len(empty):
        raise InputError(
            f"class {name!r}: cycle {empty[0]} has no value: every sample of it is missing"
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
                f"`blocks` must say the block of each of the {len(Y)} cycles of {name!r}"
            )
        out += [f"{name}/{block}" for block in blocks[name]]
    return out
