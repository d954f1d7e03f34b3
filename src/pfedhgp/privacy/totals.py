"""ΣW_i(S_i − Ŝ_i) + E, ΣW_ib_i + e, Σ|UᵀW_ir_i| + e: what clients release as totals, and what a row moves.

One row has features |a| ≤ 1 and an output clipped to |y| ≤ B. What leaves comes in three steps, each of
which knows what the steps before it released; Gaussian releases compose so too (Dong, Roth and Su 2022,
Gaussian differential privacy, section 3):

1. S̃_i = S_i + E_i, noised in full at the client. It stays there. Ŝ_i ≽ 0 and W_i = κ(Ŝ_i + κI)⁻¹ are computed
   from it, so 0 ≺ W_i ≼ I. One row moves S_i by |aaᵀ| ≤ 1.
2. W_i(S_i − Ŝ_i) and W_ib_i, whose totals get one noise. Given S̃_i, one row moves them by |W_iaaᵀ| ≤ 1 and
   |W_iay| ≤ B.
3. |UᵀW_ir_i|, by absolute value in each direction of an orthogonal U, r_i = Σ a clip(y − aᵀv̂, ±B), v̂ computed
   from the totals of step 2. One row moves W_ir_i by |W_ia|B ≤ B, and ||x| − |x'|| ≤ |x − x'|.

So μ² = 1/τ_1² + 1/τ_2² + B²/τ_b² + B²/τ_3², for each output. Only one client has the row: noise in a total is
as good as noise of its own. What is computed from S̃_i and these totals costs nothing more.

W_i b_i is what a client would send without noise, if κ = σ²/φs: a client with many rows says how the function
is, not how many rows say so. With noise κ is larger, or little but noise would be left.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from pfedhgp.errors import InputError
from pfedhgp.privacy import discrete_gaussian
from pfedhgp.privacy.denoising import Cells, counts_error, rows_in_cells
from pfedhgp.privacy.discrete_gaussian import Below
from pfedhgp.privacy.noise_shares import GRID, with_share
from pfedhgp.privacy.release import PublicBasis


class Scales(NamedTuple):
    """A number for each part of a release: standard deviations, or shares of μ²."""

    own: float
    """of S̃_i at the client"""
    gram: float
    linear: float
    spread: float


SHARES = Scales(0.15, 0.3, 0.45, 0.1)
"""Of μ²."""
SATURATION, OF_NOISE = 1.3, 30.0
"""κ without noise, and for each standard deviation of S̃_i."""


def total_scales(mu: float, bound: float, outputs: int, size: int) -> Scales:
    """Standard deviations of the noise for a budget of μ, shared by the outputs; zero for μ = ∞."""
    if mu == math.inf:
        return Scales(0.0, 0.0, 0.0, 0.0)
    if not math.isfinite(mu) or mu <= 0:
        raise InputError(f"the budget of a release must be positive, got μ = {mu!r}")
    moved = sensitivities(bound, size)
    parts = zip(moved, SHARES, strict=True)
    return Scales(*(each / (mu * math.sqrt(share / outputs)) for each, share in parts))


def sensitivities(bound: float, size: int) -> Scales:
    """What one row moves, and what rounding to the grid adds to it."""
    rounding = GRID * size
    own = 1.0 + 2 * discrete_gaussian.GRID * size
    return Scales(own, 1.0 + rounding, bound + rounding, bound + rounding)


def spent(scales: Scales, bound: float, outputs: int, size: int) -> float:
    """μ of a release with this noise: the inverse of `total_scales`."""
    if not any(scales):
        return math.inf
    if not all(math.isfinite(each) and each > 0 for each in scales):
        raise InputError("the noise of a release is not finite and positive: nothing is released")
    parts = zip(sensitivities(bound, size), scales, strict=True)
    return math.sqrt(outputs) * math.hypot(*(moved / tau for moved, tau in parts))


def modes(public: PublicBasis) -> Float[np.ndarray, "M M"]:
    """U = LᵀEΛ^−½ for k(Z, Z) = LLᵀ = EΛEᵀ: the kernel's eigenvectors in whitened weights."""
    L = np.asarray(public.basis().factor)[0]
    values, vectors = np.linalg.eigh(L @ L.T)
    turned, _, back = np.linalg.svd(L.T @ (vectors / np.sqrt(values)))
    return np.asarray(turned @ back)  # orthogonal to the last bits


@dataclass(frozen=True, eq=False)
class OwnGram:
    """What a client computes from S̃ of one output, for itself: Ŝ, its error by cells, and W."""

    gram: Float[np.ndarray, "M M"]
    weight: Float[np.ndarray, "M M"]
    seen: Bool[np.ndarray, " G"]
    """cells that hold rows"""
    counts: Float[np.ndarray, "g g"]
    """Cov(δ) of their rows"""

    @staticmethod
    def of(noisy: Float[np.ndarray, "M M"], noise: float, kappa: float, cells: Cells) -> OwnGram:
        """Without noise Ŝ is S itself."""
        gram, seen, counts = noisy, np.zeros(cells.features.shape[1], bool), np.zeros((0, 0))
        if noise > 0.0:
            p = rows_in_cells(noisy, cells)
            seen, gram = p > 0, (cells.features * p) @ cells.features.T
            counts = counts_error(seen, noise, cells) if seen.any() else counts
        values, vectors = np.linalg.eigh(gram)
        shrunk = kappa / (np.maximum(values, 0.0) + kappa)
        return OwnGram(gram, (vectors * shrunk) @ vectors.T, seen, counts)

    def quadratic(self, P: Float[np.ndarray, "M M"], cells: Cells) -> Float[np.ndarray, "M M"]:
        """WSPSW, less what the error of Ŝ adds to it on average."""
        A = cells.features[:, self.seen]
        found = self.gram @ P @ self.gram - A @ (self.counts * (A.T @ P @ A)) @ A.T
        return np.asarray(self.weight @ found @ self.weight)


def kappa_of(own_noise: float) -> float:
    """κ for a standard deviation of S̃."""
    return SATURATION + OF_NOISE * own_noise


def part_of_totals(
    grams: Sequence[OwnGram],
    sums: tuple[Float[np.ndarray, "Q M M"], Float[np.ndarray, "Q M"]],
    shares: Scales,
    below: Below = secrets.randbelow,
) -> dict[str, np.ndarray]:
    """W(S − Ŝ) and Wb of a client with its shares of the noise."""
    pairs = list(zip(grams, *sums, strict=True))
    missing = np.stack([own.weight @ (S - own.gram) for own, S, _ in pairs])
    linear = np.stack([own.weight @ b for own, _, b in pairs])
    return {
        "missing": with_share(missing, shares.gram, below),
        "linear": with_share(linear, shares.linear, below),
    }


def residuals(
    public: PublicBasis,
    X: Float[np.ndarray, "n d"],
    Y: Float[np.ndarray, "n Q"],
    bound: float,
    centre: Float[np.ndarray, "Q M"],
) -> Float[np.ndarray, "Q M"]:
    """r = Σ a clip(y − aᵀv̂, ±B) over the cells that were observed, for each output."""
    A, seen = public.features(X), np.isfinite(Y)
    left = np.clip(np.where(seen, Y, 0.0) - (centre @ A).T, -bound, bound)
    return np.asarray((A @ np.where(seen, left, 0.0)).T)


def part_of_spread(
    grams: Sequence[OwnGram],
    residual: Float[np.ndarray, "Q M"],
    U: Float[np.ndarray, "M M"],
    shares: Scales,
    below: Below = secrets.randbelow,
) -> dict[str, np.ndarray]:
    """|UᵀWr| of a client with its shares of the noise."""
    pairs = zip(grams, residual, strict=True)
    sizes = np.stack([np.abs(U.T @ (own.weight @ r)) for own, r in pairs])
    return {"spread": with_share(sizes, shares.spread, below)}
