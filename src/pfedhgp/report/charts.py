"""Charts of the whole model: convergence, shares, calibration, baselines, matrices; pure functions to SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from pfedhgp.model.layers import PARTS
from pfedhgp.report.theme import COLOURS, NARROW, drawing, new_figure, plain_legend, to_svg
from pfedhgp.report.words import number, shown

STRONGEST = 0.5
"""Opacity of a heat map's strongest cell: the numbers on it stay readable, on light pages and on dark."""


def convergence(history: Sequence[Mapping[str, Any]], *, width: int, name: str) -> str:
    """The bound, and the bytes that a client has exchanged so far, by round; a line for each restart."""
    wide = width > NARROW
    with drawing():
        figure, axes = new_figure(
            width,
            250 if wide else 440,
            gap=80 if wide else 74,
            ratios=(1,) if wide else (1, 1),
            columns=2 if wide else 1,
        )
        left, right = axes
        attempts = sorted({int(h.get("attempt", 0)) for h in history})
        for attempt in attempts:
            mine = [h for h in history if int(h.get("attempt", 0)) == attempt]
            known = [(i, h["bound"]) for i, h in enumerate(mine) if h.get("bound") is not None]
            rounds, bound = zip(*known, strict=True) if known else ((), ())
            (line,) = left.plot(
                rounds, bound, color=COLOURS["prediction"], marker="o", markersize=4
            )
            line.set(alpha=1.0 if attempt == attempts[0] else 0.5, gid=f"bound-{attempt}")
        left.set_title("Bound on the log evidence (nats)")
        sent = np.cumsum([_per_client(h) for h in history]) / 1e3
        right.plot(sent, color=COLOURS["global"], marker="o", markersize=4, gid="bytes")
        right.set_ylim(bottom=0)
        right.set_title("Exchanged by a client in rounds so far (kB)")
        for each in axes:
            each.set_xlabel("round")
            each.xaxis.set_major_locator(MaxNLocator(integer=True))
        return to_svg(figure, name=name, label="The bound and the bytes exchanged, round by round")


def _per_client(record: Mapping[str, Any]) -> float:
    count = max(int(record.get("clients") or 1), 1)
    return (record.get("bytes_up", 0) + record.get("bytes_down", 0)) / count


def variance_shares(clients: Sequence[str], parts: np.ndarray, *, width: int, name: str) -> str:
    """A bar for each client, split into global, deviation, local and noise; `parts` is (clients, 4)."""
    with drawing():
        names = [shown(c, 26 if width > NARROW else 16) for c in clients]
        side = 14 + 7 * max(map(len, names))
        top = 34 if width > NARROW else 54
        height = top + 44 + 24 * len(clients)
        figure, (axes,) = new_figure(width, height, margins=(side, 12, top, 44))
        y = np.arange(len(clients))
        for sign in (1, -1):  # what is negative is drawn to the left of zero
            left = np.zeros(len(clients))
            for j, part in enumerate(PARTS):
                size = np.where(sign * parts[:, j] > 0, parts[:, j], 0.0)
                label = part if sign == 1 else "_"  # an underscore keeps it out of the legend
                bars = axes.barh(
                    y, size, left=left, height=0.62, color=COLOURS[part], linewidth=0, label=label
                )
                for one, patch in enumerate(bars.patches):
                    patch.set_gid(f"{part}{'+' if sign == 1 else '-'}{one}")
                left = left + size
        axes.set_yticks(y, names)
        axes.set_ylim(-0.5, len(clients) - 0.5)
        axes.invert_yaxis()
        axes.grid(visible=False)
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_xlim(min(0.0, float(np.minimum(parts, 0).sum(axis=1).min())), None)
        axes.set_xlabel("share of the variation about the common mean")
        plain_legend(axes, ncols=4 if width > NARROW else 2)
        return to_svg(figure, name=name, label="Shares of variance by layer, for each client")


def coverage_curve(levels: Sequence[float], coverage: Sequence[float], *, name: str) -> str:
    """Share of held-out cells inside intervals of each level; a calibrated model is on the diagonal."""
    with drawing():
        figure, (axes,) = new_figure(NARROW, 330)
        axes.plot([0, 1], [0, 1], color=COLOURS["muted"], linewidth=1.0, linestyle=(0, (4, 3)))
        axes.plot(
            levels, coverage, color=COLOURS["prediction"], marker="o", markersize=4, gid="coverage"
        )
        axes.fill_between(
            levels, levels, coverage, color=COLOURS["prediction"], alpha=0.15, linewidth=0
        )
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1.0))
        axes.set(xlim=(0, 1), ylim=(0, 1))
        axes.set_xlabel("nominal level of the interval")
        axes.set_ylabel("held-out cells inside")
        axes.set_title("Coverage")
        return to_svg(figure, name=name, label="Observed coverage against the nominal level")


def pit_histogram(edges: Sequence[float], counts: Sequence[float], *, name: str) -> str:
    """Where held-out cells lie in their predictive distribution; a calibrated model gives a flat histogram.

    The dotted lines are ±2 standard deviations of a bin's count, for independent and calibrated cells.
    """
    at, widths = np.asarray(edges, float), np.diff(np.asarray(edges, float))
    expected = float(np.sum(counts)) * widths
    spread = 2.0 * np.sqrt(expected * (1.0 - widths))
    with drawing():
        figure, (axes,) = new_figure(NARROW, 330)
        tint = COLOURS["prediction"]
        bars = axes.bar(at[:-1], counts, widths * 0.94, align="edge", color=tint, alpha=0.75)
        for i, patch in enumerate(bars.patches):
            patch.set_gid(f"bin-{i}")
        for line, style in ((expected, "-"), (expected - spread, ":"), (expected + spread, ":")):
            level = np.maximum(np.append(line, line[-1:]), 0.0)
            axes.plot(at, level, style, drawstyle="steps-post", color=COLOURS["ink"], linewidth=1.0)
        axes.set_xlim(0, 1)
        axes.set_xlabel("probability integral transform")
        axes.set_ylabel("held-out cells")
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
    matrix = np.asarray(matrix, np.float64)
    scale = largest or float(np.max(np.abs(matrix), initial=0.0)) or 1.0
    wordy = matrix.size <= 200
    with drawing():
        row_names, column_names = ([shown(v, 16) for v in names] for names in (rows, columns))
        longest = max(map(len, column_names), default=0)
        slanted = longest > 50 / max(len(column_names), 1)
        bottom = 24 + (4 * longest if slanted else 0)
        height = 34 + bottom + int(np.clip(32 * len(matrix), 100, 420))
        left = 14 + 7 * max(map(len, row_names))
        figure, (axes,) = new_figure(NARROW, height, margins=(left, 6, 34, bottom))
        for (i, j), value in np.ndenumerate(matrix):
            role, alpha = ("global" if value >= 0 else "deviation"), min(abs(value) / scale, 1.0)
            patch = Rectangle(
                (j, i), 0.96, 0.94, color=COLOURS[role], alpha=STRONGEST * alpha, lw=0
            )
            patch.set_gid(f"cell-{i}-{j}")
            axes.add_patch(patch)
            if wordy:
                text = f"{value:.2f}".replace("-", "−") if scale <= 1 else number(value)
                axes.text(j + 0.48, i + 0.49, text, ha="center", va="center", fontsize=9.5)
        axes.set_xlim(0, matrix.shape[1])
        axes.set_ylim(len(matrix), 0)
        slant: dict[str, Any] = {"rotation": 30, "ha": "right"} if slanted else {}
        axes.set_xticks(np.arange(matrix.shape[1]) + 0.48, column_names, **slant)
        axes.set_yticks(np.arange(len(matrix)) + 0.47, row_names)
        axes.grid(visible=False)
        axes.tick_params(length=0)
        axes.spines[["bottom", "left"]].set_visible(False)
        axes.set_title(title)
        return to_svg(figure, name=name, label=title)
