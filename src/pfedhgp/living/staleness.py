"""Whether new rows are what the model expected, so that its parameters may stay.

Under the model, new rows of a client are y ~ N(μ, C), and z = L⁻¹(y − μ) with C = L Lᵀ are independent and
N(0, 1). The distribution of the client's residuals in the fit makes them g, which is N(0, 1) for heavy tails
too (`pfedhgp.gp.tails`). Σ g² of n cells is χ²_n, with n divided by what dependence makes of its variance;
the scale was learned from ν cells, so that Σ g²/n is compared with F(n, ν). Parameters are called stale if so
large a sum has a chance below 1%; the chances of several stretches and clients are corrected for their number
(Bonferroni), so that an update as a whole gives a false alarm in 1 of 100 cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pfedhgp.data.rows import ClientRows
from pfedhgp.gp.linalg import LOG_2PI, solve_lower
from pfedhgp.gp.tails import Tails, as_the_model_says, dependence
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.prediction import predict

ALARM = 0.01
"""The chance of a false alarm."""
TOGETHER = 400
"""Cells that are scored together: longer stretches are cut."""


@dataclass(frozen=True)
class Surprise:
    """How well a client's new rows were predicted before they were added."""

    client: str
    cells: int
    log_score: float
    """Predictive log-density of the rows, in nats per cell, in the data's units"""
    expected: float
    """What the model expected of it"""
    p: float
    """The chance of so low a log-score if the model is right"""


def surprise(model: FittedModel, rows: ClientRows, *, learned_from: int) -> Surprise:
    """Scores a client's rows; `learned_from` is the number of its cells that the parameters are from."""
    order = np.lexsort(rows.X.T[::-1])
    each, known = max(1, TOGETHER // rows.Y.shape[1]), tails_of(model, rows.name)
    chances, cells, squares, logs = [], 0, 0.0, 0.0
    for start in range(0, len(order), each):
        part = order[start : start + each]
        Y = rows.Y[part]
        z, log = Expected.of(model, rows.name, rows.X[part]).whitened(Y)
        if not len(z):
            continue
        chances.append(chance(scores(z, Y, known), learned_from, known))
        cells, squares = cells + len(z), squares + float(z @ z)
        logs += log + len(z) * LOG_2PI
    return Surprise(
        client=rows.name,
        cells=cells,
        log_score=-0.5 * (squares + logs) / cells,
        expected=-0.5 * (cells + logs) / cells,
        p=min(1.0, min(chances) * len(chances)),
    )


class Expected(NamedTuple):
    """N(μ, C) of a client's cells at some inputs, row by row, noise included."""

    mean: np.ndarray
    covariance: np.ndarray

    @staticmethod
    def of(model: FittedModel, client: str, X: np.ndarray) -> Expected:
        found = predict(model, client, X)
        return Expected(found.mean.reshape(-1), found.covariance("joint"))

    def whitened(self, Y: np.ndarray) -> tuple[np.ndarray, float]:
        """L⁻¹(y − μ) of the observed cells, C = L Lᵀ, and log|C|.

        Entries are N(0, 1) each: what a cell says beyond those before it.
        """
        seen = np.isfinite(Y).reshape(-1)
        L = np.linalg.cholesky(self.covariance[np.ix_(seen, seen)])
        z = solve_lower(L, (Y.reshape(-1) - self.mean)[seen][:, None])[:, 0]
        return z, 2.0 * float(np.log(np.diagonal(L)).sum())


def scores(z: np.ndarray, Y: np.ndarray, known: Sequence[Tails]) -> np.ndarray:
    """What `Expected.whitened` gave of the cells of Y, as if it were N(0, 1)."""
    output = np.broadcast_to(np.arange(Y.shape[1]), Y.shape)[np.isfinite(Y)]
    g = np.zeros_like(z)
    for q, own in enumerate(known):
        g[output == q] = own.scores(z[output == q])
    return g


def tails_of(model: FittedModel, client: str) -> list[Tails]:
    """How residuals of each output are distributed: as in the fit, or as the model says."""
    kept = model.sums.get(client)
    if kept is not None and kept.tails is not None:
        return [Tails.from_array(each) for each in kept.tails]
    own = model.clients.get(client)
    noise = model.population.noise if own is None else own.block.noise.covariance(model.outputs)
    return [as_the_model_says(float(each)) for each in np.diagonal(np.asarray(noise))]


def chance(g: np.ndarray, learned_from: int, known: Sequence[Tails]) -> float:
    """That |g|² is so large if the model is right, and its scale was learned from so many cells."""
    spells = max(dependence(own.squares, len(g) // len(known)) for own in known)
    longest = max(float(own.squares[-1]) for own in known)
    from_cells = min([learned_from, *(own.cells * len(known) for own in known)])
    return float(larger(np.mean(g**2), len(g) / spells, max(from_cells, 1.0) / longest))


def larger(mean: Any, cells: Any, learned_from: Any) -> Any:
    """P(F > mean) for F(cells, learned_from); χ² if infinitely many were learned from."""
    from scipy.special import fdtrc, gammaincc

    if np.isinf(learned_from):
        return gammaincc(0.5 * cells, 0.5 * cells * mean)
    return fdtrc(cells, learned_from, mean)


def together(found: Sequence[Surprise]) -> float:
    """The chance that any of the clients looks so bad if the model is right."""
    return min([1.0, *(each.p * len(found) for each in found)])
