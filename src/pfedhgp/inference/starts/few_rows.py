"""Before training, with privacy="sums": counts, sums and means stand for at least `LEAST_ROWS` rows or pairs.

A client changes its own sums so before they leave it; the server reads them as it reads all others.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from pfedhgp.inference.starts.told import LEAST_ROWS, TELLS_FROM

ROWS_A_BIN = 2 * LEAST_ROWS
"""Rows that a client should have in each bin along the input, on average."""
ROWS_A_WAVE = 12
"""Of waves that are shorter than so many rows a client says nothing: it would say more than it has rows."""


def moments(sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Means and products of outputs that were observed together in too few rows count as not observed.

    A client with fewer than `LEAST_ROWS` rows says nothing: all its sums are those of no row.
    """
    if sums["rows"][0] < LEAST_ROWS:
        return {name: np.zeros_like(array) for name, array in sums.items()}
    enough = sums["y_pairs"] >= LEAST_ROWS
    outputs = {name: np.where(enough, sums[name], 0.0) for name in ("y_pairs", "y_mean", "y_cross")}
    return {**sums, **outputs, "y_clients": sums["y_clients"] * np.diagonal(enough)}


def lags(sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Distances at which there are too few pairs are left out."""
    enough = sums["lag_pairs"] >= LEAST_ROWS
    return {name: np.where(enough, sums[name], 0.0) for name in ("lag_sum", "lag_pairs")}


def waves(gains: np.ndarray, periods: np.ndarray, rows: int) -> np.ndarray:
    """Waves that are shorter than `ROWS_A_WAVE` rows gain nothing; `gains` are by period on the last axis."""
    return np.where(periods * rows >= ROWS_A_WAVE, gains, 0.0)


def forms(evidence: np.ndarray, rows: int) -> np.ndarray:
    """Evidence of so few rows is as long as they are: it is left out."""
    return evidence if rows >= TELLS_FROM else np.zeros_like(evidence)


def histogram(counts: np.ndarray) -> np.ndarray:
    """Rows by bin along each input (d, H), from cells of neighbouring bins with at least `LEAST_ROWS` each.

    A cell begins and ends half way to the rows of the next one, and its rows are put into its bins evenly.
    The first and the last cell reach as far beyond the rows as its rows are apart on average: so the domain
    holds all rows, and does not end at one of them.
    """
    return np.stack([_merged(np.asarray(column)) for column in counts])


def _merged(counts: np.ndarray) -> np.ndarray:
    bins, size = np.repeat(np.arange(len(counts)), counts.astype(int)), len(counts)
    found = np.zeros(size)
    if not len(bins):
        return found
    cells = np.array_split(bins, max(len(bins) // LEAST_ROWS, 1))
    first, last = cells[0], cells[-1]
    edges = [first[0] - _apart(first)]
    edges += [(one[-1] + two[0] + 1) // 2 for one, two in pairwise(cells)]
    edges += [last[-1] + 1 + _apart(last)]
    for cell, begin, end in zip(cells, edges[:-1], edges[1:], strict=True):
        places = np.linspace(begin, max(end - 1, begin), len(cell))
        if cell[0] == cell[-1]:
            places = cell
        np.add.at(found, np.clip(np.round(places).astype(int), 0, size - 1), 1.0)
    return found


def _apart(cell: np.ndarray) -> int:
    """How many bins its rows are apart on average, rounded up."""
    return int(-(-(cell[-1] - cell[0]) // len(cell)))
