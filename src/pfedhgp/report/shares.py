"""Signs that the split of a client's variation into layers (`pfedhgp.model.layers`) is uncertain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pfedhgp.model.prediction import Prediction
from pfedhgp.report.recovery_rule import effective_clients, expected_recovery, split_is_stable

FEW_CLIENTS, UNBALANCED, ALIKE, UNCERTAIN, RECOVERED = 4, 10.0, 0.02, 1.0, 0.9


@dataclass(frozen=True)
class Evidence:
    """How well the global layer and the deviations can be told apart."""

    clients: int
    rows: Mapping[str, int]
    """observed cells by client; empty if unknown"""
    deviation_share: float
    """share of the variation, in absolute value: a deviation that acts against the sum counts, too"""
    local_share: float
    deviation_uncertainty: float
    """Mean posterior variance of the deviations over the mean square of their means."""
    heterogeneity: float
    """φ: the deviations' prior variance over the global layer's."""
    correlation: float
    """Posterior correlation of the global layer and a deviation at one input, on average."""


def evidence(
    predictions: Mapping[str, Sequence[Prediction]],
    client_shares: Mapping[str, np.ndarray],
    *,
    clients: int,
    rows: Mapping[str, int],
    heterogeneity: float,
) -> Evidence:
    """The evidence of the clients that the report shows."""
    every = [p for several in predictions.values() for p in several]
    variance = np.mean([np.mean(p.layers["deviation"].sd ** 2) for p in every])
    square = np.mean([np.mean(p.layers["deviation"].mean ** 2) for p in every])
    sizes = np.mean([np.abs(s).mean(axis=0) for s in client_shares.values()], axis=0)
    return Evidence(
        clients=clients,
        rows=rows,
        deviation_share=float(sizes[1]),
        local_share=float(sizes[2]),
        deviation_uncertainty=float(variance / square) if square > 0 else np.inf,
        heterogeneity=heterogeneity,
        correlation=float(np.mean([_correlation(p) for p in every])),
    )


def _correlation(p: Prediction) -> float:
    cross = np.diagonal(p.cross_covariance("global", "deviation"), axis1=1, axis2=2)
    scale = p.layers["global"].sd * p.layers["deviation"].sd
    there = scale > 0
    return float(np.mean(cross[there] / scale[there])) if there.any() else 0.0


def signs_of_uncertainty(e: Evidence) -> list[str]:
    """Reasons to distrust the split between global and deviation; having none is no guarantee."""
    counts = [n for n in e.rows.values() if n > 0]
    of_numbers = [sign for sign in (_few(e), _unbalanced(counts)) if sign]
    rule = _recovery(e, counts, said=bool(of_numbers))
    *first, last = of_numbers or [""]
    signs = [sign for sign in (*first, f"{last} {rule}".strip()) if sign]
    return [*signs, *_deviations(e, too_few_to_tell=bool(of_numbers))]


def _few(e: Evidence) -> str | None:
    if e.clients >= FEW_CLIENTS:
        return None
    word = "is only one client" if e.clients == 1 else f"are only {e.clients} clients"
    return f"There {word}: what they share can hardly be told apart from what is their own."


def _unbalanced(counts: Sequence[int]) -> str | None:
    if len(counts) < 2:
        return None
    worth = effective_clients(counts)
    if max(counts) <= UNBALANCED * min(counts) and not worth < FEW_CLIENTS <= len(counts):
        return None
    return (
        f"Clients are unbalanced: the largest has {max(counts)} observed cells, the smallest {min(counts)}, "
        f"and {len(counts)} clients tell as much about the shared layer as {worth:.1f} of equal size would. "
        "The shared layer is close to the large ones, and the split of a small client depends mostly on "
        "the prior."
    )


def _recovery(e: Evidence, counts: Sequence[int], *, said: bool) -> str:
    """The rule of thumb (`recovery_rule`): a sign of its own, or after others (`said`) what they mean."""
    if not counts:
        return ""
    stable = split_is_stable(counts, e.heterogeneity, wanted=RECOVERED)
    expected = np.floor(100 * expected_recovery(counts, e.heterogeneity)) / 100
    rule = (
        "y rule of thumb, and on average over such federations, the global layer correlates "
        f"{expected:.2f} with what all share"
    )
    if stable:
        return f"B{rule}, if the fitted size of the deviations can be trusted." if said else ""
    if said:
        return f"B{rule} ({RECOVERED} would do)."
    return f"Deviations are large for {len(counts)} clients: b{rule} ({RECOVERED} would do)."


def _deviations(e: Evidence, *, too_few_to_tell: bool) -> list[str]:
    """A small deviation means nearly identical clients only if there are enough of them to show it."""
    if e.deviation_share >= ALIKE:
        if e.deviation_uncertainty <= UNCERTAIN:
            return []
        return ["Deviations are no larger than their uncertainty: do not trust their shapes."]
    small = "Deviations carry under 2\u202f% of the variation"
    if too_few_to_tell:
        return [
            f"{small}: clients may be nearly identical, or they may be too few or too unbalanced to show how "
            "they differ. These data cannot tell."
        ]
    if e.local_share >= ALIKE:
        return [
            f"{small}, local layers {100 * e.local_share:.0f}\u202f%: clients differ, but not at the scale "
            "of the shared kernel."
        ]
    return [
        f"Clients are nearly identical: {small[0].lower()}{small[1:]}, and so do local layers. Then the "
        "split between global and deviation is arbitrary."
    ]
