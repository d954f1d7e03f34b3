"""Cycles that lack cells: patterns of cells, and what the cycles' sums are expected to be (the E-step of EM).

Cycles with the same cells are a group, and share one Woodbury identity for Σ_e = E Eᵀ + Σ_ε on these cells:
    Σ_e⁻¹ = P − UᵀU,   U = L⁻¹EᵀP,   L Lᵀ = I + EᵀPE
For y_c ~ N(μ, Σ_e) with any μ, two steps alternate until neither changes anything: missing cells are filled
with their conditional means, and μ is the mean of the filled cycles. That is the generalised least-squares μ.
The conditional covariances of the filled cells count (C−1)/C, because the mean takes one degree of freedom.
The mean is also less certain at missing cells; that is left out, so the sums are approximate in 1/C.
(Plain means of the observed cells would not do. Neighbouring cells would average different cycles, and what
is smooth in each cycle would come out as noise.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve, solve_triangular


def groups_of(seen: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(cells that are there (n, Q), which cycles) for each pattern of (C, n, Q), by its first cycle."""
    patterns: dict[bytes, list[int]] = {}
    for index, cells in enumerate(np.packbits(seen.reshape(len(seen), -1), axis=1)):
        patterns.setdefault(cells.tobytes(), []).append(index)
    for members in patterns.values():
        yield seen[members[0]], np.asarray(members)


def row_precision(noise: np.ndarray, there: np.ndarray) -> np.ndarray:
    """P_n, (n, Q, Q): the inverse of the observed block of Σ_ε at each row, zero elsewhere."""
    both = there[:, :, None] & there[:, None, :]
    gone = np.eye(len(noise))[None] * (~there)[:, :, None]
    return np.linalg.inv(np.where(both, noise[None], 0.0) + gone) * both


@dataclass(frozen=True, eq=False)
class Pattern:
    """Σ_e⁻¹ = P − UᵀU of the cells `there`, for a layer E (n, Q, k) and noise Σ_ε."""

    there: np.ndarray
    P: np.ndarray
    """(n, Q, Q)"""
    PE: np.ndarray
    """(n, Q, k)"""
    factor: np.ndarray
    """L, of I + EᵀPE"""

    @staticmethod
    def of(there: np.ndarray, E: np.ndarray, noise: np.ndarray) -> Pattern:
        P = row_precision(noise, there)
        PE = np.einsum("nqp,npk->nqk", P, E)
        inner = np.eye(E.shape[2]) + np.einsum("nqk,nql->kl", E, PE, optimize=True)
        return Pattern(there, P, PE, np.linalg.cholesky(inner))

    @property
    def U(self) -> np.ndarray:
        """L⁻¹EᵀP, (k, nQ)"""
        n, Q, k = self.PE.shape
        return solve_triangular(self.factor, self.PE.reshape(n * Q, k).T, lower=True)

    @property
    def log_determinant(self) -> float:
        """log|I + EᵀPE|"""
        return 2.0 * float(np.sum(np.log(np.diagonal(self.factor))))


ITERATIONS = 200
TOLERANCE = 1e-10
"""Largest change of the mean, relative to the cycles' own size."""


@dataclass(frozen=True, eq=False)
class _Group:
    """Cycles with the same cells."""

    members: np.ndarray
    pattern: Pattern
    regress: np.ndarray
    """Σ_uo Σ_oo⁻¹ of ε at each row, (n, Q, Q)"""

    @staticmethod
    def of(there: np.ndarray, members: np.ndarray, E: np.ndarray, noise: np.ndarray) -> _Group:
        pattern = Pattern.of(there, E, noise)
        return _Group(members, pattern, np.einsum("nq,qp,npr->nqr", ~there, noise, pattern.P))

    def fill(self, d: np.ndarray, E: np.ndarray) -> np.ndarray:
        """E[d | observed cells], for departures (c, n, Q) from the mean, 0 at missing cells."""
        if self.pattern.there.all():
            return d
        known = np.einsum("nqk,cnq->kc", self.pattern.PE, d, optimize=True)
        z = cho_solve((self.pattern.factor, True), known)
        smooth = np.einsum("nqk,kc->cnq", E, z, optimize=True)
        left = np.einsum("nqp,cnp->cnq", self.regress, d - smooth, optimize=True)
        return np.where(self.pattern.there[None], d, smooth + left)

    def uncertainty(self, E: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(D, Ξ): the covariance of the missing cells is D Dᵀ over all rows and Ξ within each."""
        gone = ~self.pattern.there
        D = gone[:, :, None] * E - np.einsum("nqp,npk->nqk", self.regress, E)
        half = np.linalg.inv(self.pattern.factor).T
        own = noise[None] - np.einsum("qp,npr,rs->nqs", noise, self.pattern.P, noise, optimize=True)
        return D @ half, own * gone[:, :, None] * gone[:, None, :]


def expected_sums(
    cycles: np.ndarray, E: np.ndarray, noise: np.ndarray, A: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """E[T] and E[scatter] of cycles (C, n, Q) with NaN; E (n, Q, k) and A (M, n) are the layer there."""
    seen = np.isfinite(cycles)
    C, size = len(cycles), cycles.shape[2] * len(A)
    groups = [_Group.of(there, members, E, noise) for there, members in groups_of(seen)]
    d = _departures(cycles, seen, groups, E)
    p = np.einsum("mn,cnq->cqm", A, d, optimize=True).reshape(C, size)
    T, scatter = p.T @ p, np.einsum("cnq,cnp->qp", d, d, optimize=True)
    for group in groups:
        if group.pattern.there.all():
            continue
        weight = len(group.members) * (C - 1) / C
        D, own = group.uncertainty(E, noise)
        AD = np.einsum("mn,nqk->qmk", A, D, optimize=True).reshape(size, D.shape[2])
        within = np.einsum("mn,nqp,ln->qmpl", A, own, A, optimize=True).reshape(size, size)
        T += weight * (AD @ AD.T + within)
        scatter += weight * (np.einsum("nqk,npk->qp", D, D, optimize=True) + own.sum(0))
    return T, scatter


def _departures(
    cycles: np.ndarray, seen: np.ndarray, groups: list[_Group], E: np.ndarray
) -> np.ndarray:
    """The filled cycles less their mean."""
    filled = np.where(seen, cycles, 0.0)
    mean = filled.sum(0) / np.maximum(seen.sum(0), 1)
    size = max(float(np.abs(filled).max()), 1e-300)
    for _ in range(ITERATIONS):
        for group in groups:
            d = np.where(group.pattern.there[None], cycles[group.members] - mean[None], 0.0)
            filled[group.members] = mean[None] + group.fill(d, E)
        before, mean = mean, filled.mean(0)
        if np.max(np.abs(mean - before)) <= TOLERANCE * size:
            break
    return filled - mean[None]
