"""b̃ | v ~ N(Ŝv, φŜPŜ + λŜ² + σ²Ŝ + τ_b²I + E[Δv vᵀΔ]): a posterior that knows the noise of releases.

Everything here is computed from releases and never from rows, so it costs no privacy. v are the weights of
the shared function on the public basis, with prior N(0, P), P = sL₀⁻¹k(Z, Z)L₀⁻ᵀ for the kernel that is being
learned, and each client's deviation has prior N(0, φP). Ŝ is the denoised gram matrix and Δ its error. A
client's local layer moves all rows of a stretch together; it enters as λŜ².
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize

from pfedhgp.gp.features import Basis
from pfedhgp.gp.kernels import RBF, stack
from pfedhgp.privacy.denoising import Cells, denoised
from pfedhgp.privacy.release import JITTER, PublicBasis, Release
from pfedhgp.privacy.row_density import LARGEST, denoised_together

WIDTH = 1.5
"""Standard deviation of the prior of each log parameter."""
FLOOR = 1e-9
"""Smallest variance of b̃, as a share of what the noise of the rows adds to it: without any noise,
directions that no row has seen would have none."""
EXACT_RANK = 1e-13
"""Eigenvalues of an exact S below this share of the largest are rounding."""
LONGEST = 20.0
"""Longest lengthscale that is searched, in shortest ones."""
STEP = 0.05
"""Of the differences that give the curvature in log parameters."""


@dataclass(frozen=True, eq=False)
class Parameters:
    """What one output's shared function is made of; all positive, in the unit box and scaled outputs."""

    lengthscales: Float[np.ndarray, " d"]
    variance: float
    """s"""
    departure: float
    """φ"""
    noise: float
    """σ²"""
    local: float
    """λ, of a local layer"""

    def to_log(self) -> Float[np.ndarray, " P"]:
        return np.log([*self.lengthscales, self.variance, self.departure, self.noise, self.local])

    @staticmethod
    def from_log(free: Float[np.ndarray, " P"]) -> Parameters:
        *scales, variance, departure, noise, local = (float(each) for each in np.exp(free))
        return Parameters(np.asarray(scales), variance, departure, noise, local)


@dataclass(frozen=True, eq=False)
class Twins:
    """The released sums of one output of all clients, denoised; a client's twin is all that is used of it."""

    gram: Float[np.ndarray, "T M M"]
    linear: Float[np.ndarray, "T M"]
    linear_noise: Float[np.ndarray, " T"]
    features: tuple[Float[np.ndarray, "M g"], ...]
    counts: tuple[Float[np.ndarray, "g g"], ...]

    @staticmethod
    def of(releases: Sequence[Release], output: int, cells: Cells) -> Twins:
        grams = [each.gram[output] for each in releases]
        noise = [each.scales.gram for each in releases]
        if min(noise) > 0.0 and cells.features.shape[1] <= LARGEST:
            found = denoised_together(grams, noise, cells)
        else:
            found = [denoised(*each, cells) for each in zip(grams, noise, strict=True)]
        return Twins(
            np.stack([each.gram for each in found]),
            np.stack([each.linear[output] for each in releases]),
            np.asarray([each.scales.linear for each in releases]),
            tuple(each.features for each in found),
            tuple(each.counts for each in found),
        )

    def gram_error(self, P: Float[np.ndarray, "M M"]) -> Float[np.ndarray, "T M M"]:
        """E[Δv vᵀΔ] for v ~ N(0, P): A(Cov(δ) ∘ AᵀPA)Aᵀ."""
        pairs = zip(self.features, self.counts, strict=True)
        return np.stack([A @ (cov * (A.T @ P @ A)) @ A.T for A, cov in pairs])


class Found(NamedTuple):
    """The posterior N(mean, covariance) of v, each client's part in it, and log p of all releases."""

    mean: Float[np.ndarray, " M"]
    covariance: Float[np.ndarray, "M M"]
    J: Float[np.ndarray, "T M M"]
    h: Float[np.ndarray, "T M"]
    evidence: float
    wider: Float[np.ndarray, "M M"] | None = None
    """the part of the covariance that averaging over parameters has added"""


At = Callable[[Parameters], Found]


def prior(public: PublicBasis, parameters: Parameters) -> Float[np.ndarray, "M M"]:
    """P = sL₀⁻¹k(Z, Z)L₀⁻ᵀ"""
    L = np.asarray(public.basis().factor)[0]
    kernels = stack([RBF(lengthscale=parameters.lengthscales)])
    K = np.asarray(Basis.build(kernels, public.inputs, JITTER).gram)[0]
    half = np.linalg.solve(L, K)
    return parameters.variance * np.linalg.solve(L, half.T)


def posterior(public: PublicBasis, twins: Twins, parameters: Parameters) -> Found:
    """J_i = ŜC⁻¹Ŝ, h_i = ŜC⁻¹b̃; v ~ N((P⁻¹ + ΣJ)⁻¹Σh, (P⁻¹ + ΣJ)⁻¹)."""
    P = prior(public, parameters)
    S, b, M = twins.gram, twins.linear, len(P)
    smallest = FLOOR * parameters.noise * np.maximum(np.trace(S, axis1=1, axis2=2), 1.0)
    C = parameters.departure * (S @ P @ S) + parameters.local * (S @ S) + parameters.noise * S
    C = C + (1.0 + parameters.departure) * twins.gram_error(P)
    C = C + (twins.linear_noise**2 + smallest)[:, None, None] * np.eye(M)
    L = np.linalg.cholesky(0.5 * (C + np.swapaxes(C, 1, 2)))
    half = np.linalg.solve(L, np.concatenate([S, b[:, :, None]], axis=2))
    HS, Hb = half[:, :, :M], half[:, :, M]
    J = np.swapaxes(HS, 1, 2) @ HS
    h = np.einsum("tkm,tk->tm", HS, Hb)
    for t in np.flatnonzero(twins.linear_noise == 0.0):
        J[t], h[t] = exact_sums_of(S[t], b[t], P, parameters)
    logs = float(np.sum(np.log(np.diagonal(L, axis1=1, axis2=2))))
    alone = -0.5 * float(np.sum(Hb**2)) - logs - 0.5 * b.size * np.log(2 * np.pi)
    root = np.linalg.cholesky(0.5 * (P + P.T) + JITTER * np.trace(P) / M * np.eye(M))
    factor = np.linalg.cholesky(np.eye(M) + root.T @ np.sum(J, axis=0) @ root)
    inverse = np.linalg.solve(factor, root.T)
    covariance = inverse.T @ inverse
    linear = np.sum(h, axis=0)
    mean = covariance @ linear
    joint = 0.5 * float(linear @ mean) - float(np.sum(np.log(np.diagonal(factor))))
    return Found(mean, covariance, J, h, alone + joint)


def exact_sums_of(
    S: Float[np.ndarray, "M M"],
    b: Float[np.ndarray, " M"],
    P: Float[np.ndarray, "M M"],
    parameters: Parameters,
) -> tuple[Float[np.ndarray, "M M"], Float[np.ndarray, " M"]]:
    """J = RD⁻¹Rᵀ, h = RD⁻¹R⁺b with S = RRᵀ, D = φRᵀPR + λRᵀR + σ²I: a release without noise (ε = ∞)."""
    values, vectors = np.linalg.eigh(S)
    seen = values > EXACT_RANK * max(float(values[-1]), 0.0)
    size = np.sqrt(values[seen])
    R = vectors[:, seen] * size
    D = parameters.departure * (R.T @ P @ R) + np.diag(parameters.local * values[seen])
    D = D + parameters.noise * np.eye(len(size))
    J = R @ np.linalg.solve(D, R.T)
    return 0.5 * (J + J.T), R @ np.linalg.solve(D, (vectors[:, seen].T @ b) / size)


@dataclass(frozen=True, eq=False)
class Search:
    """Where the evidence and a weak prior around a start are largest, and how sure that is."""

    parameters: Parameters
    directions: Float[np.ndarray, "P P"]
    """columns: one standard deviation each, in log parameters"""


def learned(
    public: PublicBasis, twins: Twins, start: Parameters, *, evaluations: int = 600
) -> Search:
    """Parameters from the twins' evidence. Lengthscales are at least the basis's: it has none finer."""
    at = partial(posterior, public, twins)
    return best_of(at, public, start, evaluations=evaluations)


def best_of(at: At, public: PublicBasis, start: Parameters, *, evaluations: int = 600) -> Search:
    """The same for any posterior `at` parameters that has an evidence."""
    centre = start.to_log()
    d = len(start.lengthscales)

    def loss(free: np.ndarray) -> float:
        step = free - centre
        return -at(Parameters.from_log(free)).evidence + 0.5 * float(step @ step) / WIDTH**2

    bounds = [
        *((low, low + np.log(LONGEST)) for low in np.log(public.lengthscales)),
        *((value - 6.0, value + 6.0) for value in centre[d:]),
    ]
    best = minimize(
        loss, centre, method="L-BFGS-B", bounds=bounds, options={"maxfun": evaluations}
    ).x
    values, vectors = np.linalg.eigh(_curvature(loss, best))
    spread = 1.0 / np.sqrt(np.maximum(values, 1.0 / WIDTH**2))
    return Search(Parameters.from_log(best), vectors * spread)


def averaged(public: PublicBasis, twins: Twins, search: Search) -> Found:
    """The posterior at the best parameters, wider by what one standard deviation in each direction changes.

    A direction counts as far as the evidence falls by at most two nats.
    """
    return widened(partial(posterior, public, twins), public, search)


def widened(at: At, public: PublicBasis, search: Search) -> Found:
    """The same for any posterior `at` parameters."""
    centre = search.parameters.to_log()
    found = at(search.parameters)
    shortest = np.log(public.lengthscales)
    spread = np.zeros_like(found.covariance)
    for direction in search.directions.T:
        for side in (direction, -direction):
            moved = centre + side
            moved[: len(shortest)] = np.maximum(moved[: len(shortest)], shortest)
            other = at(Parameters.from_log(moved))
            if found.evidence - other.evidence < 2.0:
                change = other.mean - found.mean
                wider = other.covariance - found.covariance
                spread += 0.5 * (np.outer(change, change) + wider)
    values, vectors = np.linalg.eigh(spread)
    spread = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return found._replace(covariance=found.covariance + spread, wider=spread)


def _curvature(f: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray:
    """Second differences, symmetric."""
    P, e = len(at), STEP * np.eye(len(at))
    found = np.empty((P, P))
    for i in range(P):
        for j in range(i + 1):
            corners = (at + e[i] + e[j], at + e[i] - e[j], at - e[i] + e[j], at - e[i] - e[j])
            a, b, c, d = (f(corner) for corner in corners)
            found[i, j] = found[j, i] = (a - b - c + d) / (4 * STEP**2)
    return found
