"""δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2): what Gaussian releases cost together, exactly.

A release x + N(0, τ²I) of which one row changes x by at most Δ is μ-GDP with μ = Δ/τ. Releases of the same
rows compose to μ² = Σ μ_k², without loss (Dong, Roth and Su 2022, Gaussian differential privacy, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from scipy.special import log_ndtr

from pfedhgp.errors import InputError

MARGIN = 1e-4
"""Added to every ε that is reported, and then rounded up by as much: never below the truth."""
LARGEST_MU = 1e3
LARGEST_EPSILON = 1e6


def composed(mus: Iterable[float]) -> float:
    """μ of all releases together: √Σ μ_k². Values that are not finite, or below zero, are refused."""
    found = np.asarray([*mus], np.float64)
    if not np.all(np.isfinite(found)) or np.any(found < 0):
        raise InputError(
            "a release's μ is not a finite number ≥ 0: nothing is known about its cost"
        )
    return float(np.linalg.norm(found))


def delta_of(mu: float, epsilon: float) -> float:
    """The smallest δ for which μ-GDP is (ε, δ)-differential privacy."""
    _check(mu, "μ", least=0.0)
    _check(epsilon, "ε", least=0.0)
    if mu == 0.0:
        return 0.0
    if mu > LARGEST_MU:
        return 1.0
    upper = log_ndtr(mu / 2 - epsilon / mu)
    lower = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return float(max(-math.expm1(min(lower - upper, 0.0)) * math.exp(upper), 0.0))


def epsilon_of(mu: float, delta: float) -> float:
    """The ε that is reported for μ at δ: rounded up, by at most 2e-4."""
    _check_delta(delta)
    _check(mu, "μ", least=0.0)
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    if delta_of(mu, LARGEST_EPSILON) > delta:
        return math.inf
    exact = _least(lambda epsilon: delta_of(mu, epsilon) <= delta, LARGEST_EPSILON)
    return math.ceil((exact + MARGIN) / MARGIN) * MARGIN


def shown(epsilon: float) -> str:
    """A reported ε as text: it is a multiple of 1e-4, so nothing is rounded down."""
    return f"{epsilon:.4f}" if math.isfinite(epsilon) else "∞"


def of_rows(epsilon: float, delta: float, rows: int) -> float:
    """ε at the same δ of several rows together, if each of them has ε: k rows have k μ."""
    return epsilon_of(rows * mu_for(epsilon, delta), delta)


def mu_for(epsilon: float, delta: float) -> float:
    """The largest μ that is (ε, δ)-differentially private; infinite for ε = ∞."""
    _check_delta(delta)
    if epsilon == math.inf:
        return math.inf
    _check(epsilon, "ε", least=0.0)
    if epsilon == 0.0:
        raise InputError("ε must be positive: at ε = 0 nothing can be released")
    if epsilon > LARGEST_EPSILON or not delta_of(LARGEST_MU, epsilon) > delta:
        raise InputError(
            f"ε = {epsilon:g} is more than can be counted: choose a smaller one, or no differential privacy"
        )
    # The largest μ that is fine is the smallest that is not, but for the last bit.
    found = _least(lambda mu: delta_of(mu, epsilon) > delta, LARGEST_MU)
    return found * (1 - 1e-12)


def _least(fine: Callable[[float], bool], largest: float) -> float:
    """The smallest number in (0, largest] that is fine, if all above it are; from above, to the last bits.

    `largest` must be fine.
    """
    low, high = 0.0, 1.0
    while not fine(high):
        low, high = high, min(2 * high, largest)
    while high - low > 1e-13 * high:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (low, middle) if fine(middle) else (middle, high)
    return high


def _check(value: float, name: str, *, least: float) -> None:
    if not math.isfinite(value) or value < least:
        raise InputError(f"{name} must be a finite number ≥ {least:g}, got {value!r}")


def _check_delta(delta: float) -> None:
    if not math.isfinite(delta) or not 0.0 < delta < 1.0:
        raise InputError(f"δ must be between 0 and 1, got {delta!r}")
