"""What a client says of its rows before training: counts, sums, a histogram, and how fast outputs vary.

With `few`, each number stands for at least five rows or pairs (`inference.starts.few_rows`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pfedhgp.data.rows import ClientRows, observations
from pfedhgp.federation.plan import Plan
from pfedhgp.inference.starts import census, few_rows, shared_scale, totals
from pfedhgp.inference.starts.forms import by_form
from pfedhgp.inference.starts.periodogram import PERIODS, by_input
from pfedhgp.inference.starts.told import LEAST_ROWS
from pfedhgp.model.spec import open_periods

Arrays = Mapping[str, np.ndarray]
Sums = dict[str, np.ndarray]


def census_of(plan: Plan, client: ClientRows, asked: Arrays, *, few: bool) -> Sums:
    """Counts and moments; with a known domain, also how fast outputs vary."""
    sums = census.moments(client.X, client.Y, observations(client))
    if few:
        sums = few_rows.moments(sums)
    if plan.masks:
        sums = totals.moments(client.X, client.Y, asked)
    if plan.domain is not None:
        lower, upper = plan.domain
        unit = (client.X - lower) / np.where(upper > lower, upper - lower, 1.0)
        sums |= by_lag(plan, unit, client.Y, few=few)
    return totals.in_units(sums, asked) if plan.masks else sums


def extent_of(plan: Plan, client: ClientRows, asked: Arrays, *, few: bool) -> Sums:
    """A histogram, how fast outputs vary, and if that is asked for, sums by bin."""
    centre, spread = asked["centre"], asked["spread"]
    unit = (client.X - centre) / np.where(spread > 0, spread, 1.0) / np.sqrt(12.0) + 0.5
    counts = census.histogram(client.X, centre, spread)
    sums = {
        "histogram": few_rows.histogram(counts) if few else counts,
        **by_lag(plan, unit, client.Y, few=few),
    }
    if "bins" in asked:
        least = LEAST_ROWS if few else 2
        sums |= shared_scale.binned(unit[:, 0], client.Y, int(asked["bins"]), least)
    return totals.in_units(sums, asked) if plan.masks else sums


def by_lag(plan: Plan, unit: np.ndarray, Y: np.ndarray, *, few: bool) -> Sums:
    """Sums that say how fast outputs vary; sums of waves only if a kernel leaves its period open."""
    sums = census.variogram(unit, Y, plan.seed)
    if few:
        sums = few_rows.lags(sums)
    if any(open_periods(spec) for spec in plan.candidates):
        gains = by_input(unit, Y)
        sums |= {"waves": few_rows.waves(gains, PERIODS, len(Y)) if few else gains}
    if plan.specs:
        evidence = by_form(unit, Y)
        sums |= {"forms": few_rows.forms(evidence, len(Y)) if few else evidence}
    return sums
