"""Run and cycle layers of highest restricted likelihood, beside which those of training are held."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def variance_components(
    S: FloatArray, W: FloatArray, length: float, freedom: tuple[float, float]
) -> tuple[FloatArray, FloatArray]:
    """(Ψ_b, Ψ_e) of highest restricted likelihood, both PSD, if all runs have the same length n.

    In the coordinates in which W is I and n S is diagonal with λ, run effects have (λ − 1)/n if λ ≥ 1. Else
    they have none, and both layers say the same: (ν_b λ + ν_w)/(ν_b + ν_w) for the cycles.
    """
    nu_b, nu_w = freedom
    root = np.linalg.cholesky(W)
    half = np.linalg.solve(root, length * S)
    values, vectors = np.linalg.eigh(np.linalg.solve(root, half.T))
    back = root @ vectors
    none = values < 1.0
    cycle = np.where(none, (nu_b * values + nu_w) / (nu_b + nu_w), 1.0)
    run = np.where(none, 0.0, (values - 1.0) / length)
    return np.asarray((back * run) @ back.T), np.asarray((back * cycle) @ back.T)
