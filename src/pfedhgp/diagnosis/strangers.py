"""Cycles of no known class: which covariances show them best, and how surprising a known run may be.

Each class is left out in turn. Its held-out cycles are then strangers to the other classes, whose own
held-out runs set the limits. "None of these" goes by the two covariances under which strangers are furthest
beyond the limits. Each has half of the false alarms, and a cycle is flagged if either is surprised: one that
puts a few known runs far away has limits that strangers do not reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pfedhgp.diagnosis.candidates import Candidate
from pfedhgp.diagnosis.held_out_runs import Cycles, Held
from pfedhgp.diagnosis.thresholds import largest_of_runs, limits_of_ratios

FloatArray = npt.NDArray[np.float64]
MISSED = 0.05
"""Share of strangers that may go unnoticed: the margin is what the others reach."""
REFERENCES = 2
"""Covariances by which "none of these" goes, if there are as many."""


def ratios(held: Held, without: int | None = None) -> FloatArray:
    """d²/N of every cycle under every class, (C, K, 2 + Q): towards other classes, whole, and by channel.

    d² is by (1 + 1/B) Σ: the mean of a class with few runs is far from its new runs, too.
    """
    at = 0 if without is None else 1 + without
    towards = held.towards[:, :, at] / max(float(held.directions[at]), 1.0)
    if not held.directions[at]:
        towards = np.full_like(towards, np.nan)
    whole = held.square / held.lengths.sum()
    found = np.concatenate(
        [towards[:, :, None], whole[:, :, None], held.given / held.lengths], axis=2
    )
    return np.asarray(found / held.grown[:, :, None])


def margin(cycles: Cycles, held: Held, false_alarms: float) -> float:
    """By how much strangers are beyond the limits, for the class that is shown worst."""
    member = cycles.folds >= 0
    keys = np.asarray(cycles.run_keys)
    found = []
    for stranger in range(cycles.classes):
        strange = member & (cycles.labels == stranger)
        known = member & (cycles.labels != stranger)
        if not strange.any() or not known.any():
            continue
        ratio = ratios(held, stranger)
        own = ratio[np.flatnonzero(known), cycles.labels[known]]
        limits = limits_of_ratios(largest_of_runs(own, keys[known]), false_alarms)
        rest = [k for k in range(cycles.classes) if k != stranger]
        beyond = np.nanmax(ratio[strange][:, rest] / limits, axis=2).min(axis=1)
        found.append(float(np.quantile(beyond, MISSED)))
    return min(found, default=1.0)


def references_of(
    cycles: Cycles,
    held: Mapping[Candidate, Held],
    shapes: Sequence[Candidate],
    false_alarms: float,
) -> tuple[Candidate, ...]:
    """The covariances that show strangers best, the best one first."""
    if len(shapes) == 1:
        return tuple(shapes)
    margins = [margin(cycles, held[shape], false_alarms / REFERENCES) for shape in shapes]
    return tuple(shapes[at] for at in widest(margins))


def widest(margins: Sequence[float]) -> list[int]:
    """Which margins are the widest `REFERENCES`; of equal ones the first."""
    return np.argsort(-np.asarray(margins), kind="stable")[:REFERENCES].tolist()


def ratios_of_runs(
    cycles: Cycles, held: Held, outside: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    """The largest d²/N of each held-out run under its own class, (B, 3 + Q), and N.

    `outside` (C,) is the same of what lies outside of the coordinates, N times over.
    """
    member = np.flatnonzero(cycles.folds >= 0)
    own = ratios(held)[member, cycles.labels[member]]
    beyond = np.full(len(member), np.nan) if outside is None else outside[member]
    views = np.concatenate([own[:, :2], beyond[:, None], own[:, 2:]], axis=1)
    return largest_of_runs(views, [cycles.run_keys[c] for c in member]), held.lengths
