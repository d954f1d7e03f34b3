"""One client's rows, as arrays; and whether a model can be fitted to them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol, TypeVar

import numpy as np

from pfedhgp.base.checks import listed
from pfedhgp.errors import InputError, warn

LARGEST = 1e120
"""The largest input or output: sums of squares, and squares of those, stay finite."""


class Named(Protocol):
    """A client's name, inputs (n, d) and outputs (n, Q), in whatever form."""

    @property
    def name(self) -> str: ...

    @property
    def X(self) -> np.ndarray: ...

    @property
    def Y(self) -> np.ndarray: ...


@dataclass(frozen=True)
class ClientRows:
    """One client's rows as arrays, in the data's own units; NaN in Y is a missing cell."""

    name: str
    X: np.ndarray
    Y: np.ndarray
    counts: np.ndarray | None = None
    """How many observations each cell of Y is the mean of (replicates); None: one each."""
    scatter: np.ndarray | None = None
    """Σ over replicates of (y − ȳ)(y − ȳ)ᵀ, summed over rows: (G, Q, Q), one for each pattern of cells."""
    cycles: np.ndarray | None = None
    """Whole cycles (C, n, Q) on the grid X, NaN where missing; Y is then their mean. For a cycle layer."""
    scatter_seen: np.ndarray | None = None
    """(G, Q): 1 for the cells that a pattern has."""


def observations(client: ClientRows) -> np.ndarray:
    """(Q,) the number of values of each output: every replicate and every cycle counts."""
    if client.cycles is not None:
        return np.isfinite(client.cycles).sum(axis=(0, 1)).astype(np.float64)
    seen = np.isfinite(client.Y)
    return np.where(seen, 1.0 if client.counts is None else client.counts, 0.0).sum(axis=0)


def in_order(client: ClientRows) -> ClientRows:
    """The rows in order of their first input; no whole cycles."""
    order = np.argsort(client.X[:, 0], kind="stable")
    counts = None if client.counts is None else client.counts[order]
    return replace(client, X=client.X[order], Y=client.Y[order], counts=counts)


def numbered(columns: np.ndarray) -> np.ndarray:
    """A number for each different row of whole numbers (n, k), in lexicographic order from 0 on."""
    found = np.zeros(len(columns), np.int64)
    for column in columns.T:
        low, high = int(column.min(initial=0)), int(column.max(initial=0))
        found = np.unique(found * (high - low + 1) + (column - low), return_inverse=True)[1]
    return found


def merge(client: ClientRows, cell: np.ndarray, *, apart: bool = True) -> ClientRows:
    """Rows of equal `cell` become one: mean input, mean outputs, how many they are of, and the scatter.

    If inputs are equal within cells, nothing is lost. Rows with different missing outputs stay `apart`, so
    that a row's observed outputs are means of equally many. If they do not, each output has counts of its
    own, and the scatter is that of each output alone, which is enough for a diagonal Σ.
    """
    seen = np.isfinite(client.Y)
    counts = np.where(seen, 1.0 if client.counts is None else client.counts, 0.0)
    pattern = numbered(seen) if apart else np.zeros(len(seen), np.int64)
    index = numbered(np.stack([cell, pattern], axis=1))
    first = np.unique(index, return_index=True)[1]

    def mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Around the first value of a cell, so that equal values are their own mean."""
        base = values[first]
        total = np.maximum(np.bincount(index, weights), 1e-300)
        return base + np.bincount(index, weights * (values - base[index])) / total

    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # values so large are refused by name before they are used
        filled = np.where(seen, client.Y, 0.0)
        X = np.stack([mean(x, counts.max(axis=1)) for x in client.X.T], axis=1)
        Y = np.stack([mean(*of) for of in zip(filled.T, counts.T, strict=True)], axis=1)
        gap = np.sqrt(counts) * (filled - Y[index])
        if apart:
            own = (gap[pattern == g] for g in range(pattern.max(initial=-1) + 1))
            scatter = np.stack([part.T @ part for part in own])
        else:
            scatter = np.diag((gap**2).sum(axis=0))[None]
    patterns = seen[np.unique(pattern, return_index=True)[1]] if apart else np.ones_like(seen[:1])
    total = np.stack([np.bincount(index, each) for each in counts.T], axis=1)
    if client.scatter is not None and client.scatter_seen is not None:
        scatter = np.concatenate([client.scatter, scatter])
        patterns = np.concatenate([client.scatter_seen, patterns])
    Y = np.where(total > 0, Y, np.nan)
    cells = patterns.astype(np.float64)
    return ClientRows(client.name, X, Y, total, scatter, scatter_seen=cells)


def merge_replicates(name: str, X: np.ndarray, Y: np.ndarray) -> ClientRows:
    """Rows at equal inputs become one."""
    cell = np.unique(X, axis=0, return_inverse=True)[1].reshape(-1)
    return merge(ClientRows(name, X, Y), cell)


def by_appearance(names: np.ndarray) -> np.ndarray:
    """A number for each name: 0 for the first that appears, 1 for the next, and so on."""
    _, first, index = np.unique(names.astype(str), return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[index.reshape(-1)]


Rows = TypeVar("Rows", bound=Named)


def with_observations(clients: Sequence[Rows], *, stacklevel: int = 3) -> list[Rows]:
    """The clients that have an observed output; warns of the others. Refuses rows that cannot be fitted."""
    kept = [client for client in clients if np.isfinite(client.Y).any()]
    if not kept:
        raise InputError("no client has an observed output: every cell of the outputs is missing")
    empty = [client.name for client in clients if not np.isfinite(client.Y).any()]
    if empty:
        warn(
            f"left out, because no output was observed: client {listed(empty, 3)}",
            stacklevel=stacklevel,
        )
    for client in kept:
        for what, values in (("inputs", client.X), ("outputs", client.Y)):
            if np.nanmax(np.abs(values)) > LARGEST:
                raise InputError(
                    f"client {client.name!r}: {what} beyond {LARGEST:g} cannot be squared: rescale them"
                )
    if sum(len(client.X) for client in kept) < 2:
        raise InputError("one row in all: a model needs at least two")
    return kept


def digest_of(clients: Sequence[ClientRows]) -> str:
    """SHA-256 of names and rows: tells whether they changed, and not what they are."""
    digest = hashlib.sha256()
    for client in clients:
        for field in fields(client):
            value = getattr(client, field.name)
            shown = value.shape if isinstance(value, np.ndarray) else value
            digest.update(f"{field.name} {shown!r}".encode())
            if isinstance(value, np.ndarray):
                digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()
