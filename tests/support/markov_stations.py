"""Stations that mix two shared functions, each in its own way, and settings of the Markov solver for them."""

from __future__ import annotations

import numpy as np

STEPS = 80
SETTINGS = {
    "kernel": "matern12",
    "local": "state-space",
    "local_kernel": "matern12",
    "layers": ("global", "local"),
    "latents": 2,
    "client_loadings": True,
    "inducing": STEPS,
    "domain": ((0.0, float(STEPS - 1)),),
}


def stations(noise=lambda level: 0.2 + 0.0 * level):
    """Six stations; two shared functions of the study's kind, the second with either sign."""
    rng = np.random.default_rng(0)
    t = np.arange(STEPS, dtype=float)
    rho = np.exp(-1 / 4.0)
    u = np.zeros((STEPS, 2))
    u[0] = rng.standard_normal(2)
    for j in range(1, STEPS):
        u[j] = rho * u[j - 1] + np.sqrt(1 - rho**2) * rng.standard_normal(2)
    loadings = np.array([[1.0, s * 0.7] for s in (1, -1, 1, -1, 1, -1)])
    rows, held = {}, {}
    for i, c in enumerate(loadings):
        f = u @ c
        y = f + noise(f) * rng.standard_normal(STEPS)
        out = rng.random(STEPS) < 0.15
        rows[f"s{i}"] = (t[~out, None], y[~out])
        held[f"s{i}"] = (t[out, None], y[out])
    return rows, held, loadings
