"""The bound by round as a small SVG. Colours and fonts come from the page's CSS."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from pfedhgp.page.words import bound

WIDTH, HEIGHT = 560, 240
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 14, 30
MOST_POINTS = 400


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from `low` to `high`: steps of 1, 2 or 5 times a power of ten, at most `most` of them."""
    span = high - low
    if not span > 0.0:
        return [low]
    step = 10.0 ** math.floor(math.log10(span / most))
    step *= next(m for m in (1.0, 2.0, 5.0, 10.0, 20.0) if span / (m * step) <= most)
    first = math.ceil(low / step - 1e-9)
    return [step * k for k in range(first, math.floor(high / step + 1e-9) + 1)]


def bound_chart(points: Sequence[tuple[int, float]], rounds: int) -> Markup:
    """The bound after each round, up to the most rounds that training may take."""
    shown = [(r, b) for r, b in points if math.isfinite(b)][-MOST_POINTS:]
    if len(shown) < 2:
        return Markup("")
    last = max(rounds, shown[-1][0], 1)
    first = min(shown[0][0], last - 1)
    values = [b for _, b in shown]
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or max(abs(high), 1.0) * 0.01
    low, high = low - margin, high + margin

    def x(number: float) -> float:
        return LEFT + (number - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)

    path = " ".join(f"{x(r):.1f},{y(b):.1f}" for r, b in shown)
    marks = []
    for value in ticks(low, high, 5):
        at = f"{y(value):.1f}"
        marks.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
        marks.append(
            f'<text class="end" x="{LEFT - 8}" y="{y(value) + 4:.1f}">{_number(value)}</text>'
        )
    for value in ticks(first, last, 6):
        if value == int(value):
            marks.append(
                f'<text class="mid" x="{x(value):.1f}" y="{HEIGHT - 8}">{int(value)}</text>'
            )
    end = f'<circle class="now" cx="{x(shown[-1][0]):.1f}" cy="{y(values[-1]):.1f}" r="4.5"/>'
    label = f"Bound by round: {bound(values[-1])} nats after round {shown[-1][0]}"
    return Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        f'{"".join(marks)}<polyline class="line" points="{path}"/>{end}</svg>'
    )


def _number(value: float) -> str:
    text = _plain_number(value)
    return text.replace("-", "−") if value < 0 else text


def _plain_number(value: float) -> str:
    return (
        f"{value:.0e}"
        if abs(value) >= 1e6
        else f"{value:,.0f}"
        if abs(value) >= 20
        else f"{value:g}"
    )
