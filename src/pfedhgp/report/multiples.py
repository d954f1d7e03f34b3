"""All clients side by side, one small figure each: where only some have figures of their own.

A small figure has no room for a daily wave over a month. It shows, for each column of pixels, the range of
the mean and the 95% band.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from pfedhgp.model.words import number
from pfedhgp.plot.axes import wide_enough
from pfedhgp.plot.slices import Slice
from pfedhgp.report.spans import FAR
from pfedhgp.report.theme import COLOURS, NARROW, drawing, new_figure, to_svg
from pfedhgp.report.words import shown

MOST = 120
"""Clients with a small figure."""
COLUMNS = 40
ACROSS, ACROSS_NARROW = 5, 2
HIGH = 58
"""Pixels of a figure, without its name."""


def multiples(
    slices: Mapping[str, Slice], output: int, *, output_name: str, width: int, name: str
) -> str:
    """A small figure for each client, on a common scale; one far from it has its own, and says so."""
    across = min(ACROSS if width > NARROW else ACROSS_NARROW, len(slices))
    down, gap = -(-len(slices) // across), 30
    limits = limits_of(slices, output)
    with drawing():
        figure, axes = new_figure(
            width,
            30 + 12 + HIGH * down + gap * (down - 1),
            margins=(46, 6, 30, 12),
            gap=gap,
            ratios=[1.0] * down,
            columns=across,
        )
        for i, (each, (client, view)) in enumerate(zip(axes, slices.items(), strict=False)):
            low, high, times = limits[client]
            _one(each, view, output, f"client-{i}")
            each.set_ylim(*wide_enough(low, high))
            long = 20 if times == 1 else 11
            mark = "" if times == 1 else f" · 1 : {number(times, 2)}"
            tint = COLOURS["ink" if times == 1 else "deviation"]
            each.set_title(f"{shown(client, long)}{mark}", pad=3.0, fontsize=11, color=tint)
            if i % across or times != 1:
                each.tick_params(labelleft=False)
        for each in axes[len(slices) :]:
            each.set_visible(False)
        what = f"Predictions of {shown(output_name)} at {len(slices)} clients"
        return to_svg(figure, name=name, label=what)


def limits_of(slices: Mapping[str, Slice], output: int) -> dict[str, tuple[float, float, float]]:
    """(low, high, how many times the common height) for each client; 1 on the common scale."""
    ends = {}
    for client, view in slices.items():
        mean, sd = view.prediction.mean[:, output], view.prediction.sd[:, output]
        low, high = np.quantile(mean - 2 * sd, 0.02), np.quantile(mean + 2 * sd, 0.98)
        ends[client] = (min(float(low), float(mean.min())), max(float(high), float(mean.max())))
    lows, highs = np.array(list(ends.values())).T
    heights, middles = highs - lows, 0.5 * (highs + lows)
    typical = float(np.median(heights))
    near = (heights <= FAR * typical) & (np.abs(middles - np.median(middles)) <= FAR * typical)
    least, most = float(lows[near].min()), float(highs[near].max())
    found: dict[str, tuple[float, float, float]] = {}
    for (client, own), alike in zip(ends.items(), near, strict=True):
        times = max((own[1] - own[0]) / (most - least or 1.0), 1e-9)
        found[client] = (least, most, 1.0) if alike else (*own, times)
    return found


def _one(axes: Axes, view: Slice, output: int, gid: str) -> None:
    """The mean's range and the band, column by column."""
    p = view.prediction
    mean, sd = p.mean[:, output], p.sd[:, output]
    parts = np.array_split(np.arange(len(mean)), min(COLUMNS, len(mean)))
    x = np.array([view.x[part].mean() for part in parts])

    def over(values: np.ndarray, what: str) -> np.ndarray:
        return np.array([getattr(values[part], what)() for part in parts])

    tint = COLOURS["prediction"]
    band = over(mean - 2 * sd, "min"), over(mean + 2 * sd, "max")
    axes.fill_between(x, *band, color=tint, alpha=0.18, lw=0, gid=f"{gid}-band")
    if len(mean) > 2 * COLUMNS:  # a line would be a zigzag
        ends = over(mean, "min"), over(mean, "max")
        axes.fill_between(x, *ends, color=tint, alpha=0.6, lw=0, gid=f"{gid}-range")
    else:
        axes.plot(x, over(mean, "mean"), color=tint, lw=1.2, gid=f"{gid}-mean")
    axes.set_xlim(x[0], x[-1])
    axes.set_xticks([])
    axes.yaxis.set_major_locator(MaxNLocator(2))
