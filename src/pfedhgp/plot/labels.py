"""Names beside points, placed so that they do not lie on each other: a greedy choice for each.

A name goes to one of eight places around its point, else to one of eight further away, with a line to the
point. Points in a crowd choose first. A name that has no place is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from pfedhgp.plot.colours import Tints, figure_of

SIDES = ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1))
"""Right or left, above or below; the first that is free is taken."""
RINGS = (6.0, 15.0, 26.0)
"""Points from a marker's middle to a name."""
LETTER = (0.6, 1.2)
"""Width and height of a letter, in sizes of the font."""
MARKER = 4.0


class Spot(NamedTuple):
    """Where a name goes, relative to its point."""

    x: float
    y: float
    side: tuple[int, int]
    far: bool


def spots(
    points: np.ndarray, widths: Sequence[float], height: float, box: Sequence[float] | np.ndarray
) -> list[Spot | None]:
    """A place for each name; `box` is (left, bottom, right, top), all in points of 1/72 inch."""
    taken = [_around(p, MARKER) for p in points]
    found: list[Spot | None] = [None] * len(points)
    apart = np.hypot(*(points[:, None] - points[None]).transpose(2, 0, 1))
    crowd = np.argsort(-(apart < 60.0).sum(axis=1), kind="stable")
    for i in crowd:
        for k, (ring, side) in enumerate((r, s) for r in RINGS for s in SIDES):
            reach = ring / np.hypot(*side)
            x, y = (reach * s for s in side)
            own = _box(points[i], (x, y), side, widths[i], height)
            inside = own[0] >= box[0] and own[1] >= box[1] and own[2] <= box[2] and own[3] <= box[3]
            others = (b for j, b in enumerate(taken) if j != i)
            if inside and not any(_overlap(own, other) for other in others):
                taken.append(own)
                found[i] = Spot(x, y, side, k >= len(SIDES))
                break
    return found


def _around(point: np.ndarray, reach: float) -> tuple[float, float, float, float]:
    x, y = (float(v) for v in point)
    return x - reach, y - reach, x + reach, y + reach


def _box(
    point: np.ndarray, at: tuple[float, float], side: tuple[int, int], width: float, height: float
) -> tuple[float, float, float, float]:
    """left, bottom, right, top of a name that begins, ends or has its middle at a place"""
    left = point[0] + at[0] + (0.0, -0.5, -1.0)[1 - side[0]] * width
    bottom = point[1] + at[1] + (0.0, -0.5, -1.0)[1 - side[1]] * height
    return left, bottom, left + width, bottom + height


def _overlap(one: Sequence[float], two: Sequence[float]) -> bool:
    return one[0] < two[2] and two[0] < one[2] and one[1] < two[3] and two[1] < one[3]


def name_points(
    axes: Axes, places: np.ndarray, names: Sequence[str], *, tints: Tints, size: float = 9.5
) -> int:
    """Names beside points of the data; returns how many had no room. Limits must not change afterwards."""
    figure = figure_of(axes)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    axes.autoscale_view()
    axes.apply_aspect()
    unit = 72.0 / figure.dpi
    points = axes.transData.transform(places) * unit
    widths = [LETTER[0] * size * len(name) for name in names]
    left_out = 0
    box = np.asarray(axes.get_window_extent().extents) * unit
    found = spots(points, widths, LETTER[1] * size, box)
    for place, name, spot in zip(places, names, found, strict=True):
        if spot is None:
            left_out += 1
            continue
        axes.annotate(
            name,
            tuple(place),
            (spot.x, spot.y),
            textcoords="offset points",
            fontsize=size,
            color=tints["muted"],
            ha=("right", "center", "left")[spot.side[0] + 1],
            va=("top", "center", "bottom")[spot.side[1] + 1],
            arrowprops=_line(tints) if spot.far else None,
        )
    return left_out


def _line(tints: Tints) -> dict[str, object]:
    return {
        "arrowstyle": "-",
        "color": tints["noise"],
        "linewidth": 0.7,
        "shrinkA": 0.0,
        "shrinkB": MARKER,
    }
