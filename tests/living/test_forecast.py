"""Forecasts: horizons and grids, what stands beside them, and back-tests against plain arithmetic."""

from __future__ import annotations

import json
from copy import deepcopy
from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scoringrules

from pfedhgp import FederatedGP
from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError
from pfedhgp.gp.kernels import RBF, Periodic
from pfedhgp.living import forecast
from pfedhgp.model.uncertain_kernel import added_variance
from pfedhgp.model.words import percent

DAYS = 14.0
HOURS = 1.0 / 24.0


def sites(count: int = 3, seed: int = 0, step: float = 2 * HOURS) -> dict:
    """A daily wave, weather that all share, a shift of each site, noise; x in days."""
    rng = np.random.default_rng(seed)
    x = np.arange(0.0, DAYS, step)
    weather = 1.5 * np.sin(2 * np.pi * x / 9.0 + rng.uniform(0, 6))
    found = {}
    for i in range(count):
        wave = (2.0 + 0.3 * i) * np.sin(2 * np.pi * x + 0.2 * i)
        found[f"site {i}"] = (x, 10.0 + i + wave + weather + 0.4 * rng.normal(size=len(x)))
    return found


@pytest.fixture(scope="module")
def model() -> FederatedGP:
    return FederatedGP(rounds=6, kernel=RBF() + Periodic(period=1.0), inducing=24).fit(sites())


def test_the_grid_follows_the_last_row_in_the_steps_of_the_data(model):
    found = model.forecast("site 1", 1.0)
    np.testing.assert_allclose(found.times, DAYS + 2 * HOURS * np.arange(12), atol=1e-9)
    np.testing.assert_allclose(found.lead[[0, -1]], [2 * HOURS, 1.0], atol=1e-9)
    direct = model.predict("site 1", found.times[:, None])
    np.testing.assert_array_equal(found.mean, direct.mean)
    wider = added_variance(model.model_, "site 1", found.times[:, None])[:, 0]
    assert wider.min() > 0.0  # the kernel is not known for sure
    np.testing.assert_allclose(found.sd**2, direct.sd**2 + wider, rtol=1e-12)
    assert len(model.forecast("site 1", 1.0, step=0.5, start=20.0).times) == 2


@pytest.mark.filterwarnings("ignore::pfedhgp.errors.PFedHGPWarning")
def test_rows_that_are_forgotten_are_no_longer_where_a_forecast_begins(model):
    now, before = deepcopy(model), model.forecast("site 1", 1.0)
    x = DAYS + 2 * HOURS * np.arange(6)
    now.update({"site 1": (x, 11.0 + np.sin(2 * np.pi * x))})
    np.testing.assert_allclose(now.forecast("site 1", 1.0).times[0], x[-1] + 2 * HOURS)
    now.forget("site 1", (x[:2], 11.0 + np.sin(2 * np.pi * x[:2])))  # the last row stays
    np.testing.assert_allclose(now.forecast("site 1", 1.0).times[0], x[-1] + 2 * HOURS)
    now.forget("site 1", (x[2:], 11.0 + np.sin(2 * np.pi * x[2:])))
    np.testing.assert_allclose(now.forecast("site 1", 1.0).times[0], x[2])  # x[:2] went before
    old_x, old_y = (values[-2:] for values in sites()["site 1"])
    again = deepcopy(model).forget("site 1", (old_x, old_y)).forecast("site 1", 1.0)
    np.testing.assert_allclose(again.times, before.times - 4 * HOURS, atol=1e-9)


def test_what_a_forecast_refuses(model):
    with pytest.raises(InputError, match="no datetime: give a number"):
        model.forecast("site 1", "3 days")
    with pytest.raises(InputError, match="is a timedelta, but the first input is no datetime"):
        model.forecast("site 1", timedelta(days=3))
    with pytest.raises(InputError, match="`horizon` must be a number"):
        model.forecast("site 1", [1.0])
    with pytest.raises(InputError, match="above 0"):
        model.forecast("site 1", -1.0)
    with pytest.raises(InputError, match="0 steps"):
        model.forecast("site 1", 0.01)
    with pytest.raises(InputError, match="no client 'nobody'"):
        model.forecast("nobody", 1.0)


def test_simple_forecasts_are_what_their_names_say():
    t = np.arange(0.0, 4.0, 0.25)
    Y = (np.tile([1.0, 2.0, 3.0, 4.0], 4) + np.repeat([0.0, 1.0, 2.0, 3.0], 4))[:, None]
    found = forecast.simple_forecasts(
        ClientRows("a", t[:, None], Y), np.array([4.0, 4.25, 5.0]), 1.0
    )
    mean, sd = found["seasonal_naive"]
    np.testing.assert_allclose(mean[:, 0], [4.0, 5.0, 4.0])
    np.testing.assert_allclose(sd[:, 0], [1.0, 1.0, np.sqrt(2.0)])
    mean, sd = found["climatology"]
    np.testing.assert_allclose(mean[:, 0], [2.5, 3.5, 2.5])
    np.testing.assert_allclose(sd[:, 0], np.std([1.0, 2.0, 3.0, 4.0]))


@pytest.mark.slow
def test_a_back_test_scores_windows_that_the_model_had_not_seen(model):
    """Two windows of a day, scored by hand beside."""
    data = sites()
    found = model.backtest(data, 1.0, origins=2, season=1.0, bins=2)
    assert [each["cells"] for each in found["scores"]["model"]] == [36, 36]
    end = data["site 0"][0].max()
    fresh = FederatedGP(**{**model.get_params(), "domain": [(0.0, end)]})
    fresh.fit({n: (x[x <= end - 2], y[x <= end - 2]) for n, (x, y) in data.items()})
    scores = []
    for k in (2, 1):
        ahead = {
            n: (x[m], y[m])
            for n, (x, y) in data.items()
            for m in [(x > end - k) & (x <= end - k + 1)]
        }
        for name, (x, y) in ahead.items():
            p, near = fresh.predict(name, x[:, None]), x - (end - k) <= 0.5
            wider = added_variance(fresh.model_, name, x[:, None])[:, 0]
            sd = np.sqrt(p.sd**2 + wider)
            scores.append(scoringrules.crps_normal(y[near], p.mean[near], sd[near]))
        fresh.update(ahead)
    assert found["scores"]["model"][0]["crps"] == pytest.approx(np.mean(scores), rel=1e-9)
    model_crps, naive = (
        np.mean([each["crps"] for each in found["scores"][m]]) for m in ("model", "seasonal_naive")
    )
    assert model_crps < naive
    with pytest.raises(InputError, match="leave no rows to learn from"):
        model.backtest(data, 5.0, origins=3)


def test_a_site_that_comes_late_counts_from_its_first_reading_on(model, recwarn):
    """It reads nothing up to the last origin but one: it is not forecast there, and is known at the last."""
    data = sites()
    x, y = data["site 2"]
    end = x.max()
    data["site 2"] = (x, np.where(x <= end - 2, np.nan, y))
    found = model.backtest(data, 1.0, origins=2, season=1.0, bins=1)
    for table in found["scores"].values():
        assert np.isfinite([table[0]["crps"], table[0]["rmse"]]).all()
        assert table[0]["cells"] == 12 * (2 + 3)  # two sites, then three
    assert not [w for w in recwarn if "population" in str(w.message) or "slice" in str(w.message)]


def test_the_command_with_dates(tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [
        (name, f"2024-01-{1 + int(t):02d}T{round((t % 1) * 24):02d}:00:00Z", y)
        for name, (x, ys) in sites(2).items()
        for t, y in zip(x[:60], ys[:60], strict=True)
    ]
    pl.DataFrame(lines, schema=["site", "time", "y"], orient="row").write_csv("rows.csv")
    words = ("--client", "site", "--input", "time", "--output", "y", "--rounds", "2", "--quiet")
    assert run("fit", "rows.csv", *words, "--out", "RUN", "--no-report").code == 0
    done = run("forecast", "RUN", "--horizon", "1 day", "--out", "f.csv")
    assert done.code == 0, done.err
    table = pl.read_csv("f.csv", try_parse_dates=True)
    assert table.height == 24
    assert table["time"].dt.hour().to_list()[:3] == [0, 2, 4]
    assert table.columns[:4] == ["site", "time", "lead", "output"]
    again = FederatedGP.load("RUN")
    for day in (timedelta(days=1), np.timedelta64(1, "D"), pd.Timedelta("24h"), 86400):
        np.testing.assert_array_equal(
            again.forecast("site 0", day).times, again.forecast("site 0", "1 day").times
        )
    with pytest.raises(InputError, match=r"3 seconds, has 0 steps of 2 hours.*such as .3 days"):
        again.forecast("site 0", 3)
    done = run(
        "forecast", "RUN", "--horizon", "12h", "--backtest", "2", "--data", "rows.csv", "--json"
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)["horizon"] == 43200.0
    words = ("--horizon", "12h", "--backtest", "2", "--data", "rows.csv")
    shown = run("forecast", "RUN", *words).out
    assert [line[:12].strip() for line in shown.splitlines()][-1] == "12 hours"
    scores = json.loads(done.out)["scores"]["model"]
    assert run("report", "RUN", "--out", "r.html").code == 0
    page = Path("r.html").read_text("utf-8")
    assert "Past forecasts" in page
    assert f'<td data-label="inside 95%, this model">{percent(scores[-1]["coverage"])}</td>' in page
    assert "--out is for forecasts" in run("forecast", "RUN", *words, "--out", "s.csv").complaint
    assert "go together" in run("forecast", "RUN", "--horizon", "1d", "--backtest", "2").complaint
    assert "--out is missing" in run("forecast", "RUN", "--horizon", "1d").complaint


def scored(z: np.ndarray) -> dict:
    """A back-test's result with these errors in sds, at leads up to 2."""
    lead = np.linspace(0.1, 2.0, len(z))
    table = forecast._by_lead(
        [(lead, z[:, None], np.zeros((len(z), 1)), np.ones((len(z), 1)))], np.array([0.0, 1.0, 2.0])
    )
    return {"scores": {"model": table}, "dates": False}


def test_intervals_that_hold_too_little_are_named_with_the_width_that_would_hold():
    z = np.random.default_rng(0).normal(size=4000)
    fine = scored(z)
    assert forecast.too_sure(fine) is None
    assert all(abs(each["widen"] - 1.0) < 0.06 for each in fine["scores"]["model"])
    late = scored(np.where(np.arange(4000) < 2000, 1.0, 3.0) * z)
    assert late["scores"]["model"][1]["widen"] == pytest.approx(3.0, rel=0.06)
    text = forecast.too_sure(late)
    assert text is not None
    assert "up to a lead of 2.00 95% intervals held 51%" in text
    assert "3 times as wide" in text
    assert forecast.too_sure(scored(10.0 * z[:20])) is None  # ten cells a range cannot tell
