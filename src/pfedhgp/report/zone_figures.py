"""Zones as SVG: dendrogram, heat map in the dendrogram's order, and a map without tiles."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedhgp.zones import groups as zone_groups

if TYPE_CHECKING:
    from pfedhgp.zones.clustering import Zones

# Okabe and Ito's colours, which people with colour blindness can tell apart.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7F5539")


def dendrogram(zones: Zones) -> str:
    """Ward's tree of the clients that have many rows; names in their group's colour."""
    from scipy.cluster.hierarchy import dendrogram as draw

    plt = _pyplot()
    kept = [i for i, name in enumerate(zones.clients) if name not in zones.sparse]
    names = [zones.clients[i] for i in kept]
    figure, axes = plt.subplots(figsize=(7, 0.28 * len(names) + 1.2), constrained_layout=True)
    method = "average" if zones.method == "average" else "agglomerative"
    draw(
        zone_groups.tree(zones.between[np.ix_(kept, kept)], method),
        labels=names,
        orientation="left",
        ax=axes,
        color_threshold=0.0,
        above_threshold_color="#555555",
    )
    for label in axes.get_yticklabels():
        label.set_color(_colour(zones.labels[label.get_text()]))
    axes.set_xlabel("distance at which groups join")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return _svg(figure)


def heat_map(zones: Zones) -> str:
    """Expected distances between clients, in the dendrogram's order."""
    plt = _pyplot()
    order = zone_groups.leaf_order(zones.between)
    names = [zones.clients[i] for i in order]
    side = 0.3 * len(names) + 2.2
    figure, axes = plt.subplots(figsize=(side + 0.8, side), constrained_layout=True)
    shown = axes.imshow(np.sqrt(zones.distances[np.ix_(order, order)]), cmap="viridis")
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.set_yticks(range(len(names)), names)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_color(_colour(zones.labels[label.get_text()]))
    figure.colorbar(shown, ax=axes, shrink=0.8, label="distance")
    return _svg(figure)


def site_map(
    labels: Mapping[str, int | str], coordinates: Mapping[str, Sequence[float]], title: str
) -> str:
    """Clients at (latitude, longitude), one colour and one marker a group; equal distances both ways."""
    plt = _pyplot()
    groups = list(dict.fromkeys(labels[name] for name in sorted(labels)))
    figure, axes = plt.subplots(figsize=(6.4, 5.2), constrained_layout=True)
    markers = "osD^vP*X"
    for g, group in enumerate(groups):
        inside = [name for name in sorted(labels) if labels[name] == group and name in coordinates]
        places = np.array([coordinates[name] for name in inside]).reshape(-1, 2)
        axes.scatter(
            places[:, 1],
            places[:, 0],
            color=_colour(g),
            marker=markers[g % len(markers)],
            label=str(group) if isinstance(group, str) else f"group {group + 1}",
        )
        for name, (latitude, longitude) in zip(inside, places, strict=True):
            axes.annotate(
                name, (longitude, latitude), (4, 3), textcoords="offset points", fontsize=7
            )
    latitudes = [place[0] for place in coordinates.values()]
    axes.set_aspect(1.0 / np.cos(np.deg2rad(np.mean(latitudes))))
    axes.set(xlabel="longitude, degrees", ylabel="latitude, degrees", title=title)
    axes.legend(frameon=False, fontsize=8)
    return _svg(figure)


def reveal_curve(points: Sequence[Mapping[str, Any]]) -> str:
    """ARI against the R² with which what is sent reproduces the rows; one point a sketch size."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(6.4, 4), constrained_layout=True)
    r2, ari = ([point[name] for point in points] for name in ("r2", "ari"))
    axes.plot(r2, ari, "o-", color=COLOURS[0])
    for point in points:
        axes.annotate(
            str(point["size"]),
            (point["r2"], point["ari"]),
            (4, -10),
            textcoords="offset points",
            fontsize=7,
        )
    axes.axvline(0.7, color="#999999", lw=0.8, ls="--")
    axes.set(xlabel="R² of the rows from what is sent", ylabel="ARI with the paper's zones")
    axes.set_ylim(-0.05, 1.05)
    return _svg(figure)


def _colour(group: int) -> str:
    return COLOURS[group % len(COLOURS)]


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _svg(figure: Any) -> str:
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "pfedhgp", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    return text.getvalue()
