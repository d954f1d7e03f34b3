"""Before training: what clients say of their rows in sums, and what starting values follow.

Nothing here needs luck or the truth. Each client sends counts and sums; for lengthscales, the sums of
squared output differences by lag (a variogram), over pairs of its own rows. The server fits

    γ(t) = s_short (1 − exp(−t²/2ℓ_short²)) + s_long (1 − exp(−t²/2ℓ_long²)) + s_noise

to their total: the long scale starts the global and deviation layers, the short one the local layer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import combinations

import numpy as np

HISTOGRAM_BINS = 512
HISTOGRAM_REACH = 8.0
LAG_EDGES = np.geomspace(1e-4, 2.0, 49)
PAIR_ROWS = 1500


def moments(
    X: np.ndarray, Y: np.ndarray, observations: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Counts, means and sums around the client's own means, so that values far from zero keep their digits.

    `y_cross` is Σ (y_q − ȳ_q)(y_p − ȳ_p) over rows where both were observed, ȳ being means over these rows:
    `y_mean[q, p]` is that of output q, and `y_pairs` their number. The diagonals are the outputs' own.
    """
    seen = np.isfinite(Y)
    weight = seen.astype(np.float64)
    pairs = weight.T @ weight
    shift = np.array([y[m].mean() if m.any() else 0.0 for y, m in zip(Y.T, seen.T, strict=True)])
    centred = np.where(seen, Y - shift, 0.0)
    away = (centred.T @ weight) / np.maximum(pairs, 1.0)
    return {
        "rows": np.array([float(X.shape[0])]),
        "x_sum": X.sum(0),
        "x_within": ((X - X.mean(0)) ** 2).sum(0),
        "x_means": len(X) * X.mean(0) ** 2,
        "y_clients": seen.any(axis=0).astype(np.float64),
        "y_pairs": pairs,
        "y_mean": np.where(pairs > 0, shift[:, None] + away, 0.0),
        "y_cross": centred.T @ centred - pairs * away * away.T,
        "observations": np.diagonal(pairs).copy() if observations is None else observations,
    }


def merged(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The moments of two sets of rows together: sums add, and means merge by Chan's formula.

        n = n₁ + n₂,  δ = ȳ₂ − ȳ₁,  ȳ = ȳ₁ + δ n₂/n,  Σ(y − ȳ)(y' − ȳ')ᵀ = S₁ + S₂ + δδ'ᵀ n₁n₂/n

    Differences of means keep their digits where differences of sums of squares do not.
    """
    total = {name: one[name] + two[name] for name in one}
    pairs = np.maximum(total["y_pairs"], 1.0)
    apart = np.where(
        (one["y_pairs"] > 0) & (two["y_pairs"] > 0), two["y_mean"] - one["y_mean"], 0.0
    )
    moved = one["y_mean"] + apart * two["y_pairs"] / pairs
    total["y_mean"] = np.where(one["y_pairs"] > 0, moved, two["y_mean"])
    total["y_cross"] += apart * apart.T * one["y_pairs"] * two["y_pairs"] / pairs
    return total


def pooled_spread(sums: dict[str, np.ndarray]) -> np.ndarray:
    """The sd of each input over all clients: within clients and between them.

    Centred at the client, so that inputs far from zero (timestamps) keep their digits; what is between
    clients counts if it is more than rounding.
    """
    rows = sums["rows"]
    between = sums["x_means"] - sums["x_sum"] ** 2 / rows
    between = np.where(between > 1e-12 * sums["x_means"], between, 0.0)
    return np.sqrt((sums["x_within"] + between) / rows)


def histogram(X: np.ndarray, centre: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Rows per bin along each input, over centre ± 8 spread; the outermost bins take what is beyond."""
    position = (X - centre) / np.where(spread > 0, spread, 1.0) / HISTOGRAM_REACH
    index = np.clip(((position + 1.0) / 2.0 * HISTOGRAM_BINS).astype(int), 0, HISTOGRAM_BINS - 1)
    return np.stack(
        [np.bincount(column, minlength=HISTOGRAM_BINS).astype(np.float64) for column in index.T]
    )


def extent(
    counts: np.ndarray, centre: np.ndarray, spread: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(lower, upper) of each input: the outer edges of the outermost bins that hold rows."""
    step = 2.0 * HISTOGRAM_REACH / HISTOGRAM_BINS
    lower, upper = np.empty(len(counts)), np.empty(len(counts))
    for j, column in enumerate(counts):
        filled = np.flatnonzero(column)
        lower[j] = centre[j] + spread[j] * (filled[0] * step - HISTOGRAM_REACH)
        upper[j] = centre[j] + spread[j] * ((filled[-1] + 1) * step - HISTOGRAM_REACH)
    return lower, upper


UNLIMITED = 1e300
STRETCHED = 4.0
"""A domain this many times as wide as nearly all of its rows need is stretched by the others."""


def limits_of_most_rows(
    counts: np.ndarray, centre: np.ndarray, spread: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """(lower, upper) around nearly all rows if a few others stretch the domain; None if none do.

    Nearly all: without a hundredth of the rows at either end, or one row. Inputs that are not stretched
    have no limits.
    """
    full_lower, full_upper = extent(counts, centre, spread)
    lower, upper = np.full(len(counts), -UNLIMITED), np.full(len(counts), UNLIMITED)
    for j, column in enumerate(counts):
        few = max(1.0, 0.01 * column.sum())
        if column.sum() < 8:
            continue
        inner = (np.cumsum(column) > few) & (np.cumsum(column[::-1])[::-1] > few)
        (low,), (high,) = extent(
            np.where(inner, np.maximum(column, 1.0), 0.0)[None],
            centre[j : j + 1],
            spread[j : j + 1],
        )
        if full_upper[j] - full_lower[j] > STRETCHED * (high - low):
            lower[j], upper[j] = low - (high - low), high + (high - low)
    return (lower, upper) if np.any(lower > -UNLIMITED) else None


def variogram(X01: np.ndarray, Y: np.ndarray, seed: int = 0) -> dict[str, np.ndarray]:
    """Sums of ½(y − y')² by lag, and how many pairs, per output; inputs in the unit box.

    Large clients use a sample: blocks of neighbours along the first input, so that short lags are there.
    """
    keep = _neighbouring_rows(X01, seed)
    X01, Y = X01[keep], Y[keep]
    i, j = np.triu_indices(len(X01), 1)
    lag = np.sqrt(((X01[i] - X01[j]) ** 2).sum(1))
    squared = 0.5 * (Y[i] - Y[j]) ** 2
    seen = np.isfinite(squared)
    bins = np.searchsorted(LAG_EDGES, lag) - 1
    inside = (bins >= 0) & (bins < len(LAG_EDGES) - 1)
    bins, squared, seen = bins[inside], np.where(seen, squared, 0.0)[inside], seen[inside]

    def by_lag(values: np.ndarray) -> np.ndarray:
        size = len(LAG_EDGES) - 1
        sums = [np.bincount(bins, column, minlength=size) for column in values.T]
        return np.stack(sums, axis=1).astype(
            np.float64
        )  # without a pair bincount gives whole numbers

    return {"lag_sum": by_lag(squared), "lag_pairs": by_lag(seen)}


def _neighbouring_rows(X01: np.ndarray, seed: int, block: int = 50) -> np.ndarray:
    n = len(X01)
    if n <= PAIR_ROWS:
        return np.arange(n)
    order = np.argsort(X01[:, 0], kind="stable")
    starts = np.random.default_rng(seed).integers(0, n - block, size=PAIR_ROWS // block)
    return np.unique(order[(starts[:, None] + np.arange(block)).reshape(-1)])


@dataclass(frozen=True)
class Scales:
    """Starting lengthscales (unit box) and variances (of outputs with unit variance)."""

    short: float
    long: float
    short_variance: float
    long_variance: float
    noise_variance: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def starting_scales(lag_sum: np.ndarray, lag_pairs: np.ndarray, variances: np.ndarray) -> Scales:
    """Fits the two-scale variogram by non-negative least squares over a grid of lengthscales.

    Waves on a coarse grid have variograms that fall again, and then nearly all of it goes to the noise. If
    that happens, the fit is repeated with the lags up to the highest value.
    """
    pairs = lag_pairs.sum(1)
    used = pairs > 0
    if used.sum() < 4:
        return Scales(0.06, 0.25, 0.3, 0.6, 0.05)
    lag = np.sqrt(LAG_EDGES[1:] * LAG_EDGES[:-1])[used]
    standard = np.where(variances > 0, variances, 1.0)
    gamma = (lag_sum[used] / standard).sum(1) / pairs[used]
    found = _two_scales(lag, gamma, pairs[used])
    rising = int(np.argmax(gamma)) + 1
    if sum(found[2][:2]) < 0.3 * gamma.max() and rising >= 3:
        again = _two_scales(lag[:rising], gamma[:rising], pairs[used][:rising])
        if sum(again[2][:2]) > sum(found[2][:2]):
            found = again
    short, long, (s_short, s_long, s_noise) = found
    total = max(s_short + s_long, 1e-3)
    return Scales(
        short=short,
        long=long,
        short_variance=float(np.clip(s_short, 0.05 * total, 1.5)),
        long_variance=float(np.clip(s_long, 0.05 * total, 1.5)),
        noise_variance=float(np.clip(0.5 * s_noise, 1e-4, 0.5)),
    )


def _two_scales(
    lag: np.ndarray, gamma: np.ndarray, pairs: np.ndarray
) -> tuple[float, float, np.ndarray]:
    """The two lengthscales, and the variances of short, long and noise, that fit a variogram best."""
    weight = np.sqrt(pairs) / (gamma + 0.05)
    grid = np.geomspace(max(lag[0], 2e-3), min(lag[-1], 0.35), 24)
    short, long = np.nonzero(grid[None, :] >= 2.0 * grid[:, None])
    if not len(short):
        return 0.06, 0.25, np.array([0.3, 0.6, 0.05])
    curves = 1.0 - np.exp(-0.5 * (lag / grid[:, None]) ** 2)
    columns = (curves[short], curves[long], np.broadcast_to(1.0, (len(short), len(lag))))
    solutions, misfits = non_negative(np.stack(columns, axis=2) * weight[:, None], gamma * weight)
    best = int(np.argmax(misfits <= (1.0 + 1e-9) * misfits.min()))  # the first of equals
    return float(grid[short[best]]), float(grid[long[best]]), solutions[best]


def non_negative(A: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x ≥ 0 with the least |A x − b|, and that misfit, for each of many A (n, rows, few columns).

    It is the best of the unconstrained solutions of all subsets of columns that have no negative number.
    """
    Q, R = np.linalg.qr(A)
    c = b @ Q
    found, misfit = np.zeros((len(A), A.shape[2])), np.full(len(A), np.linalg.norm(b))
    for size in range(1, A.shape[2] + 1):
        for columns in map(list, combinations(range(A.shape[2]), size)):
            x = np.zeros_like(found)
            x[:, columns] = (np.linalg.pinv(R[:, :, columns]) @ c[:, :, None])[:, :, 0]
            left = np.linalg.norm((A @ x[:, :, None])[:, :, 0] - b, axis=1)
            better = (x >= 0.0).all(axis=1) & (left < misfit)
            found, misfit = np.where(better[:, None], x, found), np.where(better, left, misfit)
    return found, misfit
