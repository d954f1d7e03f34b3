"""How far a run that the model has never seen is from its class.

    d² = (y − f_k)ᵀ Σ⁻¹ (y − f_k),   about (μ/ν) χ²_ν over held-out runs

If Σ were known, d² would be χ² with as many degrees of freedom as there are coordinates. Σ comes from few
runs: held-out runs are further away, by amounts that differ from run to run. μ and ν are those whose median
and 90% point held-out runs have: a few cycles that are far off do not change them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2

from pfedhgp.diagnosis.held_out_runs import Cycles, Held

FloatArray = npt.NDArray[np.float64]
FEWEST = 2.0
"""ν is at least this."""


@dataclass(frozen=True)
class Typical:
    """μ and ν of one cycle of a new run, and of the mean of a new run."""

    cycle: float
    cycle_freedom: float
    run: float
    run_freedom: float


def typical_of(cycles: Cycles, held: Held) -> Typical:
    """What held-out runs say, under this covariance; all runs weigh the same."""
    member, size = cycles.folds >= 0, float(held.lengths.sum())
    own = held.square[np.arange(len(member)), cycles.labels]
    first = np.unique(cycles.run_keys, return_index=True)[1]
    runs = held.of_run[first[member[first]]]
    return Typical(
        *matched(own[member], cycles.weights[member], size),
        *matched(runs, np.ones(len(runs)), size),
    )


def matched(square: FloatArray, weights: FloatArray, size: float) -> tuple[float, float]:
    """μ and ν of (μ/ν) χ²_ν with the weighted median and 90% point of d²; ν is between 2 and `size`."""
    order = np.argsort(square)
    place = (np.cumsum(weights[order]) - 0.5 * weights[order]) / weights.sum()
    middle, high = np.maximum(np.interp((0.5, 0.9), place, square[order]), 1e-300)
    tried = np.geomspace(FEWEST, max(size, FEWEST), 200)
    wanted = chi2.ppf(0.9, tried) / chi2.ppf(0.5, tried)
    freedom = float(tried[np.argmin(np.abs(np.log(wanted) - np.log(high / middle)))])
    return float(middle * freedom / chi2.ppf(0.5, freedom)), freedom
