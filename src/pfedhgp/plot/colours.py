"""The colours of figures by role: those of the report's light and dark pages.

Drawing functions take them as `tints`, so that a report can put CSS variables in their place.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

Tints = Mapping[str, str]
"""A colour for each of `ROLES`."""

ZONES = 8
ROLES = (
    *("ink", "muted", "rule", "card"),
    *("prediction", "global", "deviation", "local", "noise", "held"),
    *(f"zone-{i}" for i in range(ZONES)),
)

LIGHT = dict(
    zip(
        ROLES,
        (
            *("#1b1f24", "#68707a", "#e4e7eb", "#ffffff"),
            *("#5a3e9b", "#0072b2", "#d55e00", "#009e73", "#b3b9c1", "#c2185b"),
            *("#0072b2", "#b86e00", "#00805c", "#b04a86"),
            *("#2f8fc4", "#c24e00", "#7a7200", "#7f5539"),
        ),
        strict=True,
    )
)
DARK = dict(
    zip(
        ROLES,
        (
            *("#e8eaed", "#9aa3ae", "#2c323a", "#1a1e25"),
            *("#b9a3f5", "#5cb8f0", "#ff9a57", "#4fd1a5", "#5c6570", "#ff7bac"),
            *("#5cb8f0", "#f0b040", "#4fd1a5", "#e79ac6"),
            *("#9bd4f5", "#ff9a57", "#e3da52", "#c99b7c"),
        ),
        strict=True,
    )
)


def figure_of(axes: Axes) -> Figure:
    """The whole figure that axes are in, which may be in a part of it."""
    figure = axes.figure
    while not isinstance(figure, Figure):
        figure = figure.figure
    return figure


def tints_of(axes: Axes) -> Tints:
    """Colours that can be seen on these axes: dark ink on light ground, light ink on dark ground."""
    figure = figure_of(axes)
    shade = 1.0  # what shows through everything is taken for paper
    for part in (figure.get_facecolor(), axes.get_facecolor()):
        red, green, blue, opacity = to_rgba(part)
        own = 0.299 * red + 0.587 * green + 0.114 * blue
        shade = opacity * own + (1.0 - opacity) * shade
    return LIGHT if shade > 0.5 else DARK


def zone_tint(tints: Tints, group: int) -> str:
    """The colour of a group of clients."""
    return tints[f"zone-{group % ZONES}"]
