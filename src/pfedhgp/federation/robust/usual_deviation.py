"""A site that claims a deviation of its own beyond the other sites' is tested as if it had theirs.

In the eigenvectors V of J_i, with its eigenvalues λ and a = λ/(1 − φ_i λ), which is J_i without a deviation,
    λ ← a/(1 + φ a),   Vᵀh ← Vᵀh (1 + φ_i a)/(1 + φ a),   φ = min(φ_i, most)
Otherwise a site whose rows contradict the others' would pass: its own φ_i grows until they fit. `most` is the
sites' median times how far their φ_i differ, so honest sites that differ in φ_i are tested as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pfedhgp.federation.robust.model_test import Evidence

LEAST_FACTOR, SPREADS = 1.5, 2.0
"""`most` is this many times the median at least, and the median times e^(this many spreads of log φ_i)."""
NEARLY = 1.0 - 1e-9


def most_usual(phis: np.ndarray) -> float:
    """The largest φ_i that the sites' median and spread explain."""
    median = float(np.median(phis))
    if median <= 0.0:  # most sites have no deviation: there is nothing to compare with
        return np.inf
    logs = np.log(np.maximum(phis, 1e-12 * median) / median)
    spread = 1.4826 * float(np.median(np.abs(logs)))
    return median * max(LEAST_FACTOR, float(np.exp(SPREADS * spread)))


def with_usual_deviations(sites: Sequence[Evidence], phis: np.ndarray) -> list[Evidence]:
    """The sites' evidence, that of unusual φ_i with the largest usual one instead."""
    most = most_usual(phis)
    return [
        own if phi <= most else _with(own, phi, most) for own, phi in zip(sites, phis, strict=True)
    ]


def _with(own: Evidence, phi: float, other: float) -> Evidence:
    values, V = np.linalg.eigh(0.5 * (own.J + own.J.T))
    values = np.maximum(values, 0.0)
    alone = values / (1.0 - np.minimum(phi * values, NEARLY))
    ratio = (1.0 + phi * alone) / (1.0 + other * alone)
    return Evidence((V * (alone / (1.0 + other * alone))) @ V.T, V @ (ratio * (V.T @ own.h)))
