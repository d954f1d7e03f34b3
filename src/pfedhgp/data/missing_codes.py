"""Outputs that look like codes for missing values: -999, 9999, or an extreme that repeats far from the rest.

    a code of `CODES`, or a smallest or largest value that one client has three times or more,
    that lies beyond the range of all other values by more than that range; an output of two values has none

The value stays as it is: only the owner of the data knows whether it was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pfedhgp.base.checks import listed, short
from pfedhgp.data.rows import Named
from pfedhgp.errors import warn

CODES = tuple(
    sign * value for value in (99.0, 999.0, 9999.0, 99999.0, 999.9, 9999.9) for sign in (-1.0, 1.0)
)
REPEATED = 3
"""How often a client must have an extreme that is no usual code."""


def warn_of_codes(clients: Sequence[Named], outputs: Sequence[str], *, stacklevel: int = 3) -> None:
    """One warning for each output and value that looks like a code, with the clients that have it."""
    for q, output in enumerate(outputs):
        values = [client.Y[:, q] for client in clients]
        for value in _suspects(values):
            counts = [int(np.sum(own == value)) for own in values]
            names = [short(c.name) for c, n in zip(clients, counts, strict=True) if n]
            known = value in CODES
            what = f"of {value:g}" if known else "of one extreme"
            total = sum(counts)
            whose = f"client{'s' if len(names) > 1 else ''} {listed(names, 3)}"
            warn(
                f"output {short(output)!r}: {total} value{'' if total == 1 else 's'} {what} at {whose} "
                f"look{'s' if total == 1 else ''} like a code for missing, far outside the rest: make "
                "them NaN (an empty cell in a file), or keep them if they were measured",
                stacklevel=stacklevel,
            )


def _suspects(values: Sequence[np.ndarray]) -> Iterator[float]:
    """Values that look like codes, from the outermost inwards."""
    left = np.concatenate([own[np.isfinite(own)] for own in values])
    while len(left):
        low, high = float(left.min()), float(left.max())
        middle = float(np.median(left))
        value = low if middle - low > high - middle else high
        rest = left[left != value]
        if len(rest) < REPEATED or not _far(value, rest):
            return
        most = max(int(np.sum(own == value)) for own in values)
        if value not in CODES and (most < REPEATED or rest.min() == rest.max()):  # 0 and 1, say
            return
        yield value
        left = rest


def _far(value: float, rest: np.ndarray) -> bool:
    """Whether it lies beyond the range of the rest by more than that range; other codes do not widen it."""
    plain = rest[~np.isin(rest, CODES)]
    plain = plain if len(plain) else rest
    low, high = float(plain.min()), float(plain.max())
    return max(low - value, value - high) > high - low
