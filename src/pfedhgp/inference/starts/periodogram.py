"""Where a periodic kernel starts: a periodogram that adds over clients, so that no row leaves its owner.

The bound has many local optima in a period, so a search finds the right one only if it starts near it. For
each of a fixed list of periods, a client computes how much a periodic function beside its usual background
adds to the log evidence of its outputs:

    log N(y; 0, K + F_p D F_pᵀ) − log N(y; 0, K),   F_p = cos and sin of 2πkx/p, k = 1 … 4

K is the background of `forms`: smooth and rough detail and noise, so that these do not pass for waves. D is a
plain wave's (k = 1 alone), or has the spectrum of a periodic kernel with lengthscale 0.8. The server adds up,
and takes the largest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from pfedhgp.inference.starts import forms

PERIODS = 1.0 / np.concatenate([np.arange(2.25, 10.0, 0.0625), np.arange(10.0, 128.0, 0.25)])
"""In the unit box: from a little over two waves on the domain to 128. Up to ten by sixteenths of a wave,
beyond by quarters: few waves have a broad peak, and from its flank a search may find another optimum."""
MOST_ROWS = 600
SPECTRA = (np.array([0.1]), 0.1 * np.array([0.553, 0.296, 0.113, 0.038]))
"""Variances of the harmonics in the background's scale: a plain wave, and a periodic kernel's I_k(1/0.8²)."""
NEARLY = 0.8
"""Of the highest gain: the half or third of a period that has as much is the period itself."""


def gains(x01: np.ndarray, Y: np.ndarray, periods: np.ndarray = PERIODS) -> np.ndarray:
    """What a wave of each period adds to the log evidence of all outputs, each alone; (spectra, periods).

    A client with too few rows to say anything says zero.
    """
    total = np.zeros((len(SPECTRA), len(periods)))
    for rows, outputs in forms.complete(Y):
        x = x01[rows]
        few = forms.few_rows(x[:, None])
        K = forms.background(x[few, None], outputs[few]).matrix(np.abs(x[:, None] - x))
        factor = np.linalg.cholesky(K)
        white = solve_triangular(factor, outputs, lower=True)
        white = white / np.sqrt((white**2).mean(axis=0))
        angle = 2.0 * np.pi * x[:, None] / periods
        waves = [turn(k * angle) for k in (1, 2, 3, 4) for turn in (np.cos, np.sin)]
        stacked = np.stack(waves, axis=2)
        F = solve_triangular(factor, stacked.reshape(len(x), -1), lower=True)
        F = F.reshape(stacked.shape)
        gram = np.einsum("npi,npj->pij", F, F, optimize=True)
        linear = np.einsum("npi,nq->piq", F, white, optimize=True)
        for own, spectrum in zip(total, SPECTRA, strict=True):
            own += _gain(gram, linear, np.repeat(spectrum, 2))
    return total


def _gain(gram: np.ndarray, linear: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """½ bᵀ(I + D^½ G D^½)⁻¹b − ½ log|I + D^½ G D^½| for each period, b = D^½ Fᵀy, over all outputs."""
    k, root = len(variances), np.sqrt(variances)
    A = np.eye(k) + root[:, None] * gram[:, :k, :k] * root
    b = root[:, None] * linear[:, :k]
    fitted = np.einsum("piq,piq->p", b, np.linalg.solve(A, b))
    return np.asarray(0.5 * (fitted - b.shape[2] * np.linalg.slogdet(A)[1]))


class Found(NamedTuple):
    """A period, in the unit box, and what it adds to the log evidence of all clients, in nats."""

    period: float
    gain: float


def starting_period(total: np.ndarray, periods: np.ndarray = PERIODS) -> Found:
    """The period that explains most in all clients together, from their `gains`.

    Twice and three times the period of a plain wave explain it as well as a rich wave: then the shortest is
    taken. And an overtone of a rich wave may look like a plain one: then the rich one is taken.
    """
    plain, rich = (int(np.argmax(own)) for own in total)
    gain = float(max(total[0, plain], total[1, rich]))
    if total[1, rich] <= 0.0:
        return Found(float(periods[plain]), gain)
    for parts in (3, 2):
        near = np.flatnonzero(np.abs(parts * periods / periods[rich] - 1.0) < 0.03)
        if len(near) and total[1, near].max() >= NEARLY * total[1, rich]:
            rich = int(near[int(np.argmax(total[1, near]))])
            break
    ratio = periods[rich] / periods[plain]
    overtone = min(abs(ratio - parts) for parts in (1, 2, 3)) < 0.1
    better = rich if overtone or total[1, rich] >= total[0, plain] else plain
    return Found(float(periods[better]), gain)


def by_input(X01: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """`gains` along each input, (spectra, d, periods); a sample of the rows if they are many.

    Of waves that are shorter than four of its rows a client says the worst that it says of any: they would
    all fit.
    """
    step = -(-len(X01) // MOST_ROWS)
    X01, Y = X01[::step], Y[::step]
    slow = 4.0 / max(len(X01), 1) <= PERIODS
    found = np.zeros((len(SPECTRA), X01.shape[1], len(PERIODS)))
    if slow.any():
        for j, x in enumerate(X01.T):
            own = gains(x, Y, PERIODS[slow])
            found[:, j] = np.minimum(own.min(axis=1), 0.0)[:, None]
            found[:, j, slow] = own
    return found
