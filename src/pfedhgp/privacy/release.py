"""S̃ = Σ a aᵀ + E, b̃ = Σ a clip(y) + e: what a client releases once, on a public basis a(x).

Features are whitened, a(x) = L⁻¹k(Z, x), so |a(x)|² ≤ k(x, x) = 1 for every x: inputs need no clipping.
Outputs are clipped to public bounds, |y| ≤ B. E is symmetric with variance τ_S² on its diagonal and τ_S²/2
beside it; then one row moves (S, b) by at most μ = √(1/τ_S² + B²/τ_b²) standard deviations. Each output has
statistics of its own, so that missing cells need no care, and an equal part of the budget.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from pfedhgp.errors import InputError
from pfedhgp.gp.features import Basis
from pfedhgp.gp.kernels import RBF, stack
from pfedhgp.privacy.discrete_gaussian import GRID, Below, noise, on_grid

SPACING = 0.55
"""Of the basis, in shortest lengthscales: closer ones add noise and little else."""
LARGEST_BASIS = 400
JITTER = 1e-8
SHARE = 0.47
"""Of μ² that goes to S̃; the rest goes to b̃."""


@dataclass(frozen=True, eq=False)
class PublicBasis:
    """Inducing inputs on a grid over the unit box, and the lengthscales that whiten them; nobody's rows."""

    inputs: Float[np.ndarray, "M d"]
    lengthscales: Float[np.ndarray, " d"]

    @staticmethod
    def over(lengthscales: Float[np.ndarray, " d"]) -> PublicBasis:
        """A grid fine enough for functions of these lengthscales or longer."""
        scales = np.atleast_1d(np.asarray(lengthscales, np.float64))
        counts = [max(3, round(1.0 / (SPACING * each))) for each in scales]
        if math.prod(counts) > LARGEST_BASIS:
            raise InputError(
                f"a private fit needs {math.prod(counts)} basis functions for these lengthscales, and "
                f"{LARGEST_BASIS} are the most: give longer ones, or fewer inputs"
            )
        axes = np.meshgrid(*(np.linspace(0.0, 1.0, count) for count in counts), indexing="ij")
        return PublicBasis(np.stack([axis.ravel() for axis in axes], -1), scales)

    def basis(self) -> Basis:
        """One latent."""
        return Basis.build(stack([RBF(lengthscale=self.lengthscales)]), self.inputs, JITTER)

    def features(self, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "M n"]:
        """a(x), scaled down where rounding or jitter leaves it longer than 1."""
        A = np.asarray(self.basis().features(np.asarray(X, np.float64)))[0]
        return A / np.maximum(np.linalg.norm(A, axis=0), 1.0)


class NoiseScales(NamedTuple):
    """Standard deviations: of the diagonal of S̃, and of b̃."""

    gram: float
    linear: float


@dataclass(frozen=True, eq=False)
class Release:
    """What leaves a client: noisy sums for each output, and how noisy they are."""

    gram: Float[np.ndarray, "Q M M"]
    linear: Float[np.ndarray, "Q M"]
    scales: NoiseScales


def noise_scales(mu: float, bound: float, outputs: int, size: int) -> NoiseScales:
    """τ_S and τ_b for a budget of μ, shared by the outputs; zero for μ = ∞.

    Rounding to the grid moves each number by at most half a step: that much is added to sensitivities.
    """
    if mu == math.inf:
        return NoiseScales(0.0, 0.0)
    if not math.isfinite(mu) or mu <= 0:
        raise InputError(f"the budget of a release must be positive, got μ = {mu!r}")
    each = mu / math.sqrt(outputs)
    rounding = GRID * size
    return NoiseScales(
        (1.0 + 2 * rounding) / (each * math.sqrt(SHARE)),
        (bound + rounding) / (each * math.sqrt(1.0 - SHARE)),
    )


def spent(scales: NoiseScales, bound: float, outputs: int, size: int) -> float:
    """μ of a release with this noise: the inverse of `noise_scales`."""
    if scales.gram == 0.0 and scales.linear == 0.0:
        return math.inf
    if not all(math.isfinite(scale) and scale > 0 for scale in scales):
        raise InputError("the noise of a release is not finite and positive: nothing is released")
    rounding = GRID * size
    parts = ((1.0 + 2 * rounding) / scales.gram, (bound + rounding) / scales.linear)
    return math.sqrt(outputs) * math.hypot(*parts)


def exact_sums(
    public: PublicBasis, X: Float[np.ndarray, "n d"], Y: Float[np.ndarray, "n Q"], bound: float
) -> tuple[Float[np.ndarray, "Q M M"], Float[np.ndarray, "Q M"]]:
    """Σ a aᵀ and Σ a clip(y) over the cells that were observed, for each output."""
    A = public.features(X)
    seen = np.isfinite(Y)
    clipped = np.clip(np.where(seen, Y, 0.0), -bound, bound)
    gram = np.stack([(A * s) @ A.T for s in seen.T.astype(np.float64)])
    return gram, np.stack([A @ y for y in clipped.T])


def release(
    public: PublicBasis,
    X: Float[np.ndarray, "n d"],
    Y: Float[np.ndarray, "n Q"],
    *,
    bound: float,
    mu: float,
    below: Below = secrets.randbelow,
) -> Release:
    """The client's one release. Whoever calls it has written its cost into the ledger before."""
    gram, linear = exact_sums(public, X, Y, bound)
    outputs, size = linear.shape
    scales = noise_scales(mu, bound, outputs, size)
    if mu == math.inf:
        return Release(gram, linear, scales)
    noisy = noisy_gram(gram, scales.gram, below)
    linear = on_grid(linear) + noise(np.full(linear.shape, scales.linear), below)
    return Release(noisy, linear, scales)


def noisy_gram(
    gram: Float[np.ndarray, "Q M M"], scale: float, below: Below = secrets.randbelow
) -> Float[np.ndarray, "Q M M"]:
    """S + E, E symmetric: standard deviation `scale` on the diagonal, scale/√2 beside it."""
    rows, columns = np.tril_indices(gram.shape[1])
    beside = np.where(rows == columns, 1.0, math.sqrt(0.5)) * scale
    noisy = np.empty_like(gram)
    for q in range(len(gram)):
        noisy[q, rows, columns] = on_grid(gram[q, rows, columns]) + noise(beside, below)
        noisy[q, columns, rows] = noisy[q, rows, columns]
    return noisy
