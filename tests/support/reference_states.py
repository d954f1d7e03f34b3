"""Naive twins of the state-space layer: dense covariance matrices and Cholesky factors."""

from __future__ import annotations

import numpy as np


def matern(t: np.ndarray, u: np.ndarray, lengthscale: float, order: int) -> np.ndarray:
    """Matérn 1/2, 3/2 or 5/2 (order 1, 2, 3) from its formula."""
    r = np.sqrt(2 * order - 1) * np.abs(t[:, None] - u[None, :]) / lengthscale
    return (1.0 + (order > 1) * r + (order > 2) * r**2 / 3.0) * np.exp(-r)


def whitened(K: np.ndarray, noise: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, float]:
    """L⁻¹A and log|K + noise| for L Lᵀ = K + diag(noise)."""
    L = np.linalg.cholesky(K + np.diag(noise))
    return np.linalg.solve(L, columns), 2.0 * float(np.log(np.diag(L)).sum())


def posterior(
    K_star: np.ndarray, k_star: np.ndarray, K: np.ndarray, noise: np.ndarray, columns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """K(*, t)(K + noise)⁻¹A, and K(*, *) − K(*, t)(K + noise)⁻¹K(t, *)."""
    solved = np.linalg.solve(K + np.diag(noise), np.concatenate([columns, k_star.T], axis=1))
    width = columns.shape[1]
    return k_star @ solved[:, :width], K_star - k_star @ solved[:, width:]
