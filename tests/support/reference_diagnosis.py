"""Naive twins of `pfedhgp.diagnosis`: dense, one at a time."""

from __future__ import annotations

import numpy as np

from pfedhgp.diagnosis.class_gaussian import ClassGaussian


def distance_towards(y, mean, others, cov) -> tuple[float, int]:
    """dᵀΣ⁻¹M (MᵀΣ⁻¹M)⁻¹ MᵀΣ⁻¹d of one cycle (cells,) and rank M, cells that are NaN left out."""
    seen = np.flatnonzero(np.isfinite(y))
    precision = np.linalg.inv(cov[np.ix_(seen, seen)])
    M = np.stack([(other - mean)[seen] for other in others], axis=1)
    M = M[:, np.abs(M).max(axis=0) > 0]
    if not M.shape[1]:
        return 0.0, 0
    t = M.T @ precision @ (y - mean)[seen]
    return float(t @ np.linalg.pinv(M.T @ precision @ M) @ t), int(np.linalg.matrix_rank(M))


def terms_along(y, mean, cov) -> np.ndarray:
    """log p(y_m | y_1 … y_{m−1}), each from a conditional Gaussian of its own."""
    out = np.zeros(len(y))
    for m in range(len(y)):
        gain = np.linalg.solve(cov[:m, :m], cov[:m, m]) if m else np.zeros(0)
        expected = mean[m] + gain @ (y[:m] - mean[:m])
        variance = cov[m, m] - gain @ cov[:m, m]
        out[m] = -0.5 * ((y[m] - expected) ** 2 / variance + np.log(2 * np.pi * variance))
    return out


def dense(one: ClassGaussian) -> np.ndarray:
    """Σ of a class, (nQ, nQ)."""
    return one.half @ one.half.T + np.kron(np.eye(len(one.mean)), one.noise)
