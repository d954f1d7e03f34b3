"""What cycles say about their own covariance, without the mean function.

With C complete cycles of N = n Q cells on one grid, the part of log p that is left when the mean of the
cycles is taken out is a restricted likelihood of (Ψ, Σ_ε) alone:

    −½[(C−1)(N log 2π + log|Σ_e|) + tr(Σ_e⁻¹ Scatter)] − (N/2) log C

and by Woodbury it needs, of the cycles, only sums of the size of the basis: `CycleSums`. They add over
clients. One pass over the cycles makes them; nothing afterwards depends on how many cycles there were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from scipy.linalg import solve_triangular

from pfedhgp.gp.linalg import LOG_2PI
from pfedhgp.inference.cycles.incomplete import expected_sums
from pfedhgp.inference.messages import CYCLE_SUMS, pack, unpack
from pfedhgp.model.cycle_layer import CycleBasis, CycleLayer

SPARE_ROWS = 0.2
"""Rows beyond the basis, for each of its functions, from which Σ_ε can be read off what it cannot carry."""


@dataclass(frozen=True, eq=False)
class CycleSums:
    """Sums over cycles y_c around the mean ȳ of their client, d_c = y_c − ȳ; scaled units.

    Exact for complete cycles on one grid. Clients on different grids add up with the mean of their Grams in
    place of each one's own.
    """

    freedom: np.ndarray
    """Σ (C − 1)"""
    rows: np.ndarray
    """Σ (C − 1) n"""
    gram: np.ndarray
    """Σ (C − 1) a aᵀ over the grid, M × M"""
    T: np.ndarray
    """Σ_c p_c p_cᵀ with p_c = A_eᵀ d_c, (Q M) × (Q M), ordered (output, basis function)"""
    scatter: np.ndarray
    """Σ_c Σ_n d_c(n) d_c(n)ᵀ, Q × Q"""
    log_counts: np.ndarray
    """Σ N log C"""

    def __add__(self, other: CycleSums) -> CycleSums:
        names = [field.name for field in fields(self)]
        return CycleSums(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def times(self, factor: float) -> CycleSums:
        """Each sum `factor` times."""
        return CycleSums(
            **{field.name: factor * getattr(self, field.name) for field in fields(self)}
        )

    def as_arrays(self, prefix: str = "") -> dict[str, np.ndarray]:
        """As they are sent."""
        return {prefix + name: array for name, array in pack(CYCLE_SUMS, vars(self)).items()}

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray], prefix: str = "") -> CycleSums:
        """The inverse of `as_arrays`."""
        found = {field.name: arrays[prefix + field.name] for field in fields(CycleSums)}
        return CycleSums(**unpack(CYCLE_SUMS, found))


def sums_over_cycles(
    X: np.ndarray, cycles: np.ndarray, basis: CycleBasis, layer: CycleLayer | None = None
) -> CycleSums:
    """The sums of one client's cycles (C, n, Q) on the grid X (n, d); NaN is a missing cell.

    If cells are missing, these are the expected sums under `layer` (`expected_sums`).
    """
    A = basis.features(X)
    C, n, Q = cycles.shape
    freedom = float(max(C - 1, 0))
    if C > 1 and not np.isfinite(cycles).all():
        assert layer is not None, "incomplete cycles need a layer"
        T, scatter = expected_sums(cycles, layer.half(X), layer.noise, A)
    else:
        gap = np.zeros((0, n, Q)) if C < 2 else cycles - cycles.mean(0)
        p = np.einsum("mn,cnq->cqm", A, gap, optimize=True).reshape(len(gap), Q * len(A))
        T, scatter = p.T @ p, np.einsum("cnq,cnp->qp", gap, gap, optimize=True)
    return CycleSums(
        freedom=np.asarray(freedom),
        rows=np.asarray(freedom * n),
        gram=freedom * (A @ A.T),
        T=T,
        scatter=scatter,
        log_counts=np.asarray(float(n * Q * np.log(max(C, 1)))),
    )


def halves_of(
    X: np.ndarray, cycles: np.ndarray, basis: CycleBasis, layer: CycleLayer | None = None
) -> tuple[CycleSums, CycleSums]:
    """The sums in two parts that say independent things, the first half of the cycles and the rest.

    Together they are the sums of all. Of complete cycles, the rest is all less the first half, and has the
    difference of the halves' means too: with Gaussian cycles C − 1 contrasts are independent, however cut.
    """
    C = len(cycles)
    whole = sums_over_cycles(X, cycles, basis, layer)
    first = sums_over_cycles(X, cycles[: (C + 1) // 2], basis, layer)
    if np.isfinite(cycles).all():
        return first, whole + first.times(-1.0)
    if C < 4:  # too few to do without the difference of the halves' means
        return whole.times(0.0), whole
    return first, sums_over_cycles(X, cycles[(C + 1) // 2 :], basis, layer)


def restricted_evidence(layer: CycleLayer, cycle_sums: CycleSums) -> float:
    """The restricted log-likelihood of (Ψ, Σ_ε) given sums over cycles: of their own, or of held-out ones.

    Held-out evidence: make the sums of cycles that had no part in the layer. It takes nothing but the sums,
    so white, stationary and free forms compare on equal terms.

    Example:
        >>> import numpy as np
        >>> from pfedhgp.inference.cycles.forms import estimate
        >>> from pfedhgp.inference.cycles.scatter import (
        ...     halves_of,
        ...     restricted_evidence,
        ...     sums_over_cycles,
        ... )
        >>> from pfedhgp.model.cycle_layer import CycleBasis
        >>> grid, rng = np.linspace(0, 1, 30)[:, None], np.random.default_rng(0)
        >>> waves = rng.normal(size=(20, 1, 1)) * np.sin(6 * grid) + 0.1 * rng.normal(
        ...     size=(20, 30, 1)
        ... )
        >>> basis = CycleBasis.on(np.linspace(0, 1, 10)[:, None])
        >>> seen, held_out = (
        ...     halves_of(grid, waves[:10], basis),
        ...     sums_over_cycles(grid, waves[10:], basis),
        ... )
        >>> smooth, white = (estimate(seen, basis, form=form) for form in ("stationary", "white"))
        >>> bool(restricted_evidence(smooth, held_out) > restricted_evidence(white, held_out))
        True
    """
    if cycle_sums.freedom <= 0:
        return 0.0
    noise = layer.noise
    Q, M = len(noise), len(cycle_sums.gram)
    F = layer.factor.reshape(Q, M, layer.factor.shape[1])
    precision = np.linalg.inv(noise)
    PF = np.einsum("qp,pmk->qmk", precision, F)
    GF = np.einsum("ml,qlk->qmk", cycle_sums.gram / cycle_sums.freedom, F)
    size, rank = Q * M, F.shape[2]
    factor = np.linalg.cholesky(np.eye(rank) + PF.reshape(size, rank).T @ GF.reshape(size, rank))
    half = solve_triangular(factor, PF.reshape(size, rank).T, lower=True)
    explained = float(np.sum((half @ cycle_sums.T) * half))
    log_det = float(cycle_sums.rows) * np.linalg.slogdet(noise)[1]
    log_det += float(cycle_sums.freedom) * 2.0 * float(np.sum(np.log(np.diagonal(factor))))
    spread = float(np.trace(precision @ cycle_sums.scatter)) - explained
    cells = float(cycle_sums.rows) * Q
    return -0.5 * (cells * LOG_2PI + log_det + spread + float(cycle_sums.log_counts))


@dataclass(frozen=True, eq=False)
class Orthonormal:
    """The sums in coordinates in which the basis is orthonormal on the grid: G = H Hᵀ, T_o = H⁺ T H⁺ᵀ."""

    freedom: float
    rows: float
    """n, the mean over clients by degrees of freedom"""
    H: np.ndarray
    H_inverse: np.ndarray
    T: np.ndarray
    """(Q, r, Q, r)"""
    outside: np.ndarray
    """S_⊥ (Q, Q): the scatter that the basis cannot carry"""

    @property
    def rank(self) -> int:
        """r"""
        return self.H.shape[1]

    @staticmethod
    def of(cycle_sums: CycleSums) -> Orthonormal:
        freedom, M, Q = float(cycle_sums.freedom), len(cycle_sums.gram), len(cycle_sums.scatter)
        values, vectors = np.linalg.eigh(cycle_sums.gram / freedom)
        kept = values > 1e-10 * values[-1]
        root = np.sqrt(values[kept])
        H, inverse = vectors[:, kept] * root, (vectors[:, kept] / root).T
        T = cycle_sums.T.reshape(Q, M, Q, M)
        T = np.einsum("am,qmpl,bl->qapb", inverse, T, inverse, optimize=True)
        outside = cycle_sums.scatter - np.einsum("qapa->qp", T)
        return Orthonormal(freedom, float(cycle_sums.rows) / freedom, H, inverse, T, outside)

    def whitened(self, white: np.ndarray, cycle_sums: CycleSums) -> np.ndarray:
        """T̃, `cycle_sums` in these coordinates and in units of the noise; `white` is L⁻¹."""
        Q, M = len(white), len(self.H)
        T = cycle_sums.T.reshape(Q, M, Q, M)
        half = np.einsum("am,qmpl,bl->qapb", self.H_inverse, T, self.H_inverse, optimize=True)
        full = np.einsum("xq,qapb,yp->xayb", white, half, white, optimize=True)
        return full.reshape(Q * self.rank, Q * self.rank)

    def whitened_half(self, white: np.ndarray, layer: CycleLayer) -> np.ndarray:
        """N with K = N Nᵀ for a layer's Ψ; `white` is L⁻¹ of Σ_ε = L Lᵀ."""
        F = layer.factor.reshape(len(white), len(self.H), -1)
        half = np.einsum("xq,ma,qmk->xak", white, self.H, F, optimize=True)
        return half.reshape(len(white) * self.rank, -1)

    def noise_outside(self) -> np.ndarray | None:
        """Σ_ε from S_⊥ alone, whatever Ψ is; None if the basis leaves too few rows over."""
        spare = self.rows - self.rank
        if spare < SPARE_ROWS * self.rank or self.freedom * spare < 2 * len(self.outside):
            return None
        return self.outside / (self.freedom * spare)
