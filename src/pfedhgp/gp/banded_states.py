"""The smoother of `pfedhgp.gp.state_space` for a few columns, in NumPy and LAPACK: one banded system.

The state is x_k = F_k x_{k−1} + q_k, q_k ~ N(0, Q_k), observed as y_k = b oᵀx_k with noise of precision w_k.
Given the data it is most likely where, with multipliers μ_k,
    x_k − F_k x_{k−1} − Q_k μ_k = 0,   μ_k − F_{k+1}ᵀ μ_{k+1} + b² w_k o oᵀ x_k = s_k,   s_k = b w_k o y_k.
In the order x_1, μ_1, x_2, ... that is a banded matrix. Other sources s give columns of the states' posterior
covariance: s = o at a time without an observation gives Cov(x, oᵀx there). No Q_k is inverted, so times may
be close together or equal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import lapack

from pfedhgp.errors import NumericsError
from pfedhgp.gp.state_space import StateModel

COLUMNS = 128
"""Columns that are solved at a time: the rows of so many stay in the cache."""


class BandedStates(NamedTuple):
    """A series whose system is factorised. All in NumPy."""

    model: StateModel
    scale: float
    """b"""
    precision: Float[np.ndarray, " n"]
    """w; 0 at times without an observation"""
    balance: float
    """μ is kept in this unit: both kinds of equations then have entries of one size"""
    factor: np.ndarray
    pivots: np.ndarray

    @staticmethod
    def of(
        model: StateModel,
        scale: float,
        times: Float[np.ndarray, " n"],
        precision: Float[np.ndarray, " n"],
    ) -> BandedStates:
        """Factorises the system of a series; `times` are in order."""
        o, P = np.asarray(model.observe), np.asarray(model.stationary)
        n, s = len(times), len(o)
        F = np.asarray(model.transition(np.diff(times)))
        Q = np.concatenate([P[None], P - F @ P @ np.swapaxes(F, 1, 2)])
        largest = scale**2 * precision.max(initial=0.0)
        balance = 1.0 / np.sqrt(largest) if largest > 0 else 1.0
        band = 3 * s - 1
        matrix = _Band(np.zeros((3 * band + 1, 2 * s * n), order="F"), band)
        each, later = 2 * s * np.arange(n), 2 * s * np.arange(1, n)
        seen = balance * scale**2 * precision
        for i in range(s):
            matrix.put(each + i, each + i, 1.0)
            matrix.put(each + s + i, each + s + i, 1.0)
            for j in range(s):
                matrix.put(each + i, each + s + j, -Q[:, i, j] / balance)
                matrix.put(each + s + i, each + j, seen * o[i] * o[j])
                matrix.put(later + i, later - 2 * s + j, -F[:, i, j])
                matrix.put(later - s + i, later + s + j, -F[:, j, i])
        factor, pivots, info = lapack.dgbtrf(matrix.entries, band, band, overwrite_ab=1)
        if info != 0 or not np.isfinite(factor).all():
            raise NumericsError("the system of a state-space layer cannot be solved")
        return BandedStates(model, scale, precision, balance, factor, pivots)

    def solve(self, sources: Float[np.ndarray, "n s k"]) -> Float[np.ndarray, "n s k"]:
        """The states' posterior covariance times some columns."""
        n, s, k = sources.shape
        band, found = 3 * s - 1, np.empty((n, s, k))
        for first in range(0, k, COLUMNS):
            part = slice(first, first + COLUMNS)
            width = min(COLUMNS, k - first)
            right = np.zeros((2 * s * n, width), order="F")
            # one row of `whole` is a column of `right`: a view, since `right` is kept by columns
            whole = right.T.reshape(width, n, 2, s)
            whole[:, :, 1] = self.balance * np.moveaxis(sources[:, :, part], 2, 0)
            right, info = lapack.dgbtrs(self.factor, band, band, right, self.pivots, overwrite_b=1)
            assert info == 0
            found[:, :, part] = np.moveaxis(right.T.reshape(width, n, 2, s)[:, :, 0], 0, 2)
        return found

    def smooth(self, columns: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n s k"]:
        """E[x(t) | columns as data] at each time, observed or not."""
        weighted = self.scale * self.precision[:, None] * columns
        return self.solve(weighted[:, None, :] * np.asarray(self.model.observe)[None, :, None])

    def towards(
        self, where: Float[np.ndarray, " m"]
    ) -> tuple[Float[np.ndarray, "n m"], Float[np.ndarray, "n m"]]:
        """S with E[f(t_j) | y] = Σ_k S_kj y_k, and Cov(f(t), f(t_j)): t_j are the times at some places."""
        n, o = len(self.precision), np.asarray(self.model.observe)
        sources = np.zeros((n, len(o), len(where)))
        sources[where, :, np.arange(len(where))] = o
        covariance = np.einsum("s,nsm->nm", o, self.solve(sources))
        return self.scale * self.precision[:, None] * covariance, covariance


class _Band(NamedTuple):
    """A matrix as LAPACK's dgbtrf takes it, `width` diagonals on each side and room for as many more."""

    entries: np.ndarray
    width: int

    def put(self, rows: np.ndarray, columns: np.ndarray, values: np.ndarray | float) -> None:
        self.entries[2 * self.width + rows - columns, columns] = values
