"""What is settled before training: how inputs and outputs are scaled, and how fast they vary. From sums."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pfedhgp.data.scaling import Scaling
from pfedhgp.errors import InputError
from pfedhgp.federation.plan import Plan
from pfedhgp.inference import census
from pfedhgp.inference.census import Scales

Sums = Mapping[str, np.ndarray]


def scaling_of(plan: Plan, counted: Sums, lower: np.ndarray, upper: np.ndarray) -> Scaling:
    """Inputs to the unit box, outputs to mean 0 and variance 1; `counted` are the census's sums."""
    seen = np.maximum(np.diagonal(counted["y_pairs"]), 1.0)
    centre = np.diagonal(counted["y_mean"]).copy()
    variance = np.maximum(np.diagonal(counted["y_cross"]) / seen, 0.0)
    if not np.all(np.isfinite(variance)):
        raise InputError("outputs are too large to be summed: rescale them")
    spread = np.sqrt(variance)
    if plan.spec.noise == "scalar":
        spread = np.full_like(spread, np.sqrt(np.mean(variance)))
    tiny = spread <= 8.0 * np.finfo(np.float64).eps * np.abs(centre)  # no more than rounding
    spread = np.where(tiny | (spread == 0), np.maximum(np.abs(centre) * 1e-6, 1e-9), spread)
    if not plan.scale_outputs:
        centre, spread = np.zeros_like(centre), np.ones_like(spread)
    return Scaling(lower, upper, centre, spread)


def scales_of(scaling: Scaling, sums: Sums, width: np.ndarray) -> Scales:
    """Starting scales; clients took lags in units of `width`."""
    varies = (scaling.upper > scaling.lower) & (width > 0)
    gaps = np.log(width[varies] / (scaling.upper - scaling.lower)[varies])
    ratio = float(np.exp(np.mean(gaps))) if varies.any() else 1.0
    found = census.starting_scales(sums["lag_sum"], sums["lag_pairs"], scaling.spread**2)
    return Scales(
        min(found.short * ratio, 0.3),
        min(found.long * ratio, 0.35),
        found.short_variance,
        found.long_variance,
        found.noise_variance,
    )
