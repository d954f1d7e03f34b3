"""Figures of forecasts, back-tests, groups and diagnoses show their numbers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from pfedhgp import plot
from pfedhgp.diagnosis.decision import NONE, Calibration, Diagnosis, Why
from pfedhgp.errors import InputError
from pfedhgp.living.forecast import Forecast
from pfedhgp.model.prediction import predict
from pfedhgp.model.words import InputAxis
from pfedhgp.plot import groups
from pfedhgp.plot.colours import LIGHT
from support.grouped import kept_of
from support.reported import case_of, estimator_of

NAMES, GROUPS = ["a", "b", "c", "d", "e", "f"], [0, 1, 0, 1, 0, 1]
CLASSES = ("normal", "worn")


@pytest.fixture
def ax():
    return Figure().add_subplot()


@pytest.fixture(scope="module")
def kept():
    return kept_of(NAMES, GROUPS)


def line(axes, gid: str) -> np.ndarray:
    (found,) = (each for each in axes.lines if each.get_gid() == gid)
    return found.get_xydata()


# ---------------------------------------------------------------------------------------- forecasts


def forecast_of(*, dates: bool = False) -> Forecast:
    """Four steps of half a unit after 14, where the domain of the case ends."""
    x = 14.0 + 0.5 * np.arange(1, 5)
    axis = InputAxis("hour", is_date=dates)
    return Forecast(
        "client 1", axis.values(x), x - 14.0, predict(case_of().model, "client 1", x[:, None]),
        *(axis, ("load",)),
    )  # fmt: skip


def test_a_forecast_after_a_table_of_all_clients_has_its_own_rows_only(ax):
    rows = {"site": ["client 0", "client 1"], "hour": [13.0, 13.5], "load": [1.0, 2.0]}
    found = replace(forecast_of(), client_column="site")
    plot.forecast(found, rows=pd.DataFrame(rows), ax=ax)
    (past,) = (c for c in ax.collections if c.get_gid() == "rows")
    np.testing.assert_allclose(past.get_offsets(), [[13.5, 2.0]])


def test_a_forecast_is_its_mean_intervals_and_the_rows_before_it(ax):
    found = forecast_of()
    x = np.arange(0.0, 16.0)  # later rows are not drawn: they are what is forecast
    y = np.where(x == 12.0, np.nan, 50.0 + x)
    assert plot.forecast(found, rows=(x, y), before=2.0, ax=ax) is ax
    np.testing.assert_allclose(line(ax, "mean"), np.stack([found.times, found.mean[:, 0]], 1))
    (band,) = (c for c in ax.collections if c.get_gid() == "prediction-band-95")
    points = band.get_paths()[0].vertices
    lower, upper = found.interval(0.95)
    for at, low, high in zip(found.times, lower[:, 0], upper[:, 0], strict=True):
        heights = points[points[:, 0] == at][:, 1]
        np.testing.assert_allclose([heights.min(), heights.max()], [low, high], rtol=1e-9)
    (past,) = (c for c in ax.collections if c.get_gid() == "rows")
    np.testing.assert_allclose(past.get_offsets()[:, 0], [10.0, 11.0, 13.0, 14.0])
    assert line(ax, "now")[0, 0] == 14.0
    assert ax.get_xlim() == (10.0, 16.0)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("hour", "load")
    assert ax.get_title(loc="left") == "client 1: forecast"


def test_a_forecast_of_dates_has_rows_in_dates(ax):
    found = forecast_of(dates=True)
    x = np.array(["1970-01-01T00:00:13", "1970-01-01T00:00:14"], "datetime64[s]")
    plot.forecast(found, rows=(x, [1.0, 2.0]), ax=ax)
    (past,) = (c for c in ax.collections if c.get_gid() == "rows")
    np.testing.assert_allclose(86_400 * past.get_offsets()[:, 0], [13.0, 14.0], atol=1e-5)
    assert ax.get_xlabel() == "hour (UTC)"


def test_a_forecast_needs_no_rows(ax):
    plot.forecast(forecast_of(), ax=ax)
    assert ax.get_xlim() == (14.5, 16.0)
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["forecast"]


def overlapping(labels) -> list[tuple[str, str]]:
    """Pairs of neighbouring labels that touch, or nearly."""
    boxes = [(t.get_text(), t.get_window_extent()) for t in labels if t.get_text()]
    pairs = pairwise(boxes)
    return [(a, b) for (a, one), (b, two) in pairs if two.x0 - one.x1 < 2]


@pytest.mark.parametrize("hours", [10, 100, 240, 2400])
@pytest.mark.parametrize("size", [(4, 3), (8.4, 3.4)])
def test_dates_do_not_touch_and_the_label_is_whole(hours, size):
    """As in `_, ax = plt.subplots(figsize=(4, 3))`, without a layout of its own."""
    start = np.datetime64("2024-10-27T03:00", "s").astype(float)
    x = start + 3600.0 * hours * np.arange(1, 5) / 4
    p = predict(case_of().model, "client 1", np.linspace(13, 14, 4)[:, None])
    axis = InputAxis("time", is_date=True)
    found = Forecast("client 1", axis.values(x), x - start, p, axis, ("load",))
    figure = Figure(figsize=size)
    axes = plot.forecast(found, ax=figure.add_subplot())
    figure.draw_without_rendering()
    low, high = axes.get_xlim()
    ticks = [t for t in axes.xaxis.get_major_ticks() if low <= t.get_loc() <= high]
    assert len(ticks) > 1
    assert overlapping([t.label1 for t in ticks]) == []
    assert axes.xaxis.label.get_window_extent().y0 > 0
    assert axes.yaxis.label.get_window_extent().x0 > 0


def test_axes_that_share_a_figure_stay_where_they_are():
    figure = Figure()
    left, _ = figure.subplots(1, 2)
    plot.forecast(forecast_of(), ax=left)
    assert figure.get_layout_engine() is None


@pytest.mark.parametrize(
    ("draw", "wanted"),
    [
        (plot.forecast, r"`found` must be the Forecast that `model\.forecast\(.*, got FederatedGP"),
        (plot.diagnosis, r"`found` must be the Diagnosis that `model\.classify\("),
        (plot.why, r"`found` must be the Why that `model\.why\("),
        (plot.tree, r"`zones` must be the Zones that `model\.cluster\("),
        (plot.distances, r"`zones` must be the Zones that `model\.cluster\("),
        (lambda model: plot.zones_map(model, {}), r"`zones` must be the Zones that"),
    ],
)
def test_what_is_of_another_kind_is_refused_in_one_line(draw, wanted):
    with pytest.raises(InputError, match=wanted) as refused:
        draw(estimator_of(case_of()))
    assert "\n" not in str(refused.value)


def test_places_that_are_no_places_are_refused(kept):
    with pytest.raises(InputError, match=r"`places` must be \{client: \(latitude, longitude\)\}"):
        plot.zones_map(kept.zones, ["a", "b"])


def backtest_of(*, dates: bool) -> dict:
    size = 86_400.0 if dates else 1.0
    scores = {
        method: [
            {"to": size * to, "crps": first * to, "rmse": to, "coverage": 0.9} for to in (1.0, 2.0)
        ]
        for method, first in (("model", 1.0), ("climatology", 3.0))
    }
    return {"horizon": 2 * size, "scores": scores, "input": "hour", "dates": dates}


@pytest.mark.parametrize(("dates", "label"), [(False, "hour, ahead"), (True, "days ahead")])
def test_a_backtest_has_a_line_for_each_method(ax, dates, label):
    plot.backtest(backtest_of(dates=dates), ax=ax)
    np.testing.assert_allclose(line(ax, "model"), [[1.0, 1.0], [2.0, 2.0]])
    np.testing.assert_allclose(line(ax, "climatology"), [[1.0, 3.0], [2.0, 6.0]])
    assert (ax.get_xlabel(), ax.get_ylabel()) == (label, "CRPS")
    texts = [t.get_text() for t in ax.get_legend().get_texts()]
    assert texts == ["this model", "climatology"]


def test_coverage_is_beside_what_it_should_be(ax):
    plot.backtest(backtest_of(dates=False), score="coverage", ax=ax)
    assert line(ax, "nominal")[0, 1] == 0.95
    np.testing.assert_allclose(line(ax, "model")[:, 1], 0.9)
    with pytest.raises(InputError, match="`score`"):
        plot.backtest(backtest_of(dates=False), score="mae")


# ------------------------------------------------------------------------------------------- groups


def test_the_map_has_clients_where_they_are_by_group(kept, ax):
    plot.zones_map(kept.zones, kept.places, ax=ax)
    for g in (0, 1):
        (drawn,) = (c for c in ax.collections if c.get_gid() == f"group-{g}")
        members = [name for name, own in zip(NAMES, GROUPS, strict=True) if own == g]
        expected = [kept.places[name][::-1] for name in members]
        np.testing.assert_allclose(drawn.get_offsets(), expected)
        assert to_hex(drawn.get_facecolor()[0]) == LIGHT[f"zone-{g}"]
    assert {text.get_text() for text in ax.texts} == set(NAMES)
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["group 1", "group 2"]
    with pytest.raises(InputError, match="`places` lacks client 'f'"):
        plot.zones_map(kept.zones, {n: kept.places[n] for n in NAMES[:5]})


def test_the_tree_joins_at_its_distances(kept, ax):
    plot.tree(kept.zones, ax=ax)
    tops = sorted(branch.get_xdata().max() for branch in ax.lines)
    assert len(tops) == 4  # of five clients: one has few rows
    assert tops[-1] > 5 * tops[-2]  # two groups, ten apart
    assert ax.get_xlabel() == "distance at which groups join"
    colours = [label.get_color() for label in ax.get_yticklabels()]
    names = [label.get_text() for label in ax.get_yticklabels()]
    labels = kept.zones.labels
    assert colours == [LIGHT[f"zone-{labels[name]}"] for name in names]


def test_distances_have_a_box_for_each_pair(kept, ax):
    plot.distances(kept.zones, ax=ax)
    boxes = {p.get_gid(): len(p.get_path().vertices) // 5 for p in ax.patches}
    assert sum(boxes.values()) == 6 * 5
    shades = groups.levels(kept.zones, groups.order(kept.zones))
    for gid, count in boxes.items():
        assert count == np.sum(shades == int(gid.removeprefix("level-")))


# ---------------------------------------------------------------------------------------- diagnoses


def diagnosis_of() -> Diagnosis:
    probability = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]])
    best, none = probability.argmax(axis=1), np.array([False, False, False, True])
    labels = tuple(NONE if n else CLASSES[k] for n, k in zip(none, best, strict=True))
    nothing = np.zeros(4)
    return Diagnosis(CLASSES, labels, best, probability, probability, nothing, none, Calibration())


def cells(axes) -> dict[str, float]:
    return {patch.get_gid(): patch.get_alpha() for patch in axes.patches}


def test_a_diagnosis_is_probabilities(ax):
    plot.diagnosis(diagnosis_of(), ax=ax)
    opacity = cells(ax)
    for (i, j), value in np.ndenumerate(diagnosis_of().probability):
        assert opacity[f"cell-{i}-{j}"] == pytest.approx(0.5 * value)
    assert [text.get_text() for text in ax.texts][:2] == ["0.90", "0.10"]
    assert [t.get_text() for t in ax.get_yticklabels()][-1] == "cycle 3 (none of these)"
    assert [t.get_text() for t in ax.get_xticklabels()] == ["normal", "worn"]


def test_with_the_truth_it_is_counts(ax):
    plot.diagnosis(diagnosis_of(), truth=["normal", "worn", "worn", "broken"], ax=ax)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["normal", "worn", "broken"]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["normal", "worn", NONE]
    counts = np.array([text.get_text() for text in ax.texts], int).reshape(3, 3)
    assert counts.tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    assert ax.get_title(loc="left") == "2 of 4 cycles are right"
    with pytest.raises(InputError, match="`truth` has 1 classes for 4 cycles"):
        plot.diagnosis(diagnosis_of(), truth=["normal"])


def why_of() -> Why:
    along = np.zeros((24, 2))
    along[10:12, 1], along[2, 0] = 2.0, -0.5
    grid = np.arange(24.0)[:, None]
    alone = np.array([-0.5, np.nan])
    axis = InputAxis("angle")
    return Why("worn", "normal", grid, ("left", "right"), along, alone, 3.5, axis=axis)


def test_why_is_nats_by_channel_and_in_all(ax):
    plot.why(why_of(), ax=ax)
    expected = np.stack([np.arange(24.0), why_of().along[:, 1]], axis=1)
    np.testing.assert_allclose(line(ax, "channel-1"), expected)
    assert line(ax, "channel-0")[2, 1] == -0.5
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["right", "left"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("angle", "nats")
    total = plot.why(why_of(), total=True, ax=Figure().add_subplot())
    assert line(total, "sum")[-1, 1] == pytest.approx(3.5)
