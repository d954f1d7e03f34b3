"""One client's rows, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

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
