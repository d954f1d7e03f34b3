"""A rule of thumb: how well the global layer can be told apart from the deviations.

Both layers have the same kernel, so one client's f_g + f_δ,i does not say which is which; only the other
clients do. The mean of T clients' smooth parts is f_g plus an error of variance φ/T, so expect about

    corr(f̂_g, f_g) = 1/√(1 + φ/T_eff),   T_eff = (Σ n_i)²/Σ n_i²

where φ is the deviations' variance relative to the global layer's. `pfedhgp reproduce stability` checks it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pfedhgp.errors import InputError


def effective_clients(rows: Sequence[int]) -> float:
    """(Σn)²/Σn²: how many clients of equal size would tell as much about the global layer.

    >>> effective_clients([50, 50, 50])
    3.0
    """
    sizes = np.asarray(rows, np.float64)
    if sizes.size == 0 or (sizes <= 0).any():
        raise InputError(f"`rows` must be positive numbers of rows, got {list(rows)!r}")
    return float(sizes.sum() ** 2 / (sizes**2).sum())


def expected_recovery(rows: Sequence[int], phi: float) -> float:
    """corr(f̂_g, f_g) = 1/√(1 + φ/T_eff): the expected correlation of the fitted global layer.

    `phi` is the deviations' variance relative to the global layer's.

    >>> round(expected_recovery([50] * 6, 1.2), 3)
    0.913
    """
    if phi < 0:
        raise InputError(f"`phi` must not be negative, got {phi!r}")
    return float(1.0 / np.sqrt(1.0 + phi / effective_clients(rows)))


def split_is_stable(rows: Sequence[int], phi: float, *, wanted: float = 0.9) -> bool:
    """Whether the global layer may be read as "what all share": its expected recovery is at least `wanted`.

    At 0.9 that is φ ≤ 0.23 T_eff: about four clients for each unit of φ. If it is lower, the sum of a
    client's global and deviation layers is still sound, but the split between them is not.

    >>> split_is_stable([50] * 6, 1.2), split_is_stable([50] * 2, 1.2)
    (True, False)
    """
    return expected_recovery(rows, phi) >= wanted
