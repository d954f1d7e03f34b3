"""Checks of single arrays: each raises `Inadmissible` with the reason in words, never with a value."""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

PSD = 1e-8
"""How far below zero rounding may put an eigenvalue, in units of the largest entry on the diagonal."""
SLACK = 1.05
"""Limits that hold exactly are checked with this factor: sums are rounded."""


class Inadmissible(ValueError):
    """A reply that no rows can have made under the model."""


def expect(holds: bool | np.bool_, why: str) -> None:
    """Refuses what does not hold; NaN holds nothing."""
    if not bool(holds):
        raise Inadmissible(why)


def symmetric(A: np.ndarray) -> np.ndarray:
    """The symmetric part of each matrix."""
    return 0.5 * (A + np.swapaxes(A, -1, -2))


def expect_symmetric(name: str, A: np.ndarray) -> None:
    """A = Aᵀ but for rounding."""
    size = np.abs(A).max(initial=0.0)
    expect(np.all(np.abs(A - np.swapaxes(A, -1, -2)) <= PSD * size), f"`{name}` is not symmetric")


def expect_psd(name: str, A: np.ndarray, spare: float = 0.0) -> None:
    """Every matrix of A (..., k, k) is symmetric and has no eigenvalue below zero, but for rounding."""
    expect_symmetric(name, A)
    if not A.size:
        return
    values = np.linalg.eigvalsh(symmetric(A))
    size = np.abs(np.diagonal(A, axis1=-2, axis2=-1)).max(axis=-1)
    low = np.all(values[..., 0] >= -PSD * size - spare)
    expect(low, f"`{name}` has a negative eigenvalue")


def quadratic(A: np.ndarray, b: np.ndarray, spare: float) -> float:
    """bᵀ(A + ε I)⁻¹b, which is large if b is not in the range of A; ε is `spare` and rounding."""
    size = float(np.abs(np.diagonal(A)).max(initial=0.0))
    lifted = symmetric(A) + (PSD * size + spare + np.finfo(float).tiny) * np.eye(len(A))
    try:
        factor = cho_factor(lifted, lower=True, check_finite=False)
    except LinAlgError:
        raise Inadmissible("a precision matrix has a negative eigenvalue") from None
    return float(b @ cho_solve(factor, b, check_finite=False))
