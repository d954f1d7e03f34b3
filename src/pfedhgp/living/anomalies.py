"""Rows that look wrong: how likely they are if nothing is wrong, row by row and stretch by stretch.

Under the model a client's new rows are y ~ N(μ, C) with C = L Lᵀ. In order of their inputs, z = L⁻¹(y − μ)
are independent and N(0, 1) if nothing is wrong: what each row says beyond those before it. Real residuals
have heavier tails and come in spells, so z becomes g, which is N(0, 1) by the distribution of the client's
residuals in the fit (`pfedhgp.gp.tails`), with factors for dependence. Then

    a row       |g| of its cells
    a stretch   energy: Σ g² is χ²_w;  shift and drift: with d = L⁻¹ (a step, a ramp), dᵀg/|d| is N(0, 1)
    stuck       Σ (y_t − y_{t−1})² is less than that of nearly all stretches of the fit; values of rows that
                are closer together than those of the fit differ less by right, and are not judged by it

Each gives a chance. A row's chance by its stretch is the smallest of all stretches that it lies in, times how
many were looked at (Bonferroni), so that below 1% come about 1% of rows if nothing is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.special import gammainc, ndtr

from pfedhgp.gp.linalg import solve_lower
from pfedhgp.gp.tails import LENGTHS, Tails
from pfedhgp.living.staleness import Expected, larger, tails_of
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.kept_sums import row_hashes, usual_step

TOGETHER = 300
"""Rows that are judged together, with the `BEFORE` rows before them."""
BEFORE = 100
CLOSER = 0.75
"""A stretch whose usual step is less than this many of the fit's is not judged by `stuck`."""
KINDS = ("energy", "shift", "drift", "stuck")


@dataclass(frozen=True, eq=False)
class Anomalies:
    """Chances that the rows look so if nothing is wrong, in the order in which they were given."""

    row: np.ndarray
    """By the row alone; NaN without an observed output"""
    stretch: np.ndarray
    """By the stretches that it lies in"""
    kind: np.ndarray
    """What is odd about the most unlikely of these stretches: "energy", "shift", "drift" or "stuck" """

    @property
    def chance(self) -> np.ndarray:
        """Both together: the smaller, times two."""
        return np.minimum(1.0, 2.0 * np.fmin(self.row, self.stretch))

    def among(self, fine: Anomalies) -> Anomalies:
        """With each chance replaced by its rank among those of rows that are fine: (1 + how many)/(1 + n).

        So 1% of fine rows are below 1% whatever the data's tails are, if rows that come are like those. No
        chance is below 1/(1 + n).
        """

        def ranked(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
            known = np.sort(theirs[np.isfinite(theirs)])
            ranks = (1.0 + np.searchsorted(known, mine, side="right")) / (1.0 + len(known))
            return np.where(np.isfinite(mine), ranks, np.nan)

        row, stretch = ranked(self.row, fine.row), ranked(self.stretch, fine.stretch)
        return replace(self, row=row, stretch=stretch)

    def flagged(self, level: float = 0.01) -> np.ndarray:
        """Which rows are less likely than `level`."""
        return np.asarray(self.chance < level)

    def __repr__(self) -> str:
        return (
            f"Anomalies({len(self.row)} rows, {int(self.flagged().sum())} with a chance below 1%)"
        )


def doubts(model: FittedModel, client: str, X: np.ndarray, Y: np.ndarray) -> str | None:
    """Why chances may mislead, in words: the client is not in the model, or its rows are in it already."""
    if client not in model.clients:
        return f"no client {client!r} in the model: its rows are judged by the population"
    kept = model.sums.get(client)
    if kept is None:
        return None
    whole = row_hashes(client, X, Y)[1]
    there = int(np.isin(whole, kept.rows).sum())
    if not there:
        return None
    return (
        f"client {client!r}: {there} of {len(whole)} rows are in the model already, and look better than "
        "they are: judge rows first, then `update`"
    )


class _Block(NamedTuple):
    """Rows that are judged together, in order of their inputs; but for `seen`, of their observed cells."""

    seen: np.ndarray
    """(n, Q): which cells are observed"""
    L: np.ndarray
    z: np.ndarray
    y: np.ndarray
    """In scaled units"""
    x: np.ndarray
    """The first input, in the data's units"""

    @staticmethod
    def of(model: FittedModel, client: str, X: np.ndarray, Y: np.ndarray) -> _Block:
        seen = np.isfinite(Y)
        expected = Expected.of(model, client, X)
        flat = seen.reshape(-1)
        L = np.linalg.cholesky(expected.covariance[np.ix_(flat, flat)])
        z = solve_lower(L, (Y.reshape(-1) - expected.mean)[flat][:, None])[:, 0]
        y = model.scaling.outputs(Y).reshape(-1)[flat]
        x = np.broadcast_to(X[:, :1], Y.shape)[seen]
        return _Block(seen, L, z, y, x)


def anomalies(model: FittedModel, client: str, X: np.ndarray, Y: np.ndarray) -> Anomalies:
    """Judges a client's rows, which are not in the model."""
    n = len(X)
    order = np.lexsort(X.T[::-1])
    row, stretch = np.full(n, np.nan), np.full(n, np.nan)
    kind = np.full(n, "", dtype="<U6")
    known, step = tails_of(model, client), _step_of_the_fit(model, client)
    for start in range(0, n, TOGETHER):
        context = order[max(0, start - BEFORE) : start + TOGETHER]
        mine = slice(min(start, BEFORE), None)
        found = _judged(_Block.of(model, client, X[context], Y[context]), known, step)
        for array, values in zip((row, stretch, kind), found, strict=True):
            array[context[mine]] = values[mine]
    return Anomalies(row, stretch, kind)


def _step_of_the_fit(model: FittedModel, client: str) -> float:
    """The usual step of the rows from which `stuck` was learned; 0 if it was not learned."""
    kept = model.sums.get(client)
    if kept is None or kept.tails is None or kept.span is None:
        return 0.0
    return float(kept.span[1])


def _judged(
    block: _Block, known: list[Tails], step: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n, Q = block.seen.shape
    output = np.broadcast_to(np.arange(Q), (n, Q))[block.seen]
    row_of = np.broadcast_to(np.arange(n)[:, None], (n, Q))[block.seen]
    g = np.zeros_like(block.z)
    for q, own in enumerate(known):
        g[output == q] = own.scores(block.z[output == q])
    each = np.full((n, Q), np.nan)
    each[block.seen] = 2.0 * ndtr(-np.abs(g))
    count = np.maximum(block.seen.sum(axis=1), 1)
    row = np.where(block.seen.any(axis=1), np.fmin.reduce(each, axis=1) * count, np.nan)
    stretch, kind, looked = np.full(n, np.inf), np.full(n, "", dtype="<U6"), np.zeros(n)
    for q, own in enumerate(known):
        cells = np.flatnonzero(output == q)
        stretches = _stretches(len(cells))
        if not stretches:
            continue
        chances = _chances(block, g, cells, stretches, own, step)
        least = np.argmin(chances, axis=1)
        for (first, last), k, chance in zip(stretches, least, chances.min(axis=1), strict=True):
            inside = slice(row_of[cells[first]], row_of[cells[last - 1]] + 1)
            looked[inside] += len(KINDS)
            better = chance < stretch[inside]
            stretch[inside] = np.where(better, chance, stretch[inside])
            kind[inside] = np.where(better, KINDS[k], kind[inside])
    stretch = np.where(looked > 0, np.minimum(1.0, stretch * np.maximum(looked, 1.0)), np.nan)
    return np.minimum(row, 1.0), stretch, kind


def _stretches(count: int) -> list[tuple[int, int]]:
    found = []
    for length in LENGTHS:
        for first in range(0, count - length + 1, length // 2):
            found.append((first, first + length))
    return found


def _chances(
    block: _Block,
    g: np.ndarray,
    cells: np.ndarray,
    stretches: list[tuple[int, int]],
    own: Tails,
    step: float,
) -> np.ndarray:
    """Of all stretches of one output's cells: a row each, in the order of KINDS.

    `step` is the usual one of the fit's rows.
    """
    shapes = np.zeros((len(g), len(stretches), 2))
    for j, (first, last) in enumerate(stretches):
        shapes[cells[first:last], j, 0] = 1.0
        shapes[cells[first:last], j, 1] = np.linspace(0.0, 1.0, last - first)
    turned = solve_lower(block.L, shapes.reshape(len(g), -1))
    moved = np.abs(g @ turned) / np.linalg.norm(turned, axis=0)
    w = np.array([last - first for first, last in stretches])
    which = np.searchsorted(LENGTHS, w)
    mine, y = np.cumsum(np.append(0.0, g[cells] ** 2)), block.y[cells]
    walked = np.cumsum(np.append(0.0, np.diff(y) ** 2))
    ends = np.array(stretches).T
    total = mine[ends[1]] - mine[ends[0]]
    energy = larger(total / w, w / own.squares[which], own.cells / own.squares[-1])
    both = 2.0 * ndtr(-moved.reshape(-1, 2) / np.sqrt(own.sums[which])[:, None])
    steps = np.maximum(walked[ends[1] - 1] - walked[ends[0]], 0.0)
    shape, mean = own.steps_shape[which], own.steps_mean[which]
    x = block.x[cells]
    closer = np.array([usual_step(x[first:last]) < CLOSER * step for first, last in stretches])
    stuck = np.where(closer, 1.0, gammainc(shape, shape * steps / mean))
    return np.stack([energy, both[:, 0], both[:, 1], stuck], axis=1)
