"""Fixed point in Z_2⁶⁴, in which sums wrap around and masks have no bias.

    x is sent as round(x · 2^f) mod 2⁶⁴,   f = min(32, 62 − ⌈log₂(T · bound)⌉),

so that a sum of T numbers of at most `bound` stays below 2⁶² and its sign is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from pfedhgp.errors import NumericsError

MOST_PLACES, ROOM = 32, 62
LARGEST, LARGEST_SMALL = 2.0**36, 2.0**30
"""What a total may be at most, and one of SMALL_FIELDS: 26 and 32 binary places, for 100 sites 7e-7."""
SMALL_FIELDS = frozenset(
    (
        *("clients", "noise", "deviation_square", "local_square", "deviation_power", "traits"),
        *("y_clients", "x_mantissa", "y_mantissa", "client_loadings", "client_loadings_square"),
    )
)
"""Fields that do not grow with the rows, and of which small values count."""

Shapes = Mapping[str, tuple[int, ...]]


def places(sites: int, bound: float) -> int:
    """f, the number of binary places."""
    found = min(MOST_PLACES, ROOM - math.ceil(math.log2(sites * bound)))
    if found < 0:
        raise ValueError(f"{sites} numbers of up to {bound:g} do not fit 64 bits")
    return found


def bound_of(name: str, sites: int) -> float:
    """What a number of this field may be at most in a reply; `other 1.U` is a U."""
    small = name.rpartition(".")[2] in SMALL_FIELDS
    return (LARGEST_SMALL if small else LARGEST) / sites


def encoded(arrays: Mapping[str, np.ndarray], shapes: Shapes, sites: int) -> np.ndarray:
    """A reply as one vector of Z_2⁶⁴, field by field in the order of their names."""
    parts = []
    for name in sorted(shapes):
        bound, array = bound_of(name, sites), arrays[name]
        if not np.all(np.abs(array) <= bound):  # a NaN is refused as well
            raise NumericsError(
                f"masks: a number of `{name}` is above {bound:.0e} or not finite: rescale the data, or "
                "fit without masks"
            )
        scaled = np.rint(np.ldexp(array, places(sites, bound))).astype(np.int64)
        parts.append(scaled.reshape(-1).view(np.uint64))
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


def decoded(total: np.ndarray, shapes: Shapes, sites: int) -> dict[str, np.ndarray]:
    """The inverse of `encoded` for a sum of replies, in the order of `shapes`."""
    found, start = {}, 0
    for name in sorted(shapes):
        size = math.prod(shapes[name])
        part = total[start : start + size].view(np.int64).astype(np.float64)
        found[name] = np.ldexp(part, -places(sites, bound_of(name, sites))).reshape(shapes[name])
        start += size
    if start != total.size:
        raise ValueError(f"{total.size} numbers where {start} are expected")
    return {name: found[name] for name in shapes}
