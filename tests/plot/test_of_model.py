"""Figures of a model show its numbers: lines are predictions, bands are intervals, labels are names."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import resources

import matplotlib as mpl
import matplotlib.dates as mdates
import numpy as np
import pandas as pd
import polars as pl
import pytest
from matplotlib.figure import Figure

from pfedhgp import FederatedGP, plot
from pfedhgp.errors import InputError, NotFittedError
from pfedhgp.model.layers import PARTS, shares
from pfedhgp.model.prediction import predict
from pfedhgp.plot.colours import DARK, LIGHT
from pfedhgp.report.theme import COLOURS
from support.reported import HISTORY, METRICS, case_of, estimator_of, rows_of

NAMED = {"input_names": ("hour",), "output_names": ("load",)}
DATES = {"inputs": [{"name": "hour", "kind": "datetime", "format": None}], "outputs": ["load"]}


@pytest.fixture(scope="module")
def case():
    return case_of()


@pytest.fixture(scope="module")
def model(case):
    return estimator_of(case, **NAMED)


@pytest.fixture
def ax():
    """Axes without a window system, which pyplot knows nothing of."""
    return Figure().add_subplot()


def line(axes, gid: str) -> np.ndarray:
    (found,) = (each for each in axes.lines if each.get_gid() == gid)
    return found.get_xydata()


def dots(axes, gid: str) -> np.ndarray:
    (found,) = (each for each in axes.collections if each.get_gid() == gid)
    return np.asarray(found.get_offsets())


def band(axes, gid: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lower and the upper edge at each x."""
    (found,) = (each for each in axes.collections if each.get_gid() == gid)
    points = found.get_paths()[0].vertices
    edges = [points[np.isclose(points[:, 0], at, rtol=0, atol=1e-9)][:, 1] for at in x]
    return np.array([e.min() for e in edges]), np.array([e.max() for e in edges])


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_a_prediction_is_its_mean_and_its_intervals(case, model, ax, level):
    assert plot.prediction(model, "client 1", ax=ax) is ax
    x, mean = line(ax, "mean").T
    expected = predict(case.model, "client 1", x[:, None])
    assert (x[0], x[-1]) == (10.0, 14.0)
    np.testing.assert_allclose(mean, expected.mean[:, 0], rtol=1e-12)
    drawn = band(ax, f"prediction-band-{round(100 * level)}", x)
    for edge, wanted in zip(drawn, expected.interval(level), strict=True):
        np.testing.assert_allclose(edge, wanted[:, 0], rtol=1e-9)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("hour", "load")
    assert ax.get_title(loc="left") == "client 1: prediction, noise included"


def as_pair(rows):
    return rows.X, rows.Y


def as_mapping(rows):
    return {"client 1": (rows.X[:, 0], rows.Y[:, 0]), "other": ([0.0], [0.0])}


def as_pandas(rows):
    return pd.DataFrame({"load": rows.Y[:, 0], "hour": rows.X[:, 0], "more": 1.0})


def as_polars(rows):
    return pl.from_pandas(as_pandas(rows))


@pytest.mark.parametrize("given", [as_pair, as_mapping, as_pandas, as_polars])
def test_rows_are_drawn_where_they_were_observed(case, model, ax, given):
    rows = rows_of(case)[1]
    plot.prediction(model, "client 1", rows=given(rows), held_out=(rows.X[:3], rows.Y[:3]), ax=ax)
    order = np.argsort(rows.X[:, 0])
    np.testing.assert_allclose(dots(ax, "rows"), np.hstack([rows.X, rows.Y])[order])
    assert len(dots(ax, "held-out")) == 3
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["rows", "rows held out"]


def test_of_a_table_of_all_clients_only_the_clients_own_rows_are_drawn(case, ax):
    everyone = rows_of(case)
    table = pd.concat(as_pandas(each).assign(site=each.name) for each in everyone)
    columns = {
        "client": "site",
        "inputs": [{"name": "hour", "kind": "number"}],
        "outputs": ["load"],
    }
    settings = {**case.model.settings, "columns": {**columns, "cycle": None}}
    model = estimator_of(case, **NAMED, settings=settings)
    plot.prediction(model, "client 1", rows=table, ax=ax)
    mine = everyone[1]
    order = np.argsort(mine.X[:, 0])
    np.testing.assert_allclose(dots(ax, "rows"), np.hstack([mine.X, mine.Y])[order])
    with pytest.raises(InputError, match="the table has no row of client 'client 1'"):
        plot.prediction(model, "client 1", rows=table[table["site"] == "client 0"])


def test_between_shows_a_stretch_and_its_rows(case, model, ax):
    rows = rows_of(case)[1]
    plot.prediction(model, "client 1", between=(11, 12.5), rows=(rows.X, rows.Y), ax=ax)
    x, mean = line(ax, "mean").T
    assert (x[0], x[-1], *ax.get_xlim()) == (11.0, 12.5, 11.0, 12.5)
    np.testing.assert_allclose(mean, predict(case.model, "client 1", x[:, None]).mean[:, 0])
    inside = (rows.X[:, 0] >= 11) & (rows.X[:, 0] <= 12.5)
    assert len(dots(ax, "rows")) == inside.sum() > 0


@pytest.mark.parametrize("name", ["global", "deviation", "local"])
def test_a_layer_is_its_mean_and_band(case, model, ax, name):
    plot.layer(model, "client 0", name, ax=ax)
    x, mean = line(ax, f"{name}-mean").T
    expected = predict(case.model, "client 0", x[:, None]).layers[name]
    np.testing.assert_allclose(mean, expected.mean[:, 0], rtol=1e-9, atol=1e-12)
    lower, upper = band(ax, f"{name}-band-95", x)
    np.testing.assert_allclose(upper - lower, 2 * 1.959963984540054 * expected.sd[:, 0], rtol=1e-9)
    assert ax.get_title(loc="left") == f"client 0: {name} layer"


def test_layers_lie_below_the_prediction_and_add_up_to_it(model):
    axes = plot.layers(model, "client 2", axes=Figure().subplots(4))
    assert [each.get_title(loc="left") for each in axes] == [
        "client 2: prediction, noise included",
        *("Global layer", "Deviation layer", "Local layer"),
    ]
    parts = [line(each, f"{name}-mean")[:, 1] for each, name in zip(axes[1:], PARTS, strict=False)]
    np.testing.assert_allclose(np.sum(parts, axis=0), line(axes[0], "mean")[:, 1], rtol=1e-9)
    assert axes[2].get_ylim() == axes[3].get_ylim()  # one scale
    assert [each.get_xlabel() for each in axes] == ["", "", "", "hour"]


def test_clients_are_lines_behind_the_global_layer(case, model, ax):
    plot.clients(model, ax=ax)
    for i, name in enumerate(case.model.clients):
        x, mean = line(ax, f"client-{i}").T
        p = predict(case.model, name, x[:, None])
        np.testing.assert_allclose(mean, p.mean[:, 0], rtol=1e-9)
    x, shared = line(ax, "global-mean").T
    np.testing.assert_allclose(shared, p.layers["global"].mean[:, 0], rtol=1e-9)


def test_shares_are_bars_of_the_right_length(case, model, ax):
    plot.shares(model, names=["client 2", "client 0"], ax=ax)
    bars = {patch.get_gid(): patch.get_width() for patch in ax.patches}
    X = np.linspace(10.0, 14.0, 160)[:, None]
    for one, name in enumerate(("client 2", "client 0")):
        expected = shares([predict(case.model, name, X)], np.array([50.0]))[0]
        drawn = [bars[f"{part}+{one}"] + bars[f"{part}-{one}"] for part in PARTS]
        np.testing.assert_allclose(drawn, expected, atol=0.02)
        assert sum(drawn) == pytest.approx(1.0)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["client 2", "client 0"]
    assert [t.get_text() for t in ax.get_legend().get_texts()] == list(PARTS)


def test_convergence_and_traffic_are_the_history(model, ax):
    plot.convergence(model, ax=ax)
    np.testing.assert_allclose(line(ax, "bound-0")[:, 1], [h["bound"] for h in HISTORY])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("round", "nats")
    other = plot.traffic(model, ax=Figure().add_subplot())
    np.testing.assert_allclose(line(other, "bytes")[:, 1], [3.0, 6.0, 9.0])  # of 3 clients


def test_calibration_is_of_scores_or_of_a_model_that_has_them(case, model, ax):
    found = METRICS["calibration"]
    plot.calibration(METRICS, ax=ax)
    np.testing.assert_allclose(line(ax, "coverage").T, [found["levels"], found["coverage"]])
    own = estimator_of(case, metrics=METRICS)
    bars = plot.calibration(own, histogram=True, ax=Figure().add_subplot())
    heights = [patch.get_height() for patch in bars.patches]
    assert heights == found["pit"]["counts"]
    with pytest.raises(InputError, match="no scores of held-out rows"):
        plot.calibration(model)


def test_datetimes_have_an_axis_of_dates(case, ax):
    dated = estimator_of(case, **NAMED, settings={**case.model.settings, "columns": DATES})
    start = pd.Timestamp("1970-01-01 00:00:11", tz="UTC")
    table = pd.DataFrame({"hour": [start, start + pd.Timedelta("1s")], "load": [1.0, 2.0]})
    plot.prediction(dated, "client 0", rows=table, between=("1970-01-01T00:00:10.5", 13.0), ax=ax)
    assert isinstance(ax.xaxis.get_major_locator(), mdates.AutoDateLocator)
    assert ax.get_xlabel() == "hour (UTC)"
    seconds = 86_400 * dots(ax, "rows")[:, 0]
    np.testing.assert_allclose(seconds, [11.0, 12.0], atol=1e-5)
    x, mean = line(ax, "mean").T
    at = 86_400 * x  # matplotlib counts days
    np.testing.assert_allclose(at[[0, -1]], [10.5, 13.0], atol=1e-5)
    np.testing.assert_allclose(
        mean, predict(case.model, "client 0", at[:, None]).mean[:, 0], rtol=1e-6
    )


def test_several_inputs_and_outputs_are_asked_for_by_name(ax):
    names = {"input_names": ("hour", "height"), "output_names": ("load", "heat")}
    case = case_of(d=2, outputs=2, latents=2, local_latents=1, tied=False, noise="diagonal")
    model = estimator_of(case, **names)
    plot.prediction(model, "client 0", output="heat", along="height", ax=ax)
    x, mean = line(ax, "mean").T
    X = np.stack([np.full(len(x), 12.0), x], axis=1)
    np.testing.assert_allclose(mean, predict(case.model, "client 0", X).mean[:, 1], rtol=1e-9)
    assert ax.get_xlabel() == "height (at hour 12.00)"
    assert ax.get_ylabel() == "heat"
    with pytest.raises(InputError, match="no output 'cold'; there are load, heat"):
        plot.prediction(model, "client 0", output="cold")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"client": "nobody"}, "no client 'nobody' in the model; it has client 0, client 1"),
        ({"along": 3}, "no input 3; there are hour"),
        ({"between": (12, 11)}, "`between` must be"),
        ({"rows": pd.DataFrame({"hour": [1.0]})}, "no column 'load'; the table has hour"),
        ({"rows": ([[1.0, 2.0]], [1.0])}, "have 2 inputs and 1 outputs, the model 1 and 1"),
        ({"rows": 3}, r"`rows` must be \(X, y\)"),
        ({"ax": "here"}, "`ax` must be the axes"),
    ],
)
def test_what_is_wrong_is_said(model, arguments, words):
    given = {"client": "client 0", **arguments}
    with pytest.raises(InputError, match=words):
        plot.prediction(model, given.pop("client"), **given)


def test_a_model_must_be_fitted():
    with pytest.raises(NotFittedError):
        plot.convergence(FederatedGP())
    with pytest.raises(InputError, match="a fitted FederatedGP is wanted, got str"):
        plot.convergence("model")


def test_a_name_with_dollars_is_a_name(case):
    model = estimator_of(case, input_names=("$t$",), output_names=("$cost$",))
    ax = plot.prediction(model, "client 0", ax=Figure().add_subplot())
    assert not any(label.get_parse_math() for label in (ax.xaxis.label, ax.yaxis.label))
    assert not plot.shares(model, ax=Figure().add_subplot()).get_yticklabels()[0].get_parse_math()


def test_settings_of_matplotlib_stay_and_a_new_figure_is_pyplots(model):
    import matplotlib.pyplot as plt

    with mpl.rc_context({"backend": "agg", "font.size": 7.0, "axes.grid": False}):
        before = dict(mpl.rcParams)
        axes = plot.layers(model, "client 0")
        assert dict(mpl.rcParams) == before
        assert plt.gcf() is axes[0].figure
        plt.close(axes[0].figure)


def test_colours_are_the_reports_and_suit_the_ground(model):
    css = (resources.files("pfedhgp.report") / "style.css").read_text("utf-8")
    light, dark = css.split("@media (prefers-color-scheme: dark)")
    for scheme, ours in ((light, LIGHT), (dark.split("@media")[0], DARK)):
        theirs = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", scheme))
        assert {role: theirs[role] for role in ours} == ours
    assert set(COLOURS) == set(LIGHT)
    for ground, tints in (("white", LIGHT), ("black", DARK), ("none", LIGHT)):
        ax = Figure(facecolor=ground).add_subplot(facecolor="none")
        plot.convergence(model, ax=ax)
        assert ax.lines[0].get_color() == tints["prediction"]


def test_importing_the_package_does_not_import_matplotlib():
    code = (
        "import sys, pfedhgp; assert 'matplotlib' not in sys.modules; pfedhgp.plot.prediction; "
        "assert 'matplotlib.pyplot' not in sys.modules; print('plot' in dir(pfedhgp))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr
