"""Draws clients: predictions with bands and rows, layers, all clients together, and forecasts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from scipy.special import ndtri

from pfedhgp.model.prediction import Layer
from pfedhgp.plot.axes import wide_enough
from pfedhgp.plot.colours import Tints
from pfedhgp.plot.slices import Slice

LEVELS = (0.95, 0.5)
"""The bands, the wider one first."""
DOT = 8.5
"""The size of a row."""

Points = tuple[np.ndarray, np.ndarray]
"""Places along an input (n,), and outputs there (n, Q)."""


def band(
    axes: Axes,
    x: np.ndarray,
    mean: np.ndarray,
    sd: np.ndarray,
    role: str,
    *,
    tints: Tints,
    levels: Sequence[float],
    part: str = "",
) -> None:
    """Gaussian intervals mean ± z sd, drawn one over the other."""
    for level in levels:
        reach = ndtri(0.5 * (1.0 + level)) * sd
        tint, name = tints[role], f"{role}-band-{round(100 * level)}{part}"
        axes.fill_between(x, mean - reach, mean + reach, color=tint, alpha=0.2, lw=0, gid=name)


def prediction(
    axes: Axes,
    view: Slice,
    output: int,
    *,
    tints: Tints,
    dot: float = DOT,
    part: str = "",
    since: float = 0.0,
) -> None:
    """Mean, bands and rows; `part` keeps the names of two drawings of it apart.

    What lies before `since`, a part of the domain, is not drawn, but for one point that a line comes from.
    """
    p = view.prediction
    mean, sd = p.mean[:, output], p.sd[:, output]
    start = view.x[0] + since * np.ptp(view.x)
    kept = slice(max(int(np.searchsorted(view.x, start)) - 1, 0), None)
    x = view.axis.values(view.x[kept])
    band(axes, x, mean[kept], sd[kept], "prediction", tints=tints, levels=LEVELS, part=part)
    axes.plot(x, mean[kept], color=tints["prediction"], lw=1.4, gid=f"mean{part}")
    _rows(axes, view, output, tints, dot, part, start if since > 0.0 else -np.inf)
    given = [found for found in (view.points, view.held_out, view.others) if found is not None]
    keep_readable(axes, mean - 2.0 * sd, mean + 2.0 * sd, (Y[:, output] for _, Y in given))


def layer(
    axes: Axes,
    x: np.ndarray,
    part: Layer,
    name: str,
    output: int,
    *,
    tints: Tints,
    span: float | None = None,
) -> None:
    """One layer with its bands; the deviation and the local layer about zero, `span` high if given."""
    mean, sd = part.mean[:, output], part.sd[:, output]
    band(axes, x, mean, sd, name, tints=tints, levels=LEVELS)
    axes.plot(x, mean, color=tints[name], lw=1.6, gid=f"{name}-mean")
    if name != "global":
        axes.axhline(0.0, color=tints["muted"], linewidth=0.7)
        if span:
            axes.set_ylim(-0.5 * span, 0.5 * span)
    axes.set_ylim(*wide_enough(*axes.get_ylim()))
    axes.yaxis.set_major_locator(MaxNLocator(3))


def _rows(
    axes: Axes, view: Slice, output: int, tints: Tints, dot: float, part: str, start: float
) -> None:
    """Rows from `start` on as dots, those held out as rings, those of which nothing is known as squares."""
    ring: dict[str, Any] = {"facecolors": "none", "linewidths": 1.1}
    filled: dict[str, Any] = {"color": tints["ink"], "alpha": 0.75, "linewidths": 0}
    for found, label, gid, how in (
        (view.points, "rows", "rows", filled),
        (view.held_out, "rows held out", "held-out", {**ring, "edgecolors": tints["held"]}),
        (view.others, "other rows", "others", {**ring, "edgecolors": tints["muted"]}),
    ):
        if found is None:
            continue
        kept = found[0] >= start
        axes.scatter(
            view.axis.values(found[0][kept]),
            found[1][kept, output],
            s=dot if gid == "rows" else dot + 5.0,
            marker="s" if gid == "others" else "o",
            zorder=3 if gid == "rows" else 4,
            label=label,
            gid=f"{gid}{part}",
            **how,
        )


def keep_readable(
    axes: Axes, lower: np.ndarray, upper: np.ndarray, given: Iterable[np.ndarray]
) -> None:
    """The y-range holds all rows and most of the band: a prior's width in a gap must not flatten the rest."""
    low, high = np.quantile(lower, 0.02), np.quantile(upper, 0.98)
    for values in given:
        if np.isfinite(values).any():
            low, high = min(low, np.nanmin(values)), max(high, np.nanmax(values))
    pad = 0.06 * (high - low)
    axes.set_ylim(*wide_enough(low - pad, high + pad))


def overview(axes: Axes, slices: Mapping[str, Slice], output: int, *, tints: Tints) -> None:
    """Every client's mean as a thin line, and the global layer with its 95% band in front."""
    first = next(iter(slices.values()))
    for i, view in enumerate(slices.values()):
        label = "each client's prediction" if i == 0 else "_"
        mean = view.prediction.mean[:, output]
        (line,) = axes.plot(view.axis.values(view.x), mean, color=tints["muted"], lw=0.8, alpha=0.6)
        line.set(label=label, gid=f"client-{i}")
    shared = first.prediction.layers["global"]
    x, mean, sd = first.axis.values(first.x), shared.mean[:, output], shared.sd[:, output]
    band(axes, x, mean, sd, "global", tints=tints, levels=(0.95,))
    axes.plot(x, mean, color=tints["global"], lw=2.0, label="global layer", gid="global-mean")
    axes.set_ylim(*wide_enough(*axes.get_ylim()))


def forecast(
    axes: Axes,
    times: np.ndarray,
    mean: np.ndarray,
    sd: np.ndarray,
    *,
    tints: Tints,
    before: tuple[np.ndarray, np.ndarray] | None = None,
) -> None:
    """The forecast's mean and bands (n,); `before` are past rows, and a line shows where they end."""
    band(axes, times, mean, sd, "prediction", tints=tints, levels=LEVELS)
    axes.plot(times, mean, color=tints["prediction"], lw=1.6, label="forecast", gid="mean")
    keep_readable(axes, mean - 2.0 * sd, mean + 2.0 * sd, () if before is None else (before[1],))
    if before is None or not len(before[0]):
        return
    axes.plot(*before, color=tints["ink"], lw=0.8, alpha=0.35, gid="past")
    axes.scatter(
        *before, s=DOT, color=tints["ink"], alpha=0.75, linewidths=0, label="rows", gid="rows"
    )
    axes.axvline(before[0][-1], color=tints["muted"], lw=0.8, ls=(0, (4, 3)), gid="now")
