"""From sums over cycles to the cycle layer: white, stationary or free, each by its restricted likelihood.

In an orthonormal basis of the span of a_e on the grid, a cycle's departure from the mean has r coordinates a
channel with covariance Ω = K + I (in units of the noise, K = BᵀΨB), and n − r more that are noise alone:

    −2 log p = Σ(C−1) (n log|Σ_ε| + log|Ω|) + tr(Σ_ε⁻¹ S_⊥) + tr(Ω⁻¹ T̃) + constants

white: K = 0. stationary: K = K₁ ⊗ K₂ (`cycle_stationary`). free: the stationary Ω₀ counts as κ cycles more,
Ω = (T̃ + κ Ω₀)/(Σ(C−1) + κ), less the noise and without negative eigenvalues; κ is what lets one half of the
cycles predict the other best.
"""

from __future__ import annotations

import numpy as np
from scipy.special import multigammaln

from pfedhgp.errors import InputError
from pfedhgp.inference.cycle_stationary import KERNELS, fit_stationary
from pfedhgp.inference.within import Orthonormal, Within, within_evidence
from pfedhgp.model.cycles import FORMS, NOISE_FLOOR, CycleBasis, CycleLayer

Halves = tuple[Within, Within]
WORTHS = tuple(float(v) for v in np.geomspace(0.03, 3e4, 13))
"""κ, half a decade apart."""


def estimate(
    halves: Halves, basis: CycleBasis, *, form: str = "stationary", noise: str = "output"
) -> CycleLayer:
    """The layer of one form from sums over cycles, one client's or all clients' (see `halves_of`).

    `noise` is the form of Σ_ε: "scalar", "output" or "full".
    """
    within = halves[0] + halves[1]
    if form not in FORMS:
        raise InputError(f"a cycle layer is one of {', '.join(FORMS)}, got {form!r}")
    if within.freedom <= 0:
        raise InputError("a cycle layer needs a client with at least two cycles")
    if form == "white":
        spread = in_form(within.scatter / within.rows, noise)
        size = len(within.gram) * len(spread)
        return CycleLayer(basis, np.zeros((size, 0)), spread, "white")
    sums = Orthonormal.of(within)
    fits = [fit_stationary(sums, basis, kernel, noise) for kernel in KERNELS]
    best = max(fits, key=lambda fit: within_evidence(fit, within))
    return best if form == "stationary" else _free(halves, best, noise)


def held_out_evidence(
    halves: Halves, basis: CycleBasis, *, form: str, noise: str = "output"
) -> float:
    """The evidence of each half of the cycles under the layer that the other half gives, summed."""
    nothing = halves[0].times(0.0)
    if min(float(half.freedom) for half in halves) <= 0:
        raise InputError("held-out evidence needs a client with at least three cycles")
    parts = ((halves[0], halves[1]), (halves[1], halves[0]))
    return sum(
        within_evidence(estimate((nothing, seen), basis, form=form, noise=noise), held_out)
        for seen, held_out in parts
    )


def mixed(halves: Halves, shared: CycleLayer, *, form: str, noise: str) -> tuple[CycleLayer, float]:
    """One client's layer with the shared one as κ cycles more, and κ."""
    within = halves[0] + halves[1]
    search = _Shrinkage(halves, Orthonormal.of(within), shared, shared.noise)
    kappa = search.worth()
    more = expected(within, shared).times(kappa)
    return estimate((halves[0], halves[1] + more), shared.basis, form=form, noise=noise), kappa


def expected(within: Within, layer: CycleLayer) -> Within:
    """The sums of one more degree of freedom on the same grid, just as `layer` expects it."""
    Q, M = layer.outputs, len(within.gram)
    G, n = within.gram / within.freedom, within.rows / within.freedom
    F, noise = layer.factor.reshape(Q, M, layer.factor.shape[1]), layer.noise
    GF = np.einsum("ml,qlk->qmk", G, F)
    return Within(
        freedom=np.asarray(1.0),
        rows=np.asarray(n),
        gram=G,
        T=GF.reshape(Q * M, -1) @ GF.reshape(Q * M, -1).T + np.kron(noise, G),
        scatter=n * noise + np.einsum("qmk,pmk->qp", F, GF),
        log_counts=np.asarray(0.0),
    )


def in_form(noise: np.ndarray, form: str) -> np.ndarray:
    """Σ_ε as "scalar" (one variance), "output" (one each) or "full" has it."""
    if form == "full":
        return 0.5 * (noise + noise.T) + NOISE_FLOOR * np.eye(len(noise))
    variances = np.maximum(np.diagonal(noise), 0.0) + NOISE_FLOOR
    return np.diag(variances if form == "output" else np.full(len(noise), variances.mean()))


def _free(halves: Halves, target: CycleLayer, noise: str) -> CycleLayer:
    """Ω around the stationary fit, with Σ_ε from what the basis cannot carry where that is enough."""
    sums, sigma = Orthonormal.of(halves[0] + halves[1]), target.noise
    outside = sums.noise_outside()
    if outside is not None:
        found = in_form(outside, noise)
        sigma = found if np.linalg.eigvalsh(found)[0] > 1e-3 * sigma.diagonal().min() else sigma
    search = _Shrinkage(halves, sums, target, sigma)
    values, vectors = search.total(search.worth())
    kept = values > 1.0 + 1e-6
    if not kept.any():
        return target
    L, Q = np.linalg.cholesky(sigma), len(sigma)
    half = (vectors[:, kept] * np.sqrt(values[kept] - 1.0)).reshape(Q, sums.rank, -1)
    F = np.einsum("qx,am,xak->qmk", L, sums.H_inverse, half, optimize=True)
    return CycleLayer(target.basis, F.reshape(Q * F.shape[1], -1), sigma, "free")


class _Shrinkage:
    """Ω(κ) = (T̃ + κ Ω₀)/(freedom + κ), never below the noise, for one target and one Σ_ε."""

    def __init__(
        self, halves: Halves, sums: Orthonormal, target: CycleLayer, sigma: np.ndarray
    ) -> None:
        white = np.linalg.inv(np.linalg.cholesky(sigma))
        half = sums.whitened_half(white, target)
        self.target = np.eye(len(half)) + half @ half.T
        self.parts = [(sums.whitened(white, part), float(part.freedom)) for part in halves]

    def worth(self) -> float:
        """κ with the highest evidence of each half under the other.

        A search outwards from the middle of `WORTHS`, since the evidence has one peak. Where one half is
        empty, κ has the highest evidence of the other under an inverse-Wishart prior on Ω, which knows
        nothing of the noise as its floor and so shrinks more than is best where few directions vary.
        """
        if min(freedom for _, freedom in self.parts) <= 0:
            return self._worth_by_prior()
        known: dict[int, float] = {}

        def evidence(index: int) -> float:
            if index not in known:
                known[index] = self._evidence(WORTHS[index])
            return known[index]

        best, step = len(WORTHS) // 2, 4
        while step:
            near = [i for i in (best - step, best, best + step) if 0 <= i < len(WORTHS)]
            better = max(near, key=evidence)
            step = step if better != best else step // 2
            best = better
        return WORTHS[best]

    def total(self, kappa: float) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues, at least 1, and eigenvectors of Ω from both halves."""
        (T_1, f_1), (T_2, f_2) = self.parts
        return self._shrunk(T_1 + T_2, f_1 + f_2, kappa)

    def _shrunk(self, T: np.ndarray, freedom: float, kappa: float) -> tuple[np.ndarray, np.ndarray]:
        values, vectors = np.linalg.eigh((T + kappa * self.target) / (freedom + kappa))
        return np.maximum(values, 1.0), vectors

    def _evidence(self, kappa: float) -> float:
        total = 0.0
        for (T, freedom), (held_out, count) in (self.parts, self.parts[::-1]):
            values, vectors = self._shrunk(T, freedom, kappa)
            spread = np.sum((held_out @ vectors) * vectors, axis=0) / values
            total -= 0.5 * (count * np.sum(np.log(values)) + np.sum(spread))
        return float(total)

    def _worth_by_prior(self) -> float:
        """argmax over κ of p(T̃ | κ) with Ω ~ IW(κ Ω₀, κ + p + 1), in closed form from eigenvalues."""
        T, freedom = self.parts[0][0] + self.parts[1][0], sum(f for _, f in self.parts)
        white = np.linalg.inv(np.linalg.cholesky(self.target))
        found = np.maximum(np.linalg.eigvalsh(white @ T @ white.T), 0.0)
        size = len(found)

        def evidence(kappa: float) -> float:
            nu = kappa + size + 1.0
            value = multigammaln(0.5 * (nu + freedom), size) - multigammaln(0.5 * nu, size)
            value += 0.5 * nu * size * np.log(kappa)
            return float(value - 0.5 * (nu + freedom) * np.sum(np.log(kappa + found)))

        return max(WORTHS, key=evidence)
