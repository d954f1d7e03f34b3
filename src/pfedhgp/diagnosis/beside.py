"""Shrunken LDA, run beside the classifier on the same held-out runs: does it do better?

One covariance for all classes, of all cycles whatever their run, as correlations shrunk towards I by OAS
(Chen and others, 2010, as scikit-learn has it), which takes sums alone:

    ρ = (tr C² + tr² C) / ((ν + 1)(tr C² − tr² C/D))
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from pfedhgp.diagnosis.candidates import log_posterior
from pfedhgp.diagnosis.held_out_runs import Cycles, over_folds
from pfedhgp.diagnosis.run_layers import Layers
from pfedhgp.diagnosis.run_sums import RunSums

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Beside:
    """Scores of held-out runs, each run weighing the same."""

    accuracy: float
    log_loss: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def shrunken_correlation(correlation: FloatArray, freedom: float) -> FloatArray:
    """(1 − ρ) C + ρ I."""
    D = len(correlation)
    squares, trace = float(np.sum(correlation**2)), float(np.trace(correlation))
    above, below = squares + trace**2, (freedom + 1.0) * (squares - trace**2 / D)
    rho = 1.0 if below <= 0.0 else min(above / below, 1.0)
    out = (1.0 - rho) * correlation
    out[np.diag_indices(D)] += rho * trace / D
    return out


def lda_densities(layers: Layers, found: FloatArray) -> FloatArray:
    """−½ d² (C, K) under the LDA of these layers."""
    covariance = layers.over_cycles
    sd = np.sqrt(np.maximum(np.diagonal(covariance), 0.0) + layers.floor)
    sigma = shrunken_correlation(covariance / np.outer(sd, sd), sum(layers.freedom))
    G, M = (found - layers.means[0]) / sd, (layers.means - layers.means[0]) / sd
    z = cho_solve(cho_factor(sigma, lower=True, check_finite=False), M.T, check_finite=False)
    return np.asarray(G @ z - 0.5 * np.einsum("kd,dk->k", M, z))


def lda_beside(cycles: Cycles) -> Beside:
    """LDA on the held-out runs of these cycles."""
    density = np.zeros((len(cycles.labels), cycles.classes))

    def judge(sums: RunSums, layers: Layers, members: IntArray) -> None:
        density[members] = lda_densities(layers, cycles.found[members])

    over_folds(cycles, judge)
    return scored(cycles, log_posterior(density, 1.0))


def scored(cycles: Cycles, log_probability: FloatArray) -> Beside:
    """Scores of the held-out cycles, each run weighing the same."""
    held = cycles.folds >= 0
    weights = cycles.weights[held] / cycles.weights[held].sum()
    truth, found = cycles.labels[held], log_probability[held]
    right = np.sum(weights * (np.argmax(found, axis=1) == truth))
    loss = -np.sum(weights * np.maximum(found[np.arange(len(truth)), truth], np.log(1e-300)))
    return Beside(float(right), float(loss))
