"""What is settled before training: how inputs and outputs are scaled, and how fast they vary. From sums."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from pfedhgp.data.scaling import Scaling
from pfedhgp.errors import InputError
from pfedhgp.federation.plan import Plan
from pfedhgp.inference.starts import census, shared_scale
from pfedhgp.inference.starts.census import Scales

log = logging.getLogger("pfedhgp")
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
    ratio = _ratio(scaling, width)
    found = census.starting_scales(sums["lag_sum"], sums["lag_pairs"], scaling.spread**2)
    return Scales(
        min(found.short * ratio, 0.3),
        min(found.long * ratio, 0.35),
        found.short_variance,
        found.long_variance,
        found.noise_variance,
    )


def shared_is_short(scaling: Scaling, scales: Scales, sums: Sums, width: np.ndarray) -> bool:
    """Whether clients have the shorter of two scales in common, where they sent what tells it."""
    found = shared_scale.shared_scale(sums) if "bin_sum" in sums else None
    if found is None:
        return False
    scale, share = found
    scale *= _ratio(scaling, width)
    log.info("between clients: scale %.3g, with %.2g of the variance", scale, share)
    return shared_scale.is_short((scale, share), short=scales.short, long=scales.long)


def _ratio(scaling: Scaling, width: np.ndarray) -> float:
    """`width`, in widths of the domain."""
    extent = scaling.upper - scaling.lower
    varies = (extent > 0) & (width > 0)
    gaps = np.log(width[varies] / extent[varies])
    return float(np.exp(np.mean(gaps))) if varies.any() else 1.0
