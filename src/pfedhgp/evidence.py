"""Classification by evidence: a cycle goes to the client under which it is most probable.

    ℓ_i(y) = log N(y; μ_i, Σ_i),   Σ_i = H S Hᵀ + R + Σ_e,   ĉ = argmax_i ℓ_i          (eqs. cls-ll, cls-rule)

Σ_i is the whole predictive covariance of a new cycle (eq. pred_cov_classification, with layers correlated and
with the cycle layer in Σ_e). It is U Uᵀ plus a Q × Q noise block at each sample, so that by Woodbury

    log|Σ| = Σ_n log|N_n| + log|I + UᵀPU|,   dᵀΣ⁻¹d = dᵀPd − |L⁻¹UᵀPd|²,   L Lᵀ = I + UᵀPU

and all cycles with the same observed cells share one factor. What is not observed is left out of the
density, which is that of the observed cells: other grids, gaps and missing channels are all valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular

from pfedhgp.errors import InputError
from pfedhgp.inference.patterns import groups_of, row_precision
from pfedhgp.model.at_inputs import AtInputs
from pfedhgp.model.fitted import FittedModel

__all__ = ["Evidence", "Law", "evidence", "law_of", "low_rank", "of_laws", "stacked"]

FloatArray = npt.NDArray[np.float64]
LOG_2PI = float(np.log(2.0 * np.pi))
LEFT_OUT = 1e-7
"""Of R, in units of the noise and summed over samples: what its low-rank factor may leave out, in nats."""
ROUNDING = 1e-12
"""Variances below this are rounding: r = k − aᵀa is a difference of numbers near 1."""


@dataclass(frozen=True, eq=False)
class Law:
    """What one client expects of a new cycle on a grid: N(mean, half halfᵀ + I_n ⊗ noise), data's units."""

    mean: FloatArray
    """(n, Q)"""
    half: FloatArray
    """U, (nQ, k), cell (n, q) at n·Q + q"""
    noise: FloatArray
    """(Q, Q)"""

    def dense(self) -> FloatArray:
        """Σ, (nQ, nQ)."""
        return self.half @ self.half.T + np.kron(np.eye(len(self.mean)), self.noise)

    def score(self, cycles: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(ℓ, dᵀΣ⁻¹d), each (C,), of cycles (C, n, Q) with NaN where a cell is missing."""
        log_density, distance = np.zeros(len(cycles)), np.zeros(len(cycles))
        for there, members in groups_of(np.isfinite(cycles)):
            found = self._score_group(np.where(there, cycles[members], 0.0), there)
            log_density[members], distance[members] = found
        return log_density, distance

    def _score_group(self, cycles: FloatArray, there: npt.NDArray[np.bool_]) -> tuple:
        """Cycles that have the same cells."""
        cells = int(there.sum())
        gap = np.where(there, cycles - self.mean, 0.0)
        if self.half.shape[1] >= cells:
            seen = there.reshape(-1)
            U, N = self.half[seen], np.kron(np.eye(len(there)), self.noise)[np.ix_(seen, seen)]
            factor = np.linalg.cholesky(U @ U.T + N)
            white = solve_triangular(factor, gap.reshape(len(gap), -1)[:, seen].T, lower=True)
            distance = np.sum(white**2, axis=0)
            log_det = 2.0 * np.sum(np.log(np.diagonal(factor)))
            return -0.5 * (distance + log_det + cells * LOG_2PI), distance
        # Rows in units of their noise: W_nᵀW_n = P_n, so that P never multiplies anything twice.
        k = self.half.shape[1]
        if np.count_nonzero(self.noise - np.diag(np.diagonal(self.noise))) == 0:
            w = (there / np.sqrt(np.diagonal(self.noise))).reshape(-1)
            V, D = self.half * w[:, None], gap.reshape(len(gap), -1) * w
        else:
            W = _half_of(self.noise, there)
            n, Q = there.shape
            V = np.asarray(W @ self.half.reshape(n, Q, k), np.float64).reshape(n * Q, k)
            D = np.einsum("nqp,cnp->cnq", W, gap, optimize=True).reshape(len(gap), -1)
        inner: FloatArray = np.eye(V.shape[1]) + V.T @ V
        root = np.linalg.cholesky(inner)
        explained = solve_triangular(root, (D @ V).T, lower=True)
        distance = np.sum(D**2, axis=1) - np.sum(explained**2, axis=0)
        log_det = 2.0 * np.sum(np.log(np.diagonal(root))) + _log_det(self.noise, there)
        return -0.5 * (distance + log_det + cells * LOG_2PI), distance

    def without(self, channels: Sequence[int]) -> Law:
        """The law of the other channels alone."""
        kept = [q for q in range(self.mean.shape[1]) if q not in set(channels)]
        n, Q = self.mean.shape
        k = self.half.shape[1]
        half = self.half.reshape(n, Q, k)[:, kept].reshape(n * len(kept), k)
        return Law(self.mean[:, kept], half, self.noise[np.ix_(kept, kept)])

    def given_the_rest(self, cycles: FloatArray) -> FloatArray:
        """dᵀΣ⁻¹d of each channel given all others, (C, Q): what is left of the joint one without them.

        NaN where a cycle does not have the channel.
        """
        Q = self.mean.shape[1]
        joint, seen = self.score(cycles)[1], np.asarray(np.isfinite(cycles).any(axis=1))
        out = np.full((len(cycles), Q), np.nan)
        for q in range(Q):
            rest = [p for p in range(Q) if p != q]
            less = self.without([q]).score(cycles[:, :, rest])[1] if rest else np.zeros(len(joint))
            out[:, q] = np.where(seen[:, q], joint - less, np.nan)
        return out

    def by_cell(self, cycle: FloatArray) -> FloatArray:
        """log p(y_nq | all cells before it), (n, Q), NaN where missing: along the axis, and they sum to ℓ."""
        there = np.isfinite(cycle).reshape(-1)
        seen = np.flatnonzero(there)
        cov = self.dense()[np.ix_(seen, seen)]
        factor = np.linalg.cholesky(cov)
        white = solve_triangular(factor, (cycle - self.mean).reshape(-1)[seen], lower=True)
        out = np.full(there.shape, np.nan)
        out[seen] = -0.5 * (white**2 + LOG_2PI) - np.log(np.diagonal(factor))
        return out.reshape(cycle.shape)


def _half_of(noise: FloatArray, there: npt.NDArray[np.bool_]) -> FloatArray:
    """W_n with W_nᵀW_n = P_n, (n, Q, Q)."""
    P = row_precision(noise, there)
    values, vectors = np.linalg.eigh(P)
    return np.sqrt(np.maximum(values, 0.0))[:, :, None] * np.swapaxes(vectors, 1, 2)


def _log_det(noise: FloatArray, there: npt.NDArray[np.bool_]) -> float:
    """Σ_n log|N_n| over the observed blocks."""
    both = there[:, :, None] & there[:, None, :]
    gone = np.eye(len(noise))[None] * (~there)[:, :, None]
    return float(np.sum(np.linalg.slogdet(np.where(both, noise[None], 0.0) + gone)[1]))


def law_of(model: FittedModel, client: str, X: FloatArray) -> Law:
    """The predictive law of a new cycle of `client` on the grid X (n, d), in the data's units."""
    view = AtInputs.of(model, client, np.asarray(X, np.float64), None)
    means, _ = view.marginals()
    half, residuals = view.factors()
    precision = 1.0 / np.linalg.eigvalsh(view.noise)[0]
    columns = [half]
    for matrix, loadings in residuals:
        tolerance = LEFT_OUT / (precision * max(float(np.sum(loadings**2)), 1e-300))
        root = low_rank(matrix, tolerance)
        outer = np.einsum("nk,qr->nqkr", root, loadings)
        columns.append(outer.reshape(len(half), root.shape[1] * loadings.shape[1]))
    return Law(means["total"], np.concatenate(columns, axis=1), view.noise)


def low_rank(matrix: FloatArray, tolerance: float) -> FloatArray:
    """F (n, k) with F Fᵀ = `matrix` but for a PSD rest of trace ≤ tolerance, by pivoted Cholesky.

    It ends at rounding too, or a smooth kernel's residual would seem to have full rank.
    """
    left = np.diagonal(matrix).copy()
    F = np.zeros((len(matrix), len(matrix)), order="F")
    k = 0
    while k < len(matrix) and np.sum(np.maximum(left, 0.0)) > tolerance:
        pivot = int(np.argmax(left))
        if left[pivot] < ROUNDING:
            break
        column = (matrix[:, pivot] - F[:, :k] @ F[pivot, :k]) / np.sqrt(left[pivot])
        F[:, k] = column
        left -= column**2
        left[pivot] = 0.0
        k += 1
    return F[:, :k].copy()


@dataclass(frozen=True, eq=False)
class Evidence:
    """ℓ and dᵀΣ⁻¹d of cycles under classes, each (C, K), and how many cells each cycle has."""

    classes: tuple[str, ...]
    log_density: FloatArray
    distance: FloatArray
    cells: npt.NDArray[np.int64]
    """(C, Q): how many of each channel"""
    given_the_rest: FloatArray | None = None
    """dᵀΣ⁻¹d of each channel given the others, (C, K, Q), where it was asked for"""

    @property
    def surprise(self) -> FloatArray:
        """(dᵀΣ⁻¹d − N)/√(2N) of the whole cycle and then of each channel given the others, (C, K, 1 + Q).

        About N(0, 1) for a cycle of the class, if the class is Gaussian. NaN where a channel is missing.
        """
        whole = _standard(self.distance, self.cells.sum(axis=1)[:, None])[:, :, None]
        if self.given_the_rest is None:
            return whole
        parts = _standard(self.given_the_rest, self.cells[:, None, :])
        return np.concatenate([whole, parts], axis=2)

    def take(self, which: npt.NDArray[Any]) -> Evidence:
        """Some of the cycles."""
        rest = None if self.given_the_rest is None else self.given_the_rest[which]
        return Evidence(
            self.classes, self.log_density[which], self.distance[which], self.cells[which], rest
        )


def stacked(parts: Sequence[Evidence]) -> Evidence:
    """The cycles of several batches in one, in their order."""
    rest = [part.given_the_rest for part in parts]
    joined = (
        None if any(r is None for r in rest) else np.concatenate([r for r in rest if r is not None])
    )
    return Evidence(
        parts[0].classes,
        np.concatenate([part.log_density for part in parts]),
        np.concatenate([part.distance for part in parts]),
        np.concatenate([part.cells for part in parts]),
        joined,
    )


def _standard(distance: FloatArray, cells: npt.NDArray[np.int64]) -> FloatArray:
    N = np.maximum(cells, 1).astype(np.float64)
    return (distance - N) / np.sqrt(2.0 * N)


def evidence(
    model: FittedModel,
    X: FloatArray,
    cycles: FloatArray,
    classes: Sequence[str] | None = None,
    *,
    channels: bool = False,
) -> Evidence:
    """Of cycles (C, n, Q) on the grid X (n, d) under each class, by default all clients of the model.

    With `channels` also of each channel given the others, at 1 + Q times the cost.
    """
    names = check_classes(model, classes)
    seen = np.isfinite(cycles)
    empty = np.flatnonzero(~seen.any(axis=(1, 2)))
    if len(empty):
        raise InputError(f"cycle {empty[0]} has no value: every sample of it is missing")
    used = seen.any(axis=(0, 2))  # samples that no cycle has cost nothing
    laws = (law_of(model, name, X[used]) for name in names)
    return of_laws(names, laws, cycles[:, used], channels=channels)


def of_laws(
    names: tuple[str, ...], laws: Iterable[Law], cycles: FloatArray, *, channels: bool = False
) -> Evidence:
    """Of cycles (C, n, Q) under laws on their grid, one law at a time."""
    scores, rest = [], []
    for law in laws:
        scores.append(law.score(cycles))
        if channels:
            rest.append(law.given_the_rest(cycles))
    log_density, distance = (np.stack(part, axis=1) for part in zip(*scores, strict=True))
    cells = np.isfinite(cycles).sum(axis=1)
    return Evidence(names, log_density, distance, cells, np.stack(rest, axis=1) if rest else None)


def check_classes(model: FittedModel, classes: Sequence[str] | None) -> tuple[str, ...]:
    """The classes by name, each a client of the model."""
    names = tuple(model.clients) if classes is None else tuple(str(name) for name in classes)
    if not names:
        raise InputError("`classes` names no class")
    for name in names:
        if name not in model.clients:
            known = ", ".join(list(model.clients)[:12])
            raise InputError(f"no class {name!r} in the model; it has {known}")
    return names
