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

from pfedhgp.diagnosis.candidates import Candidate, metrics
from pfedhgp.diagnosis.held_out_runs import Cycles, over_folds
from pfedhgp.diagnosis.run_layers import Layers
from pfedhgp.diagnosis.run_sums import RunSums

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
FEWEST = 2.0
"""ν is at least this."""


@dataclass(frozen=True)
class Typical:
    """μ and ν of one cycle of a new run, and of the mean of a new run."""

    cycle: float
    cycle_freedom: float
    run: float
    run_freedom: float


def typical_of(cycles: Cycles, reference: Candidate) -> Typical:
    """What held-out runs say, under this covariance; all runs weigh the same."""
    C = len(cycles.labels)
    keys, place, length = np.unique(cycles.run_keys, return_inverse=True, return_counts=True)
    first = np.unique(place, return_index=True)[1]
    own_class, own_fold = cycles.labels[first], cycles.folds[first]
    means = np.zeros((len(keys), cycles.found.shape[1]))
    np.add.at(means, place, cycles.found)
    means /= length[:, None]
    one, all_of_it = np.zeros(C), np.zeros(len(keys))

    def judge(sums: RunSums, layers: Layers, members: IntArray) -> None:
        held = np.flatnonzero(own_fold == cycles.folds[members[0]])
        found = list(metrics(reference, layers, sums))
        for k in range(cycles.classes):
            metric = found[k if reference.own else 0]
            for out, values, labels, which in (
                (one, cycles.found, cycles.labels, members),
                (all_of_it, means, own_class, held),
            ):
                mine = which[labels[which] == k]
                if len(mine):
                    out[mine] = metric.distances(values[mine], layers.means[k : k + 1])[0][:, 0]

    over_folds(cycles, judge)
    member = cycles.folds >= 0
    size = float(cycles.found.shape[1])
    return Typical(
        *matched(one[member], cycles.weights[member], size),
        *matched(all_of_it[own_fold >= 0], np.ones(int(np.sum(own_fold >= 0))), size),
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
