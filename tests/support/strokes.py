"""Strokes of a press with a dent, and a quick model that tells two dents apart."""

from __future__ import annotations

import numpy as np

from pfedhgp import FederatedGP
from pfedhgp.diagnosis.candidates import Candidate
from pfedhgp.estimator.diagnosis_training import train_diagnosis

GRID = np.linspace(0.0, 1.0, 10)


def strokes(dent: float, count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    wave = np.sin(3 * GRID) - dent * np.exp(-0.5 * ((GRID - 0.5) / 0.1) ** 2)
    level = 0.3 * rng.normal(size=(count, 1, 1))
    return wave + level + 0.05 * rng.normal(size=(count, 2, 10))


def trained() -> FederatedGP:
    data = {"normal": (GRID, strokes(0.0, 30, 0)), "worn": (GRID, strokes(0.6, 30, 1))}
    few = [Candidate("cell", 0.1), Candidate("channel", 0.1)]
    return train_diagnosis(data, candidates=few, outputs=["p", "q"], rounds=1)
