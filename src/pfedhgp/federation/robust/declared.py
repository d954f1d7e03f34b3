"""What a site has said of itself in the census: later replies must fit it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pfedhgp.data.scaling import Scaling


@dataclass(frozen=True)
class Declared:
    """Numbers of a site's rows and cells, and the moments of its outputs, in the data's units."""

    rows: float
    cells: np.ndarray
    """(Q,) rows in which the output was observed"""
    observations: np.ndarray
    """(Q,) the same with every cycle counted"""
    mean: np.ndarray
    """(Q,)"""
    squares: np.ndarray
    """(Q,) Σ (y − mean)²"""

    @staticmethod
    def of(arrays: Mapping[str, np.ndarray]) -> Declared:
        """From a reply to the census."""
        return Declared(
            rows=float(arrays["rows"][0]),
            cells=np.diagonal(arrays["y_pairs"]).copy(),
            observations=np.asarray(arrays["observations"]),
            mean=np.diagonal(arrays["y_mean"]).copy(),
            squares=np.diagonal(arrays["y_cross"]).copy(),
        )

    def to_json(self) -> dict[str, Any]:
        return {n: v.tolist() if isinstance(v, np.ndarray) else v for n, v in asdict(self).items()}

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> Declared:
        arrays = {n: np.asarray(v, np.float64) for n, v in plain.items() if n != "rows"}
        return Declared(rows=float(plain["rows"]), **arrays)

    def power(self, scaling: Scaling) -> np.ndarray:
        """(Q,) the most that Σ y² can be in scaled outputs, every cycle counted.

        A cell that is the mean of c observations counts c times, and c is at most one more than there are
        observations beyond one a cell.
        """
        spread = np.asarray(scaling.spread)
        away = self.squares + self.cells * (self.mean - np.asarray(scaling.centre)) ** 2
        most = np.maximum(self.observations - self.cells, 0.0) + 1.0
        untold = (self.cells == 0) & (self.observations > 0)  # moments of few rows are not told
        return np.where(untold, np.inf, away / spread**2 * most)
