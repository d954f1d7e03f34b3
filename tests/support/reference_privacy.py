"""Naive twins of the private fit, in NumPy alone: dense joint Gaussians and loops."""

from __future__ import annotations

import numpy as np


def releases_log_density(
    S: np.ndarray, b: np.ndarray, P: np.ndarray, phi: float, own: np.ndarray
) -> float:
    """log N of all clients' b̃ stacked: Cov(b̃_i, b̃_j) = S_i P S_j + [i = j](φ S_i P S_i + own_i)."""
    cov = dense_covariance(S, P, phi, own)
    stacked = b.reshape(-1)
    _, logdet = np.linalg.slogdet(cov)
    quadratic = stacked @ np.linalg.solve(cov, stacked)
    return -0.5 * (quadratic + logdet + stacked.size * np.log(2 * np.pi))


def weights_given_releases(
    S: np.ndarray, b: np.ndarray, P: np.ndarray, phi: float, own: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of v ~ N(0, P) given all b̃, by conditioning the dense joint Gaussian."""
    cov = dense_covariance(S, P, phi, own)
    cross = np.concatenate([P @ each for each in S], axis=1)
    gain = np.linalg.solve(cov, cross.T).T
    return gain @ b.reshape(-1), P - gain @ cross.T


def dense_covariance(S: np.ndarray, P: np.ndarray, phi: float, own: np.ndarray) -> np.ndarray:
    T, M = len(S), len(P)
    cov = np.empty((T * M, T * M))
    for i in range(T):
        for j in range(T):
            block = S[i] @ P @ S[j]
            if i == j:
                block = block * (1 + phi) + own[i]
            cov[i * M : (i + 1) * M, j * M : (j + 1) * M] = block
    return cov


def expected_square(A: np.ndarray, counts: np.ndarray, P: np.ndarray) -> np.ndarray:
    """E[Δv vᵀΔ] for Δ = Σ_g δ_g a_g a_gᵀ, Cov(δ) = counts, v ~ N(0, P): a double loop."""
    found = np.zeros_like(P)
    for g in range(A.shape[1]):
        for h in range(A.shape[1]):
            found += counts[g, h] * (A[:, g] @ P @ A[:, h]) * np.outer(A[:, g], A[:, h])
    return found


def weights_given_totals(
    G: np.ndarray, g: np.ndarray, P: np.ndarray, C: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean and covariance of v ~ N(0, P) given g = Gv + N(0, C), and log p(g), by dense conditioning."""
    cov = G @ P @ G.T + C
    gain = np.linalg.solve(cov, G @ P).T
    _, logdet = np.linalg.slogdet(cov)
    log_density = -0.5 * (g @ np.linalg.solve(cov, g) + logdet + len(g) * np.log(2 * np.pi))
    return gain @ g, P - gain @ G @ P, float(log_density)


def rows_given_total(
    B: np.ndarray, A: np.ndarray, released: np.ndarray, before: np.ndarray, noise: float
) -> tuple[np.ndarray, np.ndarray]:
    """δ ~ N(0, before) given B diag(δ)Aᵀ + noise in every entry, with the design matrix written out."""
    design = np.stack([np.outer(B[:, g], A[:, g]).reshape(-1) for g in range(A.shape[1])], axis=1)
    cov = design @ before @ design.T + noise**2 * np.eye(design.shape[0])
    gain = np.linalg.solve(cov, design @ before).T
    return gain @ released.reshape(-1), before - gain @ design @ before
