"""Draws why a cycle was taken for one class rather than another: nats along the axis, by channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from pfedhgp.model.words import shown
from pfedhgp.plot.colours import Tints

SHOWN = 4
"""Channels that get a line of their own: those that said most."""
LINES = ("global", "deviation", "local", "held")


def by_stretch(axes: Axes, call: Mapping[str, Any], places: np.ndarray, *, tints: Tints) -> None:
    """Nats for the class chosen, stretch by stretch: the channels that said most."""
    nats = np.asarray(call["nats"])
    for line, q in enumerate(strongest(nats)):
        label = shown(call["channels"][q], 16)
        axes.plot(
            places, nats[q], color=tints[LINES[line]], lw=1.6, label=label, gid=f"channel-{q}"
        )
    axes.axhline(0.0, color=tints["muted"], linewidth=0.7)


def so_far(axes: Axes, call: Mapping[str, Any], places: np.ndarray, *, tints: Tints) -> None:
    """The sum over all channels, from the start up to each place."""
    total = np.cumsum(np.asarray(call["nats"]).sum(axis=0))
    axes.plot(places, total, color=tints["prediction"], lw=1.6, gid="sum")
    axes.axhline(0.0, color=tints["muted"], linewidth=0.7)


def strongest(nats: np.ndarray) -> Sequence[int]:
    """Channels by how much they said, either way."""
    return [int(q) for q in np.argsort(-np.abs(nats).sum(axis=1), kind="stable")[:SHOWN]]
