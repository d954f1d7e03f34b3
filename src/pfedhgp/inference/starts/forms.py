"""Which form of kernel suits a client's rows, by each output alone: log evidences that add over clients.

    y ~ N(0, s² K),  K = (1 − a) k_long(r/ℓ_long) + a k_short(r/ℓ_short) + noise · I,  s² at its best

A client alone cannot tell what is shared from what is its own. But under the model each of its outputs is
such a Gaussian: a smooth part at the long scale, detail at the short one. So the sum of the clients' best log
evidences says which forms are worth training. It costs no exchange, and no gradient: scales, share and noise
are those of a grid around the client's own variogram.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import lapack

from pfedhgp.gp.kernels import KERNELS
from pfedhgp.inference.starts import census

FORMS = ("rbf", "matern52", "matern32", "rational_quadratic")
"""The forms that are compared, in the order of the rows (long) and columns (short) of a table."""
ROUGH = "matern12"
"""The form beside RBF that a background may have: a random walk must not pass for slow waves."""
MOST_ROWS = 80
"""Half of them neighbours, which show how rough a function is, and half spread over the domain."""
LEAST_ROWS = 8
AROUND = (0.4, 0.63, 1.0, 1.6, 2.5)
NEAR = (0.8, 1.0, 1.3, 1.8)
"""Multiples of both scales: first for RBF alone, then for every form around its best (rough forms need
longer scales than RBF for the same functions)."""
AROUND_NOISE = (0.04, 0.2, 1.0, 5.0)
NOISES = (1e-3, 1e-2, 0.05, 0.2)
SHARES = (0.25, 0.6)


@dataclass(frozen=True)
class Background:
    """K of one client: both scales in the unit box, the share of the short one, and the noise."""

    long: float
    short: float
    share: float
    noise: float
    form: str = FORMS[0]

    def matrix(self, gaps: np.ndarray) -> np.ndarray:
        """K of unit scale at such distances, with the same form at both scales."""
        long, short = (profile(self.form, gaps / scale) for scale in (self.long, self.short))
        return (1.0 - self.share) * long + self.share * short + self.noise * np.eye(len(gaps))


def profile(form: str, r: np.ndarray) -> np.ndarray:
    """The kernel as a function of r = |x − z|/ℓ."""
    kernel = KERNELS[form](1.0)
    return np.asarray(kernel.of_squared(r * r))


def distances(X: np.ndarray) -> np.ndarray:
    return np.sqrt(((X[:, None, :] - X[None, :, :]) ** 2).sum(2))


def complete(Y: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(rows, standardised outputs) of the outputs with the same cells; those that never vary are left out."""
    seen = np.isfinite(Y)
    patterns, which = np.unique(seen, axis=1, return_inverse=True)
    for k, rows in enumerate(patterns.T):
        y = Y[rows][:, which.reshape(-1) == k]
        if len(y) < LEAST_ROWS:
            continue
        spread = y.std(axis=0)
        varies = spread > 1e-10 * np.maximum(np.abs(y).max(axis=0), 1e-300)
        if varies.any():
            yield rows, ((y - y.mean(axis=0)) / np.where(varies, spread, 1.0))[:, varies]


def few_rows(X: np.ndarray) -> np.ndarray:
    """Row numbers of at most `MOST_ROWS` rows along the first input: neighbours in its middle, and others."""
    n = len(X)
    if n <= MOST_ROWS:
        return np.arange(n)
    order, half = np.argsort(X[:, 0], kind="stable"), MOST_ROWS // 2
    middle = np.arange(half) + (n - half) // 2
    return order[np.unique(np.concatenate([middle, np.linspace(0, n - 1, half).astype(int)]))]


def log_evidence(K: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """max over s² of log N(y; 0, s² K) for each column of Y, but for constants; −∞ if K has no factor."""
    factor, failed = lapack.dpotrf(K, lower=1)
    if failed:
        return np.full(Y.shape[1], -np.inf)
    white = lapack.dtrtrs(factor, Y, lower=1)[0]
    power = np.maximum((white**2).mean(axis=0), 1e-300)
    return np.asarray(-0.5 * len(Y) * np.log(power) - np.log(np.diagonal(factor)).sum())


def log_evidences(
    grid: Sequence[Background], gaps: np.ndarray, Y: np.ndarray, forms: tuple[str, str]
) -> np.ndarray:
    """`log_evidence` at each point of a grid, for forms (long, short): (points, Q)."""
    long, short = (
        {scale: profile(form, gaps / scale) for scale in {getattr(each, name) for each in grid}}
        for form, name in zip(forms, ("long", "short"), strict=True)
    )
    eye = np.eye(len(gaps))
    return np.stack(
        [
            log_evidence(
                (1.0 - each.share) * long[each.long]
                + each.share * short[each.short]
                + each.noise * eye,
                Y,
            )
            for each in grid
        ]
    )


def around(
    start: Background, scales: tuple[float, ...], noises: tuple[float, ...]
) -> list[Background]:
    return [
        replace(start, long=start.long * m, short=start.short * k, share=share, noise=noise)
        for m in scales
        for k in scales
        for share in SHARES
        for noise in noises
    ]


def background(
    X01: np.ndarray, Y: np.ndarray, forms: Sequence[str] = (FORMS[0], ROUGH)
) -> Background:
    """The background that suits all outputs (standardised, complete) best, smooth or rough."""
    sums = census.variogram(X01, Y)
    scales = census.starting_scales(sums["lag_sum"], sums["lag_pairs"], np.ones(Y.shape[1]))
    grid = around(Background(scales.long, scales.short, 0.5, 0.01), AROUND, NOISES)
    gaps = distances(X01)
    best = []
    for form in forms:
        found = log_evidences(grid, gaps, Y, (form, form)).sum(axis=1)
        place = int(np.argmax(found))
        best.append((float(found[place]), replace(grid[place], form=form)))
    return max(best, key=lambda each: each[0])[1]


def by_form(X01: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """(long, short): the client's best log evidence with each pair of forms, less that of RBF and RBF."""
    few = few_rows(X01)
    X01, Y = X01[few], Y[few]
    found = np.zeros((len(FORMS), len(FORMS)))
    for rows, outputs in complete(Y):
        X = X01[rows]
        best, gaps = background(X, outputs, FORMS[:1]), distances(X)
        grid = around(best, NEAR, tuple(best.noise * m for m in AROUND_NOISE))
        for i, long in enumerate(FORMS):
            for j, short in enumerate(FORMS):
                found[i, j] += log_evidences(grid, gaps, outputs, (long, short)).max(axis=0).sum()
    return found - found[0, 0]
