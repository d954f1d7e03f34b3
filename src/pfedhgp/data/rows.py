"""One client's rows, as arrays; and whether a model can be fitted to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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


def in_order(client: ClientRows) -> ClientRows:
    """The rows in order of their first input; no whole cycles."""
    order = np.argsort(client.X[:, 0], kind="stable")
    counts = None if client.counts is None else client.counts[order]
    return replace(client, X=client.X[order], Y=client.Y[order], counts=counts)


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
