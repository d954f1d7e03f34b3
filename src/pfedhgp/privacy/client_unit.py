"""μ of a client = m · μ of a row: with at most m rows of each client used, all of them are hidden together.

A Gaussian release that one row moves by μ_row standard deviations is moved by at most m μ_row if m rows come
or go (group privacy; Dong, Roth and Su 2022, Gaussian differential privacy, section 2.4). A client with more
rows uses m of them for everything that leaves it, chosen by the operating system's randomness. The choice
does not change between the steps of a fit, so that a client can take its own part out of totals again.
"""

from __future__ import annotations

import hashlib
import hmac

import numpy as np

FEWEST_CLIENTS = 100
"""With fewer, the noise that hides a whole client hides the shared function too."""


def rows_used(count: int, most: int | None, key: bytes) -> np.ndarray:
    """Which of so many rows leave a trace in what a client sends, in order; None: all of them."""
    if most is None or count <= most:
        return np.arange(count)
    ranks = [hmac.digest(key, str(i).encode("ascii"), hashlib.sha256) for i in range(count)]
    return np.sort(sorted(range(count), key=ranks.__getitem__)[:most])


def of_a_row(mu: float, most: int | None) -> float:
    """μ of each row, if μ is what the unit of privacy may cost: a row, or a client with so many rows."""
    return mu if most is None else mu / most
