"""The figures of clients: pure functions from predictions to SVG strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from pfedhgp.model.prediction import Layer
from pfedhgp.plot import curves
from pfedhgp.plot.axes import plain_legend, set_x_axis
from pfedhgp.plot.slices import Slice
from pfedhgp.report import spans
from pfedhgp.report.theme import COLOURS, NARROW, drawing, most_dates, new_figure, to_svg
from pfedhgp.report.words import shown

LAYERS = ("global", "deviation", "local")


def overview(
    slices: Mapping[str, Slice], output: int, *, output_name: str, width: int, name: str
) -> str:
    """Every client's mean as a thin line, and the global layer with its 95% band in front."""
    with drawing():
        figure, (axes,) = new_figure(width, 320 if width > NARROW else 270)
        curves.overview(axes, slices, output, tints=COLOURS)
        axes.set_ylabel(shown(output_name, 30))
        set_x_axis(axes, next(iter(slices.values())).axis, most_dates(width))
        plain_legend(axes, COLOURS, ncols=2)
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

    `span` is the common height of the deviation's and the local layer's panels in the output's units, so that
    these compare with each other and between clients; a layer far from it has its own, which its title says
    (`spans`). With `since`, a part of the domain, the prediction from
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
            how = {"dot": curves.DOT if wide else 6.0, "since": since if part else 0.0}
            curves.prediction(top, view, output, tints=COLOURS, part=part, **how)
            top.set_ylabel(shown(output_name, 30))
        axes[0].set_title("Prediction, noise included" if wide else "Prediction")
        if any(found is not None for found in (view.points, view.held_out, view.others)):
            plain_legend(axes[0], COLOURS, ncols=3, columnspacing=1.2, handletextpad=0.4)
        whole = float(np.ptp(axes[0].get_ylim()))
        for strip, layer in zip(axes[tops:], layers, strict=True):
            _layer(strip, x, p.layers[layer], layer, output, span, whole)
        labelled = {id(each) for each in (*axes[: tops if closer else 0], axes[-1])}
        for each in axes:
            set_x_axis(each, view.axis, most_dates(width))
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


def _layer(
    axes: Axes,
    x: np.ndarray,
    part: Layer,
    name: str,
    output: int,
    span: float | None,
    whole: float,
) -> None:
    """A layer's panel, at the common scale, or at its own; `whole` is the height of the prediction's."""
    title, height = f"{name.capitalize()} layer", span
    if name != "global" and span is not None:
        chosen = spans.scale(spans.height_of(part, output), span, whole)
        title, height = f"{title}{', ' if chosen.words else ''}{chosen.words}", chosen.height
    curves.layer(axes, x, part, name, output, tints=COLOURS, span=height)
    if name == "global":
        mean, reach = part.mean[:, output], 2.0 * part.sd[:, output]
        if (near := spans.beside(mean, mean - reach, mean + reach)) is not None:
            axes.set_ylim(*near)
            title = f"{title}, its band is wider than this"
    axes.set_title(title)
