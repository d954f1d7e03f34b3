"""Charts of the whole model: convergence, shares, calibration, baselines, matrices; pure functions to SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pfedhgp.plot import charts
from pfedhgp.plot.axes import plain_legend
from pfedhgp.report.theme import COLOURS, NARROW, drawing, new_figure, to_svg
from pfedhgp.report.words import number, shown


def convergence(history: charts.History, *, width: int, name: str) -> str:
    """The bound, its last part larger, and the bytes that a client has exchanged so far, by round.

    A line for each restart. In the first panel the first rounds' gains hide the last ones.
    """
    wide, since = width > NARROW, charts.last_rounds(history)
    count = 3 if since else 2
    with drawing():
        figure, axes = new_figure(
            width,
            250 if wide else 220 * count,
            gap=66 if wide else 74,
            ratios=(1,) if wide else (1,) * count,
            columns=count if wide else 1,
        )
        charts.bound(axes[0], history, tints=COLOURS)
        axes[0].set_title("Bound on log evidence (nats)")
        if since:
            charts.bound(axes[1], history, tints=COLOURS, since=since)
            axes[1].set_title(f"From round {since} on, larger")
        charts.traffic(axes[-1], history, tints=COLOURS)
        axes[-1].set_title("Exchanged by a client (kB)")
        return to_svg(figure, name=name, label="The bound and the bytes exchanged, round by round")


def variance_shares(clients: Sequence[str], parts: np.ndarray, *, width: int, name: str) -> str:
    """A bar for each client, split into global, deviation, local and noise; `parts` is (clients, 4)."""
    with drawing():
        names = [shown(c, 26 if width > NARROW else 16) for c in clients]
        side = 14 + 7 * max(map(len, names))
        top = 34 if width > NARROW else 54
        height = top + 44 + 24 * len(clients)
        figure, (axes,) = new_figure(width, height, margins=(side, 12, top, 44))
        charts.shares(axes, names, parts, tints=COLOURS)
        plain_legend(axes, COLOURS, ncols=4 if width > NARROW else 2)
        return to_svg(figure, name=name, label="Shares of variance by layer, for each client")


def coverage_curve(levels: Sequence[float], coverage: Sequence[float], *, name: str) -> str:
    """Share of held-out cells inside intervals of each level; a calibrated model is on the diagonal."""
    with drawing():
        figure, (axes,) = new_figure(NARROW, 330)
        charts.coverage(axes, levels, coverage, tints=COLOURS)
        axes.set_title("Coverage")
        return to_svg(figure, name=name, label="Observed coverage against the nominal level")


def pit_histogram(edges: Sequence[float], counts: Sequence[float], *, name: str) -> str:
    """Where held-out cells lie in their predictive distribution; flat if the model is calibrated."""
    with drawing():
        figure, (axes,) = new_figure(NARROW, 330)
        charts.pit(axes, edges, counts, tints=COLOURS)
        axes.set_title("PIT histogram")
        return to_svg(figure, name=name, label="Histogram of the probability integral transform")


def baselines(scores: Mapping[str, Mapping[str, float]], *, width: int, name: str) -> str:
    """RMSE and CRPS of this model (the first) and of others on the same held-out rows; shorter is better."""
    wanted = [m for m in ("rmse", "crps") if all(s.get(m) is not None for s in scores.values())]
    wide = width > NARROW
    names = [shown(s, 24) for s in scores]
    height = 40 + 32 * len(scores)
    with drawing():
        figure, axes = new_figure(
            width,
            height if wide else height * len(wanted),
            margins=(14 + 7 * max(map(len, names)), 8, 30, 6),
            gap=36,
            ratios=(1,) if wide else (1,) * len(wanted),
            columns=len(wanted) if wide else 1,
        )
        for i, (each, metric) in enumerate(zip(axes, wanted, strict=True)):
            values = [float(s[metric]) for s in scores.values()]
            colours = [COLOURS["prediction"]] + [COLOURS["noise"]] * (len(values) - 1)
            bars = each.barh(np.arange(len(values)), values, color=colours, height=0.6)
            for one, patch in enumerate(bars.patches):
                patch.set_gid(f"{metric}-{one}")
            each.bar_label(bars, [number(v) for v in values], padding=5, color=COLOURS["ink"])
            each.set_yticks(
                np.arange(len(values)), names if i == 0 or not wide else [""] * len(names)
            )
            each.invert_yaxis()
            each.grid(visible=False)
            each.set_xticks([])
            each.set_xlim(0, 1.16 * max(values))
            each.spines[["bottom", "left"]].set_visible(False)
            each.set_title(metric.upper())
        return to_svg(figure, name=name, label="Errors of this model and of the baselines")


def heatmap(
    matrix: np.ndarray,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    name: str,
    largest: float | None = None,
) -> str:
    """A matrix with its numbers: positive in the global layer's colour, negative in the deviation's."""
    with drawing():
        row_names, column_names = ([shown(v, 16) for v in names] for names in (rows, columns))
        longest = max(map(len, column_names), default=0)
        slanted = longest > 50 / max(len(column_names), 1)
        bottom = 24 + (4 * longest if slanted else 0)
        height = 34 + bottom + int(np.clip(32 * len(matrix), 100, 420))
        left = 14 + 7 * max(map(len, row_names))
        figure, (axes,) = new_figure(NARROW, height, margins=(left, 6, 34, bottom))
        charts.heatmap(
            axes,
            matrix,
            rows=row_names,
            columns=column_names,
            tints=COLOURS,
            largest=largest,
            slanted=slanted,
        )
        axes.set_title(title)
        return to_svg(figure, name=name, label=title)


def past_forecasts(found: Mapping[str, Any], score: str, *, name: str) -> str:
    """One score of a back-test by lead time, a line for each method."""
    with drawing():
        figure, (axes,) = new_figure(NARROW, 330, margins=(58, 12, 60, 44))
        charts.backtest(axes, found, score, tints=COLOURS)
        axes.set_ylabel("")
        title = "Inside 95% intervals" if score == "coverage" else charts.SCORES[score]
        axes.set_title(title, pad=28.0)  # above the legend
        plain_legend(axes, COLOURS, ncols=3)
        return to_svg(
            figure, name=name, label=f"{charts.SCORES[score]} of past forecasts by lead time"
        )
