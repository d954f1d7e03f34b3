"""Figures of what a model's methods return: forecasts, back-tests, groups of clients, diagnoses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from pfedhgp.base import checks
from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError
from pfedhgp.model.words import InputAxis, shown
from pfedhgp.plot import axes as styled
from pfedhgp.plot import charts, curves, given, groups, reasons

if TYPE_CHECKING:
    from pfedhgp.diagnosis.decision import Diagnosis, Why
    from pfedhgp.living.forecast import Forecast
    from pfedhgp.zones.result import Places, Zones

BEFORE = 3.0
"""Of past rows, a forecast's figure shows this many times its own length."""
MOST_CYCLES = 40
"""Cycles with a row of their own in a figure of a diagnosis."""


def forecast(
    found: Forecast,
    *,
    rows: Any = None,
    output: str | int | None = None,
    before: float = BEFORE,
    ax: Axes | None = None,
) -> Axes:
    """A forecast with 50% and 95% bands, noise included, after the rows that it goes on from.

    Args:
        found: What `FederatedGP.forecast` returned.
        rows: The client's past rows: (X, y), {client: (X, y)}, or a table with the model's columns, of
            which only this client's rows are drawn.
        output: Which output, by name or number. Default: the first.
        before: How much of the past is shown, as a multiple of the forecast's length.
        ax: Axes to draw on. Default: those of a new figure.

    Example:
        >>> import numpy as np
        >>> from pfedhgp import FederatedGP, plot
        >>> x = np.arange(40) / 8
        >>> sites = {name: (x, np.sin(x) + shift) for name, shift in [("a", 0.0), ("b", 0.3)]}
        >>> model = FederatedGP(rounds=2).fit(sites, inputs="hour", outputs="load")
        >>> axes = plot.forecast(model.forecast("a", 1.0), rows=sites)
        >>> axes.get_title(loc="left")
        'a: forecast'
    """
    from pfedhgp.living.forecast import Forecast

    found = given.result_of(found, Forecast, "found", "`model.forecast(client, horizon)`")
    mean, sd = (part.reshape(len(found.times), -1) for part in (found.mean, found.sd))
    outputs = found.outputs or tuple(f"y{q}" for q in range(mean.shape[1]))
    q = given.place_of(output, outputs, "output")
    past = given.rows_of(rows, found.client, [found.axis], outputs, found.client_column)
    reach = checks.number(least=0.0)(before, "before") * float(found.lead[-1])
    ax, tints = styled.axes_of(ax, (8.4, 3.4))
    drawn = None if past is None else _last(past, q, reach, found)
    curves.forecast(ax, found.times, mean[:, q], sd[:, q], tints=tints, before=drawn)
    styled.set_x_axis(ax, found.axis, styled.dates_that_fit(ax))
    start = found.times[0] if drawn is None or not len(drawn[0]) else drawn[0][0]
    ax.set_xlim(start, found.times[-1])
    ax.set_ylabel(shown(outputs[q], 30))
    styled.title(ax, f"{shown(found.client)}: forecast", tints)
    styled.plain_legend(ax, tints, ncols=2, columnspacing=1.2, handletextpad=0.4)
    return styled.as_text(ax)


def _last(past: ClientRows, q: int, reach: float, found: Forecast) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the last stretch, as they are drawn."""
    times = found.times
    if times.dtype.kind == "M":
        times = times.astype("datetime64[us]").astype(np.int64) / 1e6
    now = float(times[0]) - float(found.lead[0])
    kept = (past.X[:, 0] >= now - reach) & (past.X[:, 0] < float(times[0]))
    kept &= np.isfinite(past.Y[:, q])
    return found.axis.values(past.X[kept, 0]), past.Y[kept, q]


def backtest(found: Mapping[str, Any], *, score: str = "crps", ax: Axes | None = None) -> Axes:
    """How good forecasts would have been, by lead time: the model, seasonal-naive and climatology.

    Args:
        found: What `FederatedGP.backtest` returned.
        score: "crps", "rmse" or "coverage". Of the first two less is better; coverage should be 95%.
        ax: Axes to draw on. Default: those of a new figure.
    """
    score = checks.one_of(*charts.SCORES)(score, "score")
    if not isinstance(found, Mapping) or "scores" not in found:
        raise InputError("`found` must be what `FederatedGP.backtest` returned")
    ax, tints = styled.axes_of(ax, (6.4, 3.4))
    charts.backtest(ax, found, score, tints=tints)
    styled.plain_legend(ax, tints, ncols=3, columnspacing=1.2)
    return styled.as_text(ax)


def zones_map(zones: Zones, places: Places, *, ax: Axes | None = None) -> Axes:
    """Clients where they are, a colour and a marker for each group.

    Args:
        zones: What `FederatedGP.cluster` returned.
        places: {client: (latitude, longitude)}, of all clients.
        ax: Axes to draw on. Default: those of a new figure.
    """
    zones = _zones(zones)
    if not isinstance(places, Mapping):
        got = type(places).__name__
        raise InputError(f"`places` must be {{client: (latitude, longitude)}}, got {got}")
    missing = [name for name in zones.clients if name not in places]
    if missing:
        raise InputError(f"`places` lacks client {missing[0]!r}")
    ax, tints = styled.axes_of(ax, (6.4, 4.6))
    drawn = groups.site_map(ax, zones.labels, places, tints=tints)
    many = min(len(drawn), 4)
    styled.plain_legend(ax, tints, ncols=many, handletextpad=0.2, columnspacing=1.0)
    groups.name_sites(ax, zones.labels, places, tints=tints)
    return styled.as_text(ax)


def _zones(zones: Any) -> Zones:
    from pfedhgp.zones.result import Zones

    return given.result_of(zones, Zones, "zones", "`model.cluster()`")


def tree(zones: Zones, *, ax: Axes | None = None) -> Axes:
    """Which clients are alike: the tree by which groups join, in the colours of the groups."""
    zones = _zones(zones)
    if len(groups.in_tree(zones)) < 2:
        raise InputError("a tree needs two clients with enough rows")
    ax, tints = styled.axes_of(ax, (5.2, 1.1 + 0.27 * max(len(zones.clients), 4)))
    groups.tree(ax, zones, tints=tints)
    styled.title(ax, "Who is like whom", tints)
    return styled.as_text(ax)


def distances(zones: Zones, *, ax: Axes | None = None) -> Axes:
    """Distances between clients in the order of the tree: the stronger the colour, the nearer."""
    zones = _zones(zones)
    if len(groups.in_tree(zones)) < 2:
        raise InputError("distances need two clients with enough rows")
    ax, tints = styled.axes_of(ax, (4.9, 0.9 + 0.27 * max(len(zones.clients), 4)))
    groups.heat_map(ax, zones, tints=tints)
    styled.title(ax, "Distances: the stronger, the nearer", tints)
    return styled.as_text(ax)


def diagnosis(
    found: Diagnosis, *, truth: Sequence[str] | None = None, ax: Axes | None = None
) -> Axes:
    """What cycles were taken for: the probability of each class, a row for each cycle.

    Args:
        found: What `FederatedGP.classify` returned.
        truth: The class of each cycle, if it is known. Then rows are true classes, columns what cycles were
            taken for, "none of these" among them, and cells count cycles.
        ax: Axes to draw on. Default: those of a new figure.
    """
    from pfedhgp.diagnosis.decision import Diagnosis

    found = given.result_of(found, Diagnosis, "found", "`model.classify(cycles)`")
    if truth is not None:
        return _confusion(found, [str(each) for each in truth], ax)
    count = min(len(found.labels), MOST_CYCLES)
    ax, tints = styled.axes_of(ax, (1.6 + 0.9 * len(found.classes), 1.0 + 0.3 * count))
    marks = [" (none of these)" if none else "" for none in found.none[:count]]
    names = [f"cycle {c}{mark}" for c, mark in enumerate(marks)]
    columns = [shown(name, 16) for name in found.classes]
    matrix = found.probability[:count]
    charts.heatmap(ax, matrix, rows=names, columns=columns, tints=tints, largest=1.0)
    more = len(found.labels) - count
    of = "" if not more else f" (the first {count} of {len(found.labels)} cycles)"
    styled.title(ax, f"Probability of each class{of}", tints)
    return styled.as_text(ax)


def _confusion(found: Diagnosis, truth: Sequence[str], ax: Axes | None) -> Axes:
    from pfedhgp.diagnosis.decision import NONE

    if len(truth) != len(found.labels):
        raise InputError(f"`truth` has {len(truth)} classes for {len(found.labels)} cycles")
    rows = list(dict.fromkeys([*(c for c in found.classes if c in truth), *truth]))
    columns = [*found.classes, *([NONE] if NONE in found.labels else [])]
    matrix = np.zeros((len(rows), len(columns)))
    for one, taken in zip(truth, found.labels, strict=True):
        matrix[rows.index(one), columns.index(taken)] += 1
    ax, tints = styled.axes_of(ax, (1.8 + 0.95 * len(columns), 1.2 + 0.42 * len(rows)))
    names, heads = ([shown(v, 16) for v in part] for part in (rows, columns))
    charts.heatmap(ax, matrix, rows=names, columns=heads, tints=tints, counts=True)
    ax.set_xlabel("taken for")
    ax.set_ylabel("true class")
    right = sum(one == taken for one, taken in zip(truth, found.labels, strict=True))
    styled.title(ax, f"{right} of {len(truth)} cycles are right", tints)
    return styled.as_text(ax)


def why(found: Why, *, total: bool = False, ax: Axes | None = None) -> Axes:
    """Why a cycle was taken for one class rather than another, along the cycle, in nats.

    A line for each of the four channels that said most; above zero speaks for the class chosen. With
    `total`, the sum over all channels from the start up to each place.

    Args:
        found: What `FederatedGP.why` returned.
        total: Whether to add up.
        ax: Axes to draw on. Default: those of a new figure.
    """
    from pfedhgp.diagnosis.decision import Why

    found = given.result_of(found, Why, "found", "`model.why(cycle)`")
    call = found.condensed()
    axis = found.axis or InputAxis("sample")
    places = axis.values(call["places"])
    ax, tints = styled.axes_of(ax, (8.4, 3.0))
    words = f"{shown(found.chosen, 24)} rather than {shown(found.other, 24)}"
    if total:
        reasons.so_far(ax, call, places, tints=tints)
        styled.title(ax, f"For {words}: all channels, so far", tints)
    else:
        reasons.by_stretch(ax, call, places, tints=tints)
        styled.plain_legend(
            ax, tints, ncols=reasons.SHOWN, columnspacing=1.0, handletextpad=0.4, fontsize="small"
        )
        styled.title(ax, f"For {words}", tints)
    styled.set_x_axis(ax, axis, styled.dates_that_fit(ax))
    ax.set_ylabel("nats")
    return styled.as_text(ax)
