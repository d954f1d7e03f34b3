"""The figures of clients: pure functions from predictions to SVG strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.dates as mdates
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from scipy.special import ndtri

from pfedhgp.model.prediction import Layer
from pfedhgp.report.gathered import Slice
from pfedhgp.report.theme import COLOURS, NARROW, drawing, new_figure, plain_legend, to_svg
from pfedhgp.report.words import InputAxis, shown

LAYERS = ("global", "deviation", "local")


def overview(
    slices: Mapping[str, Slice], output: int, *, output_name: str, width: int, name: str
) -> str:
    """Every client's mean as a thin line, and the global layer with its 95% band in front."""
    with drawing():
        figure, (axes,) = new_figure(width, 320 if width > NARROW else 270)
        first = next(iter(slices.values()))
        x = first.axis.values(first.x)
        for i, view in enumerate(slices.values()):
            label = "each client's prediction" if i == 0 else None
            mean = view.prediction.mean[:, output]
            axes.plot(
                x, mean, color=COLOURS["muted"], lw=0.8, alpha=0.6, label=label, gid=f"client-{i}"
            )
        shared = first.prediction.layers["global"]
        mean, sd = shared.mean[:, output], shared.sd[:, output]
        band(axes, x, mean, sd, "global", levels=(0.95,))
        axes.plot(x, mean, color=COLOURS["global"], lw=2.0, label="global layer", gid="global-mean")
        low, high = axes.get_ylim()
        axes.set_ylim(*wide_enough(low, high))
        axes.set_ylabel(shown(output_name, 30))
        set_x_axis(axes, first.axis, width)
        plain_legend(axes, ncols=2)
        return to_svg(figure, name=name, label=f"All clients' predictions of {shown(output_name)}")


def client_panels(
    view: Slice,
    output: int,
    *,
    output_name: str,
    layers: Sequence[str] = LAYERS,
    width: int,
    name: str,
    span: float | None = None,
    since: float = 0.0,
    last: str = "",
) -> str:
    """The prediction with 50 and 95% bands and the rows, above the layers that it is the sum of.

    `span` is the height of the deviation's and the local layer's panels in the output's units, so that these
    compare with each other and between clients. With `since`, a part of the domain, the prediction from
    there on, `last` in words, is drawn once more and larger: what is fast is a blur in a narrow figure.
    """
    p, wide, closer = view.prediction, width > NARROW, since > 0.0
    x = view.axis.values(view.x)
    tops, strips = 2 if closer else 1, len(layers)
    with drawing():
        figure, axes = new_figure(
            width,
            (270 if wide else 230) * tops + 108 * strips + 24 * closer,
            ratios=[2.6 if wide else 2.0] * tops + [1.0] * strips,
            gap=48 if closer else 32,
        )
        for top, part in zip(axes, ("", "-closer"), strict=False):
            if part and not closer:
                break
            _prediction(top, view, output, wide, part, since if part else 0.0)
            top.set_ylabel(shown(output_name, 30))
        axes[0].set_title("Prediction, noise included" if wide else "Prediction")
        if any(found is not None for found in (view.points, view.held_out, view.others)):
            plain_legend(axes[0], ncols=3, columnspacing=1.2, handletextpad=0.4)
        for strip, layer in zip(axes[tops:], layers, strict=True):
            _layer(strip, x, p.layers[layer], layer, output, span)
        labelled = {id(each) for each in (*axes[: tops if closer else 0], axes[-1])}
        for each in axes:
            set_x_axis(each, view.axis, width)
            each.set_xlim(x[0], x[-1])
            each.tick_params(labelbottom=id(each) in labelled)
            each.xaxis.offsetText.set_visible(id(each) in labelled)
            if each is not axes[-1]:
                each.set_xlabel("")
        if closer:
            axes[1].set_title(f"Prediction, the last {last}")
            axes[1].set_xlim(*view.axis.values([view.x[0] + since * np.ptp(view.x), view.x[-1]]))
        what = f"Prediction of {shown(output_name)} for {shown(p.client)} along {view.axis.label}"
        return to_svg(figure, name=name, label=f"{what}, and its {', '.join(layers)} layers")


def _prediction(
    axes: Axes, view: Slice, output: int, wide: bool, part: str, since: float = 0.0
) -> None:
    """Mean, bands and rows; `part` keeps the names of two drawings of it apart.

    What lies before `since`, a part of the domain, is not drawn, but for one point that a line comes from.
    """
    p = view.prediction
    mean, sd = p.mean[:, output], p.sd[:, output]
    start = view.x[0] + since * np.ptp(view.x)
    kept = slice(max(int(np.searchsorted(view.x, start)) - 1, 0), None)
    x = view.axis.values(view.x[kept])
    band(axes, x, mean[kept], sd[kept], "prediction", levels=(0.95, 0.5), part=part)
    axes.plot(x, mean[kept], color=COLOURS["prediction"], lw=1.4, gid=f"mean{part}")
    _points(axes, view, output, wide, part, start if since > 0.0 else -np.inf)
    _keep_readable(axes, mean - 2.0 * sd, mean + 2.0 * sd, view, output)


def _layer(
    axes: Axes, x: np.ndarray, part: Layer, layer: str, output: int, span: float | None
) -> None:
    mean, sd = part.mean[:, output], part.sd[:, output]
    band(axes, x, mean, sd, layer, levels=(0.95, 0.5))
    axes.plot(x, mean, color=COLOURS[layer], gid=f"{layer}-mean")
    axes.set_title(f"{layer.capitalize()} layer")
    if layer != "global":
        axes.axhline(0.0, color=COLOURS["muted"], linewidth=0.7)
        if span:
            axes.set_ylim(-0.5 * span, 0.5 * span)
    axes.set_ylim(*wide_enough(*axes.get_ylim()))
    axes.yaxis.set_major_locator(MaxNLocator(3))


def band(
    axes: Axes,
    x: np.ndarray,
    mean: np.ndarray,
    sd: np.ndarray,
    role: str,
    *,
    levels: Sequence[float],
    part: str = "",
) -> None:
    """Gaussian intervals mean ± z sd, drawn one over the other."""
    for level in levels:
        reach = ndtri(0.5 * (1.0 + level)) * sd
        tint, name = COLOURS[role], f"{role}-band-{round(100 * level)}{part}"
        axes.fill_between(x, mean - reach, mean + reach, color=tint, alpha=0.2, lw=0, gid=name)


def _points(axes: Axes, view: Slice, output: int, wide: bool, part: str, start: float) -> None:
    """Rows from `start` on as dots, those held out as rings, those of which nothing is known as squares."""
    size = 8.5 if wide else 6.0
    ring: dict[str, Any] = {"facecolors": "none", "linewidths": 1.1}
    dot: dict[str, Any] = {"color": COLOURS["ink"], "alpha": 0.75, "linewidths": 0}
    for found, label, gid, how in (
        (view.points, "rows", "rows", dot),
        (view.held_out, "rows held out", "held-out", {**ring, "edgecolors": COLOURS["held"]}),
        (view.others, "other rows", "others", {**ring, "edgecolors": COLOURS["muted"]}),
    ):
        if found is None:
            continue
        kept = found[0] >= start
        axes.scatter(
            view.axis.values(found[0][kept]),
            found[1][kept, output],
            s=size if gid == "rows" else size + 5.0,
            marker="s" if gid == "others" else "o",
            zorder=3 if gid == "rows" else 4,
            label=label,
            gid=f"{gid}{part}",
            **how,
        )


def _keep_readable(
    axes: Axes, lower: np.ndarray, upper: np.ndarray, view: Slice, output: int
) -> None:
    """The y-range holds all rows and most of the band: a prior's width in a gap must not flatten the rest."""
    low, high = np.quantile(lower, 0.02), np.quantile(upper, 0.98)
    for found in (view.points, view.held_out, view.others):
        if found is not None and np.isfinite(found[1][:, output]).any():
            low = min(low, np.nanmin(found[1][:, output]))
            high = max(high, np.nanmax(found[1][:, output]))
    pad = 0.06 * (high - low)
    axes.set_ylim(*wide_enough(low - pad, high + pad))


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


def set_x_axis(axes: Axes, axis: InputAxis, width: int) -> None:
    """Its label, and dates where it has them, no more than fit."""
    axes.set_xlabel(axis.label)
    axes.margins(x=0.0)
    if axis.is_date:
        most = 8 if width > NARROW else 5
        locator = mdates.AutoDateLocator(minticks=2, maxticks=most)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(Dates(locator))  # type: ignore[no-untyped-call]
