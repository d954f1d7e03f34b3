"""p_i = max(g_i, 0), g_i ~ N(m_i, σ_i σ_iᵀ ∘ k): where each client's rows lie, given all released S̃.

The rows of a client are smooth over cells, and none lie where it does not measure. The nearest matrix that
rows can make (`denoising`) knows neither. Its error goes with its size, so it does not average out over
clients: with 100 of them intervals were too narrow. The posterior mean E[S | S̃] has no such error, and p's
covariance says how large its error is. The mean over clients, the scale and the range of g are learned from
all S̃ as if p could be negative. Then p is drawn cell by cell (Gibbs).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize
from scipy.special import log_ndtr, ndtr, ndtri_exp

from pfedhgp.privacy.denoising import Cells, Denoised

PER_INPUT = 2
"""Cells for each inducing input along an axis."""
LARGEST = 400
"""Most cells that are drawn one by one."""
SWEEPS, DISCARDED = 500, 100
RANGE = 0.3
"""Of densities, as a share of the domain: the middle of its prior, and that of the mean over clients."""
MEAN_SPREAD = 0.7
"""Standard deviation of the mean over clients, in means."""
SEEN = 1e-8
"""Eigenvalues of N below this share of the largest are not told by S̃."""
NUGGET = 1e-4
LEAST = 0.1
"""Smallest mean of a cell, in those of equal cells."""
RATIOS = (0.2, 3.0)
"""Bounds of sd(p)/E[p] in a cell."""


@dataclass(frozen=True, eq=False)
class RowDensity:
    """E[p_i] = rows·mean and sd(p_i) = rows·spread in each cell, with correlations exp(−|x − x′|/range)."""

    rows: Float[np.ndarray, " T"]
    mean: Float[np.ndarray, " G"]
    spread: float
    correlation: Float[np.ndarray, "G G"]

    def latent(self) -> tuple[Float[np.ndarray, "T G"], Float[np.ndarray, "T G"]]:
        """m and σ with which max(m + σz, 0) has these means and standard deviations."""
        mean = self.rows[:, None] * np.maximum(self.mean, LEAST / len(self.mean))
        ratio = np.clip(self.rows[:, None] * self.spread / mean, *RATIOS)
        at = np.linspace(-4.0, 6.0, 1001)
        first, sd = rectified_moments(at)
        shift = np.interp(-ratio, -sd / first, at)
        sigma = mean / rectified_moments(shift)[0]
        return shift * sigma, sigma


def rectified_moments(shift: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of max(shift + z, 0), z ~ N(0, 1)."""
    density = np.exp(-0.5 * shift**2) / np.sqrt(2 * np.pi)
    mean = shift * ndtr(shift) + density
    square = (shift**2 + 1) * ndtr(shift) + shift * density
    return mean, np.sqrt(square - mean**2)


def learned_density(
    told: Float[np.ndarray, "T G"],
    traces: Float[np.ndarray, " T"],
    noise: Float[np.ndarray, " T"],
    cells: Cells,
) -> RowDensity:
    """By the likelihood of all S̃ with g for p: S̃ is then normal. `told` has a_gᵀS̃_i a_g."""
    G = len(cells.overlap)
    values, vectors = np.linalg.eigh(cells.overlap)
    seen = values > SEEN * values[-1]
    R = np.sqrt(values[seen])[:, None] * vectors[:, seen].T
    y = told @ vectors[:, seen] / np.sqrt(values[seen])
    rows = np.maximum(traces / float(np.mean(np.diagonal(cells.overlap) ** 0.5)), noise)
    gaps = np.linalg.norm(cells.places[:, None] - cells.places, axis=-1)
    mean = np.full(G, 1.0 / G)

    def turned(extent: float) -> tuple[np.ndarray, np.ndarray]:
        sizes, turn = np.linalg.eigh(R @ np.exp(-gaps / extent) @ R.T)
        return np.maximum(sizes, 0.0), turn

    def loss(free: np.ndarray) -> float:
        sizes, turn = turned(float(np.exp(free[1])))
        scale = (np.exp(free[0]) * rows / G) ** 2
        variance = scale[:, None] * sizes + noise[:, None] ** 2
        left = (y - rows[:, None] * (R @ mean)) @ turn
        prior = free[0] ** 2 + (free[1] - np.log(RANGE)) ** 2
        return 0.5 * float(np.sum(left**2 / variance + np.log(variance)) + prior)

    best = np.array([0.0, np.log(RANGE)])
    bounds = [(-4.0, 2.0), (np.log(0.02), np.log(5.0))]
    root = np.linalg.cholesky(np.exp(-gaps / RANGE) + NUGGET * np.eye(G)) * MEAN_SPREAD / G
    for _ in range(3):
        best = minimize(loss, best, method="L-BFGS-B", bounds=bounds).x
        sizes, turn = turned(float(np.exp(best[1])))
        variance = (np.exp(best[0]) * rows[:, None] / G) ** 2 * sizes + noise[:, None] ** 2
        half = turn.T @ R
        precision = half.T @ (np.sum(rows[:, None] ** 2 / variance, axis=0)[:, None] * half)
        left = y @ turn - rows[:, None] * np.mean(half, axis=1)
        linear = half.T @ np.sum(rows[:, None] * left / variance, axis=0)
        inner = np.eye(G) + root.T @ precision @ root
        mean = 1.0 / G + root @ np.linalg.solve(inner, root.T @ linear)
    return RowDensity(rows, mean, float(np.exp(best[0])) / G, np.exp(-gaps / np.exp(best[1])))


def denoised_together(
    grams: Sequence[Float[np.ndarray, "M M"]], noise: Sequence[float], cells: Cells
) -> list[Denoised]:
    """E[S_i | S̃] of each client and the covariance of its rows by cells; `noise` is that of diagonals."""
    A, tau = cells.features, np.asarray(noise, np.float64)
    released = np.stack(grams)
    told = np.einsum("mg,tmk,kg->tg", A, released, A)
    traces = np.trace(released, axis1=1, axis2=2)
    density = learned_density(told, traces, tau, cells)
    seeds = [hashlib.sha256(each.tobytes()).digest() for each in released]
    means, covariances = drawn(told, tau, cells.overlap, density, seeds)
    return [Denoised((A * p) @ A.T, A, C) for p, C in zip(means, covariances, strict=True)]


def drawn(
    told: Float[np.ndarray, "T G"],
    noise: Float[np.ndarray, " T"],
    overlap: Float[np.ndarray, "G G"],
    density: RowDensity,
    seeds: Sequence[bytes],
    sweeps: int = SWEEPS,
) -> tuple[Float[np.ndarray, "T G"], Float[np.ndarray, "T G G"]]:
    """Means and covariances of p, by draws whose seeds come from the releases: equal for equal releases.

    Given all other cells, g is normal where it is negative, and normal by the release too where it is not.
    """
    T, G = told.shape
    randoms = [np.random.default_rng(int.from_bytes(seed[:8], "big")) for seed in seeds]
    m, sigma = density.latent()
    Q = np.linalg.inv(density.correlation + NUGGET * np.eye(G))
    u, p = np.zeros((T, G)), np.maximum(m, 0.0)
    Qu, Np, weight = np.zeros((T, G)), p @ overlap, 1.0 / noise**2
    total, square = np.zeros((T, G)), np.zeros((T, G, G))
    for sweep in range(sweeps):
        uniform = np.stack([each.random((2, G)) for each in randoms], axis=-1)
        side, size = uniform[0], np.log(uniform[1] + 1e-300)
        for g in range(G):
            alone = sigma[:, g] / np.sqrt(Q[g, g])
            middle = m[:, g] + sigma[:, g] * (u[:, g] - Qu[:, g] / Q[g, g])
            slope = (told[:, g] - Np[:, g] + overlap[g, g] * p[:, g]) * weight
            both = 1.0 / np.sqrt(1.0 / alone**2 + overlap[g, g] * weight)
            top = both**2 * (middle / alone**2 + slope)
            below, above = -middle / alone, top / both
            odds = 0.5 * (above**2 - below**2) + np.log(both / alone)
            odds = odds + log_ndtr(above) - log_ndtr(below)
            found = np.where(
                side[g] < 1.0 / (1.0 + np.exp(-np.clip(odds, -500.0, 500.0))),
                top - both * ndtri_exp(log_ndtr(above) + size[g]),
                middle + alone * ndtri_exp(log_ndtr(below) + size[g]),
            )
            moved = (found - m[:, g]) / sigma[:, g] - u[:, g]
            u[:, g] += moved
            Qu += moved[:, None] * Q[g]
            more = np.maximum(found, 0.0) - p[:, g]
            p[:, g] += more
            Np += more[:, None] * overlap[g]
        if sweep >= DISCARDED:
            total += p
            square += p[:, :, None] * p[:, None, :]
    kept = max(sweeps - DISCARDED, 1)
    mean = total / kept
    return mean, square / kept - mean[:, :, None] * mean[:, None, :]
