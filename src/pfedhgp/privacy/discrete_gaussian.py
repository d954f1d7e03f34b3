"""P(k) ∝ exp(−k²/2σ²) over whole numbers k, drawn exactly from the operating system's randomness.

Floating-point normals leak through their rounding and their generator. This is the rejection sampler of
Canonne, Kamath and Steinke (2020, The discrete Gaussian for differential privacy, algorithms 1 to 3): it
compares whole numbers only, and never rounds.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from pfedhgp.errors import InputError

GRID = 2.0**-30
"""What is released lies on multiples of it."""
LARGEST = 2.0**62
Below = Callable[[int], int]
"""A uniform whole number from 0 to its argument − 1."""


def discrete_gaussian(variance: Fraction, below: Below = secrets.randbelow) -> int:
    """One draw; `variance` is σ² of the continuous Gaussian that it stands for."""
    if variance <= 0:
        raise InputError("the variance of noise must be positive")
    scale = math.isqrt(int(variance)) + 1
    while True:
        k = _discrete_laplace(scale, below)
        # exp(−(|k| − σ²/t)²/2σ²) turns the Laplace of scale t into the Gaussian
        excess = (abs(k) - variance / scale) ** 2 / (2 * variance)
        if _bernoulli_exp(excess, below):
            return k


def noise(
    deviations: np.ndarray, below: Below = secrets.randbelow, grid: float = GRID
) -> np.ndarray:
    """Noise of the given standard deviations, on a grid; each entry is drawn by itself."""
    given = np.asarray(deviations, np.float64)
    if not np.all(np.isfinite(given)) or np.any(given <= 0) or np.any(given / grid > LARGEST):
        raise InputError("the noise of a release is not finite and positive: nothing is released")
    found = [
        discrete_gaussian(Fraction(float(each / grid)) ** 2, below) * grid for each in given.ravel()
    ]
    return np.asarray(found, np.float64).reshape(given.shape)


def on_grid(values: np.ndarray, grid: float = GRID) -> np.ndarray:
    """The nearest multiples of the grid's step."""
    return np.round(np.asarray(values, np.float64) / grid) * grid


def _discrete_laplace(scale: int, below: Below) -> int:
    """P(k) ∝ exp(−|k|/scale)"""
    while True:
        remainder = below(scale)
        if not _bernoulli_exp(Fraction(remainder, scale), below):
            continue
        whole = 0
        while _bernoulli_exp(Fraction(1), below):
            whole += 1
        size, negative = remainder + scale * whole, below(2)
        if not (negative and size == 0):
            return -size if negative else size


def _bernoulli_exp(gamma: Fraction, below: Below) -> bool:
    """True with probability e^−γ."""
    while gamma > 1:
        if not _bernoulli_exp_unit(Fraction(1), below):
            return False
        gamma -= 1
    return _bernoulli_exp_unit(gamma, below)


def _bernoulli_exp_unit(gamma: Fraction, below: Below) -> bool:
    """For 0 ≤ γ ≤ 1: the first k with a failure of Bernoulli(γ/k) is odd with probability e^−γ."""
    k = 1
    while below(gamma.denominator * k) < gamma.numerator:
        k += 1
    return k % 2 == 1
