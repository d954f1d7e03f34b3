"""From a fitted model to the Gaussians of its classes on a grid, in a small common basis.

A class's mean and covariance are sums of inducing features a(x), of what those leave out, and of the cycle
layer's basis. S is an orthonormal basis of all of these on the grid; weights are then moved from features to
S (Φ = A S), so that no matrix has a row for every sample. What all classes share is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array
from scipy.linalg import qr

from pfedhgp.base.numerics import with_numerics
from pfedhgp.diagnosis.class_gaussian import ClassGaussian
from pfedhgp.gp.features import Basis
from pfedhgp.gp.linalg import psd_factor
from pfedhgp.model.at_inputs import AtInputs
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.undetermined import OF_DEVIATION, OF_LOCAL

FloatArray = npt.NDArray[np.float64]
LEFT_OUT = 1e-7
"""How much of the smooth part may be left out, in nats: in units of the noise, summed over samples."""
ROUNDING = 1e-12
"""Variances below this are rounding: r = k − aᵀa is a difference of numbers near 1."""
WORTH_IT = 0.6
"""A span with more functions than this share of the samples saves nothing."""
STEP = 64
"""Grids are padded to a multiple of this, so that few sizes are compiled."""


@dataclass(frozen=True, eq=False)
class _Layer:
    """Features of some latents on the grid, and roots of what the features leave out."""

    features: FloatArray
    """A, (R, M, n)"""
    roots: tuple[FloatArray, ...]
    """(n, k) for each latent"""

    @property
    def columns(self) -> FloatArray:
        """All functions, (n, ·)."""
        R, M, n = self.features.shape
        return np.concatenate([self.features.reshape(R * M, n).T, *self.roots], axis=1)


class ClassGaussians:
    """The Gaussians of a model's classes on the grid X (n, d), in the data's units."""

    @with_numerics
    def __init__(self, model: FittedModel, X: FloatArray, classes: Sequence[str]) -> None:
        grid = np.asarray(X, np.float64)
        self.views = {name: AtInputs.of(model, name, grid, None) for name in classes}
        first = next(iter(self.views.values()))
        self.n, self.X = len(first.X), first.X
        power = max(_power(view) for view in self.views.values())
        self.tolerance = LEFT_OUT / power
        self.shared = self._layer(first.predictor.shared)
        columns = [self.shared.columns, *self._cycle_columns()]
        self.common = self._span(np.concatenate(columns, axis=1))

    @with_numerics
    def of(self, name: str) -> ClassGaussian:
        """N(μ, Σ) of a new cycle of this class."""
        view = self.views[name]
        if view.predictor.states is not None or not view.predictor.known:
            return _from_factors(view)
        local = self._layer(view.predictor.local)
        slopes = view.whole_tilt("total").reshape(self.n, -1)
        # k(X, X) and the outputs' covariance of smooth functions that rows do not determine.
        loose = list(view.undetermined_joint("total", "total", kernel=OF_DEVIATION))
        roots = [low_rank(K, self.tolerance) for K, _ in loose]
        S = self._grown(np.concatenate([local.columns, slopes, *roots], axis=1))
        Q, tilt = len(view.centre), _moved(slopes, S)
        core = np.concatenate(
            [
                *_posterior(view, self.shared, local, S),
                *self._residuals(view, local, S),
                *self._cycle(view, S),
                tilt.reshape(len(tilt) * Q, tilt.shape[1] // Q),
                *(
                    np.kron(_moved(root, S), psd_factor(power))
                    for root, (_, power) in zip(roots, loose, strict=True)
                ),
            ],
            axis=1,
        )
        return ClassGaussian(_mean(view, self.shared, local), core, _noise(view), S)

    def _layer(self, basis: Basis | None) -> _Layer:
        if basis is None:
            return _Layer(np.zeros((0, 0, self.n)), ())
        pad = -self.n % STEP
        X = np.concatenate([self.X, np.repeat(self.X[-1:], pad, axis=0)])
        A, rest = (np.asarray(part) for part in _on_grid(basis, X))
        n = self.n
        return _Layer(A[:, :, :n], tuple(low_rank(R[:n, :n], self.tolerance) for R in rest))

    def _cycle_columns(self) -> list[FloatArray]:
        """The columns of each different basis of a cycle layer; usually all classes have the same."""
        found: dict[bytes, FloatArray] = {}
        for view in self.views.values():
            layer = view.layer
            if layer is not None and layer.factor.shape[1]:
                basis = layer.basis
                key = np.asarray(basis.inputs).tobytes() + np.asarray(basis.lengthscale).tobytes()
                if key not in found:
                    found[key] = basis.features(self.X).T
        return list(found.values())

    def _span(self, columns: FloatArray) -> FloatArray | None:
        """An orthonormal basis of the columns; None if it would save nothing."""
        Q, R, _ = qr(columns, mode="economic", pivoting=True, check_finite=False)
        # What a column loses enters Σ at first order, beside what it keeps: hence the margin.
        limit = 1e-3 * np.sqrt(self.tolerance / max(columns.shape[1], 1))
        rank = int(np.sum(np.abs(np.diagonal(R)) > limit))
        return np.ascontiguousarray(Q[:, :rank]) if rank < WORTH_IT * self.n else None

    def _grown(self, columns: FloatArray) -> FloatArray | None:
        """The common span, extended by what these columns have outside it."""
        if self.common is None:
            return None
        beyond = columns - self.common @ (self.common.T @ columns)
        beyond -= self.common @ (self.common.T @ beyond)  # once more: rounding of the first
        more = self._span(beyond)
        if more is None or self.common.shape[1] + more.shape[1] > WORTH_IT * self.n:
            return None
        return np.concatenate([self.common, more], axis=1)

    def _residuals(self, view: AtInputs, local: _Layer, S: FloatArray | None) -> list[FloatArray]:
        kinds = np.asarray(view.predictor.kinds)
        B = view.loadings
        roots = (*self.shared.roots, *local.roots)
        return [
            np.asarray(np.kron(_moved(root, S), B[:, kinds == kind]), np.float64)
            for kind, root in enumerate(roots)
        ]

    def _cycle(self, view: AtInputs, S: FloatArray | None) -> list[FloatArray]:
        layer = view.layer
        if layer is None or not layer.factor.shape[1]:
            return []
        A, Q = _moved(layer.basis.features(self.X).T, S), len(view.centre)
        F = layer.factor.reshape(Q, A.shape[1], -1) * view.spread[:, None, None]
        return [_flat(np.einsum("am,qmk->aqk", A, F, optimize=True))]


def class_gaussian_of(model: FittedModel, client: str, X: FloatArray) -> ClassGaussian:
    """The predictive distribution of a new cycle of `client` on the grid X (n, d), in the data's units."""
    return ClassGaussians(model, X, [client]).of(client)


def _posterior(
    view: AtInputs, shared: _Layer, local: _Layer, S: FloatArray | None
) -> list[FloatArray]:
    """(S ⊗ I)ᵀ H F: the weights' posterior, its part in v_g and the client's own."""
    p, B = view.predictor, view.loadings
    g, d, _ = p.counts
    halves = np.asarray(p.half_shared), np.asarray(p.half_own)
    own = [*shared.features[:d], *local.features]
    parts = []
    for half, B_part, features in (
        (halves[0], B, [*shared.features[:g], *own]),
        (halves[1], B[:, g:], own),
    ):
        rows = len(view.X) if S is None else S.shape[1]
        size = (rows, len(view.centre), half.shape[1])
        total, start = np.zeros(size), 0
        for A, b in zip(features, B_part.T, strict=True):
            T = _moved(A.T, S) @ half[start : start + len(A)]
            total += b[None, :, None] * T[:, None, :]
            start += len(A)
        parts.append(_flat(total))
    return parts


def _mean(view: AtInputs, shared: _Layer, local: _Layer) -> FloatArray:
    p = view.predictor
    g, d, _ = p.counts
    weights, start = np.asarray(p.mean), 0
    out = np.tile(view.centre, (len(view.X), 1)).astype(np.float64)
    features = [*shared.features[:g], *shared.features[:d], *local.features]
    for A, b in zip(features, view.loadings.T, strict=True):
        out += np.outer(A.T @ weights[start : start + len(A)], b)
        start += len(A)
    return out


def _noise(view: AtInputs) -> FloatArray:
    """The noise at each sample, with local functions of which nothing is known."""
    local = (
        term.between("total", "total") for term in view.undetermined if term.kernel == OF_LOCAL
    )
    return np.asarray(sum((power for power in local if power is not None), view.noise))


def _power(view: AtInputs) -> float:
    """One unit of a latent's variance in units of the noise, all outputs together."""
    smallest = float(np.linalg.eigvalsh(view.noise)[0])
    cycle = 0.0
    if view.layer is not None:
        rows = np.sum(view.layer.factor**2, axis=1).reshape(len(view.centre), -1)
        cycle = float(np.max(rows.sum(axis=0) * np.max(view.spread) ** 2, initial=0.0))
    return max(float(np.sum(view.loadings**2)), cycle, 1e-300) / smallest


def _from_factors(view: AtInputs) -> ClassGaussian:
    """Without inducing features (a state-space layer) there is a row for every sample."""
    means, _ = view.marginals()
    half, residuals = view.factors()
    tolerance = LEFT_OUT / _power(view)
    columns = [half]
    for matrix, loadings in residuals:
        columns.append(np.kron(low_rank(matrix, tolerance), loadings))
    return ClassGaussian(means["total"], np.concatenate(columns, axis=1), view.noise)


def low_rank(matrix: FloatArray, tolerance: float) -> FloatArray:
    """F (n, k) with F Fᵀ = `matrix` up to a PSD rest of trace ≤ tolerance, by pivoted Cholesky.

    It also stops at rounding errors, or a smooth kernel's residual would seem to have full rank.
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


def _moved(columns: FloatArray, S: FloatArray | None) -> FloatArray:
    """Sᵀ columns."""
    return columns if S is None else S.T @ columns


def _flat(core: FloatArray) -> FloatArray:
    """(a, Q, k) as (aQ, k), also if k is 0."""
    return core.reshape(core.shape[0] * core.shape[1], core.shape[2])


@jax.jit
def _on_grid(basis: Basis, X: Array) -> tuple[Array, Array]:
    """a(x) (R, M, n) and k(x, x') − a(x)ᵀa(x') (R, n, n)."""
    A = basis.features(X)
    k = basis.kernels(X, X, stacked=1)
    return A, k - jnp.einsum("rmn,rmk->rnk", A, A)
