"""Centred clipping, for replies that are gradients: no site moves the sum far from where most are.

    c ← c + (1/T) Σ_i (g_i − c) min(1, τ/|g_i − c|),   τ = four times the median of |g_i − c|
from the site that is nearest to the others (Karimireddy, He and Jaggi 2021). The sum is T c. If no site is
beyond τ, that is the plain sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

Arrays = Mapping[str, np.ndarray]
STEPS = 5
REACH = 4.0
"""τ, in medians of the distances."""


def clip_to_centre(replies: Sequence[Arrays]) -> tuple[list[dict[str, np.ndarray]], np.ndarray]:
    """The replies, those beyond τ moved towards c; and the share of each one's distance that is left."""
    names = list(replies[0])
    rows = np.stack([np.concatenate([np.ravel(a[n]) for n in names]) for a in replies])
    centre = rows[_nearest(rows)].copy()
    share = np.ones(len(rows))
    for _ in range(STEPS):
        away = rows - centre
        distance = np.linalg.norm(away, axis=1)
        reach = REACH * float(np.median(distance))
        share = np.minimum(1.0, reach / np.maximum(distance, 1e-300))
        moved = centre + share[:, None] * away
        centre = moved.mean(axis=0)
    found = []
    for own, row, part in zip(replies, moved, share, strict=True):
        found.append(dict(own) if part == 1.0 else _split(row, own))
    return found, share


def _split(row: np.ndarray, like: Arrays) -> dict[str, np.ndarray]:
    found, start = {}, 0
    for name, array in like.items():
        found[name] = row[start : start + array.size].reshape(array.shape)
        start += array.size
    return found


def _nearest(rows: np.ndarray) -> int:
    """The site whose median distance to the others is smallest."""
    apart = [np.median(np.linalg.norm(rows - row, axis=1)) for row in rows]
    return int(np.argmin(apart))
