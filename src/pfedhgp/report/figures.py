"""The figures of clients: pure functions from predictions to SVG strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.dates as mdates
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from scipy.special import ndtri

from pfedhgp.report.theme import COLOURS, NARROW, drawing, new_figure, plain_legend, to_svg
from pfedhgp.report.views import Slice
from pfedhgp.report.words import InputAxis, shown

__all__ = ["client_panels", "overview"]

LAYERS = ("global", "deviation", "local")


def overview(
    slices: Mapping[str, Slice],
    output: int,
    *,
    output_name: str,
    width: int,
    name: str,
    since: float = 0.0,
) -> str:
    """Every client's mean as a thin line, and the global layer with its 95% band in front.

    `since` leaves out the first part of the domain, for narrow figures of fast functions.
    """
    with drawing():
        figure, (axes,) = new_figure(width, 320 if width > NARROW else 270)
        first = next(iter(slices.values()))
        kept = _kept(first, since)
        x = first.axis.values(first.x[kept])
        for i, view in enumerate(slices.values()):
            label = "each client's prediction" if i == 0 else None
            mean = view.prediction.mean[kept, output]
            axes.plot(
                x, mean, color=COLOURS["muted"], lw=0.8, alpha=0.6, label=label, gid=f"client-{i}"
            )
        shared = first.prediction.layers["global"]
        mean, sd = shared.mean[kept, output], shared.sd[kept, output]
        band(axes, x, mean, sd, "global", levels=(0.95,))
        axes.plot(x, mean, color=COLOURS["global"], lw=2.0, label="global layer", gid="global-mean")
        axes.set_ylabel(shown(output_name, 30))
        _x_axis(axes, first.axis, width)
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
) -> str:
    """The prediction with 50 and 95% bands and the rows, above the layers that it is the sum of.

    `span` is the height of the deviation's and the local layer's panels in the output's units, so that these
    compare with each other and between clients.
    """
    p, kept, wide = view.prediction, _kept(view, since), width > NARROW
    x = view.axis.values(view.x[kept])
    with drawing():
        figure, (top, *strips) = new_figure(
            width,
            (270 if wide else 230) + 108 * len(layers),
            ratios=[2.6 if wide else 2.0] + [1.0] * len(layers),
            gap=32,
            share_x=True,
        )
        mean, sd = p.mean[kept, output], p.sd[kept, output]
        band(top, x, mean, sd, "prediction", levels=(0.95, 0.5))
        top.plot(x, mean, color=COLOURS["prediction"], lw=1.4, gid="mean")
        _points(top, view, output, wide)
        _keep_readable(top, mean - 2.0 * sd, mean + 2.0 * sd, view, output)
        top.set_ylabel(shown(output_name, 30))
        top.set_title("Prediction, noise included" if wide else "Prediction")
        if view.points is not None or view.held_out is not None:
            plain_legend(top, ncols=3)
        for strip, layer in zip(strips, layers, strict=True):
            part = p.layers[layer]
            mean, sd = part.mean[kept, output], part.sd[kept, output]
            band(strip, x, mean, sd, layer, levels=(0.95, 0.5))
            strip.plot(x, mean, color=COLOURS[layer], gid=f"{layer}-mean")
            strip.set_title(f"{layer.capitalize()} layer")
            if layer != "global":
                strip.axhline(0.0, color=COLOURS["muted"], linewidth=0.7)
                if span:
                    strip.set_ylim(-0.5 * span, 0.5 * span)
            strip.yaxis.set_major_locator(MaxNLocator(3))
        for strip in (top, *strips[:-1]):
            strip.tick_params(labelbottom=False)
        _x_axis((top, *strips)[-1], view.axis, width)
        top.set_xlim(x[0], x[-1])
        what = f"Prediction of {shown(output_name)} for {shown(p.client)} along {view.axis.label}"
        return to_svg(figure, name=name, label=f"{what}, and its {', '.join(layers)} layers")


def band(
    axes: Axes,
    x: np.ndarray,
    mean: np.ndarray,
    sd: np.ndarray,
    role: str,
    *,
    levels: Sequence[float],
) -> None:
    """Gaussian intervals mean ± z sd, drawn one over the other."""
    for level in levels:
        reach = ndtri(0.5 * (1.0 + level)) * sd
        axes.fill_between(
            x,
            mean - reach,
            mean + reach,
            color=COLOURS[role],
            alpha=0.2,
            linewidth=0,
            gid=f"{role}-band-{round(100 * level)}",
        )


def _points(axes: Axes, view: Slice, output: int, wide: bool) -> None:
    """Rows as dots, those held out as rings."""
    size = 8.5 if wide else 6.0
    if view.points is not None:
        x, Y = view.points
        axes.scatter(
            view.axis.values(x),
            Y[:, output],
            s=size,
            color=COLOURS["ink"],
            alpha=0.75,
            linewidths=0,
            zorder=3,
            label="rows",
            gid="rows",
        )
    if view.held_out is not None:
        x, Y = view.held_out
        axes.scatter(
            view.axis.values(x),
            Y[:, output],
            s=size + 5.0,
            facecolors="none",
            edgecolors=COLOURS["held"],
            linewidths=1.1,
            zorder=4,
            label="rows held out",
            gid="held-out",
        )


def _keep_readable(
    axes: Axes, lower: np.ndarray, upper: np.ndarray, view: Slice, output: int
) -> None:
    """The y-range holds all rows and most of the band: a prior's width in a gap must not flatten the rest."""
    low, high = np.quantile(lower, 0.02), np.quantile(upper, 0.98)
    for found in (view.points, view.held_out):
        if found is not None and np.isfinite(found[1][:, output]).any():
            low = min(low, np.nanmin(found[1][:, output]))
            high = max(high, np.nanmax(found[1][:, output]))
    pad = 0.06 * (high - low) or 1.0
    axes.set_ylim(low - pad, high + pad)


def _kept(view: Slice, since: float) -> np.ndarray:
    """The points of the last part of the domain."""
    return view.x >= view.x[0] + since * (view.x[-1] - view.x[0])


def _x_axis(axes: Axes, axis: InputAxis, width: int) -> None:
    axes.set_xlabel(axis.label)
    axes.margins(x=0.0)
    if axis.is_date:
        most = 8 if width > NARROW else 4
        locator = mdates.AutoDateLocator(minticks=3, maxticks=most)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(mdates.ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
