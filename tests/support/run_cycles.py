"""Cycles in runs of known classes, a classifier of them, and what it says of new ones."""

from __future__ import annotations

import warnings

import numpy as np

from pfedhgp.diagnosis.candidates import Candidate
from pfedhgp.diagnosis.decision import diagnose
from pfedhgp.diagnosis.run_classifier import RunClassifier
from pfedhgp.diagnosis.training import How, train

GRID = np.linspace(0.0, 1.0, 10)[:, None]
NAMES = ("p", "q", "r")
FEW = How(candidates=(Candidate("cell", 0.1), Candidate("smooth", 0.3)), folds=4)


def runs(
    seed: int = 0,
    *,
    count: int = 6,
    length: int = 5,
    effect: float = 0.5,
    Q: int = 3,
    dents=(0.0, 1.0),
):
    """({class: cycles}, {class: runs}): dents, levels of runs, and noise."""
    rng = np.random.default_rng(seed)
    cycles, block = {}, {}
    for k, dent in enumerate(dents):
        shape = dent * np.exp(-0.5 * ((GRID[:, 0] - 0.5) / 0.15) ** 2)
        level = effect * np.repeat(rng.normal(size=(count, Q, 1)), length, axis=0)
        cycles[f"class {k}"] = shape + level + 0.1 * rng.normal(size=(count * length, Q, 10))
        block[f"class {k}"] = np.repeat(np.arange(count), length).tolist()
    return cycles, block


def trained(cycles, block, how: How = FEW) -> RunClassifier:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return train(GRID, cycles, block, channels=NAMES, how=how).classifier


def labels_of(model: RunClassifier, cycles, grid=GRID):
    found = model.evidence(grid, np.moveaxis(cycles, 1, 2), novelty=True)
    return diagnose(found, calibration=model.calibration)
