"""Noise that depends on the level of an output: variance σ² v(x), v(x) = exp(γ₁x + γ₂x²), x in scaled units.

Many sensors are noisier at high readings, and logarithms of concentrations at low ones. γ is the same for all
clients; σ² is each client's own.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

Array = np.ndarray
FURTHEST = 2.5
"""Levels further out, in standard deviations of an output, have the noise of this one."""


def features(level: Float[Array, "*n"]) -> Float[Array, "*n 2"]:
    """x and x², cut off at both ends."""
    x = np.clip(level, -FURTHEST, FURTHEST)
    return np.stack([x, x**2], axis=-1)


def loudness(level: Float[Array, "*n"], gamma: Float[Array, " 2"] | None) -> Float[Array, "*n"]:
    """v(x); 1 everywhere where noise does not depend on the level."""
    if gamma is None:
        return np.ones(np.shape(level))
    return np.exp(features(level) @ np.asarray(gamma))
