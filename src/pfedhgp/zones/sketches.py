"""What a client sends so that its function can be compared: a random sketch, and how certain the function is.

The client's own function is deviation + local. Its posterior mean m on a public grid of N points, times the k
columns of a public orthonormal matrix Ω (from a seed), is the sketch: s = Ωᵀm, rounded to `STEP`. It keeps
lengths (Johnson and Lindenstrauss): E|s_i − s_j|²/k = |m_i − m_j|²/N over draws of Ω, and with the
posteriors' variances
    E|f_i − f_j|²/N ≈ |s_i − s_j|²/k + v_i + v_j,   v = mean variance given the global layer.
A posterior on a fine grid nearly gives the rows away; a sketch of k < N numbers reveals less. `Attack.r2`
says how much: the R² of the best linear guess by an attacker who knows everything except the outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve
from scipy.spatial import cKDTree

from pfedhgp.base.numerics import with_numerics
from pfedhgp.gp.features import Basis
from pfedhgp.gp.kernels import Kernel
from pfedhgp.inference.starts.budget import box_points
from pfedhgp.model import prediction
from pfedhgp.model.at_inputs import AtInputs
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.predictor import Predictor, latents, own_covariance

STEP = 1e-3
"""Sketches are rounded to this share of the outputs' spread. In double precision even the smallest directions
of a smooth function can be read, and a sketch would reveal more than its size suggests."""


@dataclass(frozen=True, eq=False)
class OwnFunction:
    """Deviation + local of one client on the grid, outputs in units of their spread: (N, Q) each."""

    mean: np.ndarray
    variance: np.ndarray
    """given the global layer, which all clients share"""
    prior: np.ndarray
    near: np.ndarray
    """(N, 2d) `neighbours` on the grid"""

    @property
    def coverage(self) -> np.ndarray:
        """(N, Q) from 0 (nothing known beyond the prior) to 1."""
        return np.clip(1.0 - self.variance / np.maximum(self.prior, 1e-300), 0.0, 1.0)

    @property
    def peaks(self) -> np.ndarray:
        """(N, Q): the grid points nearest to a client's few rows."""
        return peaks_of(self.coverage, self.near)


def peaks_of(coverage: np.ndarray, near: np.ndarray) -> np.ndarray:
    """(N, Q): where coverage is at least that of the neighbours and more than half of the largest.

    There is such a point for each output that is covered anywhere.
    """
    high = coverage > 0.5 * coverage.max(axis=0)
    return np.asarray(high & np.all(coverage[:, None] >= coverage[near], axis=1))


def public_grid(model: FittedModel, points: int) -> np.ndarray:
    """`points` inputs that fill the agreed domain, in the data's units."""
    scaling = model.scaling
    return scaling.lower + box_points(points, model.inputs) * scaling.extent


def neighbours(grid: np.ndarray) -> np.ndarray:
    """(N, 2d): the nearest other points of each point, or as many as there are."""
    count = min(2 * grid.shape[1] + 1, len(grid))
    found = cKDTree(grid).query(grid, np.arange(1, count + 1))[1]
    return np.asarray(found[:, 1:])


def projection(size: int, columns: int, seed: int | tuple[int, ...]) -> np.ndarray:
    """(size, columns) with orthonormal columns from a public seed; fewer columns are the first of more."""
    normal = np.random.default_rng(seed).normal(size=(columns, size)).T
    Q, R = np.linalg.qr(normal)
    return Q * np.sign(np.diag(R))


def rounded(sketch: np.ndarray) -> np.ndarray:
    """A sketch as it is sent."""
    return STEP * np.round(sketch / STEP)


@with_numerics
def own_function(model: FittedModel, client: str, grid: np.ndarray) -> OwnFunction:
    """m, v and the prior variance of a client's deviation + local layers."""
    view = AtInputs.of(model, client, grid, None)
    p = view.predictor
    g = p.counts[0]
    B = np.concatenate([np.asarray(part) for part in p.loadings[1:]], axis=1)
    mean, variance = np.zeros((2, len(grid), B.shape[0]))
    for rows, (m, _, T_own, spread) in view.pieces(latents):
        mean[rows] = m[:, g:] @ B.T
        cov = np.einsum("nak,nbk->nab", T_own, T_own)
        variance[rows] = np.einsum("qa,nab,qb->nq", B, cov, B) + spread[:, g:] @ (B**2).T
    prior = np.broadcast_to((B**2).sum(1), variance.shape)
    return OwnFunction(mean, variance, prior, neighbours(model.scaling.inputs(grid)))


@dataclass(frozen=True, eq=False)
class Attack:
    """The best linear guess at a client's rows from everything that it sent for zones.

    It sent s = Ωᵀm + rounding, m = K_gx C⁻¹(y − global) the posterior mean on the grid, C = K_xx + noise. An
    attacker who knows kernels, loadings, noise, the client's inputs and the global layer has
        Cov(y, s) = K_xg Ω,   Var(s) = ΩᵀVΩ + step²/12,
        V = K_gx C⁻¹ K_xg = prior − posterior covariance of the client's own layers,
    so ŷ = global + K_xg Ω Var(s)⁻¹ s. K is the prior that inference uses, with its inducing inputs if any.
    The truth is the client's rows if given, or its fitted function on the grid, with V instead of K_xg.
    The variance and the coverage, which are sent too, do not depend on the outputs.
    """

    truth: np.ndarray
    shared: np.ndarray
    spread: np.ndarray
    cross: np.ndarray
    explained: np.ndarray

    @staticmethod
    def on(
        model: FittedModel,
        client: str,
        grid: np.ndarray,
        rows: tuple[np.ndarray, np.ndarray] | None,
    ) -> Attack:
        X = grid if rows is None else rows[0]
        found = prediction.predict(model, client, X)
        variance = explained(model, client, grid)
        return Attack(
            truth=found.mean if rows is None else rows[1],
            shared=found.layers["global"].mean,
            spread=np.broadcast_to(model.scaling.spread, (model.outputs,)),
            cross=variance if rows is None else own_prior(model, client, X, grid),
            explained=variance,
        )

    def guess(self, omega: np.ndarray, sent: np.ndarray) -> np.ndarray:
        """ŷ from the numbers sent."""
        inner = omega.T @ self.explained @ omega
        inner[np.diag_indices(len(inner))] += STEP**2 / 12.0
        own = self.cross @ (omega @ solve(inner, sent, assume_a="pos"))
        return self.shared + own.reshape(self.shared.shape) * self.spread

    def r2(self, omega: np.ndarray, sent: np.ndarray) -> float:
        """R² of the guess."""
        return r_squared(self.truth, self.guess(omega, sent), self.spread)


def r_squared(truth: np.ndarray, guess: np.ndarray, spread: np.ndarray) -> float:
    """1 − Σ(y − ŷ)²/Σ(y − ȳ)² over observed cells, each output in units of its spread; NaN if all are
    equal, as with a single row."""
    seen = np.isfinite(truth)
    left = np.where(seen, (truth - guess) / spread, 0.0)
    around = np.where(seen, (truth - np.nanmean(truth, axis=0)) / spread, 0.0)
    total = float(np.sum(around**2))
    return 1.0 - float(np.sum(left**2)) / total if total > 0 else float("nan")


@with_numerics
def own_prior(model: FittedModel, client: str, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """(nQ, mQ): prior covariance of deviation + local between two sets of inputs, as inference uses it."""
    p = Predictor.build(model, client)
    x, z = (jnp.asarray(np.asarray(model.scaling.inputs(v), np.float64)) for v in (X, Z))
    _, B_dev, B_loc = (np.asarray(B) for B in p.loadings)
    total = np.zeros((len(X), model.outputs, len(Z), model.outputs))
    if B_dev.shape[1] and p.shared is not None:
        k = np.asarray(_through_inputs(p.shared, x, z))[: B_dev.shape[1]]
        total += np.einsum("qr,rnm,pr->nqmp", B_dev, k, B_dev, optimize=True)
    if B_loc.shape[1]:
        exact = p.local is None
        kernels = model.clients[client].block.kernels
        k = np.asarray(_matrices(kernels, x, z) if exact else _through_inputs(p.local, x, z))
        total += np.einsum("qr,rnm,pr->nqmp", B_loc, k, B_loc, optimize=True)
    return total.reshape(len(X) * model.outputs, len(Z) * model.outputs)


@with_numerics
def explained(model: FittedModel, client: str, grid: np.ndarray) -> np.ndarray:
    """V (NQ, NQ) = prior − posterior covariance of deviation + local, given the global layer: Cov(m)."""
    view = AtInputs.of(model, client, grid, None)
    p = view.predictor
    g, outputs = p.counts[0], model.outputs
    B = np.concatenate([np.asarray(part) for part in p.loadings[1:]], axis=1)
    half = np.zeros((len(grid), outputs, p.half_own.shape[1]))
    for rows, (_, _, T_own, _) in view.pieces(latents):
        half[rows] = np.einsum("qa,nak->nqk", B, T_own, optimize=True)
    flat = half.reshape(len(grid) * outputs, -1)
    V = own_prior(model, client, grid, grid) - flat @ flat.T
    if p.states is not None:  # what is left of a local function given the weights
        cells = V.reshape(len(grid), outputs, len(grid), outputs)
        B_loc = np.asarray(p.loadings[2])
        for one, two, own in view.blocks(own_covariance):
            cells[one, :, two, :] -= np.einsum(
                "qr,rnm,pr->nqmp", B_loc, own[g:], B_loc, optimize=True
            )
    return 0.5 * (V + V.T)


@jax.jit
def _through_inputs(basis: Basis, X: jax.Array, Z: jax.Array) -> jax.Array:
    """a(x)ᵀa(z)"""
    return jnp.einsum("rmn,rmk->rnk", basis.features(X), basis.features(Z))


@jax.jit
def _matrices(kernels: Kernel, X: jax.Array, Z: jax.Array) -> jax.Array:
    return jax.vmap(lambda kernel: kernel(X, Z))(kernels)
