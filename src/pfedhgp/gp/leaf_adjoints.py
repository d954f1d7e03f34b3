r"""Matrices of base kernels with hand-written derivatives, in NumPy; `kernel_adjoints` combines them.

Most kernels are functions of r² = Σ_j (x_j − z_j)²/ℓ_j². All r² of a layer are one product of 1/ℓ² with the
squared differences, and with F = −2 dk/dr² all lengthscales' slopes are one product back:
∂⟨K̄, k⟩/∂log ℓ_j = ⟨K̄ ⊙ F, (x_j − z_j)²⟩/ℓ_j².

Matrices are kept as rows of n·m numbers here, behind the leading axes of the parameters.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import numpy as np

from pfedhgp.gp.kernels import (
    RBF,
    Kernel,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Stationary,
    columns_of,
    each_column,
)

Array = np.ndarray
Slopes = list[Array]
"""One array for each array of a kernel, in the order of its tree."""


class Geometry:
    """Differences x_j − z_j of X (n, d) and Z (m, d); of many clients as in a basis, (c, 1, n, d)."""

    def __init__(self, X: Array, Z: Array) -> None:
        if X.ndim > 2:
            X, Z = (A[..., 0, :, :] for A in (X, Z))
        # Waves are computed from X and Z themselves: near zero they are exact.
        middle = Z[..., :1, :] if Z.shape[-2] else 0.0
        self.X, self.Z = X - middle, Z - middle
        self.clients, self.shape = X.shape[:-2], (X.shape[-2], Z.shape[-2])
        turned = (np.swapaxes(A, -1, -2) for A in (X, Z))
        first, last = turned
        gaps = first[..., :, :, None] - last[..., :, None, :]
        self.differences = gaps.reshape(*gaps.shape[:-2], math.prod(self.shape))
        self._squares: dict[tuple[int, ...], Array] = {}

    def squares(self, columns: tuple[int, ...]) -> Array:
        """(x_j − z_j)² of these columns, (*clients, columns, n·m)."""
        if columns not in self._squares:
            self._squares[columns] = self.differences[..., list(columns), :] ** 2
        return self._squares[columns]

    def of_some(self, which: Array | slice) -> Geometry:
        """The same for some of the clients, in any order; a client may be there several times."""
        some = copy.copy(self)
        some.X, some.Z, some.differences = self.X[which], self.Z[which], self.differences[which]
        some.clients = some.X.shape[:-2]
        some._squares = {key: squares[which] for key, squares in self._squares.items()}
        return some

    def first(self, rows: int, columns: int) -> Geometry:
        """The same for the first rows of X and the first rows of Z."""
        some = copy.copy(self)
        some.X, some.Z, some.shape = (
            self.X[..., :rows, :],
            self.Z[..., :columns, :],
            (rows, columns),
        )
        gaps = self.differences.reshape(*self.differences.shape[:-1], *self.shape)
        kept = gaps[..., :rows, :columns]
        some.differences = kept.reshape(*kept.shape[:-2], rows * columns)
        some._squares = {}
        return some


class Evaluation(ABC):
    """A kernel's matrix at one set of parameters, and what its derivatives need."""

    K: Array
    """The matrix as (*b, n·m)."""

    def __init__(self, kernel: Any, geometry: Geometry, axes: int) -> None:
        self.kernel, self.geometry, self.axes = kernel, geometry, axes

    @property
    def value(self) -> Array:
        """k(X, Z), (*b, n, m)"""
        return self.K.reshape(*self.K.shape[:-1], *self.geometry.shape)

    def pullback(self, K_bar: Array) -> Kernel:
        """∂⟨K̄, k(X, Z)⟩/∂log(parameter), in a tree like the kernel."""
        slopes = self.slopes(K_bar.reshape(self.K.shape))
        return jax.tree.unflatten(jax.tree.structure(self.kernel), slopes)

    def directions(self) -> list[tuple[int, Array]]:
        """(latent r, ∂k_r(X, Z)/∂log p) for each parameter p of a stack of latents.

        The order is `ravel_pytree`'s. A parameter moves the matrix of its own latent alone.
        """
        n, m = self.geometry.shape
        stacks = [D.reshape(D.shape[0], math.prod(D.shape[1:-1]), n, m) for D in self.tangents()]
        return [(r, dK) for D in stacks for r, each in enumerate(D) for dK in each]

    @abstractmethod
    def slopes(self, K_bar: Array) -> Slopes:
        """The derivatives of ⟨K̄, k⟩, for K̄ as (*b, n·m)."""

    @abstractmethod
    def tangents(self) -> Slopes:
        """∂k/∂log p for each array p, (*p.shape, n·m)."""


# ------------------------------------------------------------------------------------- base kernels


def inner(A: Array, B: Array) -> Array:
    """⟨A, B⟩ for each matrix."""
    return np.asarray(np.einsum("...i,...i->...", A, B))


class Leaf(Evaluation):
    """A base kernel; its parameters are (*b, columns), or one number for all columns."""

    def __init__(self, kernel: Stationary, geometry: Geometry, axes: int) -> None:
        super().__init__(kernel, geometry, axes)
        self.columns = columns_of(kernel, geometry.X.shape[-1])
        self.inverse = self.parameter("lengthscale") ** -2.0  # 1/ℓ²

    def parameter(self, name: str) -> Array:
        """(*b, columns), or (*b, 1) for a number that goes over all columns."""
        found = getattr(self.kernel, name)
        if np.ndim(found) == self.axes + 1 and np.shape(found)[-1] == len(self.columns):
            return np.asarray(found)
        each_column(self.kernel, name, len(self.columns), self.axes)  # refuses other shapes
        assert np.ndim(found) == self.axes
        return np.asarray(found)[..., None]

    def like(self, name: str, slopes: Array, axis: int = -1) -> Array:
        """Slopes of each column along `axis`, added up if the parameter has no such axis."""
        own = np.ndim(getattr(self.kernel, name)) == self.axes + 1
        return slopes if own else np.asarray(slopes.sum(axis=axis))

    @staticmethod
    def of_column(parameter: Array, i: int) -> Array:
        """The parameter for the kernel's column i, (*b, 1)."""
        return parameter[..., min(i, parameter.shape[-1] - 1), None]

    def gap(self, j: int) -> Array:
        """x_j − z_j, with an axis for the latents if there are any."""
        found = self.geometry.differences[..., j, :]
        return found[..., None, :] if self.axes else found


def _rbf(x: Array) -> tuple[Array, Array]:
    K = np.exp(x, out=x)
    return K, K


def _matern12(r: Array) -> tuple[Array, Array]:
    K = np.exp(-r)
    return K, np.divide(K, r, out=np.zeros_like(K), where=r > 0.0)


def _matern32(a: Array) -> tuple[Array, Array]:
    E = np.exp(-a)
    a *= E
    a += E
    return a, E


def _matern52(a: Array) -> tuple[Array, Array]:
    E = np.exp(-a)
    F = a * E
    a *= F
    a /= 3.0
    F += E
    a += F
    return a, F


def _root(
    profile: Callable[[Array], tuple[Array, Array]],
) -> Callable[[Array], tuple[Array, Array]]:
    return lambda x: profile(np.sqrt(x, out=x))


PROFILES: dict[type, tuple[float, Callable[[Array], tuple[Array, Array]], float]] = {
    RBF: (-0.5, _rbf, 1.0),
    Matern12: (1.0, _root(_matern12), 1.0),
    Matern32: (3.0, _root(_matern32), 3.0),
    Matern52: (5.0, _root(_matern52), 5.0 / 3.0),
}
"""(f, p, c) with p(f r²) = (k, F/c); p may use its argument's memory."""


class OfDistance(Leaf):
    """k(r²), and F = −2 dk/dr² up to a factor."""

    def __init__(self, kernel: Stationary, geometry: Geometry, axes: int) -> None:
        super().__init__(kernel, geometry, axes)
        self.profile(geometry.squares(self.columns))

    def profile(self, squares: Array) -> None:
        fold, profile, self.factor = PROFILES[type(self.kernel)]
        self.K, self.F = profile(self._distances(fold * self.inverse, squares))

    def _distances(self, weights: Array, squares: Array) -> Array:
        """Σ_j w_j (x_j − z_j)²: a new array (*b, n·m)."""
        if len(self.columns) == 1:
            return weights * (squares if self.axes else squares[0])
        if weights.shape[-1] == 1:
            return weights * squares.sum(axis=-2, keepdims=bool(self.axes))
        return weights @ squares

    def slopes(self, K_bar: Array) -> Slopes:
        sums = (K_bar * self.F) @ np.swapaxes(self.geometry.squares(self.columns), -1, -2)
        return [self.like("lengthscale", (self.factor * self.inverse) * sums)]

    def tangents(self) -> Slopes:
        squares = self.geometry.squares(self.columns)
        each = (self.factor * self.inverse)[..., None] * squares * self.F[..., None, :]
        return [self.like("lengthscale", each, -2)]


class OfDistanceAndAlpha(OfDistance):
    """k = (1 + u)^(−α) with u = r²/2α; F = k/(1 + u), ∂k/∂log α = α k (u/(1 + u) − log(1 + u))"""

    factor = 1.0

    def profile(self, squares: Array) -> None:
        self.alpha = np.asarray(self.kernel.alpha)[..., None]
        self.u = self._distances(0.5 * self.inverse / self.alpha, squares)
        self.log = np.log1p(self.u)
        self.K = np.exp(-self.alpha * self.log)

    @cached_property
    def F(self) -> Array:  # type: ignore[override]
        return self.K / (1.0 + self.u)

    @cached_property
    def _by_alpha(self) -> Array:
        return self.alpha * (self.u * self.F - self.log * self.K)

    def slopes(self, K_bar: Array) -> Slopes:
        return [*super().slopes(K_bar), inner(K_bar, self._by_alpha)]

    def tangents(self) -> Slopes:
        return [*super().tangents(), self._by_alpha]


class OfWaves(Leaf):
    """k = exp(−2 Σ_j sin²θ_j/ℓ_j²), θ_j = π(x_j − z_j)/p_j.

    sin(a − b) = sin a cos b − cos a sin b needs n + m waves instead of n·m of them.
    """

    def __init__(self, kernel: Periodic, geometry: Geometry, axes: int) -> None:
        super().__init__(kernel, geometry, axes)
        self.turns = math.pi / self.parameter("period")
        at = [
            [self.of_column(self.turns, i) * self._column(A, j) for i, j in enumerate(self.columns)]
            for A in (geometry.X, geometry.Z)
        ]
        self.sides = [
            (np.stack([np.sin(a), np.cos(a)], -1), np.stack([np.sin(b), np.cos(b)], -2))
            for a, b in zip(*at, strict=True)
        ]
        self.sines = [
            self._flat((left * [1.0, -1.0]) @ right[..., ::-1, :]) for left, right in self.sides
        ]
        total: Any = 0.0
        for i, sine in enumerate(self.sines):
            total = total + (-2.0 * self.of_column(self.inverse, i)) * sine * sine
        self.K = np.exp(total)

    def _column(self, A: Array, j: int) -> Array:
        return A[..., None, :, j] if self.axes else A[..., j]

    def _flat(self, matrices: Array) -> Array:
        return matrices.reshape(*matrices.shape[:-2], math.prod(self.geometry.shape))

    @cached_property
    def doubles(self) -> list[Array]:
        """sin θ cos θ = ½ sin 2θ of each column."""
        cosines = (self._flat(left @ right) for left, right in self.sides)
        return [sine * cosine for sine, cosine in zip(self.sines, cosines, strict=True)]

    def slopes(self, K_bar: Array) -> Slopes:
        H = 4.0 * K_bar * self.K
        by_length = np.stack([inner(H, sine * sine) for sine in self.sines], -1)
        by_period = np.stack(
            [
                inner(H * double, self.gap(j))
                for double, j in zip(self.doubles, self.columns, strict=True)
            ],
            -1,
        )
        return [
            self.like("lengthscale", self.inverse * by_length),
            self.like("period", self.inverse * self.turns * by_period),
        ]

    def tangents(self) -> Slopes:
        scale, turns = 4.0 * self.inverse[..., None], self.turns[..., None]
        by_length = np.stack([self.K * sine * sine for sine in self.sines], -2)
        by_period = np.stack(
            [
                self.K * double * self.gap(j)
                for double, j in zip(self.doubles, self.columns, strict=True)
            ],
            -2,
        )
        return [
            self.like("lengthscale", scale * by_length, -2),
            self.like("period", scale * turns * by_period, -2),
        ]
