"""A predictor at some inputs: marginals, covariances and draws in the data's own units.

Rows go through in chunks, so that memory does not grow with them, but for joint covariances and draws. Chunks
of a few sizes (powers of two, the last one padded) go to functions that are compiled once per size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from pfedhgp.base.batching import on_host
from pfedhgp.base.checks import one_of
from pfedhgp.base.numerics import numerics, on_device, with_numerics
from pfedhgp.gp.linalg import psd_factor
from pfedhgp.model.cycle_layer import CycleLayer
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.noise_level import loudness
from pfedhgp.model.predictor import (
    LAYERS,
    Predictor,
    latents,
    moments,
    own_covariance,
    prior_covariance,
    tilt,
)
from pfedhgp.model.undetermined import Undetermined, undetermined

P = ParamSpec("P")
T = TypeVar("T")
FloatArray = npt.NDArray[np.float64]
Kind = Literal["outputs", "joint"]

CHUNK_BYTES = 2**26
LARGEST_CHUNK, SMALLEST_CHUNK = 2048, 8


def _where_it_is(method: Callable[Concatenate[AtInputs, P], T]) -> Callable[..., T]:
    """A method of `AtInputs` that computes in our numerics, on the device of the prediction."""

    @functools.wraps(method)
    def wrapped(self: AtInputs, *args: P.args, **kwargs: P.kwargs) -> T:
        with numerics(), on_device(self.device):
            return method(self, *args, **kwargs)

    return wrapped


@dataclass(frozen=True, eq=False)
class AtInputs:
    """A client's predictor at n inputs, with loadings and noise in the data's units."""

    predictor: Predictor
    X: FloatArray
    loadings: FloatArray
    noise: FloatArray
    centre: FloatArray
    spread: FloatArray
    chunk: int
    layer: CycleLayer | None = None
    """If there is one, noise is that of a new cycle, whose cells are correlated."""
    undetermined: tuple[Undetermined, ...] = ()
    """Functions that rows do not determine, and layers have in part."""
    device: str | None = None
    gamma: FloatArray | None = None
    """Of noise that depends on the level."""

    @staticmethod
    @with_numerics
    def of(
        model: FittedModel,
        client: str,
        X: FloatArray,
        chunk: int | None,
        device: str | None = None,
    ) -> AtInputs:
        with on_device(device):
            predictor, layer = Predictor.build(model, client), model.layer_of(client)
        white = np.asarray(predictor.noise if layer is None else layer.noise)
        outputs, scaling = model.outputs, model.scaling
        spread = np.broadcast_to(scaling.spread, (outputs,))
        if chunk is None:
            fits = CHUNK_BYTES // (8 * predictor.floats_per_row)
            largest = min(max(fits, SMALLEST_CHUNK), LARGEST_CHUNK)
            chunk = min(1 << (int(largest).bit_length() - 1), _power_of_two(len(X)))
        return AtInputs(
            predictor=predictor,
            X=np.asarray(scaling.inputs(X), np.float64),
            loadings=np.concatenate(predictor.loadings, axis=1) * spread[:, None],
            noise=white * spread[:, None] * spread[None, :],
            centre=np.broadcast_to(scaling.centre, (outputs,)),
            spread=spread,
            chunk=chunk,
            layer=layer,
            device=device,
            gamma=model.shared.block.noise_levels,
            undetermined=undetermined(model, predictor, spread),
        )

    def part(self, name: str) -> tuple[slice, FloatArray]:
        """The latents of a layer, or of all, and their loadings."""
        where = self.predictor.slices[name]
        return where, self.loadings[:, where]

    @_where_it_is
    def marginals(self) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
        """Means and variances without noise, (n, Q) each, of the layers and their total."""
        shape = (len(self.X), len(self.centre))
        means, variances = ({name: np.zeros(shape) for name in (*LAYERS, "total")} for _ in "mv")
        for rows, (mean, V) in self.pieces(moments):
            for name in means:
                where, B = self.part(name)
                means[name][rows] = mean[:, where] @ B.T
                variance = np.sum((V[:, where, where] @ B.T) * B.T, axis=1)
                variances[name][rows] = np.maximum(variance, 0.0)
        for rows, slopes in self._tilts():
            for name in means:
                variances[name][rows] += np.sum(_of_layer(slopes, name) ** 2, axis=2)
        for term in self.undetermined:
            for name in means:
                if (power := term.between(name, name)) is not None:
                    variances[name] += np.diagonal(power)
        for name in ("global", "total"):
            means[name] += self.centre
        return means, variances

    @_where_it_is
    def covariance(self, first: str, second: str, kind: Kind) -> FloatArray:
        one_of(*get_args(Kind))(kind, "kind")
        (a, A), (b, B) = self.part(first), self.part(second)
        if kind == "joint":
            cov = self._joint(a, A, b, B)
            if self.averaged:
                cov += self.whole_tilt(first) @ self.whole_tilt(second).T
            for K, power in self.undetermined_joint(first, second):
                cov += np.kron(K, power)
            return 0.5 * (cov + cov.T) if first == second else cov  # products round unevenly
        outputs = len(self.centre)
        cov = np.zeros((len(self.X), outputs, outputs))
        for rows, (_, V) in self.pieces(moments):
            cov[rows] = A @ V[:, a, b] @ B.T
        for rows, slopes in self._tilts():
            cov[rows] += _of_layer(slopes, first) @ np.swapaxes(_of_layer(slopes, second), 1, 2)
        for term in self.undetermined:
            added = term.between(first, second)
            cov += 0.0 if added is None else added
        return cov

    def undetermined_joint(
        self, first: str, second: str, kernel: int | None = None
    ) -> Iterator[tuple[FloatArray, FloatArray]]:
        """k(X, X) and the covariance between outputs of each undetermined function that both have."""
        for term in self.undetermined:
            power = term.between(first, second)
            if power is None or kernel not in (None, term.kernel):
                continue
            K = np.zeros((len(self.X), len(self.X)))
            for one, two, blocks in self.blocks(prior_covariance):
                K[one, two] = blocks[term.kernel]
            yield K, power

    def _joint(self, a: slice, A: FloatArray, b: slice, B: FloatArray) -> FloatArray:
        first = self._halves(a, A)
        halves = [first, first if a == b else self._halves(b, B)]
        cov = sum(left @ right.T for left, right in zip(*halves, strict=True))
        rows, outputs = len(self.X), len(self.centre)
        cells = np.asarray(cov).reshape(rows, outputs, rows, outputs)
        shared = range(max(a.start, b.start), min(a.stop, b.stop))
        for one, two, own in self.blocks(own_covariance) if len(shared) else ():
            for i in shared:
                outer = np.outer(A[:, i - a.start], B[:, i - b.start])
                cells[one, :, two, :] += (
                    own[self.predictor.kinds[i]][:, None, :, None] * outer[None, :, None, :]
                )
        return cells.reshape(rows * outputs, rows * outputs)

    def _halves(self, where: slice, B: FloatArray) -> tuple[FloatArray, ...]:
        """H F in its two parts, (nQ, Kg) and (nQ, Kc), for the latents of a layer."""
        p = self.predictor
        g, cells = p.counts[0], (len(self.X), len(self.centre))
        widths = p.half_shared.shape[1], p.half_own.shape[1]
        out = [np.zeros((*cells, width)) for width in widths]
        own = slice(max(where.start - g, 0), max(where.stop - g, 0))
        B_own = B[:, max(g - where.start, 0) :]
        for rows, (_, T, T_own, _) in self.pieces(latents):
            out[0][rows] = np.einsum("qa,nak->nqk", B, T[:, where], optimize=True)
            out[1][rows] = np.einsum("qa,nak->nqk", B_own, T_own[:, own], optimize=True)
        return tuple(half.reshape(cells[0] * cells[1], half.shape[2]) for half in out)

    @with_numerics
    def factors(self) -> tuple[FloatArray, list[tuple[FloatArray, FloatArray]]]:
        """The covariance of a new observation (a new cycle) but for its noise, in parts.

        U (nQ, k): everything of low rank; and for each kind of latent (r(x, x') (n, n), B (Q, ·)): what the
        inducing inputs do not carry, r ⊗ B Bᵀ, and what rows do not determine.
        """
        where, B = self.part("total")
        parts = list(self._halves(where, B))
        if self.averaged:
            parts.append(self.whole_tilt("total"))
        parts += self._whole_cycle()
        kinds, rows = np.asarray(self.predictor.kinds), len(self.X)
        own = np.zeros((kinds.max(initial=-1) + 1, rows, rows))
        for one, two, blocks in self.blocks(own_covariance):
            own[:, one, two] = blocks[: len(own)]
        residuals = [(own[kind], B[:, kinds == kind]) for kind in range(len(own))]
        loose = self.undetermined_joint("total", "total")
        residuals += [(K, psd_factor(power)) for K, power in loose]
        return np.concatenate(parts, axis=1), residuals

    @property
    def averaged(self) -> bool:
        """Whether the client's parameters were averaged over; an unseen client's own loadings are."""
        return self.predictor.tangents is not None or self.predictor.loadings_half is not None

    def _tilts(self) -> Iterator[tuple[slice, FloatArray]]:
        """∂f/∂e of the three layers, (rows, 3, Q, P), in the data's units; none without averaging."""
        if not self.averaged:
            return
        for rows, X in self._chunks():
            slopes = np.asarray(tilt(self.predictor, X))[: rows.stop - rows.start]
            yield rows, slopes * self.spread[None, None, :, None]

    def whole_tilt(self, name: str) -> FloatArray:
        """∂f/∂e of a layer, or of all, at every cell: (nQ, P)."""
        parts = [_of_layer(slopes, name) for _, slopes in self._tilts()]
        whole = np.concatenate(parts) if parts else np.zeros((0, len(self.centre), 0))
        return whole.reshape(len(self.X) * len(self.centre), -1)

    @_where_it_is
    def draw(self, count: int, rng: np.random.Generator, noise: bool) -> FloatArray:
        p = self.predictor
        g, rows = p.counts[0], len(self.X)
        z = rng.standard_normal((p.half_shared.shape[1], count))
        z_own = rng.standard_normal((p.half_own.shape[1], count))
        h = np.zeros((rows, p.slices["total"].stop, count))
        for piece, (mean, T, T_own, _) in self.pieces(latents):
            h[piece] = mean[:, :, None] + T @ z
            h[piece, g:] += T_own @ z_own
        own = np.zeros((max(p.kinds, default=-1) + 1, rows, rows))
        for one, two, blocks in self.blocks(own_covariance):
            own[:, one, two] = blocks[: len(own)]
        factors = [_lenient_factor(matrix) for matrix in own]
        for i, kind in enumerate(p.kinds):
            h[:, i] += factors[kind] @ rng.standard_normal((rows, count))
        draws = np.einsum("qa,nac->cnq", self.loadings, h, optimize=True) + self.centre
        if self.averaged:
            slopes = self.whole_tilt("total")
            moved = slopes @ rng.standard_normal((slopes.shape[1], count))
            draws += moved.T.reshape(draws.shape)
        for K, power in self.undetermined_joint("total", "total"):
            e = rng.standard_normal(draws.shape) @ psd_factor(power).T
            draws += np.einsum("nm,cmq->cnq", _lenient_factor(K), e, optimize=True)
        if noise:
            e = rng.standard_normal(draws.shape) @ psd_factor(self.noise).T
            draws += e * np.sqrt(self.loudness)
            for piece, half in self._cycle_halves():
                if piece.start == 0:
                    w = rng.standard_normal((half.shape[2], count))
                draws[:, piece] += np.einsum("nqk,kc->cnq", half, w, optimize=True)
        return draws

    @functools.cached_property
    def loudness(self) -> FloatArray:
        """(n, Q): by how much the noise's variance is larger at the level that is predicted."""
        if self.gamma is None:
            return np.ones((len(self.X), len(self.centre)))
        level = (self.marginals()[0]["total"] - self.centre) / self.spread
        return loudness(level, self.gamma)

    def _noise_of_rows(self) -> FloatArray:
        """(n, Q, Q): Σ at each row."""
        root = np.sqrt(self.loudness)
        return self.noise * root[:, :, None] * root[:, None, :]

    @_where_it_is
    def noise_variances(self) -> FloatArray:
        """(n, Q): the variance of ε, and of the cycle layer if there is one."""
        variances = np.diagonal(self.noise) * self.loudness
        for rows, half in self._cycle_halves():
            variances[rows] += np.sum(half**2, axis=2)
        return variances

    @_where_it_is
    def with_noise(self, cov: FloatArray, kind: Kind) -> FloatArray:
        """`cov` and the covariance of ε and of the cycle layer, per input or joint."""
        rows, outputs = len(self.X), len(self.centre)
        if kind == "outputs":
            for piece, half in self._cycle_halves():
                cov[piece] += half @ np.swapaxes(half, 1, 2)
            return cov + self._noise_of_rows()
        each, blocks = np.arange(rows), cov.reshape(rows, outputs, rows, outputs)
        blocks[each, :, each, :] += self._noise_of_rows()
        for whole in self._whole_cycle():
            cov += whole @ whole.T
        return cov

    def _whole_cycle(self) -> list[FloatArray]:
        """E(x) at every cell, (nQ, k), if there is a cycle layer."""
        halves = [half for _, half in self._cycle_halves()]
        cells = len(self.X) * len(self.centre)
        return [np.concatenate(halves).reshape(cells, -1)] if halves else []

    def _cycle_halves(self) -> Iterator[tuple[slice, FloatArray]]:
        """E(x), (n, Q, k) for each chunk of rows, in the data's units; nothing without a cycle layer."""
        if self.layer is None:
            return
        for rows, X in self._chunks():
            half = self.layer.half(X)[: rows.stop - rows.start]
            yield rows, half * self.spread[None, :, None]

    def pieces(self, function: Any) -> Iterator[tuple[slice, tuple[FloatArray, ...]]]:
        """`function` of each chunk of rows."""
        for rows, X in self._chunks():
            used = rows.stop - rows.start
            yield rows, tuple(np.asarray(out)[:used] for out in function(self.predictor, X))

    def blocks(self, function: Any) -> Iterator[tuple[slice, slice, FloatArray]]:
        """`function` of each kind of latent between x and x', block by block."""
        for one, X in self._chunks():
            for two, Z in self._chunks():
                own = np.asarray(function(self.predictor, X, Z))
                yield one, two, own[:, : one.stop - one.start, : two.stop - two.start]

    def _chunks(self) -> Iterator[tuple[slice, FloatArray]]:
        compiled = not on_host() or self.predictor.partly_compiled
        for start in range(0, len(self.X), self.chunk):
            X = self.X[start : start + self.chunk]
            rows, missing = slice(start, start + len(X)), self.chunk - len(X)
            yield rows, np.pad(X, ((0, missing), (0, 0)), mode="edge") if compiled else X


def _of_layer(slopes: FloatArray, name: str) -> FloatArray:
    """(n, Q, P) of one layer, or of their sum."""
    return slopes.sum(axis=1) if name == "total" else slopes[:, LAYERS.index(name)]


def _power_of_two(n: int) -> int:
    """The smallest power of two that is at least n, and at least the smallest chunk."""
    return max(SMALLEST_CHUNK, 1 << max(n - 1, 0).bit_length())


def _lenient_factor(matrix: FloatArray) -> FloatArray:
    """A factor with 1e-12 of a latent's variance added: these matrices are nearly singular."""
    return psd_factor(matrix + 1e-12 * np.eye(len(matrix)))
