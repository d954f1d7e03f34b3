"""The coordinates in which cycles are compared: every sample, or the weights of few local functions.

    z_q = (y_q − centre_q)/spread_q,   c_q = Sᵀ z_q,   SᵀS = I_r        one block of r numbers a channel

Short cycles keep every sample (S = I): a transient of one sample can decide. Long ones are projected on r
Matérn functions on a grid, made orthonormal by A (AᵀA)^(−1/2), which keeps each of them local. What lies
outside of their span is noise. A cycle on another grid, or one that lacks samples, is a `View` of c.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pfedhgp.inference.starts.budget import box_points
from pfedhgp.model.cycle_layer import OVERLAP

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
MOST = 81
"""Most coordinates of a channel. Cycles with no more samples keep them all."""


def coordinates_per_channel(samples: int) -> int:
    """r: one coordinate a sample, up to a limit.

    >>> coordinates_per_channel(60), coordinates_per_channel(1201)
    (60, 81)
    """
    return min(samples, MOST)


@dataclass(frozen=True, eq=False)
class Coordinates:
    """From cycles (C, Q, n) to numbers (C, Q r), channel by channel."""

    grid: FloatArray
    """(n, d), where the training cycles have their samples"""
    centre: FloatArray
    """(Q, n), subtracted first"""
    spread: FloatArray
    """(Q,), one unit of each channel"""
    rank: int
    """r"""

    @property
    def channels(self) -> int:
        return len(self.spread)

    @property
    def size(self) -> int:
        """D = Q r"""
        return self.channels * self.rank

    @property
    def outside_freedom(self) -> int:
        """n − r: directions of each channel that the coordinates leave out."""
        return len(self.grid) - self.rank

    def scaled(self, cycles: FloatArray) -> FloatArray:
        """z, (C, Q, n), of cycles on the training grid."""
        return np.asarray((cycles - self.centre) / self.spread[:, None])

    def of(self, cycles: FloatArray) -> FloatArray:
        """c, (C, Q r), of complete cycles on the training grid."""
        z = self.scaled(cycles)
        found = z if self.functions is None else z @ self.functions
        return np.asarray(found.reshape(len(cycles), -1))

    def curves(self, found: FloatArray) -> FloatArray:
        """(C, Q, n): coordinates as curves on the training grid, in the channels' own units."""
        parts = found.reshape(len(found), self.channels, self.rank)
        z = parts if self.functions is None else parts @ self.functions.T
        return np.asarray(self.centre + self.spread[:, None] * z)

    def outside(self, cycles: FloatArray, found: FloatArray) -> FloatArray:
        """|z_q|² − |c_q|², (C, Q): what the coordinates leave out."""
        z = self.scaled(cycles)
        inside = found.reshape(len(cycles), self.channels, self.rank)
        return np.maximum(np.sum(z**2, axis=2) - np.sum(inside**2, axis=2), 0.0)

    @cached_property
    def functions(self) -> FloatArray | None:
        """S on the training grid, (n, r); None if every sample is a coordinate."""
        return None if self.outside_freedom == 0 else self._functions_at(self.grid)

    @property
    def places(self) -> FloatArray:
        """Where each coordinate of a channel lies, (r, d), in the grid's units."""
        if self.outside_freedom == 0:
            return self.grid
        low, high = self.grid.min(axis=0), self.grid.max(axis=0)
        return np.asarray(low + box_points(self.rank, self.grid.shape[1]) * (high - low))

    def _functions_at(self, X: FloatArray) -> FloatArray:
        return np.asarray(self._raw(X) @ self._root)

    @cached_property
    def _root(self) -> FloatArray:
        A = self._raw(self.grid)
        values, vectors = np.linalg.eigh(A.T @ A)
        return np.asarray((vectors / np.sqrt(values)) @ vectors.T)

    def _raw(self, X: FloatArray) -> FloatArray:
        """Matérn 5/2 functions, (n, r), two spacings wide."""
        low, high = self.grid.min(axis=0), self.grid.max(axis=0)
        box, Z = (X - low) / (high - low), box_points(self.rank, X.shape[1])
        width = OVERLAP / max(self.rank ** (1.0 / X.shape[1]) - 1.0, 1.0)
        gap = np.sqrt(np.sum((box[:, None] - Z[None]) ** 2, axis=2))
        t = np.sqrt(5.0) * gap / width
        return np.asarray((1.0 + t + t**2 / 3.0) * np.exp(-t))

    def view(self, X: FloatArray, there: BoolArray) -> View:
        """What cycles with these samples (Q, n') on the grid X tell about c."""
        same = X.shape == self.grid.shape and np.array_equal(X, self.grid)
        weights = None if same else interpolation(self.grid, X)
        if self.outside_freedom:
            S = self.functions if same else self._functions_at(X)
        else:
            S = np.eye(len(X)) if weights is None else weights
        assert S is not None
        centre = self.centre if weights is None else self.centre @ weights.T
        rotations, maps = [], []
        for seen in there:
            P, L = np.eye(int(seen.sum())), S[seen]
            if len(L) > self.rank:
                P, L = np.linalg.qr(L)
            rotations.append(P)
            maps.append(L)
        return View(X, centre, self.spread, there, tuple(rotations), tuple(maps), S, self.rank)


@dataclass(frozen=True, eq=False)
class View:
    """t_q = P_qᵀ z_q = L_q c_q + noise: part of a cycle, or a cycle on another grid."""

    grid: FloatArray
    centre: FloatArray
    spread: FloatArray
    there: BoolArray
    """(Q, n')"""
    rotations: tuple[FloatArray, ...]
    maps: tuple[FloatArray, ...]
    """L_q, (m_q, r)"""
    functions: FloatArray
    rank: int

    @property
    def slices(self) -> tuple[slice, ...]:
        """Where each channel is in t."""
        ends = np.cumsum([len(L) for L in self.maps]).tolist()
        return tuple(slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True))

    def of(self, cycles: FloatArray) -> FloatArray:
        """t, (C, m), of cycles (C, Q, n') with these samples."""
        z = (cycles - self.centre) / self.spread[:, None]
        parts = [
            z[:, q, seen] @ P
            for q, (seen, P) in enumerate(zip(self.there, self.rotations, strict=True))
        ]
        return np.concatenate(parts, axis=1)

    @property
    def places(self) -> FloatArray:
        """Where each number of t lies along the first input, (m,)."""
        each = zip(self.there, self.rotations, strict=True)
        return np.concatenate([(P**2).T @ self.grid[seen, 0] for seen, P in each])

    def project(self, vectors: FloatArray) -> FloatArray:
        """L c of coordinates (·, Q r)."""
        blocks = vectors.reshape(len(vectors), len(self.maps), self.rank)
        return np.concatenate([blocks[:, q] @ L.T for q, L in enumerate(self.maps)], axis=1)

    def covariance(self, sigma: FloatArray, noise: FloatArray) -> FloatArray:
        """L Σ Lᵀ and the noise that fewer or other samples leave; `noise` (Q,) is that outside of S."""
        half = self.project(sigma).T
        out = self.project(half)
        cells = sigma.reshape(len(self.maps), self.rank, len(self.maps), self.rank)
        for q, (part, L) in enumerate(zip(self.slices, self.maps, strict=True)):
            out[part, part] += self._extra(
                q, L, np.diagonal(cells[q, :, q]), noise[q], out[part, part]
            )
        return np.asarray(0.5 * (out + out.T))

    def _extra(
        self, q: int, L: FloatArray, variance: FloatArray, noise: float, found: FloatArray
    ) -> FloatArray:
        if noise > 0.0:  # c has noise of its own, of which L c keeps L Lᵀ: white again, and no less
            values, vectors = np.linalg.eigh(noise * (np.eye(len(L)) - L @ L.T))
            return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)
        rows = self.functions[
            self.there[q]
        ]  # between samples a mean of neighbours varies too little
        if np.all(np.isin(rows, (0.0, 1.0))):
            return np.zeros_like(found)
        P = self.rotations[q]
        plain = found if len(rows) == len(L) else P @ found @ P.T
        short = np.maximum(np.abs(rows) @ variance - np.diagonal(plain), 0.0)
        return np.asarray((P.T * short) @ P)


def interpolation(grid: FloatArray, X: FloatArray) -> FloatArray:
    """Weights (n', n) with which values on `grid` give those at X: linear between neighbours."""
    if grid.shape[1] > 1:
        from scipy.interpolate import RBFInterpolator

        return np.asarray(RBFInterpolator(grid, np.eye(len(grid)), kernel="linear")(X))
    order = np.argsort(grid[:, 0])
    x, at = grid[order, 0], np.clip(X[:, 0], grid.min(), grid.max())
    right = np.clip(np.searchsorted(x, at), 1, len(x) - 1)
    share = (at - x[right - 1]) / (x[right] - x[right - 1])
    out = np.zeros((len(X), len(grid)))
    out[np.arange(len(X)), order[right - 1]] = 1.0 - share
    out[np.arange(len(X)), order[right]] = share
    return out
