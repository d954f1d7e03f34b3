"""Draws what concerns the whole model: convergence, shares, calibration, back-tests and matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from pfedhgp.model.layers import PARTS
from pfedhgp.model.words import number, shown
from pfedhgp.plot.colours import Tints

STRONGEST = 0.5
"""Opacity of a heat map's strongest cell: the numbers on it stay readable, on light pages and on dark."""
SCORES = {"crps": "CRPS", "rmse": "RMSE", "coverage": "readings inside their 95% interval"}
"""What the scores of a back-test are called on an axis."""
UNITS = ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
METHODS = {"model": "this model", "seasonal_naive": "seasonal-naive", "climatology": "climatology"}
"""The methods of a back-test, in words."""

History = Sequence[Mapping[str, Any]]


def bound(axes: Axes, history: History, *, tints: Tints, since: int = 0) -> None:
    """The bound by round, from round `since` on; a line for each restart."""
    attempts = sorted({int(h.get("attempt", 0)) for h in history})
    for attempt in attempts:
        known = _bounds(history, attempt)[since:]
        rounds, values = zip(*known, strict=True) if known else ((), ())
        (line,) = axes.plot(
            rounds, values, color=tints["prediction"], lw=1.6, marker="o", markersize=4
        )
        name = f"bound-{attempt}" if since == 0 else f"last-bound-{attempt}"
        line.set(alpha=1.0 if attempt == attempts[0] else 0.5, gid=name)
    _rounds(axes)


def last_rounds(history: History) -> int:
    """The round at which the last part begins, which the first rounds' gains hide; 0 if there are few rounds.

    >>> last_rounds([{"bound": float(b)} for b in range(5)])
    2
    >>> last_rounds([{"bound": float(b)} for b in range(31)]), last_rounds([{"bound": 0.0}] * 3)
    (20, 0)
    """
    longest = max(len(_bounds(history, a)) for a in {int(h.get("attempt", 0)) for h in history})
    rounds = longest - 1
    return rounds - max(2, rounds // 3) if rounds > 2 else 0


def _bounds(history: History, attempt: int) -> list[tuple[int, float]]:
    """(round, bound) of one restart."""
    mine = [h for h in history if int(h.get("attempt", 0)) == attempt]
    return [(i, h["bound"]) for i, h in enumerate(mine) if h.get("bound") is not None]


def traffic(axes: Axes, history: History, *, tints: Tints) -> None:
    """The kilobytes that a client has exchanged so far, by round."""
    sent = np.cumsum([_per_client(h) for h in history]) / 1e3
    axes.plot(sent, color=tints["global"], lw=1.6, marker="o", markersize=4, gid="bytes")
    axes.set_ylim(bottom=0)
    _rounds(axes)


def _rounds(axes: Axes) -> None:
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _per_client(record: Mapping[str, Any]) -> float:
    count = max(int(record.get("clients") or 1), 1)
    return (record.get("bytes_up", 0) + record.get("bytes_down", 0)) / count


def shares(axes: Axes, names: Sequence[str], parts: np.ndarray, *, tints: Tints) -> None:
    """A bar for each client, split into global, deviation, local and noise; `parts` is (clients, 4)."""
    y = np.arange(len(names))
    for sign in (1, -1):  # what is negative is drawn to the left of zero
        left = np.zeros(len(names))
        for j, part in enumerate(PARTS):
            size = np.where(sign * parts[:, j] > 0, parts[:, j], 0.0)
            label = part if sign == 1 else "_"  # an underscore keeps it out of the legend
            bars = axes.barh(
                y, size, left=left, height=0.62, color=tints[part], linewidth=0, label=label
            )
            for one, patch in enumerate(bars.patches):
                patch.set_gid(f"{part}{'+' if sign == 1 else '-'}{one}")
            left = left + size
    axes.set_yticks(y, names)
    axes.set_ylim(-0.5, len(names) - 0.5)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlim(min(0.0, float(np.minimum(parts, 0).sum(axis=1).min())), None)
    axes.set_xlabel("share of the variation about the common mean")


def coverage(
    axes: Axes, levels: Sequence[float], covered: Sequence[float], *, tints: Tints
) -> None:
    """Share of held-out cells inside intervals of each level; a calibrated model is on the diagonal."""
    axes.plot([0, 1], [0, 1], color=tints["muted"], linewidth=1.0, linestyle=(0, (4, 3)))
    axes.plot(
        levels,
        covered,
        color=tints["prediction"],
        lw=1.6,
        marker="o",
        markersize=4,
        gid="coverage",
    )
    axes.fill_between(levels, levels, covered, color=tints["prediction"], alpha=0.15, linewidth=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0))
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_xlabel("nominal level of the interval")
    axes.set_ylabel("held-out cells inside")


def pit(axes: Axes, edges: Sequence[float], counts: Sequence[float], *, tints: Tints) -> None:
    """Where held-out cells lie in their predictive distribution; a calibrated model gives a flat histogram.

    The dotted lines are ±2 standard deviations of a bin's count, for independent and calibrated cells.
    """
    at, widths = np.asarray(edges, float), np.diff(np.asarray(edges, float))
    expected = float(np.sum(counts)) * widths
    spread = 2.0 * np.sqrt(expected * (1.0 - widths))
    tint = tints["prediction"]
    bars = axes.bar(at[:-1], counts, widths * 0.94, align="edge", color=tint, alpha=0.75)
    for i, patch in enumerate(bars.patches):
        patch.set_gid(f"bin-{i}")
    for line, style in ((expected, "-"), (expected - spread, ":"), (expected + spread, ":")):
        level = np.maximum(np.append(line, line[-1:]), 0.0)
        axes.plot(at, level, style, drawstyle="steps-post", color=tints["ink"], linewidth=1.0)
    axes.set_xlim(0, 1)
    axes.set_xlabel("probability integral transform")
    axes.set_ylabel("held-out cells")


def backtest(axes: Axes, found: Mapping[str, Any], score: str, *, tints: Tints) -> None:
    """One score of each method by lead time, at the end of each range; `found` is a whole back-test."""
    size, unit = 1.0, f"{shown(found.get('input', 'time'))}, ahead"
    if found.get("dates"):
        size, word = next((s, w) for s, w in UNITS if found["horizon"] >= 2 * s or s == 1.0)
        unit = f"{word} ahead"
    axes.set_xlabel(unit)
    axes.set_ylabel(SCORES[score])
    looks = {"model": ("prediction", "o"), "seasonal_naive": ("deviation", "s")}
    looks["climatology"] = ("muted", "^")
    for method, words in METHODS.items():
        if method not in found["scores"]:
            continue
        tint, marker = looks[method]
        table = found["scores"][method]
        lead, values = [each["to"] / size for each in table], [each[score] for each in table]
        axes.plot(
            lead,
            values,
            color=tints[tint],
            lw=1.6,
            marker=marker,
            markersize=4.5,
            label=words,
            gid=method,
        )
    if score == "coverage":
        axes.axhline(0.95, color=tints["muted"], lw=1.0, ls=(0, (4, 3)), gid="nominal")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_ylim(top=1.02)
    else:
        axes.set_ylim(bottom=0.0)
    axes.set_xlim(left=0.0)


def heatmap(
    axes: Axes,
    matrix: np.ndarray,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    tints: Tints,
    largest: float | None = None,
    slanted: bool = False,
    counts: bool = False,
) -> None:
    """A matrix with its numbers: positive in the global layer's colour, negative in the deviation's."""
    matrix = np.asarray(matrix, np.float64)
    scale = largest or float(np.max(np.abs(matrix), initial=0.0)) or 1.0
    wordy = matrix.size <= 200
    for (i, j), value in np.ndenumerate(matrix):
        role, alpha = ("global" if value >= 0 else "deviation"), min(abs(value) / scale, 1.0)
        patch = Rectangle((j, i), 0.96, 0.94, color=tints[role], alpha=STRONGEST * alpha, lw=0)
        patch.set_gid(f"cell-{i}-{j}")
        axes.add_patch(patch)
        if wordy:
            text = f"{value:.2f}".replace("-", "−") if scale <= 1 else number(value)
            text = f"{value:.0f}" if counts else text
            look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9.5}
            axes.text(j + 0.48, i + 0.49, text, color=tints["ink"], **look)
    axes.set_xlim(0, matrix.shape[1])
    axes.set_ylim(len(matrix), 0)
    slant: dict[str, Any] = {"rotation": 30, "ha": "right"} if slanted else {}
    axes.set_xticks(np.arange(matrix.shape[1]) + 0.48, columns, **slant)
    axes.set_yticks(np.arange(len(matrix)) + 0.47, rows)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[["bottom", "left"]].set_visible(False)
