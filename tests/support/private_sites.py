"""Made-up clients that share a function, depart from it, and see half of the domain each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

GRID = np.linspace(0.0, 1.0, 120)


class Made(NamedTuple):
    shared: np.ndarray
    """at GRID"""
    own: list[np.ndarray]
    """each client's function at GRID"""
    X: list[np.ndarray]
    Y: list[np.ndarray]


def made_up(
    clients: int, rows: int, seed: int, *, scale: float = 0.2, phi: float = 0.2, noise: float = 0.3
) -> Made:
    rng = np.random.default_rng(seed)
    K = np.exp(-0.5 * (GRID[:, None] - GRID) ** 2 / scale**2) + 1e-8 * np.eye(len(GRID))
    L = np.linalg.cholesky(K)
    shared = L @ rng.normal(size=len(GRID))
    own, X, Y = [], [], []
    for _ in range(clients):
        own.append(shared + np.sqrt(phi) * (L @ rng.normal(size=len(GRID))))
        low = rng.uniform(0.0, 0.5)
        X.append(np.sort(rng.uniform(low, low + 0.5, rows))[:, None])
        y = np.interp(X[-1][:, 0], GRID, own[-1]) + noise * rng.normal(size=rows)
        Y.append(y[:, None])
    return Made(shared, own, X, Y)
