"""Zones as SVG: the tree of clients, distances in its order, a map without tiles, and the privacy curve.

Drawings take their colours from the page that they are in; `theme.standalone` makes files of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pfedhgp.plot import groups
from pfedhgp.plot.axes import plain_legend
from pfedhgp.report.theme import COLOURS, NARROW, WIDE, drawing, new_figure, to_svg
from pfedhgp.report.words import shown

if TYPE_CHECKING:
    from pfedhgp.zones.result import Places, Zones

STEP = 20
"""Pixels a client."""


def tree(zones: Zones, *, name: str = "tree") -> str:
    """The tree by Ward's or average linkage; a branch that holds one group alone has that group's colour."""
    with drawing():
        figure, axes = _rows_for(groups.in_tree(zones), bottom=44)
        groups.tree(axes, zones, tints=COLOURS)
        axes.set_title("Who is like whom")
        return to_svg(figure, name=name, label="A tree of the clients, by distance")


def _rows_for(names: Sequence[str], *, bottom: int) -> tuple[Figure, Axes]:
    """A figure with room for a row for each client, and for their names."""
    left = 14 + 7 * max(len(shown(name, groups.LONGEST)) for name in names)
    height = 34 + bottom + STEP * max(len(names), 4)
    figure, (axes,) = new_figure(NARROW, height, margins=(left, 10, 34, bottom))
    return figure, axes


def heat_map(zones: Zones, *, name: str = "distances") -> str:
    """Expected distances between clients in the order of the tree: the stronger the colour, the nearer."""
    with drawing():
        figure, axes = _rows_for(zones.clients, bottom=14)
        groups.heat_map(axes, zones, tints=COLOURS)
        axes.set_title("Distances: the stronger, the nearer")
        return to_svg(figure, name=name, label="Distances between clients, in the tree's order")


def site_map(
    labels: Mapping[str, int | str],
    places: Places,
    *,
    title: str = "",
    width: int = WIDE,
    name: str = "map",
) -> str:
    """Clients at (latitude, longitude); one colour and one marker a group, equal distances both ways."""
    with drawing():
        figure, (axes,) = new_figure(width, 420 if width > NARROW else 340)
        drawn = groups.site_map(axes, labels, places, tints=COLOURS)
        axes.set_title(title)
        many = min(len(drawn), 4)
        plain_legend(axes, COLOURS, ncols=many, handletextpad=0.2, columnspacing=1.0)
        groups.name_sites(axes, labels, places, tints=COLOURS)
        return to_svg(figure, name=name, label="Clients on a map, by group")


def reveal_curve(points: Sequence[Mapping[str, Any]]) -> str:
    """ARI against the R² with which sketches reproduce the rows; one point for each sketch size."""
    with drawing():
        figure, (axes,) = new_figure(WIDE // 2, 300)
        r2, ari = ([point[key] for point in points] for key in ("r2", "ari"))
        axes.plot(r2, ari, "o-", color=COLOURS["prediction"], gid="curve")
        for point in points:
            place = (point["r2"], point["ari"])
            axes.annotate(
                str(point["size"]), place, (4, -10), textcoords="offset points", fontsize=9.5
            )
        axes.axvline(0.7, color=COLOURS["muted"], lw=0.8, ls="--")
        axes.set(xlabel="R² of the rows from what is sent", ylabel="ARI with the paper's zones")
        axes.set_ylim(-0.05, 1.05)
        return to_svg(
            figure, name="curve", label="Agreement with the zones, by what sketches reveal"
        )
