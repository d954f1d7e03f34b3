"""A client's cycles under a fixed cycle layer, as the rows that the structured solver trains on."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from pfedhgp.errors import InputError
from pfedhgp.gp.noise import DiagonalNoise, FullNoise, Noise
from pfedhgp.inference.cycles.missing_patterns import Pattern, groups_of
from pfedhgp.model.blocks import CycleTerm, Rows
from pfedhgp.model.cycle_layer import CycleLayer

MOST_CELLS = 20_000
"""The most cells of all patterns together if each has its own rows: memory grows with its square."""
FLOOR = 1e-8
"""As `Noise` adds it to every variance."""


def noise_of(layer: CycleLayer, form: str) -> Noise:
    """Σ_ε in the coordinates of a client's block: "scalar", "output" or "full"."""
    noise = layer.noise - FLOOR * np.eye(layer.outputs)
    if form == "full":
        L = np.linalg.cholesky(noise)
        return FullNoise(jnp.asarray(np.tril(L, -1) + np.diag(np.log(np.diagonal(L)))))
    variances = np.diagonal(noise)
    return DiagonalNoise(jnp.log(jnp.asarray(variances if form == "output" else variances[:1])))


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
    if (
        0 < k < len(layer.factor)
    ):  # the same shapes whatever Ψ's rank is: nothing compiles anew for it
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
        X=jnp.asarray(np.tile(X, (blocks, 1))),
        Y=jnp.asarray(Y.reshape(-1, Q)),
        mask=jnp.asarray(mask.reshape(-1, Q)),
        cycles=CycleTerm(*(jnp.asarray(v) for v in (weights, np.concatenate(means), constant))),
    )


def _compressed(
    stacked: list[np.ndarray], means: list[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The same UᵀU and Uᵀt with no more rows than there are cells: the R of U = QR, and Qᵀt."""
    if sum(len(U) for U in stacked) <= stacked[0].shape[1]:
        return stacked, means
    Q, R = np.linalg.qr(np.concatenate(stacked))
    return [R], [Q.T @ np.concatenate(means)]


def equal_shapes(rows: list[Rows]) -> list[Rows]:
    """The same rows, padded with rows and weights that count for nothing, so that clients can be stacked."""
    length = max(len(own.X) for own in rows)
    rank = max(own.cycles.means.shape[0] for own in rows if own.cycles is not None)
    return [_grown(own, length - len(own.X), rank) for own in rows]


def _grown(rows: Rows, extra: int, rank: int) -> Rows:
    term, grow = rows.cycles, ((0, extra), (0, 0))
    assert term is not None
    more = (0, rank - len(term.means))
    return Rows(
        X=jnp.pad(rows.X, grow, mode="edge"),
        Y=jnp.pad(rows.Y, grow),
        mask=jnp.pad(rows.mask, grow),
        cycles=CycleTerm(
            jnp.pad(term.weights, (*grow, more)), jnp.pad(term.means, more), term.constant
        ),
    )
