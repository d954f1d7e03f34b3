"""A covariance whose correlations depend on the lag alone: one spectrum for all channels.

    T = s (C ⊗ K) s,   K_ab = k(|a − b|),   k(l) = Σ_j α_j cos(2π f_j l),   α ≥ 0

s is one standard deviation a channel, C the channels at equal places, k the lag function nearest to the mean
of the diagonals of the channels' own correlations, each diagonal counting by its length. Every k with α ≥ 0
is a covariance. Few numbers are estimated from many: with 10 degrees of freedom in 324 coordinates, k still
shows at which frequencies runs do not differ, and there a fault is seen.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

FloatArray = npt.NDArray[np.float64]
LEAST_EIGENVALUE = 1e-3
"""of C"""
WHITE = 1e-5
"""Share of K that is white. Few frequencies make a singular K, and then rounding would decide."""
STEPS = 30
"""most steps of the fit of α, a frequency"""


def stationary_covariance(covariance: FloatArray, channels: int) -> FloatArray:
    """T (D, D) of a covariance (D, D) with the same number of coordinates for each channel.

    The mean variance of each channel stays.
    """
    r = len(covariance) // channels
    variance = np.maximum(np.diagonal(covariance), 0.0).reshape(channels, r).mean(axis=1)
    sd = np.repeat(np.sqrt(np.maximum(variance, 1e-300)), r)
    P = (covariance / np.outer(sd, sd)).reshape(channels, r, channels, r)
    k = lag_function(np.einsum("qaqb->ab", P) / channels)
    K = (1.0 - WHITE) * k[np.abs(np.subtract.outer(np.arange(r), np.arange(r)))]
    K[np.diag_indices(r)] += WHITE
    values, vectors = np.linalg.eigh(np.einsum("qapa->qp", P) / r)
    C = (vectors * np.maximum(values, LEAST_EIGENVALUE)) @ vectors.T
    scale = np.sqrt(np.diagonal(C))
    return np.asarray(np.kron(C / np.outer(scale, scale), K) * np.outer(sd, sd))


def lag_function(correlation: FloatArray) -> FloatArray:
    """k(0) = 1, …, k(r − 1), nearest to the means of the diagonals of (r, r)."""
    r = len(correlation)
    lags = np.asarray([np.mean(np.diagonal(correlation, lag)) for lag in range(r)])
    waves, root = _waves(r)
    amplitudes, _ = nnls(waves * root[:, None], lags * root, maxiter=STEPS * waves.shape[1])
    k = waves @ amplitudes
    return np.asarray(k / k[0]) if k[0] > 0.0 else np.eye(1, r)[0]


@lru_cache(maxsize=8)
def _waves(r: int) -> tuple[FloatArray, FloatArray]:
    """cos(2π f l), (r, 2r), with f from 0 to below ½; and √(r − l), (r,)."""
    lag, frequency = np.arange(r), np.arange(2 * r) / (4.0 * r)
    return np.cos(2.0 * np.pi * np.outer(lag, frequency)), np.sqrt(np.arange(r, 0, -1.0))
