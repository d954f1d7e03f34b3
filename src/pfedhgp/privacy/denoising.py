"""S = Σ_g p_g a_g a_gᵀ with p ≥ 0: what a released gram matrix can be, found by non-negative least squares.

A sum of a(x)a(x)ᵀ over rows has far fewer degrees of freedom than a symmetric matrix: how many rows lie in
each of G small cells says it all. The nearest such matrix to S̃ in Frobenius' norm, in which its noise is the
same in all directions, has about half the error of clipping eigenvalues, and is never indefinite. Its error
Δ = Σ_g δ_g a_g a_gᵀ over the cells with p_g > 0 has Cov(δ) = τ_S²N⁺, N_gh = (a_gᵀa_h)².
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import nnls

from pfedhgp.privacy.release import PublicBasis

CELLS = (4, 2, 2)
"""Cells for each inducing input along an axis, with one, two or three and more inputs."""
RIDGE = 1e-6
RANK = 1e-3
"""Eigenvalues of N below this share of the largest are not told apart by features."""


class Denoised(NamedTuple):
    """Ŝ, and its error: features of the cells that hold rows, and the covariance of their counts."""

    gram: Float[np.ndarray, "M M"]
    features: Float[np.ndarray, "M g"]
    counts: Float[np.ndarray, "g g"]


class Cells(NamedTuple):
    """Features at the middle of each cell, and a root of N."""

    places: Float[np.ndarray, "G d"]
    features: Float[np.ndarray, "M G"]
    overlap: Float[np.ndarray, "G G"]
    root: Float[np.ndarray, "G G"]
    inverse_root: Float[np.ndarray, "G G"]


def cells_of(public: PublicBasis, per: int | None = None) -> Cells:
    """A grid over the unit box, finer than that of the basis: `per` cells for an inducing input."""
    d = public.inputs.shape[1]
    per = CELLS[min(d, len(CELLS)) - 1] if per is None else per
    counts = [per * len(np.unique(column)) for column in public.inputs.T]
    axes = np.meshgrid(*(np.linspace(0.0, 1.0, count) for count in counts), indexing="ij")
    places = np.stack([axis.ravel() for axis in axes], -1)
    A = public.features(places)
    N = (A.T @ A) ** 2
    values, vectors = np.linalg.eigh(N)
    values = np.maximum(values, 0.0) + RIDGE * float(np.mean(np.diagonal(N)))
    root = np.sqrt(values)[:, None] * vectors.T
    return Cells(places, A, N, root, vectors.T / np.sqrt(values)[:, None])


def denoised(gram: Float[np.ndarray, "M M"], noise: float, cells: Cells) -> Denoised:
    """Ŝ for a released S̃ whose diagonal has noise of standard deviation `noise`; S̃ itself without noise."""
    if noise == 0.0:
        return Denoised(gram, cells.features[:, :0], np.zeros((0, 0)))
    A = cells.features
    p = rows_in_cells(gram, cells)
    seen = p > 0
    if not seen.any():
        return Denoised(np.zeros_like(gram), A[:, :0], np.zeros((0, 0)))
    return Denoised((A * p) @ A.T, A[:, seen], counts_error(seen, noise, cells))


def rows_in_cells(gram: Float[np.ndarray, "M M"], cells: Cells) -> Float[np.ndarray, " G"]:
    """p ≥ 0 of the nearest Σ_g p_g a_g a_gᵀ to a gram matrix."""
    A = cells.features
    target = np.einsum("mg,mk,kg->g", A, gram, A)
    p, _ = nnls(cells.root, cells.inverse_root @ target, maxiter=30 * len(target))
    return np.asarray(p, np.float64)


def counts_error(
    seen: Bool[np.ndarray, " G"], noise: float, cells: Cells
) -> Float[np.ndarray, "g g"]:
    """Cov(δ) = τ_S²N⁺ over the cells that hold rows."""
    values, vectors = np.linalg.eigh(cells.overlap[np.ix_(seen, seen)])
    kept = values > RANK * values[-1]
    pseudo_inverse = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T
    return np.asarray(noise**2 * pseudo_inverse)
