"""Which cells cycles have: cycles with the same cells are a group, and share one Woodbury identity.

Σ_e = E Eᵀ + Σ_ε on the observed cells,   Σ_e⁻¹ = P − UᵀU,   U = L⁻¹EᵀP,   L Lᵀ = I + EᵀPE
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular


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
