"""Small federations of smooth cycles, and quick settings to fit them with."""

from __future__ import annotations

import numpy as np

GRID = np.linspace(0.0, 1.0, 12)[:, None]
SETTINGS = {
    "kernel": "matern52",
    "local_kernel": "matern32",
    "domain": [(0.0, 1.0)],
    "inducing": 12,
    "local_inducing": 12,
    "cycle_basis": 6,
    "rounds": 2,
    "averaging": False,  # the bound and the posterior are then of the same parameters
}


def press(counts=(6, 4), seed: int = 0, Q: int = 2) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Clients with smooth cycles (C, Q, n) around waves of their own."""
    rng = np.random.default_rng(seed)
    x = GRID[:, 0]
    smooth = np.linalg.cholesky(np.exp(-0.5 * (x[:, None] - x) ** 2 / 0.3**2) + 1e-9 * np.eye(12))
    data = {}
    for i, C in enumerate(counts):
        waves = np.stack([np.sin(5 * x + i + q) for q in range(Q)])
        e = 0.4 * rng.normal(size=(C, Q, 12)) @ smooth.T
        data[f"press {i}"] = (GRID, 3.0 + waves[None] + e + 0.1 * rng.normal(size=e.shape))
    return data
