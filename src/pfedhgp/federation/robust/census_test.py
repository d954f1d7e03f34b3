"""The census by medians: one site's mean of a million must not set everybody's scale.

Sums of all sites are used as they are unless their mean or spread contradicts the sites' medians,
    centre = median(mean_i),   spread² = median(variance_i) + (1.4826 · MAD(mean_i))²
Then the site that contradicts them most is left out, and so on. So honest federations have the scales that
they would have without this test, to the last digit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

Arrays = Mapping[str, np.ndarray]
OUTPUTS, INPUTS = 8.0, 32.0
"""How many times the median spread the spread of all may be, of outputs and of inputs."""
SMALL = 64.0
"""and how many times smaller, when one site claims nearly all of the rows"""


class Moments(NamedTuple):
    """Numbers of rows, means and sums of squares of one column, by site."""

    rows: np.ndarray
    mean: np.ndarray
    squares: np.ndarray

    def of(self, some: np.ndarray) -> Moments:
        return Moments(self.rows[some], self.mean[some], self.squares[some])

    def pooled(self) -> tuple[float, float]:
        """Mean and spread of all sites together."""
        total = max(float(self.rows.sum()), 1.0)
        mean = float((self.rows * self.mean).sum()) / total
        square = float((self.squares + self.rows * (self.mean - mean) ** 2).sum()) / total
        return mean, float(np.sqrt(max(square, 0.0)))

    def median(self) -> tuple[float, float]:
        """The same by medians of sites."""
        centre = float(np.median(self.mean))
        away = 1.4826 * float(np.median(np.abs(self.mean - centre)))
        within = float(np.median(self.squares / np.maximum(self.rows, 1.0)))
        return centre, float(np.sqrt(within + away**2))

    def excess(self, most: float) -> float:
        """How far the pooled mean and spread are from the medians': fine up to 1."""
        (mean, spread), (centre, usual) = self.pooled(), self.median()
        if (
            usual <= 0.0
        ):  # more than half of the sites are constant: there is no scale to compare with
            return 0.0
        return max(spread / usual / most, abs(mean - centre) / usual / most, usual / spread / SMALL)


def left_out(replies: Sequence[Arrays]) -> list[int]:
    """Numbers of the replies without which the sums agree with the medians; at most half of them."""
    columns = [*_outputs(replies), *_inputs(replies)]
    kept = np.ones(len(replies), bool)
    most = len(replies) - -(-len(replies) // 2)
    while len(replies) - kept.sum() < most:
        worst = max((_excess(m, limit, kept) for m, limit in columns), default=0.0)
        if worst <= 1.0:
            break
        without = [np.inf if not kept[i] else _without(columns, kept, i) for i in range(len(kept))]
        kept[int(np.argmin(without))] = False
    return [int(i) for i in np.flatnonzero(~kept)]


def _without(columns: list[tuple[Moments, float]], kept: np.ndarray, i: int) -> float:
    some = kept.copy()
    some[i] = False
    return max(_excess(moments, limit, some) for moments, limit in columns)


def _excess(moments: Moments, limit: float, kept: np.ndarray) -> float:
    """Among the sites that observed the column at all."""
    own = moments.of(kept & (moments.rows > 0))
    return own.excess(limit) if len(own.rows) > 2 else 0.0


def _outputs(replies: Sequence[Arrays]) -> list[tuple[Moments, float]]:
    Q = len(replies[0]["y_pairs"])
    found = []
    for q in range(Q):
        parts = [[a[name][q, q] for a in replies] for name in ("y_pairs", "y_mean", "y_cross")]
        found.append((Moments(*(np.asarray(p, np.float64) for p in parts)), OUTPUTS))
    return found


def _inputs(replies: Sequence[Arrays]) -> list[tuple[Moments, float]]:
    rows = np.array([float(a["rows"][0]) for a in replies])
    found = []
    for j in range(len(replies[0]["x_sum"])):
        mean = np.array([a["x_sum"][j] for a in replies]) / rows
        within = np.array([a["x_within"][j] for a in replies])
        found.append((Moments(rows, mean, within), INPUTS))
    return found
