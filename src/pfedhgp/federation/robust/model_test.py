"""The model's own test: does a site's evidence (J_i, h_i) fit what the other sites say?

Given the others, with S⁻¹ = I + Σ_{j≠i} J_j and m = S Σ_{j≠i} h_j,
    h_i ~ N(J_i m, J_i + J_i S J_i),   d_i² = |Λ^{-½}Vᵀ(h_i − J_i m)|²_{(I + Λ^½ VᵀSV Λ^½)⁻¹} ~ χ²
in the eigenvectors J_i = V Λ Vᵀ. How far honest sites differ is in J_i already, through φ_i. But parameters
that do not fit yet, or that a dishonest site has moved (it makes φ larger), scale everybody's d² alike. So
d_i² over its degrees of freedom is also compared with the trusted sites' median, by an F test. Dishonest
sites would shift m and that median, so the test begins with the half of the sites that is nearest to all
others, and adds those that pass, until nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import chi2
from scipy.stats import f as f_distribution

ALPHA = 1e-3
"""How often an exchange of honest sites excludes one of them, if the model is right."""
LEAST = 1e-6
"""Eigenvalues of J below this share of the largest say nothing."""
PARTNERS = 24
"""With more sites than this, each is compared with so many of the others to find the nearest half."""
ITERATIONS = 12
BACK = 0.05
"""With this p-value an excluded site comes back. Honest sites nearly always have it; a dishonest one that is
just within α/T would move φ until it fits."""
SMALLEST_UNIT = 0.25
"""The least median of d² over its degrees of freedom that counts: less means that sites know very little."""


class Evidence(NamedTuple):
    """J_i and h_i of one site."""

    J: np.ndarray
    h: np.ndarray


class Distance(NamedTuple):
    """d² and its degrees of freedom."""

    square: float
    freedom: int

    @property
    def ratio(self) -> float:
        return self.square / max(self.freedom, 1)

    def p_value(self, others: Sequence[Distance] = ()) -> float:
        """Without others P(χ² > d²). Beside them twice the smaller of two: d² in units of their median, by an
        F test; and by χ² in units of their median or 1, whichever is larger."""
        own, freedom = max(self.freedom, 1), sum(each.freedom for each in others)
        if not freedom:
            return float(chi2.sf(self.square, own))
        median = float(np.median([each.ratio for each in others]))
        by_median = f_distribution.sf(self.ratio / max(median, SMALLEST_UNIT), own, freedom)
        by_model = chi2.sf(self.square / max(median, 1.0), own)
        return float(min(1.0, 2.0 * min(by_median, by_model)))


class Tested(NamedTuple):
    """The p-value of each site, and whether it passes."""

    p_values: np.ndarray
    passes: np.ndarray


class Whitened(NamedTuple):
    """V Λ^½ and Λ^{-½}Vᵀh of one site, in the directions of which it knows something."""

    half: np.ndarray
    linear: np.ndarray

    @staticmethod
    def of(own: Evidence) -> Whitened:
        values, vectors = np.linalg.eigh(0.5 * (own.J + own.J.T))
        known = values > max(LEAST * float(values[-1]), 1e-12) if len(values) else values > 0
        root = np.sqrt(values[known])
        V = vectors[:, known]
        return Whitened(V * root, (V.T @ own.h) / root)

    def distance(self, mean: np.ndarray, covariance: np.ndarray) -> Distance:
        """From what N(mean, covariance) of the shared weights predicts."""
        gap = self.linear - self.half.T @ mean
        spread = np.eye(len(gap)) + self.half.T @ covariance @ self.half
        return Distance(float(gap @ np.linalg.solve(spread, gap)), len(gap))


def posterior(J: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """m and S of S⁻¹ = I + J, m = S h."""
    S = np.linalg.inv(np.eye(len(h)) + 0.5 * (J + J.T))
    return S @ h, S


def verdicts(
    sites: Sequence[Evidence], alpha: float = ALPHA, suspects: Sequence[int] = ()
) -> Tested:
    """p-values and verdicts, in the sites' order; a site passes if p > α/T. At least half always pass.

    `suspects` did not pass the last time: they come back with p > `BACK`.
    """
    T = len(sites)
    least = np.full(T, alpha / T)
    least[list(suspects)] = max(BACK, alpha / T)
    white = [Whitened.of(own) for own in sites]
    trusted = nearest_half(sites, white)
    p = np.ones(T)
    for _ in range(ITERATIONS):
        found = [_against(i, trusted, sites, white) for i in range(T)]
        p = np.array([each.p_value(_others(found, trusted, i)) for i, each in enumerate(found)])
        passes = p > least
        if passes.sum() < trusted_least(T):
            order = np.argsort([each.ratio for each in found], kind="stable")
            passes[order[: trusted_least(T)]] = True
        if np.array_equal(passes, trusted):
            break
        trusted = passes
    return Tested(p, trusted)


def _others(found: Sequence[Distance], trusted: np.ndarray, i: int) -> list[Distance]:
    return [found[int(j)] for j in np.flatnonzero(trusted) if j != i]


def trusted_least(T: int) -> int:
    """Half of the sites, rounded up: dishonest ones must be fewer."""
    return -(-T // 2)


def _against(
    i: int, trusted: np.ndarray, sites: Sequence[Evidence], white: Sequence[Whitened]
) -> Distance:
    others = [int(j) for j in np.flatnonzero(trusted) if j != i]
    J = sum((sites[j].J for j in others), np.zeros_like(sites[i].J))
    h = sum((sites[j].h for j in others), np.zeros_like(sites[i].h))
    return white[i].distance(*posterior(J, h))


def nearest_half(sites: Sequence[Evidence], white: Sequence[Whitened]) -> np.ndarray:
    """The half whose median distance to others, taken in pairs, is smallest."""
    T = len(sites)
    alone = [posterior(*own) for own in sites]
    rng = np.random.default_rng(T)
    median = np.empty(T)
    for i in range(T):
        others = np.delete(np.arange(T), i)
        if T > PARTNERS:
            others = rng.choice(others, PARTNERS, replace=False)
        median[i] = np.median([white[i].distance(*alone[j]).ratio for j in others])
    chosen = np.zeros(T, bool)
    chosen[np.argsort(median, kind="stable")[: trusted_least(T)]] = True
    return chosen
