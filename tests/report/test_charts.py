"""What is drawn of the whole model are the numbers that were given."""

from __future__ import annotations

import re
from importlib import resources

import numpy as np
import pytest

from pfedhgp.model.layers import PARTS
from pfedhgp.plot.charts import STRONGEST
from pfedhgp.report import charts
from pfedhgp.report.theme import NARROW, WIDE
from support.reported import HISTORY, METRICS, Svg, pixels_of


def sides(points: np.ndarray) -> tuple[float, float, float, float]:
    """left, right, top, bottom"""
    (left, top), (right, bottom) = points.min(axis=0), points.max(axis=0)
    return left, right, top, bottom


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_convergence_draws_the_bound_and_the_bytes_of_a_client(width):
    svg = Svg(charts.convergence(HISTORY, width=width, name="c"), "c")
    bound = svg.vertices("bound-0")
    slope, _ = pixels_of(bound, np.arange(3.0), np.array([h["bound"] for h in HISTORY]))
    assert slope < 0  # up is smaller
    sent = svg.vertices("bytes")
    slope, _ = pixels_of(sent, np.arange(3.0), np.array([3.0, 6.0, 9.0]))
    assert slope < 0


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_last_rounds_are_drawn_larger(width):
    """Of thirty rounds the first brought 5000 nats, the last ten less than one: a flat line by itself."""
    bounds = [-6000.0, -1000.0, *(-100.0 * 0.7 ** np.arange(29.0))]
    history = [{**HISTORY[0], "round": r, "bound": b} for r, b in enumerate(bounds)]
    svg = Svg(charts.convergence(history, width=width, name="c"), "c")
    whole, last = svg.vertices("bound-0"), svg.vertices("last-bound-0")
    assert len(last) <= 11
    assert np.ptp(whole[-10:, 1]) < 1.0
    assert np.ptp(last[:, 1]) > 50.0
    pixels_of(last, np.arange(20.0, 31.0), np.array(bounds[20:]))
    assert "From round 20 on, larger" in svg.text()


def test_few_rounds_need_no_second_panel():
    svg = Svg(charts.convergence(HISTORY, width=WIDE, name="c"), "c")
    assert not svg.has("last-bound-0")


def test_convergence_without_a_bound_still_shows_the_bytes():
    history = [{**h, "bound": None} for h in HISTORY]
    svg = Svg(charts.convergence(history, width=WIDE, name="c"), "c")
    assert len(svg.vertices("bytes")) == 3


def test_each_restart_has_a_line_of_its_own():
    history = [*HISTORY, *({**h, "attempt": 1, "bound": h["bound"] + 3} for h in HISTORY)]
    svg = Svg(charts.convergence(history, width=WIDE, name="c"), "c")
    gap = svg.vertices("bound-1") - svg.vertices("bound-0")
    np.testing.assert_allclose(gap[:, 0], 0.0, atol=0.1)
    assert np.all(gap[:, 1] < -1.0)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_shares_are_bars_end_to_end(width):
    parts = np.array([[0.5, 0.3, 0.1, 0.1], [0.9, -0.2, 0.2, 0.1]])
    svg = Svg(charts.variance_shares(["a", "b"], parts, width=width, name="s"), "s")
    bars = {
        (part, one): sides(svg.vertices(f"{part}{'-' if parts[one, j] < 0 else '+'}{one}"))
        for j, part in enumerate(PARTS)
        for one in (0, 1)
    }
    whole = bars["noise", 0][1] - bars["global", 0][0]  # 100%
    for one in (0, 1):
        drawn = [(bars[p, one][1] - bars[p, one][0]) / whole for p in PARTS]
        np.testing.assert_allclose(drawn, np.abs(parts[one]), atol=0.004)
    assert bars["global", 0][1] == pytest.approx(bars["deviation", 0][0], abs=0.2)
    assert bars["deviation", 1][1] == pytest.approx(bars["global", 1][0], abs=0.2)  # left of zero
    assert bars["global", 0][3] < bars["global", 1][2]  # the first client is on top


def test_the_coverage_curve_is_what_was_observed():
    found = METRICS["calibration"]
    svg = Svg(charts.coverage_curve(found["levels"], found["coverage"], name="k"), "k")
    curve = svg.vertices("coverage")
    levels, coverage = np.array(found["levels"]), np.array(found["coverage"])
    pixels_of(curve, levels, coverage)
    moved = Svg(charts.coverage_curve(levels, coverage - 0.02, name="k"), "k").vertices("coverage")
    assert moved[0, 1] > curve[0, 1]  # the axes are fixed: lower coverage is lower


def test_pit_bars_are_as_high_as_their_counts():
    pit = METRICS["calibration"]["pit"]
    svg = Svg(charts.pit_histogram(pit["edges"], pit["counts"], name="h"), "h")
    heights = []
    for i in range(4):
        _, _, top, bottom = sides(svg.vertices(f"bin-{i}"))
        heights.append(bottom - top)
    np.testing.assert_allclose(
        np.array(heights) / sum(heights), np.array(pit["counts"]) / 20, atol=2e-3
    )


def test_baselines_are_as_long_as_their_errors():
    scores = {"this model": {"rmse": 1.0, "crps": 0.5}, "other": {"rmse": 3.0, "crps": 0.75}}
    svg = Svg(charts.baselines(scores, width=WIDE, name="b"), "b")
    for metric, ratio in (("rmse", 3.0), ("crps", 1.5)):
        ours, other = (sides(svg.vertices(f"{metric}-{i}")) for i in (0, 1))
        assert (other[1] - other[0]) / (ours[1] - ours[0]) == pytest.approx(ratio, rel=0.01)
    assert "3.00" in svg.text()
    assert "this model" in svg.text()


def test_a_heatmap_shows_sign_and_size():
    matrix = np.array([[1.0, -0.5], [0.0, 0.25]])
    text = charts.heatmap(
        matrix, rows=["a", "b"], columns=["c", "d"], title="t", name="m", largest=1.0
    )
    svg = Svg(text, "m")
    for (i, j), value in np.ndenumerate(matrix):
        style = next(e.get("style") for e in svg.find(f"cell-{i}-{j}").iter() if e.get("style"))
        if value:
            assert ("var(--global)" if value > 0 else "var(--deviation)") in style
        opacity = float(style.split("opacity: ")[1].split(";")[0]) if "opacity" in style else 1.0
        assert opacity == pytest.approx(0.5 * abs(value), abs=0.005)
        assert f"{value:.2f}".replace("-", "−") in svg.text()


def _luminance(colour: tuple[float, ...]) -> float:
    """WCAG 2's relative luminance of sRGB in 0..255"""
    parts = [c / 255.0 for c in colour]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_numbers_on_a_heatmap_are_readable_on_light_and_dark_pages():
    """A contrast of 4.5, WCAG's level AA, between ink and the strongest cell over its card."""
    css = (resources.files("pfedhgp.report") / "style.css").read_text("utf-8")
    light, dark = css.split("@media (prefers-color-scheme: dark)")
    for scheme in (light, dark.split("@media")[0]):
        colours = {
            name: tuple(int(value[i : i + 2], 16) for i in (0, 2, 4))
            for name, value in re.findall(r"--(\w+): #([0-9a-f]{6})", scheme)
        }
        for role in ("global", "deviation"):
            cell = tuple(
                STRONGEST * a + (1 - STRONGEST) * b
                for a, b in zip(colours[role], colours["card"], strict=True)
            )
            levels = sorted((_luminance(cell), _luminance(colours["ink"])))
            assert (levels[1] + 0.05) / (levels[0] + 0.05) > 4.5, role
