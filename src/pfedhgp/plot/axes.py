"""Axes in our style. All of it is set on the axes themselves: nobody's rcParams change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import matplotlib.dates as mdates
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from pfedhgp.errors import InputError
from pfedhgp.model.words import InputAxis
from pfedhgp.plot.colours import Tints, figure_of, tints_of

FEW, MANY = 5, 8
"""The most dates along a narrow figure, and along a wide one."""


DATE = 5.6
"""What a date takes along an axis, in sizes of its letters: half of "27 Oct 2024 12:00", and a gap."""


def dates_that_fit(axes: Axes) -> int:
    """How many dates fit along these axes without touching, from 2 to `MANY`."""
    width = figure_of(axes).get_size_inches()[0] * axes.get_position().width
    size = FontProperties(size=mpl.rcParams["xtick.labelsize"]).get_size_in_points()
    return int(np.clip(72.0 * width / size / DATE, 2, MANY))


def axes_of(ax: Axes | None, size: tuple[float, float]) -> tuple[Axes, Tints]:
    """The axes given, or those of a new figure of `size` inches; in our style, with colours for them."""
    if ax is None:
        import matplotlib.pyplot as plt

        figure, ax = plt.subplots(figsize=size, layout="constrained")
        _with_margins(figure)
    elif not isinstance(ax, Axes):
        raise InputError(f"`ax` must be the axes of a matplotlib figure, got {type(ax).__name__}")
    else:
        _with_room(ax)
    tints = tints_of(ax)
    tidy(ax, tints)
    return ax, tints


def column_of(axes: Any, ratios: Sequence[float], size: tuple[float, float]) -> np.ndarray:
    """The axes given, one above the other, or those of a new figure with a common x-axis."""
    if axes is None:
        import matplotlib.pyplot as plt

        figure, found = plt.subplots(
            len(ratios), figsize=size, height_ratios=ratios, sharex=True, layout="constrained"
        )
        _with_margins(figure)
    else:
        found = np.ravel(np.asarray(axes, object))
        if len(found) != len(ratios) or not all(isinstance(each, Axes) for each in found):
            raise InputError(f"`axes` must be {len(ratios)} axes of a matplotlib figure")
    return np.ravel(found)


def _with_room(axes: Axes) -> None:
    """Room for labels where a figure has these axes alone, as `plt.subplots()` made them, and no layout."""
    figure = axes.figure
    if not isinstance(figure, Figure) or figure.get_layout_engine() is not None:
        return
    if figure.axes == [axes] and axes.get_subplotspec() is not None:
        figure.set_layout_engine("constrained")


def _with_margins(figure: Any) -> None:
    """Room around the axes: matplotlib's own margins are next to nothing."""
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)


def tidy(axes: Axes, tints: Tints) -> None:
    """No frame, quiet ticks and light lines across."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=tints["muted"], linewidth=0.7)
    axes.grid(visible=True, axis="y", color=tints["rule"], linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(color=tints["muted"], labelcolor=tints["muted"], width=0.7)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.label.set_color(tints["muted"])
    axes.yaxis.label.set_color(tints["muted"])


def as_text(axes: Axes) -> Axes:
    """The same axes, on which names with a dollar sign are names and no formulas."""
    legend = axes.get_legend()
    texts = [*axes.texts, axes.xaxis.label, axes.yaxis.label]
    texts += [*axes.get_yticklabels(), *(() if legend is None else legend.get_texts())]
    for text in texts:
        text.set_parse_math(False)
    return axes


def title(axes: Axes, text: str, tints: Tints) -> None:
    """At the left, where the eye begins."""
    axes.set_title(text, loc="left", color=tints["ink"], parse_math=False)


def plain_legend(axes: Axes, tints: Tints, **options: Any) -> None:
    """A legend in the muted colour, above the axes."""
    legend = axes.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        borderaxespad=0.2,
        handlelength=1.6,
        frameon=False,
        **options,
    )
    for text in legend.get_texts():
        text.set_color(tints["muted"])


def wide_enough(low: float, high: float) -> tuple[float, float]:
    """A y-range that says "constant" where it is: not one of the last digits of a number."""
    middle, least = 0.5 * (low + high), 1e-7 * max(abs(low), abs(high))
    if high - low > least:
        return low, high
    reach = 0.1 * abs(middle) or 1.0
    return middle - reach, middle + reach


class Dates(mdates.ConciseDateFormatter):
    """Short labels, of which the first, and each that begins another year, says month and year."""

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """A label for each tick; those outside the axes are not drawn."""
        labels: list[str] = super().format_ticks(values)  # type: ignore[no-untyped-call]
        assert self.axis is not None  # matplotlib sets it before it asks for labels
        low, high = sorted(self.axis.get_view_interval())
        moments = [mdates.num2date(value) for value in values]  # type: ignore[no-untyped-call]
        years_alone = all(
            t == t.replace(month=1, day=1, hour=0, minute=0, second=0) for t in moments
        )
        year = None
        for i, (value, t) in enumerate(zip(values, moments, strict=True)):
            if not low <= value <= high or years_alone:
                continue
            if t.year != year:
                clock = (
                    f" {t:%H:%M:%S}" if t.second else f" {t:%H:%M}" if t.hour or t.minute else ""
                )
                day = f"{t.day} " if t.day > 1 or clock else ""
                labels[i] = f"{day}{t:%b} {t.year}{clock}"
            year = t.year
        return labels

    def get_offset(self) -> str:
        """Nothing: the first label has said it."""
        return ""


def set_x_axis(axes: Axes, axis: InputAxis, most: int = MANY) -> None:
    """Its label, and dates where it has them, `most` at most."""
    axes.set_xlabel(axis.label)
    axes.margins(x=0.0)
    if axis.is_date:
        locator = mdates.AutoDateLocator(minticks=2, maxticks=most)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(Dates(locator))  # type: ignore[no-untyped-call]


def boxes(
    rows: np.ndarray,
    columns: np.ndarray,
    *,
    width: float | np.ndarray,
    height: float | np.ndarray,
    **look: Any,
) -> PathPatch:
    """A box around each (column, row), as one patch without an outline."""
    x, y = 0.5 * np.broadcast_to(width, columns.shape), 0.5 * np.broadcast_to(height, rows.shape)
    corners = [(-x, -y), (x, -y), (x, y), (-x, y), (-x, -y)]
    vertices = np.stack([np.stack([columns + dx, rows + dy], 1) for dx, dy in corners], 1)
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    return PathPatch(Path(vertices.reshape(-1, 2), codes * len(rows)), lw=0, **look)
