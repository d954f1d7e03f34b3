"""The predictive distribution of a new cycle of one class: a Gaussian with a smooth part of low rank.

    Σ = (S ⊗ I_Q) F Fᵀ (S ⊗ I_Q)ᵀ + I_n ⊗ N,   SᵀS = I_r

Within the span of S a cycle has r Q coordinates c = Sᵀd with covariance G = F Fᵀ + I_r ⊗ N; outside of it
there is only noise. So no nQ × nQ matrix is ever formed:

    dᵀΣ⁻¹d = Σ_n d_nᵀN⁻¹d_n − Σ_a c_aᵀN⁻¹c_a + cᵀG⁻¹c,   log|Σ| = (n − r) log|N| + log|G|

Cycles with missing cells use Woodbury instead, with one factor for all that have the same cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, solve_triangular

from pfedhgp.inference.cycles.incomplete import groups_of, row_precision

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Parts = list[tuple[float, FloatArray]]
"""Coordinates of gaps a with ⟨a, b⟩ = aᵀΣ⁻¹b = Σ sign A Bᵀ."""
LOG_2PI = float(np.log(2.0 * np.pi))
BLOCK = 400
"""Cells that `by_cell` processes at once."""
SAME = 1e-10
"""Directions between class means that are shorter than this times the longest are rounding."""


@dataclass(frozen=True, eq=False)
class Metric:
    """aᵀΣ⁻¹b and log|Σ| on the observed cells of one group of cycles."""

    parts: Callable[[FloatArray], Parts]
    """takes gaps (C, n, Q), zero at missing cells"""
    log_det: float
    cells: int

    def distance(self, gaps: FloatArray) -> FloatArray:
        """dᵀΣ⁻¹d, (C,)."""
        return np.asarray(sum(sign * np.sum(A**2, axis=1) for sign, A in self.parts(gaps)))


@dataclass(frozen=True, eq=False)
class ClassGaussian:
    """N(mean, (S ⊗ I) core coreᵀ (S ⊗ I)ᵀ + I_n ⊗ noise), in the data's units."""

    mean: FloatArray
    """(n, Q)"""
    core: FloatArray
    """F, (rQ, k), coordinate (a, q) at a·Q + q"""
    noise: FloatArray
    """N, (Q, Q)"""
    span: FloatArray | None = None
    """S, (n, r), orthonormal; None means the whole grid"""

    @property
    def half(self) -> FloatArray:
        """U = (S ⊗ I) F, (nQ, k), cell (n, q) at n·Q + q."""
        if self.span is None:
            return self.core
        (n, Q), k = self.mean.shape, self.core.shape[1]
        wide = self.span @ self.core.reshape(self.span.shape[1], Q * k)
        return np.asarray(wide.reshape(n * Q, k))

    def metric(self, there: BoolArray) -> Metric:
        """The metric of cycles with these observed cells, (n, Q)."""
        if there.all():
            return self._complete
        return _incomplete(self.half, self.noise, there)

    @cached_property
    def _complete(self) -> Metric:
        n, Q = self.mean.shape
        if self.span is None:
            return _incomplete(self.core, self.noise, np.ones((n, Q), bool))
        S, white = self.span, np.linalg.inv(np.linalg.cholesky(self.noise))
        r, inner = S.shape[1], self._inner

        def parts(gaps: FloatArray) -> Parts:
            C = len(gaps)
            inside = np.matmul(S.T, gaps)
            noisy = [(part @ white.T).reshape(C, -1) for part in (gaps, inside)]
            return [(1.0, noisy[0]), (-1.0, noisy[1]), *inner.parts(inside)]

        outside = (n - r) * float(np.linalg.slogdet(self.noise)[1])
        return Metric(parts, inner.log_det + outside, n * Q)

    @cached_property
    def _inner(self) -> Metric:
        """The metric of coordinates (C, r, Q) within the span."""
        Q = self.mean.shape[1]
        return _incomplete(self.core, self.noise, np.ones((len(self.core) // Q, Q), bool))

    def score(self, cycles: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(ℓ, dᵀΣ⁻¹d), each (C,), of cycles (C, n, Q) with NaN at missing cells."""
        log_density, distance = np.zeros(len(cycles)), np.zeros(len(cycles))
        for there, members in groups_of(np.isfinite(cycles)):
            metric = self.metric(there)
            found = metric.distance(self._gaps(cycles[members], there))
            distance[members] = found
            constant = metric.log_det + metric.cells * LOG_2PI
            log_density[members] = -0.5 * (found + constant)
        return log_density, distance

    def _gaps(self, cycles: FloatArray, there: BoolArray) -> FloatArray:
        return np.where(there, np.where(there, cycles, 0.0) - self.mean, 0.0)

    def without(self, channels: Sequence[int]) -> ClassGaussian:
        """The distribution of the other channels."""
        kept = [q for q in range(self.mean.shape[1]) if q not in set(channels)]
        Q, (rows, k) = self.mean.shape[1], self.core.shape
        core = self.core.reshape(rows // Q, Q, k)[:, kept].reshape(rows // Q * len(kept), k)
        return ClassGaussian(self.mean[:, kept], core, self.noise[np.ix_(kept, kept)], self.span)

    def within_span(self, cycles: FloatArray) -> tuple[FloatArray, FloatArray]:
        """cᵀG⁻¹c, the part of dᵀΣ⁻¹d within the span, and its degrees of freedom, each (C,).

        New behaviour is usually smooth, and smooth functions lie within the span. The rest of a long cycle is
        noise, whose scatter would hide it. For a cycle with missing cells this is the whole distance.
        """
        distance, freedom = np.zeros(len(cycles)), np.zeros(len(cycles))
        for there, members in groups_of(np.isfinite(cycles)):
            gaps = self._gaps(cycles[members], there)
            if there.all() and self.span is not None:
                metric, gaps = self._inner, np.matmul(self.span.T, gaps)
            else:
                metric = self.metric(there)
            distance[members], freedom[members] = metric.distance(gaps), metric.cells
        return distance, freedom

    def given_the_rest(self, cycles: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The same for each channel given all others, each (C, Q); NaN if a cycle lacks the channel."""
        out = np.full((len(cycles), self.mean.shape[1]), np.nan)
        freedom = np.zeros_like(out)
        for there, members in groups_of(np.isfinite(cycles)):
            compact = self.span is not None or self.core.shape[1] >= len(self.core)
            if there.all() and compact:
                gaps = cycles[members] - self.mean
                inside = gaps if self.span is None else np.matmul(self.span.T, gaps)
                out[members] = self._given_by_precision(inside)
                freedom[members] = inside.shape[1]
            else:
                out[members] = self._given_by_difference(cycles[members], there)
                freedom[members] = there.sum(axis=0)
        return out, freedom

    def _given_by_precision(self, inside: FloatArray) -> FloatArray:
        """z_qᵀ (Λ_qq)⁻¹ z_q with Λ = G⁻¹ and z = Λc, of coordinates (C, r, Q)."""
        C, r, Q = inside.shape
        G = self.core @ self.core.T + np.kron(np.eye(r), self.noise)
        precision = cho_solve((np.linalg.cholesky(G), True), np.eye(r * Q))
        z = (inside.reshape(C, -1) @ precision).reshape(C, r, Q)
        blocks = precision.reshape(r, Q, r, Q)
        out = np.zeros((C, Q))
        for q in range(Q):
            root = np.linalg.cholesky(blocks[:, q, :, q])
            out[:, q] = np.sum(solve_triangular(root, z[:, :, q].T, lower=True) ** 2, axis=0)
        return out

    def _given_by_difference(self, cycles: FloatArray, there: BoolArray) -> FloatArray:
        """The joint distance less that of the other channels."""
        Q, joint = self.mean.shape[1], self.score(cycles)[1]
        out = np.full((len(cycles), Q), np.nan)
        for q in np.flatnonzero(there.any(axis=0)).tolist():
            rest = [p for p in range(Q) if p != q]
            less = self.without([q]).score(cycles[:, :, rest])[1] if rest else 0.0
            out[:, q] = joint - less
        return out

    def by_cell(self, cycle: FloatArray) -> FloatArray:
        """log p(y_nq | all cells before it), (n, Q), NaN if missing: along the axis, with sum ℓ.

        Works in blocks of cells, with the weights' mean w and covariance P given all earlier blocks.
        """
        there = np.isfinite(cycle)
        U = self.half
        if U.shape[1] > len(self.core):
            narrow = np.asarray(np.linalg.qr(self.core.T, mode="r")).T  # the same core coreᵀ
            U = ClassGaussian(self.mean, narrow, self.noise, self.span).half
        gap = np.where(there, cycle - self.mean, 0.0).reshape(-1)
        Q, w, P = cycle.shape[1], np.zeros(U.shape[1]), np.eye(U.shape[1])
        out = np.full(there.size, np.nan)
        for start in range(0, len(cycle), max(BLOCK // Q, 1)):
            rows = range(start, min(start + max(BLOCK // Q, 1), len(cycle)))
            cells = start * Q + np.flatnonzero(there[rows.start : rows.stop].reshape(-1))
            if not len(cells):
                continue
            noise = np.kron(np.eye(len(rows)), self.noise)
            V = U[cells] @ P
            inner = V @ U[cells].T + noise[np.ix_(cells - start * Q, cells - start * Q)]
            factor = np.linalg.cholesky(0.5 * (inner + inner.T))
            white = solve_triangular(factor, gap[cells] - U[cells] @ w, lower=True)
            half = solve_triangular(factor, V, lower=True)
            out[cells] = -0.5 * (white**2 + LOG_2PI) - np.log(np.diagonal(factor))
            w = w + half.T @ white
            P = P - half.T @ half
        return out.reshape(cycle.shape)


def towards_others(
    gaussian: ClassGaussian, others: Sequence[FloatArray], cycles: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The part of dᵀΣ⁻¹d in the directions towards the means of other classes, and how many those are.

        dᵀΣ⁻¹M (MᵀΣ⁻¹M)⁻¹ MᵀΣ⁻¹d,   M = [μ_j − μ]          χ² of rank M for a cycle of the class

    Each (C,). These directions tell classes apart: a cycle that fits no class here belongs to none, whatever
    the rest of it does. There is no direction if the classes do not differ on the observed cells.
    """
    distance, count = np.zeros(len(cycles)), np.zeros(len(cycles))
    if not others:
        return distance, count
    M = np.stack([mean - gaussian.mean for mean in others])
    for there, members in groups_of(np.isfinite(cycles)):
        metric = gaussian.metric(there)
        gaps = gaussian._gaps(cycles[members], there)
        both = [*zip(metric.parts(gaps), metric.parts(np.where(there, M, 0.0)), strict=True)]
        gram = np.asarray(sum(sign * B @ B.T for _, (sign, B) in both))
        scale = np.sqrt(np.maximum(np.diagonal(gram), 1e-300))
        values, vectors = np.linalg.eigh(gram / np.outer(scale, scale))
        kept = values > SAME
        cross = np.asarray(sum(sign * A @ B.T for (sign, A), (_, B) in both)) / scale
        distance[members] = np.sum((cross @ vectors[:, kept]) ** 2 / values[kept], axis=1)
        count[members] = kept.sum()
    return distance, count


def _incomplete(half: FloatArray, noise: FloatArray, there: BoolArray) -> Metric:
    """The metric of half halfᵀ + I ⊗ noise on the cells `there` (n, Q): dense, or Woodbury if narrow."""
    cells, k = int(there.sum()), half.shape[1]
    if k >= cells:
        seen = there.reshape(-1)
        U, N = half[seen], np.kron(np.eye(len(there)), noise)[np.ix_(seen, seen)]
        factor = np.linalg.cholesky(U @ U.T + N)

        def dense(gaps: FloatArray) -> Parts:
            flat = gaps.reshape(len(gaps), -1)[:, seen]
            return [(1.0, solve_triangular(factor, flat.T, lower=True).T)]

        return Metric(dense, 2.0 * float(np.sum(np.log(np.diagonal(factor)))), cells)
    # Rows in units of their noise: W_nᵀW_n = P_n, so that P never multiplies anything twice.
    values, vectors = np.linalg.eigh(row_precision(noise, there))
    W = np.sqrt(np.maximum(values, 0.0))[:, :, None] * np.swapaxes(vectors, 1, 2)
    n, Q = there.shape
    V = np.asarray(W @ half.reshape(n, Q, k), np.float64).reshape(n * Q, k)
    inner: FloatArray = np.eye(k) + V.T @ V
    root = np.linalg.cholesky(inner)

    def narrow(gaps: FloatArray) -> Parts:
        D = np.matmul(W, gaps[..., None])[..., 0].reshape(len(gaps), -1)
        return [(1.0, D), (-1.0, solve_triangular(root, (D @ V).T, lower=True).T)]

    log_det = 2.0 * float(np.sum(np.log(np.diagonal(root)))) + _log_det(noise, there)
    return Metric(narrow, log_det, cells)


def _log_det(noise: FloatArray, there: BoolArray) -> float:
    """Σ_n log|N_n| over the observed blocks."""
    both = there[:, :, None] & there[:, None, :]
    gone = np.eye(len(noise))[None] * (~there)[:, :, None]
    return float(np.sum(np.linalg.slogdet(np.where(both, noise[None], 0.0) + gone)[1]))
