"""Numbers without a limit of their own must be of a size that other sites' numbers have.

For derivatives, sums over cycles and sums of a diagnosis the model states no limit. But a site whose array
has ten thousand times the norm of the usual one, beyond what its rows explain, does not belong to this sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

Arrays = Mapping[str, np.ndarray]
MANY = 1e4
"""How many times the median norm an array may have, times the site's rows over the median site's."""


def too_large(
    replies: Sequence[Arrays], rows: Sequence[float], names: Sequence[str]
) -> dict[int, str]:
    """By number of the reply: the first array of `names` that is out of all proportion."""
    share = np.maximum(np.asarray(rows) / max(float(np.median(rows)), 1.0), 1.0)
    found: dict[int, str] = {}
    for name in names:
        if name not in replies[0]:
            continue
        norms = np.array([float(np.linalg.norm(a[name])) for a in replies])
        usual = float(np.median(norms))
        if usual <= 0.0:  # most send zeros, and there is nothing to compare with
            continue
        for i in np.flatnonzero(norms > MANY * usual * share):
            found.setdefault(int(i), name)
    return found
