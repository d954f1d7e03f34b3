"""Where a periodic kernel starts: a periodogram that adds over clients, so that no row leaves its owner.

The bound has many local optima in a period, so a search finds the right one only if it starts near it. For
each of a fixed list of periods, a client fits a smooth background and sends how much of the rest a wave of
that period explains. The server adds up and takes the largest.
"""

from __future__ import annotations

import numpy as np

BACKGROUND = 4
"""Half waves over the domain that count as background: all that is slower than the slowest period."""
PERIODS = 1.0 / np.concatenate([np.arange(2.25, 10.0, 0.0625), np.arange(10.0, 128.0, 0.25)])
"""In the unit box: from a little over two waves on the domain to 128. Up to ten by sixteenths of a wave,
beyond by quarters: few waves have a broad peak, and from its flank a search may find another optimum."""
MOST_ROWS = 2000


def explained(x01: np.ndarray, Y: np.ndarray, periods: np.ndarray = PERIODS) -> np.ndarray:
    """For each period p the share |C_pᵀR|²/|R|² of the outputs that its wave explains, summed over outputs.

    R = Y less its projection on cos(πkx), k ≤ 4, and C_p spans cos and sin of 2πx/p less theirs. A client
    with too few rows to say anything says zero.
    """
    total = np.zeros(len(periods))
    for y in Y.T:
        seen = np.isfinite(y)
        if seen.sum() < BACKGROUND + 4:
            continue
        x = x01[seen]
        slow = np.linalg.qr(np.cos(np.pi * np.outer(x, np.arange(BACKGROUND + 1))))[0]
        rest = y[seen] - slow @ (slow.T @ y[seen])
        power = float(rest @ rest)
        if power <= 1e-20 * max(float(y[seen] @ y[seen]), 1e-300):
            continue
        angle = 2.0 * np.pi * x[:, None] / periods
        waves = np.stack([np.cos(angle), np.sin(angle)])
        waves = waves - np.einsum("nk,mk,cmp->cnp", slow, slow, waves, optimize=True)
        span = np.linalg.qr(np.moveaxis(waves, 2, 0).swapaxes(1, 2))[0]
        total += np.sum(np.einsum("pnc,n->pc", span, rest) ** 2, axis=1) / power
    return total


def starting_period(total: np.ndarray, periods: np.ndarray = PERIODS) -> float:
    """The period, in the unit box, that explains most in all clients together."""
    return float(periods[int(np.argmax(total))])


def by_input(X01: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """The sums of `explained` along each input, (d, periods); a sample of the rows if they are many.

    A client leaves out waves that are shorter than four of its rows: any of them would fit.
    """
    step = -(-len(X01) // MOST_ROWS)
    X01, Y = X01[::step], Y[::step]
    slow = 4.0 / max(len(X01), 1) <= PERIODS
    found = np.zeros((X01.shape[1], len(PERIODS)))
    if slow.any():
        found[:, slow] = [explained(x, Y, PERIODS[slow]) for x in X01.T]
    return found
