"""Functions to minimise: a curved valley, a bowl of any condition, a logistic regression."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np


def rosenbrock(x):
    return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def quadratic(condition: float, d: int = 20, seed: int = 0):
    """½ xᵀHx − bᵀx with eigenvalues from 1 to `condition`."""
    rng = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(rng.normal(size=(d, d)))
    H, b = (turn * np.geomspace(1.0, condition, d)) @ turn.T, rng.normal(size=d)
    return lambda x: 0.5 * jnp.dot(x, H @ x) - jnp.dot(b, x)


def logistic(seed: int = 0, d: int = 8):
    """Regularised logistic regression on columns of very different scales."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(200, d)) * np.geomspace(0.3, 3.0, d)
    sign = np.where(
        rng.uniform(size=200) < 1.0 / (1.0 + np.exp(-X @ rng.normal(size=d))), 1.0, -1.0
    )
    return lambda w: jnp.sum(jnp.logaddexp(0.0, -sign * (X @ w))) + 0.05 * jnp.dot(w, w)
