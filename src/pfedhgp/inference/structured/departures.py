"""How far a client departs from the global function: φ_i, with an interval, and the odds that it departs.

φ_i is the variance of the client's deviation over that of the global function, k_δ,i = φ_i k_g, in a model
without loadings. What the rows say of it is the client's evidence Z as a function of φ_i, with the others' J
and h, on a grid of log φ_i. The prior is weak,
    log φ_i ~ N(log φ, 3²)
and centred where the population is. The population itself would draw clients that are unlike the others
towards them, and intervals would miss those. The odds are ∫ Z(φ_i) p(φ_i) dφ_i over Z(0).

The size of the global function is uncertain, too. If its sd is r times as large, J is r²J and h is rh, so
the evidence is known for all r, and the interval of φ_i takes it in. That of the deviation's own sd, √φ_i τ,
does not depend on it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.interpolate import CubicSpline

from pfedhgp.inference.structured.posterior import evidence_of
from pfedhgp.model.posterior import GlobalPosterior

Array = np.ndarray
GRID = np.log(0.003) + 1.2 * np.arange(9)
"""log φ_i, where clients evaluate their bounds"""
WEAK = 3.0
"""Standard deviation of log φ_i"""
LENGTHSCALE = 0.7
"""Standard deviation that log r² has on top because ℓ_g is estimated: with three clients that of log τ² is
1.0 in the bound's Hessian, and 0.7 if ℓ_g is held"""
FINE = 0.05
JITTER = 1e-8
QUANTILES = (0.025, 0.5, 0.975)


class Evidence(NamedTuple):
    """log Z of each client."""

    sizes: Float[Array, "c G"]
    """at each φ_i of GRID"""
    none: Float[Array, " c"]
    """of a client that does not depart"""


class Density(NamedTuple):
    """Probabilities of equally spaced values."""

    values: Float[Array, " n"]
    weights: Float[Array, " n"]


def departures(evidence: Evidence, shared: GlobalPosterior) -> Float[Array, "c 7"]:
    """φ_i (2.5%, median, 97.5%), the deviation's sd likewise, log odds of departing; NaN where that fails."""
    scale, phi = _wider(size_of_global(shared)), max(float(shared.block.phi), 1e-6)
    found = [
        _one(sizes, float(none), phi, scale)
        for sizes, none in zip(evidence.sizes, evidence.none, strict=True)
    ]
    told = np.array(found).reshape(len(evidence.none), 7)
    told[:, 3:6] *= float(np.abs(np.asarray(shared.block.loadings)).item())
    return told


def _one(sizes: Float[Array, " G"], none: float, phi: float, scale: Density) -> list[float]:
    """Below the grid the evidence is that of no departure, above it that of its last size."""
    if not (np.isfinite(sizes).all() and np.isfinite(none)):
        return [np.nan] * 7
    t = np.arange(GRID[0] - 6.0, GRID[-1] + 4.0, FINE)
    log_Z = CubicSpline(GRID, sizes)(np.clip(t, GRID[0], GRID[-1]))
    log_Z = np.where(t < GRID[0], none, log_Z)
    prior = np.exp(-0.5 * ((t - np.log(phi)) / WEAK) ** 2)
    top = max(float(log_Z.max()), none)
    weights = np.exp(log_Z - top) * prior
    log_odds = np.log(weights.sum() / prior.sum()) + top - none
    relative = np.convolve(weights, scale.weights[::-1])
    of_phi = _quantiles(relative, t[0] - scale.values[-1])
    return [*np.exp(of_phi), *np.exp(0.5 * _quantiles(weights, t[0])), float(log_odds)]


def _wider(scale: Density) -> Density:
    """With what is not known of ℓ_g."""
    reach = np.arange(-50, 51) * FINE
    weights = np.convolve(scale.weights, np.exp(-0.5 * (reach / LENGTHSCALE) ** 2))
    values = scale.values[0] + reach[0] + FINE * np.arange(len(weights))
    return Density(values, weights / weights.sum())


def _quantiles(weights: Float[Array, " n"], first: float) -> Float[Array, " 3"]:
    """Of values from `first` on, FINE apart."""
    below = np.cumsum(weights)
    return first + FINE * np.searchsorted(below, np.array(QUANTILES) * below[-1])


def size_of_global(shared: GlobalPosterior) -> Density:
    """p(log r²), r times the global sd: ½ r² hᵀ(I + r²J)⁻¹h − ½ log|I + r²J|, log r ~ N(0, 2²)."""
    J, h = _given_a_constant(shared)
    values, vectors = np.linalg.eigh(0.5 * (J + J.T))
    values, along = np.maximum(values, 0.0), (vectors.T @ h) ** 2
    t = np.arange(-80, 81) * FINE
    r2 = np.exp(t)[:, None]
    log_Z = 0.5 * (r2 * along / (1.0 + r2 * values) - np.log1p(r2 * values)).sum(1)
    log_Z = log_Z - 0.5 * (0.5 * t / 2.0) ** 2
    weights = np.exp(log_Z - log_Z.max())
    return Density(t, weights / weights.sum())


def _given_a_constant(shared: GlobalPosterior) -> tuple[Float[Array, "M M"], Float[Array, " M"]]:
    """J and h with an unknown constant in the global function integrated out, v_c its weights.

    Rows are centred before training, so that their mean tells nothing of the function's size.
    """
    J, h = (np.asarray(v) for v in evidence_of(shared))
    L = np.asarray(shared.block.basis(JITTER).factor)[0]
    constant = np.linalg.solve(L, np.ones(len(L)))
    along = J @ constant
    a = max(float(constant @ along), 1e-12)
    return J - np.outer(along, along) / a, h - along * float(constant @ h) / a
