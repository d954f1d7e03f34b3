r"""Kernel matrices with hand-written derivatives, in NumPy: what a search on a CPU evaluates again and again.

geometry = Geometry(Z, X)                   # once: differences of the inputs
found = evaluate(kernels, geometry)         # k(Z, X) = found.value, for these parameters
slopes = found.pullback(K_bar)              # ∂⟨K̄, k(Z, X)⟩/∂log(parameter), a tree like `kernels`
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import numpy as np

from pfedhgp.gp.kernels import (
    Kernel,
    Periodic,
    Product,
    RationalQuadratic,
    Scaled,
    Stacks,
    Sum,
    leaves_of,
    parts_of,
)
from pfedhgp.gp.leaf_adjoints import (
    PROFILES,
    Array,
    Evaluation,
    Geometry,
    OfDistance,
    OfDistanceAndAlpha,
    OfWaves,
    Slopes,
    inner,
)


def has_adjoints(kernel: Kernel) -> bool:
    """Whether `evaluate` knows all kernels of the tree; it knows none that a user derived."""
    return all(type(leaf) in (*PROFILES, RationalQuadratic, Periodic) for leaf in leaves_of(kernel))


def evaluate(kernel: Kernel, geometry: Geometry, *, stacked: int | None = None) -> Evaluation:
    """k(X, Z) and its derivatives.

    `stacked` is how many leading axes every parameter has: by default one for the latents, and the
    clients' if the inputs have one; 0 for a single kernel.
    """
    axes = 1 + len(geometry.clients) if stacked is None else stacked
    kind: Any = EVALUATIONS.get(type(kernel), OfDistance)
    found: Evaluation = kind(kernel, geometry, axes)
    return found


class _Combination(Evaluation):
    """Kernels made of others."""

    def __init__(self, kernel: Any, geometry: Geometry, axes: int) -> None:
        super().__init__(kernel, geometry, axes)
        self.parts = [evaluate(part, geometry, stacked=axes) for part in parts_of(kernel)]

    @abstractmethod
    def shares(self) -> list[Array]:
        """∂k/∂k_s of each part, (*b, n·m), or (*b, 1) if it is one number for a matrix."""

    def slopes(self, K_bar: Array) -> Slopes:
        found = []
        for part, share in zip(self.parts, self.shares(), strict=True):
            if share.shape[-1] == 1:  # cheaper behind the sums
                found += [self._times(slope, share[..., 0]) for slope in part.slopes(K_bar)]
            else:
                found += part.slopes(K_bar * share)
        return found

    @staticmethod
    def _times(slope: Array, share: Array) -> Array:
        return slope * (share if slope.ndim == share.ndim else share[..., None])

    def tangents(self) -> Slopes:
        pairs = zip(self.parts, self.shares(), strict=True)
        return [
            tangent * (share if tangent.ndim == share.ndim else share[..., None, :])
            for part, share in pairs
            for tangent in part.tangents()
        ]


class _Sum(_Combination):
    """Σ_s w_s k_s with ∂k/∂log ratio_t = w_t (k_t − k)"""

    def __init__(self, kernel: Sum, geometry: Geometry, axes: int) -> None:
        super().__init__(kernel, geometry, axes)
        self.weights = np.asarray(kernel.weights)
        terms = [w * part.K for w, part in zip(self.shares(), self.parts, strict=True)]
        self.K = sum(terms[1:], start=terms[0])

    def shares(self) -> list[Array]:
        return [self.weights[..., s, None] for s in range(len(self.parts))]

    def slopes(self, K_bar: Array) -> Slopes:
        each = np.stack([inner(K_bar, part.K) for part in self.parts], -1)
        whole = (self.weights * each).sum(axis=-1, keepdims=True)
        by_ratio = (self.weights * (each - whole))[..., 1:]
        return [*super().slopes(K_bar), by_ratio]

    def tangents(self) -> Slopes:
        moved = np.stack([part.K - self.K for part in self.parts[1:]], -2)
        return [*super().tangents(), self.weights[..., 1:, None] * moved]


class _Product(_Combination):
    """Π_s k_s"""

    def __init__(self, kernel: Product, geometry: Geometry, axes: int) -> None:
        super().__init__(kernel, geometry, axes)
        self.K = math.prod((part.K for part in self.parts[1:]), start=self.parts[0].K)

    def shares(self) -> list[Array]:
        """The product of the others: a quotient would be 0/0 far away."""
        if len(self.parts) == 1:
            return [np.ones_like(self.K)]
        found = []
        for s in range(len(self.parts)):
            first, *others = (part.K for t, part in enumerate(self.parts) if t != s)
            found.append(math.prod(others, start=first))
        return found


class _Stacks(_Combination):
    """[k_1, k_2, …] along the latents"""

    def __init__(self, kernel: Stacks, geometry: Geometry, axes: int) -> None:
        super().__init__(kernel, geometry, axes)
        self.K = np.concatenate([part.K for part in self.parts], axis=-2)

    def shares(self) -> list[Array]:
        return [np.ones((*part.K.shape[:-1], 1)) for part in self.parts]

    def slopes(self, K_bar: Array) -> Slopes:
        ends = np.cumsum([part.K.shape[-2] for part in self.parts])
        pieces = np.split(K_bar, ends[:-1], axis=-2)
        pairs = zip(self.parts, pieces, strict=True)
        return [slope for part, piece in pairs for slope in part.slopes(piece)]

    def tangents(self) -> Slopes:
        return [tangent for part in self.parts for tangent in part.tangents()]

    def directions(self) -> list[tuple[int, Array]]:
        found, first = [], 0
        for part in self.parts:
            found += [(first + r, dK) for r, dK in part.directions()]
            first += part.K.shape[-2]
        return found


class _Scaled(_Combination):
    """variance · k"""

    def __init__(self, kernel: Scaled, geometry: Geometry, axes: int) -> None:
        super().__init__(kernel, geometry, axes)
        self.variance = np.asarray(kernel.variance)[..., None]
        self.K = self.variance * self.parts[0].K

    def shares(self) -> list[Array]:
        return [self.variance]

    def slopes(self, K_bar: Array) -> Slopes:
        return [*super().slopes(K_bar), inner(K_bar, self.K)]

    def tangents(self) -> Slopes:
        return [*super().tangents(), self.K]


EVALUATIONS: dict[type, type[Evaluation]] = {
    RationalQuadratic: OfDistanceAndAlpha,
    Periodic: OfWaves,
    Sum: _Sum,
    Product: _Product,
    Stacks: _Stacks,
    Scaled: _Scaled,
}
