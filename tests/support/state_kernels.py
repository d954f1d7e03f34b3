"""Kernels that have states, each beside its dense twin."""

from __future__ import annotations

from pfedhgp.gp.kernels import Matern12, Matern32, Matern52
from support import reference_states as twin

KERNELS = {
    "matern12": (Matern12(0.3), lambda t, u: twin.matern(t, u, 0.3, 1)),
    "matern32": (Matern32(0.2), lambda t, u: twin.matern(t, u, 0.2, 2)),
    "matern52": (Matern52(0.5), lambda t, u: twin.matern(t, u, 0.5, 3)),
    "sum": (
        (0.3 * Matern12(0.05) + 0.7 * Matern52(0.4)).kernel,  # type: ignore[attr-defined]
        lambda t, u: 0.3 * twin.matern(t, u, 0.05, 1) + 0.7 * twin.matern(t, u, 0.4, 3),
    ),
}
