"""How clients mix the shared functions, as SVG: where they lie, and what the functions look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse

from pfedhgp.plot.axes import plain_legend, set_x_axis, wide_enough
from pfedhgp.plot.colours import zone_tint
from pfedhgp.plot.curves import band
from pfedhgp.plot.groups import MARKERS
from pfedhgp.report.theme import COLOURS, NARROW, drawing, most_dates, new_figure, to_svg
from pfedhgp.report.words import InputAxis, percent, shown
from pfedhgp.zones.named_functions import Plane

REACH = 2.4477
"""Standard deviations of an ellipse that holds 95% in two dimensions."""
LETTER = 6.0
"""Width of a letter beside a point, in pixels."""
MOST_NAMED = 40
"""Clients with a name beside their point."""


def plane(
    found: Plane,
    names: Sequence[str],
    groups: Mapping[str, int] | None,
    *,
    width: int,
    name: str,
) -> str:
    """A point for each client and its 95% ellipse, in the colours of groups if there are any."""
    wide = width > NARROW
    with drawing():
        figure, (axes,) = new_figure(width, 460 if wide else 380, margins=(58, 16, 34, 48))
        kinds = sorted({*groups.values()}) if groups else [0]
        for g in kinds:
            own = [i for i, client in enumerate(names) if not groups or groups[client] == g]
            tint = zone_tint(COLOURS, g) if groups else COLOURS["prediction"]
            for i in own:
                axes.add_patch(_ellipse(found.places[i], found.covariances[i], tint, i))
            axes.scatter(
                found.places[own, 0],
                found.places[own, 1],
                s=30,
                color=tint,
                marker=MARKERS[g % len(MARKERS)],
                label=f"group {g + 1}",
                zorder=3,
                gid=f"group-{g}",
            )
        axes.grid(visible=True, axis="both")
        axes.margins(0.14)
        axes.set_aspect("equal", adjustable="datalim")
        if len(names) <= MOST_NAMED:
            _name_points(axes, found.places, names, 18 if wide else 12)
        for axis, k in ((axes.xaxis, 0), (axes.yaxis, 1)):
            axis.set_label_text(
                f"direction {k + 1}: {percent(found.shares[k])} of the differences"
                + (f", most of it shared {found.most[k] + 1}" if wide else "")
            )
        if groups:
            plain_legend(
                axes, COLOURS, ncols=min(len(kinds), 4), handletextpad=0.2, columnspacing=1.0
            )
        return to_svg(figure, name=name, label="Clients by how they mix the shared functions")


def _ellipse(centre: np.ndarray, covariance: np.ndarray, tint: str, number: int) -> Ellipse:
    values, vectors = np.linalg.eigh(covariance)
    across, along = 2.0 * REACH * np.sqrt(np.maximum(values, 0.0))
    angle = float(np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1])))
    place = (float(centre[0]), float(centre[1]))
    drawn = Ellipse(place, float(along), float(across), angle=angle)
    drawn.set(facecolor=tint, edgecolor="none", alpha=0.14, gid=f"ellipse-{number}")
    return drawn


def _name_points(axes: Axes, places: np.ndarray, names: Sequence[str], longest: int) -> None:
    """Names beside their points. One that would lie on another name or point, or stick out, is left out."""
    axes.apply_aspect()
    at = axes.transData.transform(places)
    inside = axes.bbox
    taken = [(x - 4.0, y - 4.0, x + 4.0, y + 4.0) for x, y in at]
    for i, (x, y) in enumerate(at):
        text = shown(names[i], longest)
        width = LETTER * len(text)
        for dx, dy in (
            (7.0, -4.0),
            (-7.0 - width, -4.0),
            (-0.5 * width, 8.0),
            (-0.5 * width, -17.0),
        ):
            box = (x + dx, y + dy, x + dx + width, y + dy + 11.0)
            out = (
                box[0] < inside.x0 or box[2] > inside.x1 or box[1] < inside.y0 or box[3] > inside.y1
            )
            if out or any(_overlap(box, other) for k, other in enumerate(taken) if k != i):
                continue
            taken.append(box)
            axes.annotate(
                text,
                places[i],
                (dx, dy + 2.0),
                textcoords="offset points",
                fontsize=9.5,
                color=COLOURS["muted"],
                gid=f"name-{i}",
            )
            break


Box = tuple[float, float, float, float]


def _overlap(one: Box, two: Box) -> bool:
    return one[0] < two[2] and two[0] < one[2] and one[1] < two[3] and two[1] < one[3]


def functions(
    x: np.ndarray,
    means: np.ndarray,
    sds: np.ndarray,
    axis: InputAxis,
    *,
    shares: Sequence[float],
    width: int,
    name: str,
) -> str:
    """A strip for each shared function, of unit variance a priori: its mean and its 95% band."""
    count = means.shape[1]
    with drawing():
        figure, strips = new_figure(
            width, 62 + 96 * count + 26 * (count - 1), ratios=[1.0] * count, gap=30, share_x=True
        )
        at = axis.values(x)
        reach = wide_enough(float((means - 2 * sds).min()), float((means + 2 * sds).max()))
        for r, axes in enumerate(strips):
            band(axes, at, means[:, r], sds[:, r], "global", tints=COLOURS, levels=(0.95,))
            axes.plot(at, means[:, r], color=COLOURS["global"], lw=1.4, gid=f"shared-{r}")
            axes.axhline(0.0, color=COLOURS["rule"], lw=0.7, zorder=0)
            axes.set_ylim(*reach)
            axes.set_title(f"shared {r + 1}: {percent(shares[r])}")
            if r == count - 1:
                set_x_axis(axes, axis, most_dates(width))
            else:
                axes.margins(x=0.0)
                axes.tick_params(labelbottom=False)
        return to_svg(figure, name=name, label="The shared functions, one below the other")
