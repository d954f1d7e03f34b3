"""Draws zones: the tree of clients, distances in its order, and a map without tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from scipy.cluster.hierarchy import dendrogram, to_tree

from pfedhgp.model.words import shown
from pfedhgp.plot.axes import boxes
from pfedhgp.plot.colours import Tints, zone_tint
from pfedhgp.plot.labels import name_points
from pfedhgp.zones import groups as zone_groups

if TYPE_CHECKING:
    from pfedhgp.zones.result import Places, Zones

LEVELS = 10
"""Shades of the heat map."""
MARKERS = "osD^vP*X"
LONGEST = 18
"""Letters of a name."""


def in_tree(zones: Zones) -> list[str]:
    """The clients that the tree has: those with few rows are not in it."""
    return [name for name in zones.clients if name not in zones.sparse]


def order(zones: Zones) -> list[str]:
    """Clients in the order of the tree. Those with few rows are not in it: each follows its group's last."""
    kept = in_tree(zones)
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


def tree(axes: Axes, zones: Zones, *, tints: Tints) -> None:
    """The tree by Ward's or average linkage; a branch that holds one group alone has that group's colour."""
    names = in_tree(zones)
    links = zone_groups.tree(_between(zones, names), _linkage(zones))
    branches = _of_branches(links, names, zones, tints)
    found: Any = dendrogram(links, labels=names, no_plot=True, link_color_func=branches)
    name_rows(axes, found["ivl"], zones, tints=tints)
    drawn = zip(found["icoord"], found["dcoord"], found["color_list"], strict=True)
    for i, (y, x, tint) in enumerate(drawn):
        axes.plot(x, [(v - 5.0) / 10.0 for v in y], color=tint, lw=1.6, gid=f"branch-{i}")
    axes.set_xlim(0.0, None)
    axes.set_xlabel("distance at which groups join")


def _of_branches(links: np.ndarray, names: Sequence[str], zones: Zones, tints: Tints) -> Any:
    """The colour of each branch by its number."""
    _, nodes = to_tree(links, rd=True)

    def tint(number: int) -> str:
        groups = {zones.labels[names[leaf]] for leaf in nodes[number].pre_order()}
        return zone_tint(tints, groups.pop()) if len(groups) == 1 else tints["muted"]

    return tint


def name_rows(axes: Axes, names: Sequence[str], zones: Zones, *, tints: Tints) -> None:
    """A row for each client, from the top, named in its group's colour."""
    axes.set_yticks(range(len(names)), [shown(name, LONGEST) for name in names])
    for label, name in zip(axes.get_yticklabels(), names, strict=True):
        label.set_color(zone_tint(tints, zones.labels[name]))
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)


def levels(zones: Zones, names: Sequence[str]) -> np.ndarray:
    """(n, n) shades from 0, the largest distance, to LEVELS − 1, the smallest; a client with itself −1."""
    at = [zones.clients.index(name) for name in names]
    distance = np.sqrt(zones.distances[np.ix_(at, at)])
    off = ~np.eye(len(at), dtype=bool)
    low, high = distance[off].min(), distance[off].max()
    near = (high - distance) / (high - low if high > low else 1.0)
    return np.where(off, np.minimum((near * LEVELS).astype(int), LEVELS - 1), -1)


def heat_map(axes: Axes, zones: Zones, *, tints: Tints) -> None:
    """Expected distances between clients in the order of the tree: the stronger the colour, the nearer."""
    names = order(zones)
    shade = levels(zones, names)
    name_rows(axes, names, zones, tints=tints)
    for level in range(LEVELS):
        cells = np.argwhere(shade == level)
        if len(cells):
            look: dict[str, Any] = {"color": tints["prediction"], "gid": f"level-{level}"}
            look["alpha"] = 0.04 + 0.9 * level / (LEVELS - 1)
            axes.add_patch(boxes(*cells.T, width=0.96, height=0.92, **look))
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    # Groups along the bottom, in place of names on their side.
    for i, client in enumerate(names):
        tint = zone_tint(tints, zones.labels[client])
        axes.plot([i - 0.46, i + 0.46], [len(names) - 0.35] * 2, color=tint)
        axes.lines[-1].set(lw=4.0, clip_on=False, solid_capstyle="butt", gid=f"strip-{i}")


def site_map(
    axes: Axes, labels: Mapping[str, int | str], places: Places, *, tints: Tints
) -> list[int | str]:
    """Clients at (latitude, longitude); one colour and one marker a group, equal distances both ways.

    Returns the groups in the order of their colours. Names come last, by `name_sites`.
    """
    groups = list(dict.fromkeys(labels[client] for client in sorted(labels)))
    if not isinstance(groups[0], str):
        groups.sort()
    for g, group in enumerate(groups):
        members = [client for client in sorted(labels) if labels[client] == group]
        here = np.array([places[client] for client in members]).reshape(-1, 2)
        axes.scatter(
            here[:, 1],
            here[:, 0],
            s=34,
            color=zone_tint(tints, g),
            marker=MARKERS[g % len(MARKERS)],
            label=group if isinstance(group, str) else f"group {group + 1}",
            gid=f"group-{g}",
        )
    middle = float(np.mean([places[client][0] for client in labels]))
    axes.set_aspect(1.0 / np.cos(np.deg2rad(middle)), adjustable="datalim")
    axes.margins(0.12)
    axes.set_xlabel("longitude, degrees")
    axes.set_ylabel("latitude, degrees")
    return groups


def name_sites(
    axes: Axes, labels: Mapping[str, int | str], places: Places, *, tints: Tints
) -> None:
    """Names on a map, placed so that they do not overlap: after all else, which moves points and axes."""
    every = sorted(labels)
    where = np.array([places[client][::-1] for client in every], float)
    missing = name_points(axes, where, [shown(n, LONGEST) for n in every], tints=tints)
    if missing:
        words = f"{missing} name{' has' if missing == 1 else 's have'} no room"
        axes.set_xlabel(f"{axes.get_xlabel()} · {words}")
