"""One client's rows, as arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class ClientRows:
    """One client's rows as arrays, in the data's own units; NaN in Y is a missing cell."""

    name: str
    X: np.ndarray
    Y: np.ndarray
    counts: np.ndarray | None = None
    """How many observations each cell of Y is the mean of (replicates); None: one where observed."""
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
