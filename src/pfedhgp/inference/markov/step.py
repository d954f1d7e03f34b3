"""A client's step: its drift, noise and loadings given q(u), then the evidence that it sends.

q(u) and the drift l are independent in q, so that a series y of one output, with m_n and S_n for the shared
functions' moments at its times, has
    F(ψ, c) = log N(y − m c; 0, N_ψ) − ½ Σ_n cᵀS_n c/σ_n²  +  log p(ψ) + log N(c; c̄, Σ_B)
which is quadratic in c: the best c is a linear solve, and a search has three numbers, ψ = log (ℓ, b², σ²).
Evidence about u is then separate at each time: J_n = c cᵀ/σ_n² and h_n = c (y_n − l̂_n)/σ_n².
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from pfedhgp.gp.linalg import LOG_2PI
from pfedhgp.inference import host_lbfgs
from pfedhgp.inference.markov.drifts import Drifts, filtered, smoothed, whiten
from pfedhgp.inference.markov.knots import Evidence, KnotPosterior
from pfedhgp.model.noise_level import features

Array = np.ndarray
STEP = 1e-4
"""Of the differences that give the gradient in ψ, in logarithms."""
FURTHEST = 6.0
"""How far a search may move ψ, in logarithms: further out the arithmetic may overflow."""
SETTLED = 1e-4
"""Nats: a search ends when two steps in a row gained less than this."""


class Series(NamedTuple):
    """The outputs of clients, one series each; `counts` is 0 for a cell that is not there."""

    times: Float[Array, "k n"]
    knots: Float[Array, "k n"]
    """number of the knot that each time belongs to"""
    values: Float[Array, "k n"]
    counts: Float[Array, "k n"]
    weights: Float[Array, "k n"]
    """counts over v, where noise depends on the level: the noise variance is σ²/weight"""
    scatter: Float[Array, " k"]
    """squared distances of replicates from their means, summed"""

    def of_some(self, which: Array) -> Series:
        return Series(*(array[which] for array in self))


class LoadingsPrior(NamedTuple):
    """c ~ N(mean, precision⁻¹) of each series."""

    mean: Float[Array, "k R"]
    precision: Float[Array, "k R R"]

    def of_some(self, which: Array) -> LoadingsPrior:
        return LoadingsPrior(*(array[which] for array in self))


class ExpectedLogs(NamedTuple):
    """ψ ~ N(mean, 1/precision) of each series, as the other clients tell it."""

    mean: Float[Array, "k 3"]
    precision: Float[Array, "k 3"]

    def of_some(self, which: Array) -> ExpectedLogs:
        return ExpectedLogs(*(array[which] for array in self))

    def log_density(self, rows: Float[Array, "*k 3"]) -> Float[Array, "*k"]:
        """Up to a constant."""
        return -0.5 * (self.precision * (rows - self.mean) ** 2).sum(-1)


class Solved(NamedTuple):
    """F at one ψ, and the best loadings there."""

    value: Float[Array, " k"]
    loadings: Float[Array, "k R"]
    precision: Float[Array, "k R R"]
    """of the loadings given all else"""


class Problem(NamedTuple):
    """What is fixed in a round: series, the shared functions at their times, priors."""

    series: Series
    mean: Float[Array, "k n R"]
    covariance: Float[Array, "k n R R"]
    prior: LoadingsPrior
    expected: ExpectedLogs

    @staticmethod
    def of(
        series: Series, q: KnotPosterior, prior: LoadingsPrior, expected: ExpectedLogs
    ) -> Problem:
        return Problem(series, q.mean[series.knots], q.covariance[series.knots], prior, expected)

    def of_some(self, which: Array) -> Problem:
        return Problem(
            self.series.of_some(which),
            self.mean[which],
            self.covariance[which],
            self.prior.of_some(which),
            self.expected.of_some(which),
        )

    def solved(self, rows: Float[Array, "k 3"]) -> Solved:
        """F(ψ, c) at the best c."""
        at, series = Drifts.of_logs(rows), self.series
        columns = np.concatenate([series.values[:, :, None], self.mean], axis=2)
        white, log_det = whiten(filtered(at, series.times, series.weights), columns, series.weights)
        gram = np.einsum("nka,nkb->kab", white, white, optimize=True)
        spread = np.einsum("kn,knrs->krs", series.weights, self.covariance, optimize=True)
        A = gram[:, 1:, 1:] + spread / at.noise[:, None, None]
        b = gram[:, 1:, 0]
        precision = A + self.prior.precision
        pulled = (self.prior.precision @ self.prior.mean[..., None])[..., 0]
        c = np.linalg.solve(precision, (b + pulled)[..., None])[..., 0]
        fit = gram[:, 0, 0] - 2.0 * (c * b).sum(1) + (c * (A @ c[..., None])[..., 0]).sum(1)
        gap = c - self.prior.mean
        priors = (gap * (self.prior.precision @ gap[..., None])[..., 0]).sum(1)
        value = log_constant(series, at.noise) - 0.5 * (log_det + fit + priors)
        value += self.expected.log_density(rows)
        return Solved(value, c, precision)


def log_constant(series: Series, noise: Float[Array, " k"]) -> Float[Array, " k"]:
    """What a filter of means does not say of the log-likelihood: 2π, and replicates around their means."""
    counts = series.counts
    seen = (counts > 0).sum(1)
    logs = np.log(np.where(counts > 0, counts, 1.0)).sum(1)
    beyond = counts.sum(1) - seen
    each = seen * LOG_2PI + logs + beyond * (LOG_2PI + np.log(noise)) + series.scatter / noise
    return -0.5 * each


def search(
    problem: Problem, start: Float[Array, "k 3"], evaluations: int, *, drifts_free: bool
) -> Float[Array, "k 3"]:
    """ψ after L-BFGS; slopes are central differences, all in one long batch. Without drifts, σ² alone."""
    offsets = STEP * np.concatenate([np.zeros((1, 3)), np.eye(3), -np.eye(3)])

    def loss(points: Array, which: Array) -> tuple[Array, Array]:
        every = (points[:, None, :] + offsets[None]).reshape(-1, 3)
        found = problem.of_some(np.repeat(which, 7)).solved(every).value.reshape(-1, 7)
        slope = (found[:, 1:4] - found[:, 4:]) / (2.0 * STEP)
        inside = (np.abs(points - start[which]) < FURTHEST).all(1) & np.isfinite(found).all(1)
        return np.where(inside, -found[:, 0], np.inf), np.where(inside[:, None], -slope, 0.0)

    movable = np.array([drifts_free, drifts_free, 1.0])
    found = host_lbfgs.minimize(
        loss, start, evaluations=evaluations, movable=movable, settled=SETTLED
    )
    return found.x


class Sent(NamedTuple):
    """What the series say: evidence at the knots and its constant, loadings and their spread."""

    evidence: Float[Array, " k"]
    about_knots: list[Evidence]
    loadings: Float[Array, "k R"]
    spread: Float[Array, "k R R"]
    level: Float[Array, "k n"]
    """where the series are predicted to be"""
    level_slope: Float[Array, "k 2"]
    level_curvature: Float[Array, "k 2 2"]
    fourth: Float[Array, " k"]
    """Σ z⁴ of white residuals z of unit mean square"""
    cells: Float[Array, " k"]


def send(
    problem: Problem,
    rows: Float[Array, "k 3"],
    loadings: Float[Array, "k R"] | None,
    knots: int,
) -> Sent:
    """The evidence at ψ and the best loadings; with `loadings` given, those, and no drift (the opening)."""
    at, series = Drifts.of_logs(rows), problem.series
    solved = problem.solved(rows)
    seen = series.counts > 0
    if loadings is None:
        c = solved.loadings
        found = filtered(at, series.times, series.weights)
        rest = np.where(seen, series.values - (problem.mean @ c[..., None])[..., 0], 0.0)
        drift = smoothed(found, rest)
        white, log_det = whiten(found, rest[:, :, None], series.weights)
        log = log_constant(series, at.noise) - 0.5 * (log_det + (white**2).sum((0, 2)))
    else:
        c, drift = loadings, np.zeros_like(series.values)
        rest = series.values
        own = series.weights / at.noise[:, None]
        logs = np.log(np.where(seen, at.noise[:, None] / np.maximum(series.weights, 1e-300), 1.0))
        log = log_constant(series, at.noise) - 0.5 * (logs + own * rest**2).sum(1)
    weights = series.weights / at.noise[:, None]
    left = series.values - drift
    constant = log + 0.5 * (weights * ((rest - drift) ** 2 - left**2)).sum(1)
    about = [_at_knots(knots, series.knots[i], weights[i], left[i], c[i]) for i in range(len(c))]
    level = (problem.mean @ c[..., None])[..., 0] + drift
    spread = np.einsum("kr,knrs,ks->kn", c, problem.covariance, c, optimize=True)
    slope, curvature = _level_sums(level, (series.values - level) ** 2 + spread, weights, seen)
    cells = seen.sum(1).astype(np.float64)
    square = np.where(seen, weights * (series.values - level) ** 2, 0.0)
    fourth = (square**2).sum(1) / np.maximum(square.sum(1) / np.maximum(cells, 1.0), 1e-12) ** 2
    return Sent(
        constant,
        about,
        c,
        np.linalg.inv(solved.precision),
        level,
        slope,
        curvature,
        fourth,
        cells,
    )


def _level_sums(
    level: Array, squares: Array, precisions: Array, seen: Array
) -> tuple[Float[Array, "k 2"], Float[Array, "k 2 2"]]:
    """Slope and expected curvature of log N(0, σ²v) in γ, with each series' own σ² at its best."""
    own = features(level) * seen[..., None]
    count = np.maximum(seen.sum(1), 1)
    around = (own - own.sum(1, keepdims=True) / count[:, None, None]) * seen[..., None]
    slope = 0.5 * np.einsum("kna,kn->ka", around, seen * (squares * precisions - 1.0))
    return slope, 0.5 * np.einsum("kna,knb->kab", around, around)


def _at_knots(knots: int, which: Array, weights: Array, left: Array, c: Array) -> Evidence:
    """Σ over the times of each knot of c cᵀ/σ_n² and c (y_n − l̂_n)/σ_n²"""
    total = np.bincount(which, weights, minlength=knots)
    linear = np.bincount(which, weights * left, minlength=knots)
    return Evidence(total[:, None, None] * np.outer(c, c), linear[:, None] * c)
