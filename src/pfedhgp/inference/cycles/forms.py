"""From sums over cycles to the cycle layer: white, stationary or free, each by its restricted likelihood.

In an orthonormal basis of the span of a_e on the grid, a cycle's departure from the mean has r coordinates a
channel with covariance Ω = K + I (in units of the noise, K = BᵀΨB), and n − r more that are noise alone:

    −2 log p = Σ(C−1) (n log|Σ_ε| + log|Ω|) + tr(Σ_ε⁻¹ S_⊥) + tr(Ω⁻¹ T̃) + constants

white: K = 0. stationary: K = K₁ ⊗ K₂ (`cycle_stationary`). free: the stationary Ω₀ counts as κ cycles more,
Ω = (T̃ + κ Ω₀)/(Σ(C−1) + κ), less the noise and without negative eigenvalues; κ is what lets one half of the
cycles predict the other best.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import multigammaln

from pfedhgp.base.choices import FORMS
from pfedhgp.errors import InputError
from pfedhgp.inference.cycles.scatter import CycleSums, Orthonormal, restricted_evidence
from pfedhgp.inference.cycles.stationary import KERNELS, fit_stationary
from pfedhgp.model.cycle_layer import NOISE_FLOOR, CycleBasis, CycleLayer

Halves = tuple[CycleSums, CycleSums]
WORTHS = tuple(float(v) for v in np.geomspace(0.03, 3e4, 13))
"""κ, half a decade apart."""
MARGIN = 6.0
"""Nats of held-out evidence that a richer form must bring. Where the simpler form was the truth, the richer
one was ahead by 4 at most (60 draws of 12 or 40 cycles): κ is chosen on what it is judged by."""


def estimate(
    halves: Halves, basis: CycleBasis, *, form: str = "stationary", noise: str = "output"
) -> CycleLayer:
    """The layer of one form from sums over cycles, one client's or all clients' (see `halves_of`).

    `noise` is the form of Σ_ε: "scalar", "output" or "full".
    """
    cycle_sums = halves[0] + halves[1]
    if form not in FORMS:
        raise InputError(f"a cycle layer is one of {', '.join(FORMS)}, got {form!r}")
    if cycle_sums.freedom <= 0:
        raise InputError("a cycle layer needs a client with at least two cycles")
    if form == "white":
        spread = in_form(cycle_sums.scatter / cycle_sums.rows, noise)
        size = len(cycle_sums.gram) * len(spread)
        return CycleLayer(basis, np.zeros((size, 0)), spread, "white")
    target = _stationary(cycle_sums, basis, noise)
    return target if form == "stationary" else _free(halves, target, noise)


def held_out_evidence(
    halves: Halves, basis: CycleBasis, *, form: str, noise: str = "output"
) -> float:
    """The evidence of each half of the cycles under the layer that the other half gives, summed.

    For the free form κ is the best for these halves: one number, chosen on what it is judged by.
    """
    if min(float(half.freedom) for half in halves) <= 0:
        raise InputError(
            "held-out evidence needs a client with at least three cycles: choose the form by `cycles=`"
        )
    pairs = (halves, halves[::-1])
    if form == "free":
        parts = [Shrinkage.of(seen, _stationary(seen, basis, noise), noise) for seen, _ in pairs]
        kappa = best_worth([(part, pair[1]) for part, pair in zip(parts, pairs, strict=True)])
        layers = [part.layer(kappa) for part in parts]
    else:
        nothing = halves[0].times(0.0)
        layers = [estimate((nothing, seen), basis, form=form, noise=noise) for seen, _ in pairs]
    return sum(
        restricted_evidence(layer, new) for layer, (_, new) in zip(layers, pairs, strict=True)
    )


def choose_form(
    halves: Halves, basis: CycleBasis, *, noise: str = "output"
) -> tuple[str, dict[str, float]]:
    """(form, held-out evidence of each): the simplest that is within `MARGIN` nats of the best."""
    found = {f: float(held_out_evidence(halves, basis, form=f, noise=noise)) for f in FORMS}
    enough = max(found.values()) - MARGIN
    return next(form for form in FORMS if found[form] >= enough), found


def mixed(halves: Halves, shared: CycleLayer, *, form: str, noise: str) -> tuple[CycleLayer, float]:
    """One client's layer with that of the others as κ cycles more, and κ.

    The shared free layer is a mean with the client's own cycles in it, and would be preferred to anything
    that half of them says: they are taken out first (`Shrinkage.others`). A stationary layer has too few
    parameters to know a client's cycles. Noise is mixed at the same κ.
    """
    cycle_sums = halves[0] + halves[1]
    sums = Orthonormal.of(cycle_sums)
    rest = None
    if form == "free":
        rest = Shrinkage(sums, cycle_sums, shared, shared.noise).others(shared.worth)
    kappa = _worth(halves, sums, shared, shared.noise, rest)
    more = expected(cycle_sums, shared).times(kappa)
    if form != "free":
        return estimate((halves[0], halves[1] + more), shared.basis, form=form, noise=noise), kappa
    sigma = Shrinkage.of(cycle_sums + more, shared, noise).sigma
    omega = Shrinkage(sums, cycle_sums, shared, sigma).others(shared.worth)
    return Shrinkage(sums, cycle_sums, shared, sigma, omega).layer(kappa), kappa


def expected(cycle_sums: CycleSums, layer: CycleLayer) -> CycleSums:
    """The sums of one more degree of freedom on the same grid, just as `layer` expects it."""
    Q, M = layer.outputs, len(cycle_sums.gram)
    G, n = cycle_sums.gram / cycle_sums.freedom, cycle_sums.rows / cycle_sums.freedom
    F, noise = layer.factor.reshape(Q, M, layer.factor.shape[1]), layer.noise
    GF = np.einsum("ml,qlk->qmk", G, F)
    return CycleSums(
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


def _stationary(cycle_sums: CycleSums, basis: CycleBasis, noise: str) -> CycleLayer:
    """The stationary form with the kernel that the restricted likelihood likes best."""
    sums = Orthonormal.of(cycle_sums)
    fits = [fit_stationary(sums, basis, kernel, noise) for kernel in KERNELS]
    return max(fits, key=lambda fit: restricted_evidence(fit, cycle_sums))


def _free(halves: Halves, target: CycleLayer, noise: str) -> CycleLayer:
    """Ω around the stationary fit, worth as many cycles as let each half predict the other best."""
    whole = Shrinkage.of(halves[0] + halves[1], target, noise)
    return whole.layer(_worth(halves, whole.sums, target, whole.sigma))


def _worth(
    halves: Halves,
    sums: Orthonormal,
    target: CycleLayer,
    sigma: np.ndarray,
    omega: np.ndarray | None = None,
) -> float:
    """κ from the two halves, or from the prior's evidence if one of them is empty."""
    if min(float(half.freedom) for half in halves) <= 0:
        return Shrinkage(sums, halves[0] + halves[1], target, sigma, omega).worth_by_prior()
    first, rest = (Shrinkage(sums, half, target, sigma, omega) for half in halves)
    return best_worth([(first, halves[1]), (rest, halves[0])])


def best_worth(pairs: Sequence[tuple[Shrinkage, CycleSums]]) -> float:
    """κ with the highest evidence of held-out sums.

    A search outwards from the middle of `WORTHS`, since the evidence has one peak.
    """
    projected = [(part, part.sums.whitened(part.white, new), new) for part, new in pairs]
    known: dict[int, float] = {}

    def evidence(index: int) -> float:
        if index not in known:
            kappa = WORTHS[index]
            known[index] = sum(
                part.evidence(kappa, T, float(new.freedom)) for part, T, new in projected
            )
        return known[index]

    best, step = len(WORTHS) // 2, 4
    while step:
        near = [i for i in (best - step, best, best + step) if 0 <= i < len(WORTHS)]
        better = max(near, key=evidence)
        step = step if better != best else step // 2
        best = better
    return WORTHS[best]


class Shrinkage:
    """Ω(κ) = (T̃ + κ Ω₀)/(freedom + κ), never below the noise, for one set of sums, target and Σ_ε.

    Ω₀ is the target layer's, or `omega`.
    """

    def __init__(
        self,
        sums: Orthonormal,
        cycle_sums: CycleSums,
        target: CycleLayer,
        sigma: np.ndarray,
        omega: np.ndarray | None = None,
    ) -> None:
        self.sums, self.layer_0, self.sigma = sums, target, sigma
        self.white = np.linalg.inv(np.linalg.cholesky(sigma))
        half = sums.whitened_half(self.white, target)
        self.target = np.eye(len(half)) + half @ half.T if omega is None else omega
        self.T, self.freedom = sums.whitened(self.white, cycle_sums), float(cycle_sums.freedom)

    @staticmethod
    def of(cycle_sums: CycleSums, target: CycleLayer, noise: str) -> Shrinkage:
        """Takes Σ_ε from what the basis cannot carry, or the target's if that is too little."""
        sums, sigma = Orthonormal.of(cycle_sums), target.noise
        outside = sums.noise_outside()
        if outside is not None:
            found = in_form(outside, noise)
            sigma = found if np.linalg.eigvalsh(found)[0] > 1e-3 * sigma.diagonal().min() else sigma
        return Shrinkage(sums, cycle_sums, target, sigma)

    def others(self, worth: float) -> np.ndarray:
        """Ω₀ without these sums, if Ω₀ is a mean that includes them: (worth Ω₀ − T̃)/(worth − freedom)."""
        if worth <= self.freedom:  # nobody else's, or not known to be a mean
            return self.target
        values, vectors = np.linalg.eigh((worth * self.target - self.T) / (worth - self.freedom))
        return np.asarray((vectors * np.maximum(values, 1.0)) @ vectors.T)

    def omega(self, kappa: float) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues, at least 1, and eigenvectors of Ω."""
        mean = (self.T + kappa * self.target) / (self.freedom + kappa)
        values, vectors = np.linalg.eigh(mean)
        return np.maximum(values, 1.0), vectors

    def evidence(self, kappa: float, T: np.ndarray, freedom: float) -> float:
        """log p of held-out sums T̃ with these degrees of freedom, as far as κ matters."""
        values, vectors = self.omega(kappa)
        spread = np.sum((T @ vectors) * vectors, axis=0) / values
        return float(-0.5 * (freedom * np.sum(np.log(values)) + np.sum(spread)))

    def layer(self, kappa: float) -> CycleLayer:
        """Ψ = B⁻ᵀ (Ω − I) B⁻¹; the target if nothing is above the noise."""
        values, vectors = self.omega(kappa)
        kept = values > 1.0 + 1e-6
        if not kept.any():
            return self.layer_0
        Q = len(self.sigma)
        half = (vectors[:, kept] * np.sqrt(values[kept] - 1.0)).reshape(Q, self.sums.rank, -1)
        L, inverse = np.linalg.cholesky(self.sigma), self.sums.H_inverse
        F = np.einsum("qx,am,xak->qmk", L, inverse, half, optimize=True)
        wide, worth = F.reshape(Q * F.shape[1], -1), self.freedom + kappa
        return CycleLayer(self.layer_0.basis, wide, self.sigma, "free", worth)

    def worth_by_prior(self) -> float:
        """argmax over κ of p(T̃ | κ) with Ω ~ IW(κ Ω₀, κ + p + 1), in closed form from eigenvalues.

        The prior does not know that Ω is never below the noise, so it shrinks more than is best if
        few directions vary.
        """
        white = np.linalg.inv(np.linalg.cholesky(self.target))
        found = np.maximum(np.linalg.eigvalsh(white @ self.T @ white.T), 0.0)
        size = len(found)

        def evidence(kappa: float) -> float:
            nu = kappa + size + 1.0
            value = multigammaln(0.5 * (nu + self.freedom), size) - multigammaln(0.5 * nu, size)
            value += 0.5 * nu * size * np.log(kappa)
            return float(value - 0.5 * (nu + self.freedom) * np.sum(np.log(kappa + found)))

        return max(WORTHS, key=evidence)
