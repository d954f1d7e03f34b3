"""What a client sends so that its function can be compared: a random sketch, and how sure it is of it.

The client's own function is deviation + local. Its posterior mean m on a public grid of N points, times the k
columns of a public orthonormal matrix Ω (from a seed), is the sketch: s = Ωᵀm. Lengths survive (Johnson and
Lindenstrauss): E|s_i − s_j|²/k = |m_i − m_j|²/N over draws of Ω, and with the posteriors' variances
    E|f_i − f_j|²/N ≈ |s_i − s_j|²/k + v_i + v_j,   v = mean variance given the global layer.
A posterior on a fine grid is nearly the rows; a sketch of k < N numbers is less, and `Attack.r2` says how
much less: the R² of the best linear guess at the rows by one who knows all kernels and the global layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from pfedhgp import predict as prediction
from pfedhgp.inference.budget import box_points
from pfedhgp.kernels import Kernel
from pfedhgp.model.at_inputs import AtInputs
from pfedhgp.model.blocks import deviation_loadings
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.predictor import latents
from pfedhgp.runtime import with_numerics


@dataclass(frozen=True, eq=False)
class OwnFunction:
    """Deviation + local of one client on the grid, outputs in units of their spread: (N, Q) each."""

    mean: np.ndarray
    variance: np.ndarray
    """given the global layer, which all clients share"""
    prior: np.ndarray

    @property
    def coverage(self) -> np.ndarray:
        """(N, Q) from 0 (nothing known beside the prior) to 1."""
        return np.clip(1.0 - self.variance / np.maximum(self.prior, 1e-300), 0.0, 1.0)


def public_grid(model: FittedModel, points: int) -> np.ndarray:
    """`points` inputs that fill the agreed domain, in the data's units."""
    scaling = model.scaling
    return scaling.lower + box_points(points, model.inputs) * scaling.extent


def projection(size: int, columns: int, seed: int | tuple[int, ...]) -> np.ndarray:
    """(size, columns) with orthonormal columns, from a public seed."""
    normal = np.random.default_rng(seed).normal(size=(size, columns))
    Q, R = np.linalg.qr(normal)
    return Q * np.sign(np.diag(R))


@with_numerics
def own_function(model: FittedModel, client: str, grid: np.ndarray) -> OwnFunction:
    """m, v and the prior variance of a client's deviation + local layers."""
    view = AtInputs.of(model, client, grid, None)
    p = view.predictor
    g = p.counts[0]
    B = np.concatenate([np.asarray(part) for part in p.loadings[1:]], axis=1)
    mean, variance = np.zeros((2, len(grid), B.shape[0]))
    for rows, (m, _, T_own, spread) in view._pieces(latents):
        mean[rows] = m[:, g:] @ B.T
        cov = np.einsum("nak,nbk->nab", T_own, T_own)
        variance[rows] = np.einsum("qa,nab,qb->nq", B, cov, B) + spread[:, g:] @ (B**2).T
    return OwnFunction(mean, variance, np.broadcast_to((B**2).sum(1), variance.shape))


@dataclass(frozen=True, eq=False)
class Attack:
    """The best linear guess at a client's rows from its sketch: ŷ = E[f | sketch].

    ŷ is the global layer's mean and K(·, grid)Ω (ΩᵀKΩ)⁻¹ s, with K the prior of the client's own layers. The
    truth is the client's rows where given, else its fitted function on the grid.
    """

    truth: np.ndarray
    shared: np.ndarray
    spread: np.ndarray
    cross: np.ndarray
    within: np.ndarray

    @staticmethod
    def on(
        model: FittedModel,
        client: str,
        grid: np.ndarray,
        rows: tuple[np.ndarray, np.ndarray] | None,
    ) -> Attack:
        X = grid if rows is None else rows[0]
        found = prediction.predict(model, client, X)
        cross = own_prior(model, client, X, grid)
        return Attack(
            truth=found.mean if rows is None else rows[1],
            shared=found.layers["global"].mean,
            spread=np.broadcast_to(model.scaling.spread, (model.outputs,)),
            cross=cross,
            within=cross if rows is None else own_prior(model, client, grid, grid),
        )

    def r2(self, omega: np.ndarray, sketch: np.ndarray) -> float:
        """1 − Σ(y − ŷ)²/Σ(y − ȳ)², over observed cells, each output in units of its spread; NaN where all are
        alike, as in a single row."""
        inner = omega.T @ self.within @ omega
        inner += 1e-10 * np.trace(inner) / len(inner) * np.eye(len(inner))
        own = self.cross @ (omega @ np.linalg.solve(inner, sketch))
        guess = self.shared + own.reshape(self.truth.shape) * self.spread
        seen = np.isfinite(self.truth)
        left = np.where(seen, (self.truth - guess) / self.spread, 0.0)
        around = np.where(seen, (self.truth - np.nanmean(self.truth, axis=0)) / self.spread, 0.0)
        spread = float(np.sum(around**2))
        return 1.0 - float(np.sum(left**2)) / spread if spread > 0 else float("nan")


@with_numerics
def own_prior(model: FittedModel, client: str, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """(nQ, mQ): the prior covariance of deviation + local between two sets of inputs."""
    block, shared = model.clients[client].block, model.shared.block
    x, z = (jnp.asarray(np.asarray(model.scaling.inputs(v), np.float64)) for v in (X, Z))
    B_dev = np.asarray(deviation_loadings(model.structure, shared, block))
    total = np.zeros((len(X), model.outputs, len(Z), model.outputs))
    for kernels, B in ((shared.kernels, B_dev), (block.kernels, np.asarray(block.loadings))):
        k = np.asarray(_matrices(kernels, x, z))[: B.shape[1]]
        total += np.einsum("qr,rnm,pr->nqmp", B, k, B, optimize=True)
    return total.reshape(len(X) * model.outputs, len(Z) * model.outputs)


@jax.jit
def _matrices(kernels: Kernel, X: jax.Array, Z: jax.Array) -> jax.Array:
    return jax.vmap(lambda kernel: kernel(X, Z))(kernels)
