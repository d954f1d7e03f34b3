"""N(0, τ²) in a total as shares N(0, τ²/(T − f)) of its T clients, of whom f may drop out or collude.

Whoever takes away the shares of f clients still has the noise of the others, of variance τ² at least. A sum
of discrete Gaussians is not a discrete Gaussian, but nearly: of k of them with standard deviation σ, in steps
of the grid, log probabilities differ by at most 10 Σ_{j<k} exp(−2π²σ² j/(j + 1)) ≤ 10 (k − 1) exp(−π²σ²)
(Kairouz, Liu and Steinke 2021, The distributed discrete Gaussian mechanism). From 64 steps on, and fewer are
refused, that is below 10⁻¹⁷⁰⁰⁰ for each number. `MARGIN` of the accounting is 10⁻⁴.
"""

from __future__ import annotations

import math
import secrets

import numpy as np

from pfedhgp.errors import InputError
from pfedhgp.privacy.discrete_gaussian import Below, noise, on_grid

GRID = 2.0**-20
"""Totals lie on multiples of it: a sum of numbers on it, in fixed point or floating point, is exact."""
FEWEST_STEPS = 64.0
"""Of a share's standard deviation, in steps of the grid."""
FEWEST_CLIENTS = 3


def tolerated(clients: int, asked: int | None, unmasking: int | None = None) -> int:
    """f: what was asked for, or a third of the clients.

    With masks it must be below the number of clients that can unmask another one together with a server
    that lies: more noise would not help against them.
    """
    if clients < FEWEST_CLIENTS:
        raise InputError(
            f"privacy='distributed' needs {FEWEST_CLIENTS} clients, there are {clients}: with two, the total "
            "less one's own part is the other's"
        )
    f = clients // 3 if asked is None else asked
    if not 0 <= f < clients:
        raise InputError(
            f"`tolerated` must be from 0 to {clients - 1} with {clients} clients, got {f}"
        )
    if unmasking is not None and f >= unmasking:
        raise InputError(
            f"`tolerated` must be below {unmasking} with masks and {clients} clients, got {f}: {unmasking} "
            "clients and a server that lies can unmask another client"
        )
    return f


def share_of(deviation: float, clients: int, missing: int) -> float:
    """τ/√(T − f): the standard deviation that each client adds."""
    if deviation == 0.0:
        return 0.0
    share = deviation / math.sqrt(clients - missing)
    if not share >= FEWEST_STEPS * GRID:
        raise InputError(
            f"a client's share of the noise is {share:g}, too little for the grid: choose a smaller ε"
        )
    return share


def in_total(share: float, clients: int) -> float:
    """The standard deviation of the noise in a total of so many clients, as the server knows it."""
    return share * math.sqrt(clients)


def log_gap(count: int, steps: float) -> float:
    """log of the bound 10 (k − 1) exp(−π²σ²) on how far a sum of k is from a discrete Gaussian."""
    return -math.inf if count < 2 else math.log(10.0 * (count - 1)) - (math.pi * steps) ** 2


def with_share(
    values: np.ndarray, deviations: np.ndarray | float, below: Below = secrets.randbelow
) -> np.ndarray:
    """Values on the grid with noise of these standard deviations; without any, the values as they are."""
    given = np.broadcast_to(np.asarray(deviations, np.float64), values.shape)
    if not np.any(given):
        return np.asarray(values, np.float64)
    return on_grid(values, GRID) + noise(given, below, GRID)
