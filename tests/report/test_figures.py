"""What is drawn of clients is what was predicted, to a fraction of a pixel."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import numpy as np
import pytest

from pfedhgp.plot.axes import set_x_axis, wide_enough
from pfedhgp.plot.slices import finest_scale, grid_size, slices_of
from pfedhgp.report import carpet, figures
from pfedhgp.report.gathered import choose
from pfedhgp.report.theme import NARROW, ROLES, WIDE, drawing, new_figure, to_svg
from pfedhgp.report.words import InputAxis, axes_of
from support.reported import Svg, case_of, estimator_of, pixels_of, rows_of


@pytest.fixture(scope="module")
def case():
    return case_of()


@pytest.fixture(scope="module")
def view(case):
    rows = rows_of(case)[0]
    return slices_of(case.model, "client 0", points=[80], rows=[rows, rows])


@pytest.fixture(scope="module")
def panels(view):
    text = figures.client_panels(view[0], 0, output_name="y", width=WIDE, name="p", span=38.0)
    return Svg(text, "p")


def edges(points: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where a band's outline lies lowest and highest at each x, in pixels (down is larger)."""
    start, end = points, np.roll(points, -1, axis=0)
    flat = np.abs(end - start)[:, 0] < 1e-9
    start, end = start[~flat], end[~flat]  # the two upright sides
    inside = np.clip(at, points[:, 0].min(), points[:, 0].max())
    part = (inside[:, None] - start[:, 0]) / (end - start)[:, 0]
    y = start[:, 1] + part * (end - start)[:, 1]
    crossed = (part > -1e-9) & (part < 1.0 + 1e-9)
    lowest, highest = np.where(crossed, y, -np.inf), np.where(crossed, y, np.inf)
    return lowest.max(axis=1), highest.min(axis=1)


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_the_bands_drawn_are_the_predictions_intervals(view, panels, level):
    along = view[0]
    p, line = along.prediction, panels.vertices("mean")
    slope, offset = pixels_of(line, along.x, p.mean[:, 0])
    band = panels.vertices(f"prediction-band-{round(100 * level)}")
    at = np.interp(along.x, along.x[[0, -1]], [line[:, 0].min(), line[:, 0].max()])
    lower, upper = edges(band, at)
    expected = p.interval(level)
    np.testing.assert_allclose(lower, slope * expected[0][:, 0] + offset, atol=0.3)
    np.testing.assert_allclose(upper, slope * expected[1][:, 0] + offset, atol=0.3)


@pytest.mark.parametrize("layer", ["global", "deviation", "local"])
def test_layers_are_drawn_with_their_own_bands(view, panels, layer):
    along = view[0]
    part, line = along.prediction.layers[layer], panels.vertices(f"{layer}-mean")
    slope, offset = pixels_of(line, along.x, part.mean[:, 0])
    at = np.interp(along.x, along.x[[0, -1]], [line[:, 0].min(), line[:, 0].max()])
    lower, _ = edges(panels.vertices(f"{layer}-band-95"), at)
    expected = part.mean[:, 0] - 1.959964 * part.sd[:, 0]
    np.testing.assert_allclose(lower, slope * expected + offset, atol=0.3)


def test_deviation_and_local_panels_have_one_scale(view, panels):
    x, layers = view[0].x, view[0].prediction.layers
    slopes = []
    for name in ("deviation", "local"):
        outline = panels.vertices(f"{name}-band-95")
        at = np.interp(x, x[[0, -1]], [outline[:, 0].min(), outline[:, 0].max()])
        high = 2.0 * 1.959964 * layers[name].sd[:, 0]
        lower, upper = edges(outline, at)
        slopes.append(high @ (lower - upper) / (high @ high))  # pixels for one unit of the data
    np.testing.assert_allclose(slopes[0], slopes[1], rtol=0.02)


def test_rows_are_where_they_were_observed(case, view, panels):
    along, rows = view[0], rows_of(case)[0]
    line = panels.vertices("mean")
    slope, offset = pixels_of(line, along.x, along.prediction.mean[:, 0])
    x = np.interp(rows.X[:, 0], along.x[[0, -1]], [line[:, 0].min(), line[:, 0].max()])
    for gid in ("rows", "held-out"):
        drawn = panels.places(gid)
        np.testing.assert_allclose(drawn[:, 0], x, atol=0.3)
        np.testing.assert_allclose(drawn[:, 1], slope * rows.Y[:, 0] + offset, atol=0.3)


def test_without_rows_no_point_is_drawn(case):
    view = slices_of(case.model, "client 0", points=[40])
    svg = figures.client_panels(view[0], 0, output_name="y", width=WIDE, name="p")
    assert not Svg(svg, "p").has("rows")
    assert not Svg(svg, "p").has("held-out")


def test_a_narrow_figure_shows_the_whole_and_then_the_last_part_larger(view):
    along = view[0]
    text = figures.client_panels(
        along, 0, output_name="y", width=NARROW, name="p", since=0.75, last="1.00"
    )
    svg = Svg(text, "p")
    whole, closer = svg.vertices("mean"), svg.vertices("mean-closer")
    pixels_of(whole, along.x, along.prediction.mean[:, 0])
    assert "Prediction, the last 1.00" in svg.text()
    # The last quarter is as wide as the whole: what is drawn of it is four times as far apart.
    per_unit = np.ptp(whole[:, 0]) / (0.25 * np.ptp(along.x))
    x = along.x[-1] - (closer[-1, 0] - closer[:, 0]) / per_unit
    assert closer[-1, 0] == pytest.approx(whole[-1, 0], abs=0.2)
    last = along.x >= along.x[0] + 0.75 * np.ptp(along.x)
    mean, drawn = along.prediction.mean[last, 0], np.interp(along.x[last], x, closer[:, 1])
    assert np.abs(np.polyval(np.polyfit(mean, drawn, 1), mean) - drawn).max() < 0.3
    assert svg.has("rows-closer")
    assert svg.has("held-out-closer")


@pytest.mark.parametrize("size", [1e12, 1e-7])
def test_a_factor_of_an_axis_is_in_its_label_and_not_over_the_title(view, size):
    along = view[0]
    p = along.prediction
    scaled = replace(p, mean=size * p.mean, sd=size * p.sd)
    text = figures.client_panels(
        replace(along, prediction=scaled, points=None, held_out=None),
        *(0,),
        **{"output_name": "y", "width": WIDE, "name": "p"},
    )
    (label,) = re.findall(r"y \(× 1e(−?\d+)\)", Svg(text, "p").text())
    assert abs(int(label.replace("−", "-")) - np.log10(50 * size)) < 1.5
    assert "Prediction, noise included" in Svg(text, "p").text()


def test_a_constant_has_a_plain_axis():
    assert wide_enough(7.0 - 1e-9, 7.0 + 1e-9) == pytest.approx((6.3, 7.7))
    assert wide_enough(0.0, 0.0) == (-1.0, 1.0)
    assert wide_enough(1e6, 1e6 + 0.5) == (1e6, 1e6 + 0.5)  # this is not constant


def test_other_rows_are_squares_apart_from_rows_and_held_out_rows(case):
    rows = rows_of(case)[0]
    view = slices_of(case.model, "client 0", points=[40], rows=[None, None, rows])
    svg = Svg(figures.client_panels(view[0], 0, output_name="y", width=WIDE, name="p"), "p")
    assert len(svg.places("others")) == len(rows.X)
    assert not svg.has("rows")
    assert "other rows" in svg.text()


def test_strips_show_what_is_each_clients_own(case):
    """A box for each column whose own part is not small, on its client's row, by sign and size."""
    slices = {name: slices_of(case.model, name, points=[160])[0] for name in case.model.clients}
    for width in (WIDE, NARROW):
        text = carpet.carpet(slices, 0, output_name="y", width=width, name="c")
        drawn = Svg(text, "c")
        own, largest = carpet.own_parts(slices, 0)
        shade = np.minimum(np.abs(own) / largest * carpet.SHADES, carpet.SHADES - 1).astype(int)
        for sign, word in ((1, "above"), (-1, "below")):
            for level in range(1, carpet.SHADES):
                wanted = (shade == level) & (np.sign(own) == sign)
                assert drawn.has(f"{word}-{level}") == wanted.any()
                if not wanted.any():
                    continue
                (path,) = (
                    e for e in drawn.find(f"{word}-{level}").iter() if e.tag.endswith("path")
                )
                starts = np.array(re.findall(r"M(-?[\d.]+) (-?[\d.]+)", path.get("d", "")), float)
                assert len(starts) == wanted.sum()
                # Rows from the top: boxes of a client lie at one height, in the clients' order.
                rows = np.unique(starts[:, 1]).size
                assert rows == wanted.any(axis=1).sum()
        assert drawn.has("range") == (width == NARROW)  # more points than columns
        for name in slices:
            assert name in drawn.text()


def test_columns_are_means_over_neighbours():
    np.testing.assert_allclose(
        carpet.columns_of(np.arange(10.0)[None], 5), [[0.5, 2.5, 4.5, 6.5, 8.5]]
    )
    assert carpet.columns_of(np.arange(3.0), 5).shape == (3,)
    np.testing.assert_allclose(carpet.columns_of(np.arange(11.0), 4), [1.0, 4.0, 7.0, 9.5])


def test_the_overview_has_a_line_for_each_client_and_the_shared_layer(case):
    slices = {name: slices_of(case.model, name, points=[60])[0] for name in case.model.clients}
    svg = Svg(figures.overview(slices, 0, output_name="pm25", width=WIDE, name="o"), "o")
    shared = next(iter(slices.values()))
    slope, offset = pixels_of(
        svg.vertices("global-mean"), shared.x, shared.prediction.layers["global"].mean[:, 0]
    )
    for i, view in enumerate(slices.values()):
        own = pixels_of(svg.vertices(f"client-{i}"), view.x, view.prediction.mean[:, 0])
        np.testing.assert_allclose(own, [slope, offset], rtol=0.02)
    assert "pm25" in svg.text()
    assert "x0" in svg.text()


def test_colours_are_the_pages_variables(view):
    svg = figures.client_panels(view[0], 0, output_name="y", width=WIDE, name="p")
    assert {f"var(--{role})" for role in ("prediction", "global", "ink", "muted")} <= set(
        part.split(")")[0] + ")" for part in ("var(" + rest for rest in svg.split("var(")[1:])
    )
    assert not [role for role in ROLES if f"#0f{ROLES.index(role):02x}" in svg]


def test_names_are_text_and_never_markup_or_mathematics(view):
    name = '<script>alert("1")</script> $x$ & co'
    text = figures.client_panels(view[0], 0, output_name=name, width=WIDE, name="p")
    assert "<script>" not in text
    assert '<script>alert("1")</script' in Svg(text, "p").text()
    assert "$" in figures.overview({"a": view[0]}, 0, output_name="$cost$", width=WIDE, name="o")


def test_dates_are_shown_as_dates(case):
    columns = {"inputs": [{"name": "x0", "kind": "datetime"}]}
    model = estimator_of(case, settings={"columns": columns}).model_
    assert axes_of(model)[0].is_date
    view = slices_of(model, "client 0", points=[30])
    svg = Svg(figures.client_panels(view[0], 0, output_name="y", width=WIDE, name="p"), "p")
    assert "1 Jan 1970 00:00:10 11 12 13 14 x0 (UTC)" in svg.text()


@pytest.mark.parametrize(
    ("start", "end", "shown"),
    [
        ("2024-10-14", "2024-12-09", "15 Oct 2024 Nov 15 Dec"),
        ("2024-10-14", "2025-02-09", "Nov 2024 Dec Jan 2025 Feb"),
        ("2024-03-01T01", "2024-03-01T23", "1 Mar 2024 04:00 08:00 12:00 16:00 20:00"),
        ("2019-03-01", "2020-06-01", "Apr 2019 Jul Oct Jan 2020 Apr"),
        ("2013-03-01", "2019-03-01", "2014 2015 2016 2017 2018 2019"),
    ],
)
def test_the_first_date_and_each_new_year_say_which_year_it_is(start, end, shown):
    with drawing():
        figure, (axes,) = new_figure(WIDE, 200)
        axes.plot(np.array([start, end], "datetime64[s]"), [0.0, 1.0])
        axes.set_yticks([])
        set_x_axis(axes, InputAxis("time", is_date=True))
        svg = Svg(to_svg(figure, name="p", label="dates"), "p")
    assert svg.text() == f"{shown} time (UTC)"


# ------------------------------------------------------------------------------------------- views


def test_a_slice_holds_the_other_inputs_where_it_is_told():
    case = case_of(d=2)
    rows = rows_of(case)[1]
    medians = np.median(rows.X, axis=0)
    view = slices_of(case.model, "client 1", points=[9, 11], centre=medians, rows=[rows])
    assert [len(s.x) for s in view] == [9, 11]
    for j, along in enumerate(view):
        ((axis, value),) = along.at
        assert (axis.name, value) == (f"x{1 - j}", medians[1 - j])
        X = np.tile(medians, (len(along.x), 1))
        X[:, j] = np.linspace(10.0, 14.0, len(along.x))
        expected = estimator_of(case).predict("client 1", X)
        np.testing.assert_array_equal(along.prediction.mean, expected.mean)
        near = np.abs(rows.X[:, 1 - j] - medians[1 - j]) <= 0.1 * 4.0
        np.testing.assert_array_equal(along.points[0], rows.X[near, j])
        assert 0 < near.sum() < len(near)


def test_else_slices_go_through_the_middle_of_the_domain():
    view = slices_of(case_of(d=2).model, "client 0", points=[5, 5])
    assert [s.at[0][1] for s in view] == [12.0, 12.0]


def test_the_finest_scale_is_the_shortest_lengthscale_or_period(case):
    shortest = min(
        float(np.min(k.lengthscale))
        for k in (case.model.shared.block.kernels, case.model.clients["client 2"].block.kernels)
    )
    assert finest_scale(case.model, ["client 2"], 0) == pytest.approx(shortest)
    assert grid_size(0.5) < grid_size(0.04) < grid_size(1e-9) == 512


def test_a_selection_spreads_over_the_errors():
    names = [f"c{i}" for i in range(30)]
    errors = {name: float((7 * i) % 30) for i, name in enumerate(names)}
    chosen = choose(names, errors, 4)
    assert [errors[name] for name in chosen] == [0.0, 10.0, 19.0, 29.0]
    assert choose(names, {}, 4) == ["c0", "c10", "c19", "c29"]
    assert choose(names[:4], errors, 4) == names[:4]


def test_letters_that_the_font_lacks_stay_text_and_are_not_warned_of():
    with drawing(), warnings.catch_warnings():
        warnings.simplefilter("error")
        figure, (axes,) = new_figure(WIDE, 120)
        axes.set_title("🌲 park")
        assert "🌲 park" in to_svg(figure, name="t", label="a tree")
