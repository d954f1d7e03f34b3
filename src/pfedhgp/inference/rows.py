"""A client's rows as the solvers take them: padded, masked, with replicates or a fixed cycle layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError
from pfedhgp.gp.noise import DiagonalNoise, FullNoise, Noise
from pfedhgp.inference.cycles.incomplete import Pattern, groups_of
from pfedhgp.model.blocks import CycleTerm, Rows
from pfedhgp.model.cycle_layer import CycleLayer

MOST_CELLS = 20_000
"""The most cells of all patterns together if each has its own rows: memory grows with its square."""
FLOOR = 1e-8
"""As `Noise` adds it to every variance."""


def white_rows(client: ClientRows, *, full_noise: bool, length: int | None = None) -> Rows:
    """A client's scaled rows, padded to `length` with rows that do not count."""
    X, Y = client.X, client.Y
    seen, outputs = np.isfinite(Y), Y.shape[1]
    counts = seen.astype(np.float64) if client.counts is None else client.counts
    extra = (length or len(X)) - len(X)
    if client.scatter is None or client.scatter_seen is None:
        scatter, cells = np.zeros((1, outputs, outputs)), np.ones((1, outputs))
    else:
        scatter, cells = client.scatter, client.scatter_seen
    if not full_noise:  # a diagonal Σ⁻¹ is the same for all patterns
        scatter, cells = scatter.sum(axis=0, keepdims=True), np.ones((1, outputs))
    return Rows(
        X=_longer(X, extra, 0, mode="edge"),
        Y=_longer(np.where(seen, Y, 0.0), extra, 0),
        mask=_longer(np.where(seen, counts, 0.0), extra, 0),
        scatter=scatter,
        scatter_seen=cells,
    )


def noise_of(layer: CycleLayer, form: str) -> Noise:
    """Σ_ε in the coordinates of a client's block: "scalar", "output" or "full"."""
    noise = layer.noise - FLOOR * np.eye(layer.outputs)
    if form == "full":
        L = np.linalg.cholesky(noise)
        return FullNoise(np.tril(L, -1) + np.diag(np.log(np.diagonal(L))))
    variances = np.diagonal(noise)
    return DiagonalNoise(np.log(variances if form == "output" else variances[:1]))


def cycle_rows(
    X: np.ndarray, cycles: np.ndarray, layer: CycleLayer, *, separate: bool, client: str = ""
) -> Rows:
    """Rows for cycles (C, n, Q) on the grid X, in scaled units; NaN is a missing cell.

    Cells have their mean over the cycles that have them. With a full Σ_ε the patterns of observed cells keep
    rows of their own (`separate`), because a row's cells must be means of equally many.
    """
    seen = np.isfinite(cycles)
    filled = np.where(seen, cycles, 0.0)
    noise, E = layer.noise, layer.half(X)
    n, Q, k = E.shape
    # The same shapes whatever Ψ's rank is: nothing compiles anew for it.
    if 0 < k < len(layer.factor):
        k = len(layer.factor)
        E = np.concatenate([E, np.zeros((n, Q, k - E.shape[2]))], axis=2)
    groups = list(groups_of(seen))
    if separate and len(groups) > 1 and len(groups) * n * Q > MOST_CELLS:
        raise InputError(
            f"client {client!r}: its cycles lack cells in {len(groups)} different ways, too many for "
            "noise='full' with a cycle layer: use noise='output'"
        )
    blocks = len(groups) if separate else 1
    total = filled.sum(0) / np.maximum(seen.sum(0), 1)
    Y, mask = np.zeros((blocks, n, Q)), np.zeros((blocks, n, Q))
    stacked: list[np.ndarray] = []
    means: list[np.ndarray] = []
    constant = 0.0
    for index, (there, members) in enumerate(groups):
        own, count = filled[members], len(members)
        block = index if separate else 0
        mean = own.mean(0) if separate else np.where(there, total, 0.0)
        Y[block] = mean if separate else total
        mask[block] += count * there
        pattern = Pattern.of(there, E, noise)
        U = pattern.U
        explained = own.reshape(count, -1) @ U.T
        gap = own - mean[None]
        spread = np.einsum("cnq,nqp,cnp->", gap, pattern.P, gap, optimize=True)
        constant -= 0.5 * float(spread) - 0.5 * float(np.sum(explained**2))
        constant -= 0.5 * count * pattern.log_determinant
        at = np.zeros((k, blocks, n * Q))
        at[:, block] = np.sqrt(count) * U
        stacked.append(at.reshape(k, blocks * n * Q))
        means.append(np.sqrt(count) * explained.mean(0))
        stacked, means = _compressed(stacked, means)
    weights = np.moveaxis(np.concatenate(stacked).reshape(-1, blocks * n, Q), 0, 2)
    return Rows(
        X=np.tile(X, (blocks, 1)),
        Y=Y.reshape(-1, Q),
        mask=mask.reshape(-1, Q),
        cycles=CycleTerm(weights, np.concatenate(means), np.float64(constant)),
    )


def _compressed(
    stacked: list[np.ndarray], means: list[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The same UᵀU and Uᵀt with no more rows than there are cells: the R of U = QR, and Qᵀt."""
    if sum(len(U) for U in stacked) <= stacked[0].shape[1]:
        return stacked, means
    Q, R = np.linalg.qr(np.concatenate(stacked))
    return [R], [Q.T @ np.concatenate(means)]


def equal_shapes(rows: Sequence[Rows]) -> list[Rows]:
    """The same rows, padded so that clients can be stacked: what is added counts for nothing."""
    length = max(len(own.X) for own in rows)
    patterns = max(0 if own.scatter is None else len(own.scatter) for own in rows)
    rank = max(0 if own.cycles is None else len(own.cycles.means) for own in rows)
    return [_grown(own, length - len(own.X), patterns, rank) for own in rows]


def _grown(rows: Rows, extra: int, patterns: int, rank: int) -> Rows:
    scatter, seen, term = rows.scatter, rows.scatter_seen, rows.cycles
    if scatter is not None and seen is not None:
        more = patterns - len(scatter)
        scatter, seen = _longer(scatter, more, 0, 0), _longer(seen, more, 0)
    if term is not None:
        more = rank - len(term.means)
        weights = _longer(term.weights, extra, 0, more)
        term = CycleTerm(weights, _longer(term.means, more), term.constant)
    return Rows(
        X=_longer(rows.X, extra, 0, mode="edge"),
        Y=_longer(rows.Y, extra, 0),
        mask=_longer(rows.mask, extra, 0),
        scatter=scatter,
        cycles=term,
        scatter_seen=seen,
    )


def _longer(array: Any, *more: int, mode: Literal["constant", "edge"] = "constant") -> np.ndarray:
    """The array with this many more entries at the end of each axis."""
    array = np.asarray(array)
    if not any(more):
        return array
    return np.pad(array, [(0, count) for count in more], mode=mode)


def some_rows(rows: Rows, count: int) -> Rows:
    """All rows, or `count` to twice as many at equal steps: enough rows to find a noise level."""
    step = rows.X.shape[0] // count
    if step < 2 or rows.scatter is not None or rows.cycles is not None:
        return rows
    return Rows(rows.X[::step], rows.Y[::step], rows.mask[::step])


def first_rows(rows: Rows, count: int) -> Rows:
    """The first rows of a series, without the scatter of replicates, which is all rows' together."""
    return Rows(rows.X[:count], rows.Y[:count], rows.mask[:count])
