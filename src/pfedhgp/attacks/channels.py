"""What an attacker has of one client, and what can be computed from it: sums of a start, or a noisy release.

The attacker knows everything public: code, settings and requests. So sums of any rows can be computed, and
compared with those that were sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy.optimize import minimize_scalar

from pfedhgp.attacks.captured import Captured, vector, without_others
from pfedhgp.data.rows import ClientRows
from pfedhgp.data.scaling import Scaling
from pfedhgp.gp.features import Basis
from pfedhgp.inference.arrays import block_from_arrays, statistics_from_arrays
from pfedhgp.model.spec import starting_kernels
from pfedhgp.privacy.release import PublicBasis, Release, exact_sums, noise_scales, release

RIDGE = 1.0
"""Precision of the shared functions' weights before any row is seen."""
REACH = 4.0
"""Unknown outputs are looked for within so many spreads."""


class Channel(Protocol):
    """Messages as vectors of numbers."""

    @property
    def scaling(self) -> Scaling: ...

    def sent(self, rows: ClientRows) -> np.ndarray:
        """What a client with these rows sends."""

    def expected(self, rows: ClientRows, seen: np.ndarray) -> np.ndarray:
        """The same without noise, as the attacker computes it who has seen a message."""

    def precision(self, seen: np.ndarray) -> np.ndarray:
        """How exactly each number is known, 1/sd²."""

    def function(self, seen: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The client's function at scaled inputs x, (points, outputs), as the message shows it."""

    def output(self, rows: ClientRows, row: int, q: int, seen: np.ndarray) -> float:
        """The output q of a row, from all other cells and the message; the row's own value is not used."""


def others_of(rows: ClientRows, row: int, q: int) -> tuple[float, float]:
    """Mean and spread of the outputs that the attacker knows."""
    known = np.delete(rows.Y[:, q], row)
    known = known[np.isfinite(known)]
    return float(known.mean()), float(known.std()) or 1.0


def with_output(rows: ClientRows, row: int, q: int, value: float) -> ClientRows:
    Y = rows.Y.copy()
    Y[row, q] = value
    return replace(rows, Y=Y)


def relative_precision(seen: np.ndarray) -> np.ndarray:
    """Relative to the size of each number: they are all exact."""
    return 1.0 / np.maximum(np.abs(seen), 1e-3 * np.abs(seen).max()) ** 2


def unknown_output(
    known: tuple[float, float], a: np.ndarray, left: np.ndarray, tau: float
) -> float:
    """y of `left` = a y + N(0, τ²I), by a prior with this mean and spread."""
    centre, spread = known
    gain = spread**2 / (spread**2 * (a @ a) + tau**2)
    return float(centre + gain * (a @ (left - a * centre)))


@dataclass(frozen=True)
class Sums:
    """The statistics of a start: what they are follows from the rows exactly."""

    captured: Captured

    @property
    def scaling(self) -> Scaling:
        return self.captured.scaling

    def sent(self, rows: ClientRows) -> np.ndarray:
        return vector(self.captured.answer(rows))

    def expected(self, rows: ClientRows, seen: np.ndarray) -> np.ndarray:
        return self.sent(rows)

    def precision(self, seen: np.ndarray) -> np.ndarray:
        return relative_precision(seen)

    @cached_property
    def _basis(self) -> Basis:
        found, spec, start = self.captured, self.captured.spec, self.captured.start.arrays
        extent = found.scaling.extent
        like = starting_kernels(spec.kernel, scale=0.2, count=spec.latents, extent=extent)
        block = block_from_arrays(start, like)
        return Basis.build(block.kernels, np.asarray(block.inputs), np.float64(start["jitter"]))

    def _arrays(self, seen: np.ndarray) -> dict[str, np.ndarray]:
        like = without_others(next(iter(self.captured.replies["start"].values())).arrays)
        ends = np.cumsum([like[name].size for name in sorted(like)])[:-1]
        parts = zip(sorted(like), np.split(seen, ends), strict=True)
        return {name: part.reshape(like[name].shape) for name, part in parts}

    def function(self, seen: np.ndarray, x: np.ndarray) -> np.ndarray:
        sums = statistics_from_arrays(self._arrays(seen), 0)
        U, y = np.asarray(sums.U), np.asarray(sums.y)
        weights = np.linalg.solve(U + RIDGE * np.eye(len(U)), y)
        A = np.asarray(self._basis.features(x))
        weights = weights.reshape(len(A), -1, A.shape[1])
        return np.asarray(np.einsum("rmn,rqm->nq", A, weights))

    def output(self, rows: ClientRows, row: int, q: int, seen: np.ndarray) -> float:
        """The value with which the sums are those that were sent."""
        centre, spread = others_of(rows, row, q)
        weights = self.precision(seen)

        def misfit(value: float) -> float:
            guess = self.sent(with_output(rows, row, q, centre + spread * value))
            return float(weights @ (guess - seen) ** 2)

        grid = np.linspace(-REACH, REACH, 5)
        best = grid[int(np.argmin([misfit(value) for value in grid]))]
        found = minimize_scalar(
            misfit, bounds=(best - 2.0, best + 2.0), method="bounded", options={"xatol": 1e-3}
        )
        return centre + spread * float(found.x)


@dataclass(frozen=True)
class Releases:
    """A noisy release: the same rows give another one each time."""

    public: PublicBasis
    scaling: Scaling
    bound: float
    mu: float
    make: Callable[..., Release] = release

    def sent(self, rows: ClientRows) -> np.ndarray:
        scaled = self.scaling.rows(rows)
        made = self.make(self.public, scaled.X, scaled.Y, bound=self.bound, mu=self.mu)
        return self._flat(made.gram, made.linear)

    def expected(self, rows: ClientRows, seen: np.ndarray) -> np.ndarray:
        scaled = self.scaling.rows(rows)
        return self._flat(*exact_sums(self.public, scaled.X, scaled.Y, self.bound))

    def _flat(self, gram: np.ndarray, linear: np.ndarray) -> np.ndarray:
        lower = np.tril_indices(gram.shape[1])
        return np.concatenate([gram[:, *lower].ravel(), linear.ravel()])

    def parts(self, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """S̃ and b̃ of a message."""
        M = len(self.public.inputs)
        rows, columns = np.tril_indices(M)
        Q = len(seen) // (len(rows) + M)
        gram = np.zeros((Q, M, M))
        gram[:, rows, columns] = seen[: Q * len(rows)].reshape(Q, -1)
        gram[:, columns, rows] = gram[:, rows, columns]
        return gram, seen[Q * len(rows) :].reshape(Q, M)

    def gram(self, seen: np.ndarray) -> np.ndarray:
        """S of each output, as far as the message tells it."""
        return self.parts(seen)[0]

    def precision(self, seen: np.ndarray) -> np.ndarray:
        """What the release promises; mechanisms that add less noise are found out by it."""
        gram, linear = self.parts(seen)
        M = linear.shape[1]
        tau = noise_scales(self.mu, self.bound, len(linear), M)
        rows, columns = np.tril_indices(M)
        beside = np.where(rows == columns, 1.0, np.sqrt(0.5)) * tau.gram
        sd = [np.tile(beside, len(gram)), np.full(linear.size, tau.linear)]
        return 1.0 / np.concatenate(sd) ** 2

    def function(self, seen: np.ndarray, x: np.ndarray) -> np.ndarray:
        """w/(w² + w + τ_b²) in the eigenvectors of S̃, whose eigenvalues w are freed of the noise's bias."""
        gram, linear = self.parts(seen)
        M = linear.shape[1]
        tau = noise_scales(self.mu, self.bound, len(linear), M)
        A, found = self.public.features(x), []
        for S, b in zip(gram, linear, strict=True):
            values, vectors = np.linalg.eigh(S)
            w = np.sqrt(np.maximum(np.sign(values) * values**2 - 2.0 * M * tau.gram**2, 0.0))
            shrunk = w / np.maximum(w**2 + w + tau.linear**2, 1e-12)
            found.append(A.T @ (vectors @ (shrunk * (vectors.T @ b))))
        return np.stack(found, axis=1)

    def output(self, rows: ClientRows, row: int, q: int, seen: np.ndarray) -> float:
        """b̃ less the others' part is a y + noise: its posterior mean, by the others' outputs as prior."""
        known = others_of(self.scaling.rows(rows), row, q)
        scaled = self.scaling.rows(with_output(rows, row, q, np.nan))
        _, linear = self.parts(seen)
        left = linear[q] - exact_sums(self.public, scaled.X, scaled.Y, self.bound)[1][q]
        a = self.public.features(scaled.X[row : row + 1])[:, 0]
        tau = noise_scales(self.mu, self.bound, len(linear), len(a)).linear
        value = unknown_output(known, a, left, tau)
        return float(self.scaling.centre[q] + self.scaling.spread[q] * value)
