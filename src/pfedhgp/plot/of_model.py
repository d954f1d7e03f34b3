"""Figures of a fitted model: its predictions and layers, its clients, how it was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from pfedhgp.base import checks
from pfedhgp.errors import InputError
from pfedhgp.model import layers as model_layers
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.words import axes_of, shown
from pfedhgp.plot import axes as styled
from pfedhgp.plot import charts, curves, given
from pfedhgp.plot.slices import Slice, domain_of, finest_scale, grid_size, slice_of, slices_of

if TYPE_CHECKING:
    from pfedhgp.estimator import FederatedGP

WIDE = (8.4, 3.4)
"""Inches of a figure along time."""


def prediction(
    model: FederatedGP,
    client: str,
    *,
    output: str | int | None = None,
    along: str | int | None = None,
    between: tuple[Any, Any] | None = None,
    rows: Any = None,
    held_out: Any = None,
    ax: Axes | None = None,
) -> Axes:
    """A client's prediction with 50% and 95% bands, noise included, and its rows.

    Args:
        model: A fitted model.
        client: One of its clients.
        output: Which output, by name or number. Default: the first.
        along: Which input the figure runs along. Default: the first. The others are held in the middle of
            the domain, and only rows near there are drawn.
        between: Where the figure begins and ends. Default: the whole domain.
        rows: Rows of the fit, drawn as dots: (X, y), {client: (X, y)}, or a table with the model's
            columns, of which only this client's rows are drawn.
        held_out: Rows that were not in the fit, drawn as rings.
        ax: Axes to draw on. Default: those of a new figure.

    Example:
        >>> import numpy as np
        >>> from pfedhgp import FederatedGP, plot
        >>> x = np.linspace(0, 6, 30)
        >>> sites = {
        ...     name: (x, np.sin(x) + shift) for name, shift in [("north", 0.0), ("south", 0.3)]
        ... }
        >>> model = FederatedGP(rounds=2).fit(sites, inputs="hour", outputs="load")
        >>> axes = plot.prediction(model, "north", rows=sites)
        >>> axes.get_xlabel(), axes.get_ylabel()
        ('hour', 'load')
    """
    fitted = given.fitted(model)
    view = _view(fitted, client, along, between, (rows, held_out))
    q = given.place_of(output, fitted.output_names, "output")
    ax, tints = styled.axes_of(ax, WIDE)
    curves.prediction(ax, view, q, tints=tints, dot=12.0)
    _along(ax, view)
    ax.set_ylabel(shown(fitted.output_names[q], 30))
    styled.title(ax, f"{shown(view.prediction.client)}: prediction, noise included", tints)
    if view.points is not None or view.held_out is not None:
        styled.plain_legend(ax, tints, ncols=2, columnspacing=1.2, handletextpad=0.4)
    return styled.as_text(ax)


def layer(
    model: FederatedGP,
    client: str,
    name: str,
    *,
    output: str | int | None = None,
    along: str | int | None = None,
    between: tuple[Any, Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """One layer of a client, "global", "deviation" or "local", with 50% and 95% bands, without noise.

    The other arguments are those of `prediction`.
    """
    fitted = given.fitted(model)
    checks.one_of(*model_layers.layers_of(fitted))(name, "name")
    view = _view(fitted, client, along, between, ())
    q = given.place_of(output, fitted.output_names, "output")
    ax, tints = styled.axes_of(ax, (WIDE[0], 2.0))
    x = view.axis.values(view.x)
    curves.layer(ax, x, view.prediction.layers[name], name, q, tints=tints)
    _along(ax, view)
    ax.set_ylabel(shown(fitted.output_names[q], 30))
    styled.title(ax, f"{shown(view.prediction.client)}: {name} layer", tints)
    return styled.as_text(ax)


def layers(
    model: FederatedGP,
    client: str,
    *,
    output: str | int | None = None,
    along: str | int | None = None,
    between: tuple[Any, Any] | None = None,
    rows: Any = None,
    held_out: Any = None,
    axes: Sequence[Axes] | None = None,
) -> np.ndarray:
    """A client's prediction above the layers that it is the sum of.

    The deviation's and the local layer's axes have one height, so that they compare. `axes` are as many as
    the model has layers and one more, the prediction's first; by default those of a new figure. The
    other arguments are those of `prediction`. Returns the axes.
    """
    fitted = given.fitted(model)
    view = _view(fitted, client, along, between, (rows, held_out))
    q = given.place_of(output, fitted.output_names, "output")
    there = model_layers.layers_of(fitted)
    ratios = [2.4, *(1.0 for _ in there)]
    found = styled.column_of(axes, ratios, (WIDE[0], 2.7 + 1.25 * len(there)))
    x, parts = view.axis.values(view.x), view.prediction.layers
    span = layer_span([view], q)
    for place, each in enumerate(found):
        _, tints = styled.axes_of(each, WIDE)
        if place == 0:
            curves.prediction(each, view, q, tints=tints, dot=12.0)
            title = f"{shown(view.prediction.client)}: prediction, noise included"
            if view.points is not None or view.held_out is not None:
                styled.plain_legend(each, tints, ncols=2, columnspacing=1.2, handletextpad=0.4)
        else:
            name = there[place - 1]
            curves.layer(each, x, parts[name], name, q, tints=tints, span=span)
            title = f"{name.capitalize()} layer"
        styled.title(each, title, tints)
        _along(each, view)
        if place < len(there):
            each.set_xlabel("")
            each.tick_params(labelbottom=False)
    found[0].set_ylabel(shown(fitted.output_names[q], 30))
    for each in found:
        styled.as_text(each)
    return found


def clients(
    model: FederatedGP,
    *,
    names: Sequence[str] | None = None,
    output: str | int | None = None,
    along: str | int | None = None,
    between: tuple[Any, Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Every client's prediction as a thin line, and what all share, the global layer, in front.

    `names` are the clients to draw, by default all. The other arguments are those of `prediction`.
    """
    fitted = given.fitted(model)
    if "global" not in model_layers.layers_of(fitted):
        raise InputError("the model has no global layer: its clients share nothing")
    wanted = list(fitted.clients) if names is None else list(names)
    views = {name: _view(fitted, name, along, between, ()) for name in wanted}
    if not views:
        raise InputError("`names` must have a client")
    q = given.place_of(output, fitted.output_names, "output")
    ax, tints = styled.axes_of(ax, WIDE)
    curves.overview(ax, views, q, tints=tints)
    _along(ax, next(iter(views.values())))
    ax.set_ylabel(shown(fitted.output_names[q], 30))
    styled.plain_legend(ax, tints, ncols=2)
    return styled.as_text(ax)


def shares(
    model: FederatedGP, *, names: Sequence[str] | None = None, ax: Axes | None = None
) -> Axes:
    """How much of each client's variation is the global layer's, its deviation's, its own, and noise.

    Over the domain, about the common mean, and averaged over outputs. The share of a layer that acts against
    the sum is negative, and drawn to the left of zero. `names` are the clients to draw, by default all.
    """
    fitted = given.fitted(model)
    wanted = [
        given.client_of(fitted, name) for name in (fitted.clients if names is None else names)
    ]
    if not wanted:
        raise InputError("`names` must have a client")
    ax, tints = styled.axes_of(ax, (WIDE[0], 1.1 + 0.3 * len(wanted)))
    parts = np.stack([share_of(fitted, name) for name in wanted])
    charts.shares(ax, [shown(name, 26) for name in wanted], parts, tints=tints)
    styled.plain_legend(ax, tints, ncols=4)
    return styled.as_text(ax)


def convergence(model: FederatedGP, *, ax: Axes | None = None) -> Axes:
    """The bound on the log evidence by round; a line for each restart."""
    fitted = given.fitted(model)
    ax, tints = styled.axes_of(ax, (5.6, 3.2))
    charts.bound(ax, fitted.history, tints=tints)
    ax.set_ylabel("nats")
    styled.title(ax, "Bound on the log evidence", tints)
    return ax


def traffic(model: FederatedGP, *, ax: Axes | None = None) -> Axes:
    """The kilobytes that a client has sent and received in training, by round."""
    fitted = given.fitted(model)
    ax, tints = styled.axes_of(ax, (5.6, 3.2))
    charts.traffic(ax, fitted.history, tints=tints)
    ax.set_ylabel("kB")
    styled.title(ax, "Exchanged by a client so far", tints)
    return ax


def calibration(
    scores: FederatedGP | Mapping[str, Any], *, histogram: bool = False, ax: Axes | None = None
) -> Axes:
    """Share of held-out cells inside intervals of each level: on the diagonal if the model is calibrated.

    Args:
        scores: What `pfedhgp.estimator.evaluation.summarise` returns, or a model that was fitted with rows
            held out (`pfedhgp fit --holdout`) and loaded from its folder.
        histogram: Draw the histogram of the probability integral transform instead: flat if calibrated. The
            dotted lines are ±2 standard deviations of a bin.
        ax: Axes to draw on. Default: those of a new figure.
    """
    tree = scores if isinstance(scores, Mapping) else given.fitted(scores).metrics
    found = (tree or {}).get("calibration") or {}
    if not found.get("levels"):
        raise InputError(
            "there are no scores of held-out rows: give what `summarise` returns, or a model that "
            "was fitted with rows held out"
        )
    ax, tints = styled.axes_of(ax, (4.4, 4.0))
    if histogram:
        charts.pit(ax, found["pit"]["edges"], found["pit"]["counts"], tints=tints)
        styled.title(ax, "PIT histogram", tints)
    else:
        charts.coverage(ax, found["levels"], found["coverage"], tints=tints)
        styled.title(ax, "Coverage", tints)
    return ax


def share_of(model: FittedModel, client: str) -> np.ndarray:
    """(4,): the shares of `PARTS` for one client, over slices along every input, averaged over outputs."""
    points = [grid_size(finest_scale(model, [client], j)) for j in range(model.inputs)]
    centre = np.broadcast_to(model.scaling.centre, (model.outputs,))
    along = [each.prediction for each in slices_of(model, client, points=points)]
    found: np.ndarray = model_layers.shares(along, centre).mean(axis=0)
    return found


def layer_span(views: Sequence[Slice], output: int) -> float:
    """A height that holds every deviation and local layer, up to a hundredth of their bands."""
    tallest = 0.0
    for view in views:
        for name in ("deviation", "local"):
            part = view.prediction.layers[name]
            mean, reach = part.mean[:, output], 2.0 * part.sd[:, output]
            low, high = np.quantile(mean - reach, 0.01), np.quantile(mean + reach, 0.99)
            tallest = max(tallest, 2.0 * abs(float(low)), 2.0 * abs(float(high)))
    return 1.05 * tallest


def _view(
    model: FittedModel,
    client: str,
    along: str | int | None,
    between: tuple[Any, Any] | None,
    rows: Sequence[Any],
) -> Slice:
    """The client's prediction along one input, and the rows near it."""
    name = given.client_of(model, client)
    j, axis = given.axes_along(model, along)
    lower, upper = domain_of(model)
    low, high = float(lower[j]), float(upper[j])
    if between is not None:
        low, high = (given.moment(each, axis, "between") for each in between)
        if not low < high:
            raise InputError("`between` must be (from, to), with `from` before `to`")
    stretch = (high - low) / max(float(upper[j] - lower[j]), 1e-300)
    count = grid_size(finest_scale(model, [name], j) / max(stretch, 1e-6))
    column = given.client_column(model)
    known = [given.rows_of(each, name, axes_of(model), model.output_names, column) for each in rows]
    inside = [None if r is None else given.between(r, j, low, high) for r in known]
    return slice_of(model, name, j, np.linspace(low, high, count), 0.5 * (lower + upper), inside)


def _along(axes: Axes, view: Slice) -> None:
    """The x-axis, and what the other inputs are held at."""
    styled.set_x_axis(axes, view.axis, styled.dates_that_fit(axes))
    axes.set_xlim(*view.axis.values([view.x[0], view.x[-1]]))
    if view.at:
        held = ", ".join(f"{axis.label} {axis.point(value)}" for axis, value in view.at)
        axes.set_xlabel(f"{view.axis.label} (at {held})")
