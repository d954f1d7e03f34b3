"""How a series' own standardised residuals are distributed, so that rare is rare on real data too.

Under the model, residuals z = L⁻¹(y − μ) are independent and N(0, 1). Real ones have heavy tails and come in
quiet and loud spells. So we keep of one output's residuals, in order of time,

    Student's t     z/s ~ t_ν, by maximum likelihood; g = Φ⁻¹(F(z)) is then N(0, 1)
    dependence      Var(Σ g)/w and Var(Σ g²)/(2w) over stretches of w rows, from eight autocorrelations
    standstill      Σ (y_t − y_{t−1})² over such stretches, as a gamma distribution

A model that fits keeps what it says: ν = ∞ and s = 1 unless the likelihood gains more than log n (BIC), and
no dependence unless Ljung and Box's test finds some at 5%.

All of it is a handful of numbers; the residuals themselves are not kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import digamma, gammaln, ndtri, polygamma, stdtr

LENGTHS = (4, 8, 16, 32)
"""Rows in a stretch."""
FEWEST = 64
"""Residuals that are needed to learn from them."""
LAGS = 8
LJUNG_BOX = 15.507
"""The 95% point of χ² with 8 degrees of freedom."""
HEAVINESS = np.array([0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7])
"""1/ν that are tried, beside 0."""
WINDOWS = 4
"""Stretches beside each other that are needed to learn how sums over them spread."""
WIDTH = 3 + 4 * len(LENGTHS)


@dataclass(frozen=True)
class Tails:
    """What the residuals of one output look like."""

    heaviness: float
    """1/ν"""
    scale: float
    """s"""
    cells: float
    """How many residuals it was learned from; infinity: it was not"""
    sums: Float[np.ndarray, " w"]
    """Var(Σ g)/w for stretches of `LENGTHS`, at least 1"""
    squares: Float[np.ndarray, " w"]
    """Var(Σ g²)/(2w)"""
    steps_shape: Float[np.ndarray, " w"]
    steps_mean: Float[np.ndarray, " w"]
    """Of Σ (y_t − y_{t−1})², in scaled units"""

    def scores(self, z: np.ndarray) -> np.ndarray:
        """g: the residuals as if they were N(0, 1)."""
        if self.heaviness == 0.0:
            return np.asarray(z / self.scale)
        below = stdtr(1.0 / self.heaviness, -np.abs(z) / self.scale)
        return np.asarray(-np.sign(z) * ndtri(np.maximum(below, 1e-300)))

    def to_array(self) -> Float[np.ndarray, " k"]:
        parts = (self.sums, self.squares, self.steps_shape, self.steps_mean)
        return np.concatenate([[self.heaviness, self.scale, self.cells], *parts])

    @staticmethod
    def from_array(values: Float[np.ndarray, " k"]) -> Tails:
        heaviness, scale, cells = (float(each) for each in values[:3])
        return Tails(heaviness, scale, cells, *np.split(values[3:], 4))


def as_the_model_says(noise: float) -> Tails:
    """Gaussian and independent; steps are those of white noise alone, whose variance is `noise`.

    Differences of white noise have the variance 2σ² each and −σ² between neighbours. By Anderson's inequality
    all that functions add makes small sums rarer still.
    """
    steps = np.array(LENGTHS) - 1.0
    mean, square = 2.0 * steps, 6.0 * steps - 2.0
    one = np.ones(len(LENGTHS))
    return Tails(0.0, 1.0, np.inf, one, one, 0.5 * mean**2 / square, mean * noise)


def learned(z: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> Tails:
    """From one output's residuals in order, and its scaled values."""
    heaviness, scale = student(z)
    one = np.ones(len(LENGTHS))
    g = Tails(heaviness, scale, float(len(z)), one, one, one, one).scores(z)
    return Tails(heaviness, scale, float(len(z)), _inflation(g), _inflation(g**2), *_steps(y))


def student(z: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """(1/ν, s) of the likeliest t distribution; (0, 1) if N(0, 1) is not much less likely."""
    n, square = len(z), z**2
    h = HEAVINESS[:, None]
    v = np.full((len(HEAVINESS), 1), np.median(square) / 0.455)
    for _ in range(60):  # EM for s² at each ν: it cannot fall
        weights = (1.0 + h) / (1.0 + h * square / v)
        v = np.mean(weights * square, axis=1, keepdims=True)
    nu = 1.0 / HEAVINESS
    each = gammaln(0.5 * (nu + 1.0)) - gammaln(0.5 * nu) - 0.5 * np.log(nu * np.pi * v[:, 0])
    logs = n * each - 0.5 * (nu + 1.0) * np.log1p(h * square / v).sum(axis=1)
    spread = float(np.mean(square))
    gaussian = -0.5 * n * (np.log(2.0 * np.pi * spread) + 1.0)
    nominal = -0.5 * (n * np.log(2.0 * np.pi) + n * spread)
    best = int(np.argmax(logs))
    found = (0.0, spread**0.5) if gaussian >= logs[best] else (HEAVINESS[best], v[best, 0] ** 0.5)
    gain = max(gaussian, float(logs[best])) - nominal
    return (float(found[0]), float(found[1])) if gain > np.log(n) else (0.0, 1.0)


def dependence(factors: Float[np.ndarray, " w"], cells: int) -> float:
    """A factor of `LENGTHS` for a stretch of any number of cells."""
    return float(np.interp(cells, (1.0, *LENGTHS), (1.0, *factors)))


def _inflation(v: Float[np.ndarray, " n"]) -> Float[np.ndarray, " w"]:
    """Var(Σ v)/(w Var v) over w neighbours: 1 + 2 Σ_l (1 − l/w) ρ_l, at least 1."""
    n, centred = len(v), v - v.mean()
    lags = np.arange(1, LAGS + 1)
    products = np.array([centred[l:] @ centred[:-l] for l in lags])
    rho = products / max(float(centred @ centred), 1e-300)
    if n * (n + 2.0) * np.sum(rho**2 / (n - lags)) < LJUNG_BOX:
        return np.ones(len(LENGTHS))
    found = [1.0 + 2.0 * np.sum(np.maximum(1.0 - lags / w, 0.0) * rho) for w in LENGTHS]
    return np.maximum(found, 1.0)


def _steps(y: Float[np.ndarray, " n"]) -> tuple[np.ndarray, np.ndarray]:
    """Shape and mean of a gamma distribution of Σ (y_t − y_{t−1})², by the moments of its logarithm.

    Where there are too few stretches of a length, the shape is that of the longest that has enough: spells of
    little change make sums over long stretches as uncertain as those over short ones.
    """
    steps = np.diff(y) ** 2
    floor = 1e-6 * float(np.mean(steps)) + 1e-300  # rounded values may repeat
    shapes: list[float] = []
    means: list[float] = []
    for w in LENGTHS:
        if len(y) >= WINDOWS * w or not shapes:
            logs = np.log(np.convolve(steps, np.ones(w - 1), "valid") + floor)
            shapes.append(_inverse_trigamma(float(np.var(logs))))
            means.append(shapes[-1] * np.exp(np.mean(logs) - digamma(shapes[-1])))
        else:
            shapes.append(shapes[-1])
            means.append(means[-1] * (w - 1.0) / (LENGTHS[len(means) - 1] - 1.0))
    return np.array(shapes), np.array(means)


def _inverse_trigamma(value: float) -> float:
    """x with ψ'(x) = `value`, between .05 and 1000, by bisection of its logarithm."""
    low, high = np.log(0.05), np.log(1000.0)
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if polygamma(1, np.exp(middle)) > value else (low, middle)
    return float(np.exp(0.5 * (low + high)))
