"""Which cells cycles have: cycles with the same ones are a group, and compute together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def groups_of(seen: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(cells that are there (n, Q), which cycles) for each pattern of (C, n, Q), by its first cycle."""
    patterns: dict[bytes, list[int]] = {}
    for index, cells in enumerate(np.packbits(seen.reshape(len(seen), -1), axis=1)):
        patterns.setdefault(cells.tobytes(), []).append(index)
    for members in patterns.values():
        yield seen[members[0]], np.asarray(members)


def row_precision(noise: np.ndarray, there: np.ndarray) -> np.ndarray:
    """P_n, (n, Q, Q): the inverse of the observed block of Σ_ε at each row, zero elsewhere."""
    both = there[:, :, None] & there[:, None, :]
    gone = np.eye(len(noise))[None] * (~there)[:, :, None]
    return np.linalg.inv(np.where(both, noise[None], 0.0) + gone) * both
