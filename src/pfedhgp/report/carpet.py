"""The overview of many clients, or of fast functions: the shared layer, and a strip for each client.

Twelve clients' lines with a daily wave over eight weeks would be a blob. A strip shows when a client is above
the shared layer and when below it, averaged over columns some pixels wide.
"""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.dates as mdates
import numpy as np
from matplotlib.axes import Axes

from pfedhgp.plot.axes import boxes, set_x_axis, wide_enough
from pfedhgp.plot.curves import band
from pfedhgp.plot.slices import Slice
from pfedhgp.report.spans import beside
from pfedhgp.report.theme import COLOURS, NARROW, drawing, most_dates, new_figure, to_svg
from pfedhgp.report.words import shown

SHADES = 10
"""Shades for each sign; the lightest is not drawn."""
STRONGEST = 0.9
COLUMNS = 60
HIGH, THIN = 0.84, 0.26
"""Of a row: a strip, and one where the client has no rows."""


def columns_of(values: np.ndarray, count: int) -> np.ndarray:
    """(…, count): means over neighbouring points, in groups of nearly equal size."""
    parts = np.array_split(np.arange(values.shape[-1]), min(count, values.shape[-1]))
    return np.stack([values[..., part].mean(axis=-1) for part in parts], axis=-1)


def own_parts(slices: Mapping[str, Slice], output: int) -> tuple[np.ndarray, float]:
    """Deviation + local (clients, columns), and the value of the strongest colour.

    That is the 99% quantile, but at most three times what a typical client needs: one site in other units
    would leave all others without colour. But it is no less than a twentieth of the shared layer's range.
    """
    own = np.stack(
        [
            s.prediction.mean[:, output] - s.prediction.layers["global"].mean[:, output]
            for s in slices.values()
        ]
    )
    found = columns_of(own, COLUMNS)
    shared = next(iter(slices.values())).prediction.layers["global"].mean[:, output]
    typical = float(np.median(np.quantile(np.abs(found), 0.99, axis=1)))
    most = max(3.0 * typical, 0.05 * float(np.ptp(shared)))
    largest = float(np.quantile(np.abs(found), 0.99))
    return found, (min(largest, most) if most > 0 else largest) or 1.0


def beyond(slices: Mapping[str, Slice], output: int) -> list[str]:
    """Clients whose own part is mostly stronger than the strongest colour."""
    found, largest = own_parts(slices, output)
    return [
        name for name, own in zip(slices, np.abs(found), strict=True) if np.median(own) > largest
    ]


def with_rows(slices: Mapping[str, Slice], columns: int) -> np.ndarray | None:
    """(clients, columns): where a client has rows nearby; None if its rows, or some, are not known.

    Nearby is within a column and a half, or three of the client's usual steps.
    """
    found = []
    for view in slices.values():
        parts = [part[0] for part in (view.points, view.held_out, view.others) if part is not None]
        if view.at or not parts or not sum(map(len, parts)):
            return None
        x, width = np.sort(np.concatenate(parts)), np.ptp(view.x) / columns
        steps = np.diff(np.unique(x))
        reach = max(1.5 * width, 3.0 * float(np.median(steps)) if len(steps) else 0.0)
        middles = view.x[0] + width * (np.arange(columns) + 0.5)
        found.append(np.abs(middles[:, None] - x).min(axis=1) <= reach)
    return np.stack(found)


def carpet(
    slices: Mapping[str, Slice], output: int, *, output_name: str, width: int, name: str
) -> str:
    """The global layer with its band, and under it a strip for each client."""
    wide = width > NARROW
    first = next(iter(slices.values()))
    names = [shown(client, 20 if wide else 14) for client in slices]
    left = max(58, 14 + 7 * max(map(len, names)))
    top, strip = (190, 22) if wide else (150, 19)
    gap = 40
    with drawing():
        figure, (shared, strips) = new_figure(
            width,
            34 + 44 + top + gap + strip * len(names),
            margins=(left, 12, 34, 44),
            gap=gap,
            ratios=(top, strip * len(names)),
        )
        _shared(shared, first, output, wide)
        shared.set_ylabel(shown(output_name, 24))
        own, largest = own_parts(slices, output)
        _strips(strips, first, own, largest, with_rows(slices, own.shape[1]))
        strips.set_yticks(range(len(names)), names)
        strips.set_title("What is each client's own: above it, or below")
        for axes in (shared, strips):
            set_x_axis(axes, first.axis, most_dates(width))
            axes.set_xlim(*first.axis.values([first.x[0], first.x[-1]]))
        shared.tick_params(labelbottom=False)
        shared.set_xlabel("")
        shared.xaxis.offsetText.set_visible(False)
        return to_svg(
            figure,
            name=name,
            label=f"The shared layer of {shown(output_name)}, and what is each client's own",
        )


def _shared(axes: Axes, view: Slice, output: int, wide: bool) -> None:
    """The layer's mean and 95% band, averaged over columns if many points meet a narrow figure."""
    layer = view.prediction.layers["global"]
    x, mean, sd = view.x, layer.mean[:, output], layer.sd[:, output]
    if not wide and len(x) > 2 * COLUMNS:
        # Between the lowest and the highest value of a column lies what the line has lost.
        parts = np.array_split(np.arange(len(x)), COLUMNS)
        at = view.axis.values(columns_of(x, COLUMNS))
        low, high = (np.array([f(mean[p]) for p in parts]) for f in (np.min, np.max))
        axes.fill_between(at, low, high, color=COLOURS["global"], alpha=0.28, lw=0, gid="range")
        x, mean, sd = (columns_of(v, COLUMNS) for v in (x, mean, sd))
    shown_x = view.axis.values(x)
    band(axes, shown_x, mean, sd, "global", tints=COLOURS, levels=(0.95,))
    axes.plot(shown_x, mean, color=COLOURS["global"], lw=1.6, gid="global-mean")
    near = beside(mean, mean - 2.0 * sd, mean + 2.0 * sd)
    axes.set_ylim(*wide_enough(*(axes.get_ylim() if near is None else near)))
    more = "" if near is None else ", its band is wider" + " than this" * wide
    axes.set_title(f"What all share: the global layer{more}")


def _strips(
    axes: Axes, view: Slice, own: np.ndarray, largest: float, seen: np.ndarray | None
) -> None:
    """Colour by sign, shade by size, on a grey strip; thin where a client has no rows, as `seen` says."""
    clients, columns = own.shape
    edges = np.linspace(view.x[0], view.x[-1], columns + 1)
    at = mdates.date2num(view.axis.values(edges)) if view.axis.is_date else edges  # type: ignore[no-untyped-call]
    middles, widths = 0.5 * (at[1:] + at[:-1]), np.diff(at)
    high = np.full(own.shape, HIGH) if seen is None else np.where(seen, HIGH, THIN)
    row, start, end = _runs(high)
    everywhere = boxes(
        row,
        0.5 * (at[start] + at[end]),
        width=at[end] - at[start],
        height=high[row, start],
        color=COLOURS["rule"],
        gid="zero",
    )
    axes.add_patch(everywhere)
    shade = np.minimum(np.abs(own) / largest * SHADES, SHADES - 1).astype(int)
    for sign, role in ((1, "deviation"), (-1, "global")):
        for level in range(1, SHADES):
            rows, at_column = np.nonzero((shade == level) & (np.sign(own) == sign))
            if len(rows):
                axes.add_patch(
                    boxes(
                        rows,
                        middles[at_column],
                        width=widths[at_column],
                        height=high[rows, at_column],
                        color=COLOURS[role],
                        alpha=STRONGEST * level / (SHADES - 1),
                        gid=f"{'above' if sign > 0 else 'below'}-{level}",
                    )
                )
    axes.set_ylim(clients - 0.5, -0.5)
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)


def _runs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, first column and the column after the last of each stretch of equal values along a row."""
    new = np.ones((len(values), values.shape[1] + 1), bool)
    new[:, 1:-1] = values[:, 1:] != values[:, :-1]
    row, start = np.nonzero(new[:, :-1])
    end = np.nonzero(new[:, 1:])[1] + 1
    return row, start, end
