"""Distances of cycles from classes, with one channel that may run wild.

    d²_k = (y − f_k)ᵀ Λ (y − f_k),   Λ = Σ⁻¹,   z = Λ (y − f_k),   u_kq = z_qᵀ (Λ_qq)⁻¹ z_q

u_kq is the part of d² that channel q adds to what all others say: it is χ² with n_q degrees of freedom. A
channel with u > n_q may have a scale of its own, profiled out: then it counts n_q (1 + log u/n_q) instead of
u. That is done for the one channel where it saves most, so that a sensor that drifts does not decide alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dpotrf, dpotri

from pfedhgp.errors import NumericsError

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CycleMetric:
    """Λ = Σ⁻¹ and log|Σ|, and where each channel is."""

    precision: FloatArray
    log_det: float
    slices: tuple[slice, ...]
    grown: FloatArray | None = None
    """1 + 1/B of each class, (K,), if all share this metric (`candidates.grown`)"""

    @staticmethod
    def of(sigma: FloatArray, slices: Sequence[slice]) -> CycleMetric:
        factor, failed = dpotrf(sigma, lower=1, clean=1)
        if failed:
            raise NumericsError("the covariance of cycles is not positive definite")
        log_det = 2.0 * float(np.sum(np.log(np.diagonal(factor))))
        half, _ = dpotri(factor, lower=1, overwrite_c=1)
        precision = half + half.T
        precision[np.diag_indices(len(half))] *= 0.5
        return CycleMetric(precision, log_det, tuple(slices))

    def distances(self, found: FloatArray, means: FloatArray) -> tuple[FloatArray, FloatArray]:
        """d² (C, K) and u (C, K, Q), of cycles (C, m) from class means (K, m)."""
        G, M = found - means[0], means - means[0]
        zG, zM = G @ self.precision, M @ self.precision
        square = _squares(G, zG, M, zM)
        given = np.zeros((*square.shape, len(self.slices)))
        for q, part in enumerate(self.slices):
            if part.stop > part.start:
                block = cho_factor(self.precision[part, part], lower=True, check_finite=False)
                a, b = (cho_solve(block, z[:, part].T, check_finite=False).T for z in (zG, zM))
                given[:, :, q] = _squares(zG[:, part], a, zM[:, part], b)
        return square, given

    def towards(self, found: FloatArray, means: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The part of d² in the directions between class means, and how many those are, each (C, K)."""
        M = means[1:] - means[0]
        gram = M @ self.precision @ M.T
        scale = np.sqrt(np.maximum(np.diagonal(gram), 1e-300))
        values, vectors = np.linalg.eigh(gram / np.outer(scale, scale))
        kept = values > 1e-10
        basis = (self.precision @ (M / scale[:, None]).T) @ (
            vectors[:, kept] / np.sqrt(values[kept])
        )
        gaps = (found @ basis)[:, None] - (means @ basis)[None]
        return np.sum(gaps**2, axis=2), np.full(gaps.shape[:2], float(kept.sum()))

    @property
    def lengths(self) -> FloatArray:
        """n_q, (Q,)"""
        return np.asarray([part.stop - part.start for part in self.slices], np.float64)

    def robust(
        self, found: FloatArray, means: FloatArray, wider: FloatArray | float = 1.0
    ) -> FloatArray:
        """d² (C, K) with the wildest channel at a scale of its own, if Σ is `wider` (K,) times as large."""
        square, given = self.distances(found, means)
        each = np.broadcast_to(wider, square.shape)
        return without_the_wildest(square / each, given / each[:, :, None], self.lengths)


def saved(given: FloatArray, lengths: FloatArray) -> FloatArray:
    """What a scale of its own would save of d², for u (C, K, Q) of n_q each; 0 with a single channel."""
    n = np.maximum(lengths, 1.0)
    if np.sum(lengths > 0) < 2:
        return np.zeros_like(given)
    u = np.maximum(given, n)
    return np.asarray(np.where(given > lengths, u - n * (1.0 + np.log(u / n)), 0.0))


def without_the_wildest(square: FloatArray, given: FloatArray, lengths: FloatArray) -> FloatArray:
    """d² (C, K) with the channel that gains most at a scale of its own."""
    return np.maximum(square - saved(given, lengths).max(axis=2), 0.0)


def _squares(G: FloatArray, zG: FloatArray, M: FloatArray, zM: FloatArray) -> FloatArray:
    """(g − m)ᵀ A (g − m) for all pairs, from z = A g."""
    out = np.einsum("cd,cd->c", G, zG)[:, None] - 2.0 * zG @ M.T + np.einsum("kd,kd->k", M, zM)
    return np.maximum(out, 0.0)
