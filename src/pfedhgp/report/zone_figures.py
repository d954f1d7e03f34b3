"""Zones as SVG: the tree of clients, distances in its order, a map without tiles, and the privacy curve.

Drawings take their colours from the page that they are in; `theme.standalone` makes files of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from scipy.cluster.hierarchy import dendrogram, to_tree

from pfedhgp.report.theme import (
    COLOURS,
    NARROW,
    WIDE,
    boxes,
    drawing,
    new_figure,
    plain_legend,
    to_svg,
)
from pfedhgp.report.words import shown
from pfedhgp.zones import groups as zone_groups

if TYPE_CHECKING:
    from pfedhgp.zones.result import Places, Zones

LEVELS = 10
"""Shades of the heat map."""
STEP = 20
"""Pixels a client."""
MARKERS = "osD^vP*X"


def colour(group: int) -> str:
    """The colour of a group."""
    return COLOURS[f"zone-{group % 8}"]


def order(zones: Zones) -> list[str]:
    """Clients in the order of the tree. Those with few rows are not in it: each follows its group's last."""
    kept = [name for name in zones.clients if name not in zones.sparse]
    found = [kept[i] for i in zone_groups.leaf_order(_between(zones, kept), _linkage(zones))]
    for name in zones.sparse:
        mates = [i for i, other in enumerate(found) if zones.labels[other] == zones.labels[name]]
        found.insert(max(mates, default=len(found) - 1) + 1, name)
    return found


def _between(zones: Zones, names: Sequence[str]) -> np.ndarray:
    at = [zones.clients.index(name) for name in names]
    return zones.between[np.ix_(at, at)]


def _linkage(zones: Zones) -> str:
    return "average" if zones.method == "average" else "agglomerative"


def tree(zones: Zones, *, name: str = "tree") -> str:
    """The tree by Ward's or average linkage; a branch that holds one group alone has that group's colour."""
    names = [client for client in zones.clients if client not in zones.sparse]
    links = zone_groups.tree(_between(zones, names), _linkage(zones))
    found: Any = dendrogram(
        links, labels=names, no_plot=True, link_color_func=_of_branches(links, names, zones)
    )
    with drawing():
        figure, (axes,) = _rows_of(found["ivl"], zones, bottom=44)
        branches = zip(found["icoord"], found["dcoord"], found["color_list"], strict=True)
        for i, (y, x, tint) in enumerate(branches):
            axes.plot(x, [(v - 5.0) / 10.0 for v in y], color=tint, lw=1.6, gid=f"branch-{i}")
        axes.set_xlim(0.0, None)
        axes.set_xlabel("distance at which groups join")
        axes.set_title("Who is like whom")
        return to_svg(figure, name=name, label="A tree of the clients, by distance")


def _of_branches(links: np.ndarray, names: Sequence[str], zones: Zones) -> Any:
    """The colour of each branch by its number."""
    _, nodes = to_tree(links, rd=True)

    def tint(number: int) -> str:
        groups = {zones.labels[names[leaf]] for leaf in nodes[number].pre_order()}
        return colour(groups.pop()) if len(groups) == 1 else COLOURS["muted"]

    return tint


def _rows_of(names: Sequence[str], zones: Zones, *, bottom: int) -> tuple[Any, tuple[Axes]]:
    """A figure with a row for each client, from the top, named in its group's colour."""
    labels = [shown(name, 18) for name in names]
    left = 14 + 7 * max(map(len, labels))
    height = 34 + bottom + STEP * max(len(names), 4)
    figure, (axes,) = new_figure(NARROW, height, margins=(left, 10, 34, bottom))
    axes.set_yticks(range(len(names)), labels)
    for label, name in zip(axes.get_yticklabels(), names, strict=True):
        label.set_color(colour(zones.labels[name]))
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    return figure, (axes,)


def levels(zones: Zones, names: Sequence[str]) -> np.ndarray:
    """(n, n) shades from 0, the largest distance, to LEVELS − 1, the smallest; a client with itself −1."""
    at = [zones.clients.index(name) for name in names]
    distance = np.sqrt(zones.distances[np.ix_(at, at)])
    off = ~np.eye(len(at), dtype=bool)
    low, high = distance[off].min(), distance[off].max()
    near = (high - distance) / (high - low if high > low else 1.0)
    return np.where(off, np.minimum((near * LEVELS).astype(int), LEVELS - 1), -1)


def heat_map(zones: Zones, *, name: str = "distances") -> str:
    """Expected distances between clients in the order of the tree: the stronger the colour, the nearer."""
    names = order(zones)
    shade = levels(zones, names)
    with drawing():
        figure, (axes,) = _rows_of(names, zones, bottom=14)
        for level in range(LEVELS):
            cells = np.argwhere(shade == level)
            if len(cells):
                look: dict[str, Any] = {"color": COLOURS["prediction"], "gid": f"level-{level}"}
                look["alpha"] = 0.04 + 0.9 * level / (LEVELS - 1)
                axes.add_patch(boxes(*cells.T, width=0.96, height=0.92, **look))
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        # Groups along the bottom, in place of names on their side.
        for i, client in enumerate(names):
            tint = colour(zones.labels[client])
            axes.plot([i - 0.46, i + 0.46], [len(names) - 0.35] * 2, color=tint)
            axes.lines[-1].set(lw=4.0, clip_on=False, solid_capstyle="butt", gid=f"strip-{i}")
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
    groups = list(dict.fromkeys(labels[client] for client in sorted(labels)))
    if not isinstance(groups[0], str):
        groups.sort()
    with drawing():
        figure, (axes,) = new_figure(width, 420 if width > NARROW else 340)
        for g, group in enumerate(groups):
            members = [client for client in sorted(labels) if labels[client] == group]
            here = np.array([places[client] for client in members]).reshape(-1, 2)
            axes.scatter(
                here[:, 1],
                here[:, 0],
                s=34,
                color=colour(g),
                marker=MARKERS[g % len(MARKERS)],
                label=group if isinstance(group, str) else f"group {group + 1}",
                gid=f"group-{g}",
            )
            for client, (latitude, longitude) in zip(members, here, strict=True):
                axes.annotate(
                    shown(client, 18),
                    (longitude, latitude),
                    (5, 4),
                    textcoords="offset points",
                    fontsize=9.5,
                    color=COLOURS["muted"],
                )
        middle = float(np.mean([places[client][0] for client in labels]))
        axes.set_aspect(1.0 / np.cos(np.deg2rad(middle)), adjustable="datalim")
        axes.margins(0.12)
        axes.set_xlabel("longitude, degrees")
        axes.set_ylabel("latitude, degrees")
        axes.set_title(title)
        plain_legend(axes, ncols=min(len(groups), 4), handletextpad=0.2, columnspacing=1.0)
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
