"""How fast does what clients have in common vary? A covariogram between clients, from sums.

    C(t) = Σ_{i≠j} Σ (y_i(x) − ȳ_i)(y_j(x + t) − ȳ_j) / number of such pairs

Deviations, local functions and noise are independent between clients, so that C estimates the shared kernel
alone, whatever the loadings. Each client sums its standardised outputs over bins of the one input, and the
products of its own bins; the products of the total less those are the pairs of different clients.

Bins are so wide that a client has four rows in each on average. A client with fewer than two sends zeros, and
bins with a single row are left out: what is sent are sums of rows, never one of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pfedhgp.errors import MessageError

ROWS_A_BIN = 4
LEAST_BINS, MOST_BINS = 16, 4096
"""Over the domain's usual width; the bins reach half of it beyond either end."""
LEAST_SHARE = 0.25
"""Share of the outputs' variance that must be common to all clients at the scale that was found."""


def bins_for(rows_a_client: float, rows_a_bin: int = ROWS_A_BIN) -> int:
    """The largest power of two that leaves a client four rows per bin; 0 if even the fewest bins do not."""
    most = int(np.log2(max(rows_a_client / rows_a_bin, 1.0)))
    bins = min(2**most, MOST_BINS)
    return bins if bins >= LEAST_BINS else 0


def binned(x01: np.ndarray, Y: np.ndarray, bins: int, least: int = 2) -> dict[str, np.ndarray]:
    """A client's sums and counts by output and bin, and the products of its own bins by lag.

    A bin of fewer than `least` rows is left out: a bin of one row would be that row.
    """
    if not LEAST_BINS <= bins <= MOST_BINS:
        raise MessageError(f"{bins} bins were asked for: {LEAST_BINS} to {MOST_BINS} are answered")
    Q = Y.shape[1]
    sums, counts = np.zeros((Q, 2 * bins)), np.zeros((Q, 2 * bins))
    place = np.floor((x01 + 0.5) * bins).astype(int)
    inside = (place >= 0) & (place < 2 * bins)
    for q, y in enumerate(Y.T):
        used = inside & np.isfinite(y)
        spread = float(np.std(y[used])) if used.any() else 0.0
        if used.sum() < 2 * bins or spread == 0.0:  # whoever asks: no finer than two rows a bin
            continue
        standard = (y[used] - y[used].mean()) / spread
        counted = np.bincount(place[used], minlength=2 * bins).astype(np.float64)
        summed = np.bincount(place[used], weights=standard, minlength=2 * bins)
        several = counted >= least
        sums[q], counts[q] = np.where(several, summed, 0.0), np.where(several, counted, 0.0)
    return {
        "bin_sum": sums,
        "bin_rows": counts,
        "own_products": _products(sums),
        "own_pairs": _products(counts),
    }


def _products(values: np.ndarray) -> np.ndarray:
    """Σ_q Σ_b v_qb v_q,b+k for each lag k ≥ 0, by the fast Fourier transform."""
    size = values.shape[1]
    waves = np.fft.rfft(values, 2 * size, axis=1)
    return np.fft.irfft(np.sum(np.abs(waves) ** 2, axis=0), 2 * size)[:size]


def between_clients(total: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(sum of products, number of pairs) of rows of different clients, by lag in bins."""
    products = _products(total["bin_sum"]) - total["own_products"]
    pairs = _products(total["bin_rows"]) - total["own_pairs"]
    return products, np.maximum(np.round(pairs), 0.0)


def shared_scale(total: Mapping[str, np.ndarray]) -> tuple[float, float] | None:
    """(lengthscale, variance) of C(t) ≈ v exp(−t²/2ℓ²) + c, in usual widths of the domain.

    c ≤ 0 is what centring at each client takes away. None if no scale fits.
    """
    products, pairs = between_clients(total)
    lag = np.arange(len(pairs)) * 2.0 / len(pairs)
    used = (pairs > 0) & (lag < 0.6)
    if used.sum() < 4:
        return None
    lag, root = lag[used], np.sqrt(pairs[used])
    target = products[used] / root
    best = None
    for scale in np.geomspace(0.5 * lag[1], 0.5, 40):
        design = np.stack([np.exp(-0.5 * (lag / scale) ** 2), np.ones_like(lag)], 1) * root[:, None]
        (variance, offset), *_ = np.linalg.lstsq(design, target, rcond=None)
        misfit = float(np.sum((design @ np.array([variance, offset]) - target) ** 2))
        if variance > 0 and (best is None or misfit < best[0]):
            best = (misfit, float(scale), float(variance))
    return None if best is None else best[1:]


def is_short(found: tuple[float, float] | None, *, short: float, long: float) -> bool:
    """Whether the shared scale is the shorter of the variogram's two: about it, or far below the long one."""
    if found is None or found[1] < LEAST_SHARE:
        return False
    return found[0] <= 1.2 * short or found[0] <= 0.1 * long
