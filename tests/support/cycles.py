"""Cycle layers and cycles for the tests, in the unit box."""

from __future__ import annotations

import numpy as np

import reference as ref
from pfedhgp.inference.cycles.scatter import CycleSums
from pfedhgp.model.cycle_layer import BASIS_JITTER, CycleBasis, CycleLayer

Array = np.ndarray


def random_layer(
    rng: np.random.Generator, *, Q: int = 2, M: int = 5, rank: int = 6, full: bool = False
) -> CycleLayer:
    """Any Ψ of some rank, and any noise."""
    raw = rng.normal(size=(Q, Q))
    noise = 0.1 * (raw @ raw.T + np.eye(Q)) if full else np.diag(rng.uniform(0.05, 0.2, Q))
    basis = CycleBasis.on(np.linspace(0, 1, M)[:, None])
    return CycleLayer(basis, rng.normal(size=(Q * M, rank)) / np.sqrt(rank), noise, "free")


def dense_features(basis: CycleBasis, X: Array) -> Array:
    """a_e(x), (n, M), by the reference."""

    def kernel(one: Array, two: Array) -> Array:
        return ref.matern52(one, two, lengthscale=basis.lengthscale)

    return ref.features(kernel, basis.inputs, X, BASIS_JITTER)


def dense_covariance(layer: CycleLayer, X: Array) -> Array:
    """Σ_e on a grid, (nQ, nQ)."""
    A = dense_features(layer.basis, X)
    return ref.cycle_covariance(A, layer.factor @ layer.factor.T, layer.noise)


def draw(rng: np.random.Generator, Sigma_e: Array, C: int, Q: int) -> Array:
    """Cycles (C, n, Q) with this covariance and mean zero."""
    flat = rng.normal(size=(C, len(Sigma_e))) @ np.linalg.cholesky(Sigma_e).T
    return flat.reshape(C, -1, Q)


def with_gaps(rng: np.random.Generator, cycles: Array, share: float = 0.2) -> Array:
    """Some cycles lack some cells, one lacks a channel; the first two are complete."""
    out = cycles.copy()
    gone = rng.uniform(size=out.shape) < share
    gone[:2] = False
    out[gone] = np.nan
    out[-1, :, 0] = np.nan
    return out


def same_sums(one: CycleSums, two: CycleSums, rel: float = 1e-9) -> None:
    for name in vars(one):
        a, b = np.asarray(getattr(one, name)), np.asarray(getattr(two, name))
        np.testing.assert_allclose(a, b, rtol=0, atol=rel * max(np.max(np.abs(b)), 1e-12))
