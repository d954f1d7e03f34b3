"""Tables in, tables out: datetimes as the command line takes them, many clients at once, shapes as given."""

from __future__ import annotations

import warnings
from contextlib import suppress
from copy import copy

import numpy as np
import pandas as pd
import polars as pl
import pytest

from pfedhgp import FederatedGP
from pfedhgp.errors import InputError, PFedHGPWarning

KERNEL = "rbf(2 days) + periodic(1 day)"
SETTINGS = {"rounds": 2, "inducing": 8, "local_inducing": 6, "averaging": False}
HOURS = 48
COLUMNS = {"client": "station", "inputs": "time", "outputs": "no2"}


def table() -> pd.DataFrame:
    """Three stations with a daily wave; times of Tokyo."""
    rng = np.random.default_rng(0)
    hour = np.arange(HOURS)
    time = pd.Timestamp("2024-03-01", tz="Asia/Tokyo") + pd.to_timedelta(hour, "h")
    parts = [
        pd.DataFrame(
            {
                "station": name,
                "time": time,
                "no2": 20 + 5 * np.sin(hour / 24 * 2 * np.pi) + i + rng.normal(size=HOURS),
            }
        )
        for i, name in enumerate(["east", "north", "south"])
    ]
    return pd.concat(parts, ignore_index=True).sample(frac=1.0, random_state=0)


@pytest.fixture(scope="module")
def model() -> FederatedGP:
    return FederatedGP(kernel=KERNEL, **SETTINGS).fit(table(), **COLUMNS)


def test_a_table_and_a_file_give_the_same_model(model, run, tmp_path):
    """Each is used by the other: the file's RUN in Python, and Python's RUN on the command line."""
    data = tmp_path / "rows.csv"
    table().to_csv(data, index=False)
    flat = ["--client", "station", "--input", "time", "--output", "no2", "--kernel", KERNEL]
    flat += ["--rounds", 2, "--inducing", 8, "--local-inducing", 6, "--out", tmp_path / "FILE"]
    done = run("fit", data, *flat, "--best-parameters", "--no-report", "-q")
    assert done.code == 0, done.err
    other = FederatedGP.load(tmp_path / "FILE")
    mine, theirs = (m.predict(table(), layers=True) for m in (model, other))
    pd.testing.assert_frame_equal(mine, theirs, rtol=1e-9)
    assert model.kernel_.parts[1].period == pytest.approx(86400.0)
    kept = {name: m.model_.settings["columns"] for name, m in (("py", model), ("file", other))}
    assert {**kept["py"], "dropped": []} == kept["file"]
    assert model.model_.settings["kernel"] == other.model_.settings["kernel"] == KERNEL

    model.save(tmp_path / "PYTHON")
    found = run("predict", tmp_path / "PYTHON", data, "--out", "-")
    assert found.code == 0, found.err
    written = pl.read_csv(found.out.encode())
    assert written.columns == mine.columns.tolist()
    np.testing.assert_allclose(written["mean"].to_numpy(), mine["mean"].to_numpy(), rtol=1e-12)
    np.testing.assert_allclose(written["observed"].to_numpy(), table()["no2"], rtol=1e-12)
    forecast = run("forecast", tmp_path / "PYTHON", "--horizon", "2h", "--out", "-")
    assert pl.read_csv(forecast.out.encode()).height == 2 * 3


def test_pandas_comes_back_with_its_index(model):
    given = table()
    found = model.predict(given)
    assert found.columns.tolist() == [
        *("station", "time", "output", "observed", "mean", "sd", "lower", "upper", "known")
    ]
    pd.testing.assert_frame_equal(found[["station", "time"]], given[["station", "time"]])
    np.testing.assert_array_equal(found["observed"], given["no2"])
    for name, own in found.groupby("station"):
        p = model.predict(name, own[["time"]])
        np.testing.assert_allclose(own["mean"], p.mean, rtol=1e-12)
        np.testing.assert_allclose(own["sd"], p.sd, rtol=1e-12)
        np.testing.assert_allclose(own["upper"], p.interval(0.95)[1], rtol=1e-12)
    wide = model.predict(given[["station", "time"]], level=0.5, layers=True)
    assert "observed" not in wide.columns
    total = wide[["global", "deviation", "local"]].sum(axis=1)
    np.testing.assert_allclose(total, wide["mean"], rtol=1e-9)
    assert ((wide["upper"] - wide["lower"]) < (found["upper"] - found["lower"])).all()


def test_polars_and_several_outputs():
    rng = np.random.default_rng(1)
    x = np.tile(np.linspace(0, 1, 12), 2)
    given = pl.DataFrame(
        {"site": ["a"] * 12 + ["b"] * 12, "x": x, "u": rng.normal(size=24), "v": x}
    ).with_columns(u=pl.when(pl.col("x") > 0.5).then(pl.col("u")))
    model = FederatedGP(rounds=1, averaging=False).fit(
        given, client="site", inputs="x", outputs=["u", "v"]
    )
    found = model.predict(given)
    assert isinstance(found, pl.DataFrame)
    assert found["output"].to_list() == ["u", "v"] * 24
    assert found["observed"].null_count() == given["u"].null_count()
    p = model.predict("b", given.filter(site="b"))
    own = found.filter(site="b")
    np.testing.assert_allclose(own["mean"].to_numpy().reshape(-1, 2), p.mean, rtol=1e-12)
    assert model.get_feature_names_out().tolist() == ["u", "v"]
    other = model.predict(given.rename({"site": "place"}), client="place")
    assert other.columns[0] == "place"
    with pytest.raises(InputError, match="no column 'site', which named the clients"):
        model.predict(given.drop("site"))
    with pytest.raises(InputError, match="`X` is missing"):
        model.predict("a")


def test_unknown_clients_of_a_table_are_named_once(model):
    given = table().assign(station="elsewhere")
    with pytest.warns(PFedHGPWarning, match="unknown client elsewhere: this is the pop"):
        found = model.predict(given)
    assert not found["known"].any()


def test_a_mapping_comes_back_as_one(model):
    times = table()["time"].sort_values().unique()[:4]
    found = model.predict({"east": times, "south": times[:2]})
    assert list(found) == ["east", "south"]
    np.testing.assert_array_equal(found["south"].mean, model.predict("south", times[:2]).mean)


def test_moments_of_every_kind_predict_the_same(model):
    given = table().query("station == 'east'").sort_values("time")["time"][:5]
    expected = model.predict("east", given).mean
    utc = given.dt.tz_convert("UTC")
    for same in (
        utc.dt.tz_localize(None).to_numpy(),
        given.tolist(),
        [str(each) for each in given],
        utc.to_numpy("datetime64[s]"),
        pl.DataFrame({"time": given.tolist()}),
        np.array([each.timestamp() for each in given]),  # the model's own unit: seconds
    ):
        np.testing.assert_array_equal(model.predict("east", same).mean, expected)


def test_over_time(model, tmp_path):
    model.save(tmp_path / "M")
    now = FederatedGP.load(tmp_path / "M")
    last = table()["time"].max()
    new = table().query("station == 'east'").sort_values("time")[:6]
    new = new.assign(time=last + pd.to_timedelta(np.arange(1, 7), "h"))
    before = now.predict("north", new["time"]).mean
    now.update(new)
    assert now.last_update_.rows == {"east": 6}
    assert (
        now.forecast("east", "2 h").times[0] == (new["time"].max() + pd.Timedelta("1h")).to_numpy()
    )
    now.forget("east", new, between=(new["time"].iloc[2], new["time"].iloc[-1]))
    assert now.last_update_.rows == {"east": 4}
    now.forget("east", (new["time"][:2], new["no2"][:2]))
    np.testing.assert_allclose(now.predict("north", new["time"]).mean, before, rtol=1e-7)
    assert now.anomalies("north", new.assign(station="north")).chance.shape == (6,)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PFedHGPWarning)
        scores = now.backtest(table(), "6 h", origins=1, season="1 day", bins=2)["scores"]
    assert set(scores) == {"model", "seasonal_naive", "climatology"}
    now.adopt("west", new["time"], new["no2"])
    assert now.clients_[-1] == "west"
    start = now.forecast("east", "1 h", start=pd.Timestamp("2024-03-05", tz="UTC")).times[0]
    assert str(start).startswith("2024-03-05T01:00")


def test_what_does_not_fit_the_model_is_refused(model):
    numbers = pd.DataFrame({"time": [1.0, 2.0]})
    with pytest.raises(InputError, match="'time' was datetimes in the fit"):
        model.predict("east", numbers)
    x = np.linspace(0, 1, 8)
    plain = FederatedGP(rounds=1, averaging=False).fit({"a": (x, x), "b": (x, -x)})
    with pytest.raises(InputError, match="'x' was numbers in the fit, and here it is datetimes"):
        plain.predict("a", pd.to_datetime(["2024-01-01"]))
    with pytest.raises(InputError, match="client 'b' are datetime, those of the first client num"):
        FederatedGP().fit({"a": (x, x), "b": (pd.date_range("2024", periods=8), x)})
    with pytest.raises(InputError, match="has a unit of time, but input 'x' is a number"):
        FederatedGP(kernel="rbf(2 days)").fit({"a": (x, x), "b": (x, x)})
    with pytest.raises(InputError, match=r"`kernel` 'rbf\(': a bracket|`kernel` 'rbf\('"):
        FederatedGP(kernel="rbf(").fit({"a": (x, x), "b": (x, x)})


def test_times_without_a_zone_are_utc_and_that_is_said_in_the_fit_alone():
    given = table()
    given["time"] = given["time"].dt.tz_convert("UTC").dt.tz_localize(None)
    with pytest.warns(PFedHGPWarning, match="column 'time' has no time zone: taken as UTC") as told:
        plain = FederatedGP(rounds=1, averaging=False).fit(given, **COLUMNS)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = plain.predict(given)["mean"]
    np.testing.assert_array_equal(plain.predict(table())["mean"], first)


def test_times_without_a_zone_are_told_firmly_if_the_fit_had_zones(model):
    """The hours of Tokyo would be nine too late."""
    text = "no time zone, and the fit's datetimes had one: taken as UTC, which may be hours off"
    naive = table()
    naive["time"] = naive["time"].dt.tz_localize(None)
    one = naive[naive.station == "east"].iloc[:3]
    later = one.assign(time=one["time"] + pd.Timedelta("90 days"))
    asked = {
        "predict a table": lambda own: own.predict(naive),
        "predict": lambda own: own.predict("east", one[["time"]]),
        "update": lambda own: own.update(later, client="station"),
        "update a mapping": lambda own: own.update({"east": (later[["time"]], later["no2"])}),
        "adopt": lambda own: own.adopt("west", one[["time"]], one["no2"]),
        "anomalies": lambda own: own.anomalies("east", later),
        "forget": lambda own: own.forget("east", one),
        "score": lambda own: own.score(naive),
    }
    for name, ask in asked.items():
        with pytest.warns(PFedHGPWarning) as told, suppress(InputError):
            ask(copy(model))
        mine = [each for each in told if text in str(each.message)]
        assert mine, name
        assert {each.filename for each in mine} == {__file__}, name
    assert model.model_.settings["columns"]["inputs"][0]["zone"] is True


def test_a_file_without_a_zone_is_told_firmly_if_the_fit_had_zones(model, run, tmp_path):
    naive = table()
    naive["time"] = naive["time"].dt.tz_localize(None)
    naive.to_csv(tmp_path / "naive.csv", index=False)
    model.save(tmp_path / "RUN")
    done = run("predict", tmp_path / "RUN", tmp_path / "naive.csv", "--out", "-")
    assert "column 'time' has no time zone, and the fit's datetimes had one" in done.err


def test_a_domain_of_datetimes(model):
    days = (pd.Timestamp("2024-02-01", tz="UTC"), np.datetime64("2024-05-01"))
    wide = FederatedGP(domain=days, rounds=1, averaging=False).fit(table(), **COLUMNS)
    assert wide.model_.scaling.upper == pytest.approx(np.datetime64("2024-05-01", "s").astype(int))
    late = (np.datetime64("2024-03-01T00"), np.datetime64("2024-05-01"))
    with pytest.raises(InputError, match="outside it"):
        FederatedGP(domain=late).fit(table(), **COLUMNS)


@pytest.mark.parametrize("flat", [True, False])
def test_one_output_has_the_shape_that_it_came_in(flat, tmp_path):
    x = np.linspace(0, 1, 10)
    y = np.sin(5 * x) if flat else np.sin(5 * x)[:, None]
    model = FederatedGP(rounds=1, averaging=False).fit({"a": (x, y), "b": (x, y + 1)})
    model.save(tmp_path / "M")
    shape = (10,) if flat else (10, 1)
    for each in (model, FederatedGP.load(tmp_path / "M")):
        p = each.predict("a", x)
        assert p.mean.shape == p.sd.shape == p.interval()[0].shape == shape
        assert all(layer.mean.shape == layer.sd.shape == shape for layer in p.layers.values())
        assert p.sample(3, seed=0).shape == (3, *shape)
        assert p.covariance().shape == (10, 1, 1)
        assert p.covariance("joint").shape == (10, 10)
        assert repr(p) == "Prediction('a', rows=10, outputs=1, known=True)"
        ahead = each.forecast("a", 0.5)
        assert ahead.mean.shape == (len(ahead.times), *shape[1:])
    twin = FederatedGP(rounds=1, averaging=False).fit(
        {"a": (x, np.reshape(y, (10, 1))), "b": (x, np.reshape(y + 1, (10, 1)))}
    )
    np.testing.assert_array_equal(
        model.predict("a", x).mean.ravel(), twin.predict("a", x).mean[:, 0]
    )


def test_one_name_of_an_output_is_flat_and_a_list_is_not():
    given = table().query("station != 'south'")
    for outputs, shape in (("no2", (2,)), (["no2"], (2, 1))):
        model = FederatedGP(rounds=1, averaging=False).fit(given, **{**COLUMNS, "outputs": outputs})
        assert model.predict("east", given["time"][:2]).mean.shape == shape
