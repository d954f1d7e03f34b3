"""The air-quality study: end to end on made-up stations, and its parts against plain NumPy."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from pfedhgp.cli.main import main
from pfedhgp.errors import InputError
from pfedhgp.studies.airquality import imputation as imputing
from pfedhgp.studies.airquality import models, report, sparse_station, zone_scores
from pfedhgp.studies.airquality import study as airquality
from pfedhgp.studies.airquality.stations import ZONES
from pfedhgp.zones.clustering import sketch_r2
from pfedhgp.zones.comparison import Comparison
from support.stations import write_stations


def test_pooled_distances_are_over_common_hours() -> None:
    sites = {
        "b": (np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])),
        "a": (np.array([1.0, 2.0, 3.0]), np.array([2.0, 5.0, 9.0])),
    }
    names, squared = zone_scores.pooled_distances(sites)
    assert names == ("a", "b")
    np.testing.assert_allclose(squared, [[0.0, 2.0], [2.0, 0.0]])


def test_a_split_holds_out_whole_days_and_one_fortnight() -> None:
    t = np.arange(200) / 2.0
    sites = {name: (t, np.arange(200.0)) for name in "abc"}
    parts = imputing.split(sites, share=0.1, seed=1)
    (name,) = parts.fortnight
    inside = parts.fortnight[name][0]
    assert len(inside) == 28
    assert np.ptp(inside) == 13.5
    for site in sites:
        kept, out = parts.kept[site][0], parts.held[site][0]
        assert sorted([*kept, *out]) == t.tolist()
        assert not set(np.floor(kept)) & set(np.floor(parts.days[site][0]))


def test_the_station_gp_is_the_dense_one_at_its_parameters() -> None:
    rng = np.random.default_rng(2)
    t = np.sort(rng.uniform(0, 20, 40))
    y = 3.0 + np.sin(t) + 0.1 * rng.normal(size=40)
    at = np.array([2.0, 11.3, 25.0])
    free = np.log([1.3, 0.9, 0.05])
    mean, variance = imputing.posterior(free, t, y - 3.0, at)
    kernel = lambda a, b: 0.81 * np.exp(-np.abs(a[:, None] - b[None, :]) / 1.3)  # noqa: E731
    K = kernel(t, t) + (0.05 + 1e-6) * np.eye(40)
    np.testing.assert_allclose(mean, kernel(at, t) @ np.linalg.solve(K, y - 3.0), rtol=1e-8)
    expected = 0.81 - np.sum(kernel(at, t) * np.linalg.solve(K, kernel(t, at)).T, axis=1)
    np.testing.assert_allclose(variance, expected, rtol=1e-8)


def test_the_mean_of_the_others_is_shifted_to_the_station() -> None:
    t = np.arange(6.0)
    kept = {"a": (t, t + 1.0), "b": (t, t + 3.0), "c": (t[:4], t[:4] + 7.0)}
    mean, sd = imputing.others_mean(kept, "c", np.array([4.0, 5.0]))
    np.testing.assert_allclose(mean, [11.0, 12.0])
    np.testing.assert_allclose(sd, 0.0, atol=1e-12)


def test_a_stations_gp_with_waves_beats_the_plain_one_on_waves() -> None:
    rng = np.random.default_rng(3)
    t = np.arange(120) / 2.0
    y = 4.0 + np.sin(2 * np.pi * t / 7.0) + 0.05 * rng.normal(size=120)
    kept = {"a": (t[:90], y[:90])}
    held = {"a": (t[90:], y[90:])}
    waves, plain = (
        imputing.scores(held, found)
        for found in (
            imputing.with_waves(kept, held),
            {"a": imputing.gaussian_process(*kept["a"], held["a"][0])},
        )
    )
    assert waves["crps"] < 0.5 * plain["crps"]
    assert waves["rmse"] < 0.2


@pytest.mark.parametrize(
    "change", ["station", "header", "year", "hours", "negative", "twice", "short"]
)
def test_bad_data_is_one_line_and_code_2(
    tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_stations(tmp_path, days=3)
    file = tmp_path / "PRSA_Data_Shunyi_20130301-20170228.csv"
    if change == "station":
        file.unlink()
    elif change == "header":
        file.write_text(file.read_text().replace("PM2.5", "PM25"))
    elif change == "negative":
        lines = file.read_text().splitlines()
        cells = lines[2].split(",")
        lines[2] = ",".join([*cells[:5], "-3", *cells[6:]])
        file.write_text("\n".join(lines) + "\n")
    elif change == "twice":
        (tmp_path / "copy").mkdir()
        (tmp_path / "copy" / file.name).write_bytes(file.read_bytes())
    year = "2015" if change == "year" else "2014"
    out = tmp_path / "out"
    command = [
        "reproduce",
        "airquality",
        "--data",
        str(tmp_path),
        "--year",
        year,
        "--out",
        str(out),
        *(["--hours", "2,9"] if change == "hours" else []),
    ]
    assert main(command) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    words = {
        "station": "Shunyi",
        "header": "PM2.5",
        "year": "no rows of 2015",
        "hours": "no rows of hour 9 in 2014; the file has hours 2, 14",
        "short": "six weeks or less: too short for imputation",
        "negative": "line 3: PM2.5 is negative",
        "twice": "two files for station 'Shunyi'",
    }
    assert words[change] in lines[0]
    assert not out.exists()


@pytest.mark.parametrize(
    "option", [["--full"], ["--sparse", "0"], ["--sketches", "5"]], ids=lambda option: option[0]
)
def test_options_of_the_zone_study_are_refused_with_all_hours(
    tmp_path: Path, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "airquality", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main([*command, "--hours", "all", *option]) == 2
    assert f"{option[0]} cannot be combined with --hours all" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_rows_are_called_by_their_usual_grouping() -> None:
    names = [
        report.row_name(model, method)
        for model in ("sketch", "operator")
        for method in ("agglomerative", "spectral")
    ]
    assert names == ["sketch", "sketch (spectral)", "operator (ward)", "operator"]
    assert report.row_name("pfedhgp", "average") == "pfedhgp"
    assert report.row_name("pfedhgp", "agglomerative") == "pfedhgp (ward)"


def test_a_fortnight_without_values_is_refused() -> None:
    t = np.array([0.0, 1.0, 99.0, 100.0])
    with pytest.raises(InputError, match="'a' has no values in the fortnight"):
        imputing.split({"a": (t, t)}, share=0.1, seed=0)


@pytest.mark.slow
def test_the_study_writes_its_results(tmp_path: Path) -> None:
    """Files, records and curves; two rounds on 8 inputs promise no zones (docs/zones.md has those)."""
    source = tmp_path / "data"
    source.mkdir()
    write_stations(source)
    study = models.AirQuality(
        year=2014, inducing=8, rounds=2, impute_inducing=20, sketches=2, starts=2, zone_rounds=2
    )
    results = airquality.run(study, source, tmp_path / "out", lambda line: None)
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert written == json.loads(json.dumps(results))
    found = {(r["model"], r["metric"]): r["mean"] for r in written["records"]}
    assert {m for m, metric in found if metric == "ari"} >= {
        "pfedhgp",
        "sketch",
        "operator",
        "paper",
        "pooled",
    }
    assert found["pfedhgp", "numbers"] == models.ZONE_FUNCTIONS + 1
    # One more sketch, of at most as many, if a station counts as one with few rows after two rounds.
    assert 242 <= found["sketch", "numbers"] <= 242 + 240
    assert [each["seed"] for each in written["tables"]["starts"]] == [0, 1]
    assert written["tables"]["zones"]["distance"] == "loadings"
    assert found["pooled", "ari"] == 1.0
    for name in ("pfedhgp", "station-gp", "interpolation", "pooled-gp", "others-mean"):
        assert found[f"{name} (imputation)", "crps"] > 0
        assert 0.0 <= found[f"{name} (imputation)", "fortnight_coverage"] <= 1.0
        assert np.isfinite(found[f"{name} (imputation)", "fortnight_nll"])
    tables = (tmp_path / "out" / "tables.md").read_text()
    assert "The fortnight alone" in tables
    assert "| operator (ward) |" in tables
    curve = written["curves"]["ari against r2"]
    assert [p["r2"] for p in curve] == sorted(p["r2"] for p in curve)
    assert all(p["r2"] <= p["r2_largest"] < 1.0 for p in curve)
    seeds = written["tables"]["sketch seeds"]
    assert [each["seed"] for each in seeds] == [0, 1]
    (default,) = (
        p for p in curve if p["size"] == written["tables"]["zones by sketch"]["sketch"]["size"]
    )
    assert np.mean([each["r2"] for each in seeds]) == pytest.approx(default["r2"])
    assert np.mean([each["ari"] for each in seeds]) == pytest.approx(default["ari"])
    assert set(written["tables"]["number of groups"]) == {"eigengap", "silhouette"}
    for figure in ("map-paper", "map-pfedhgp", "dendrogram", "heat-map", "curve"):
        assert (tmp_path / "out" / f"{figure}.svg").read_text().count("<svg") == 1


@pytest.mark.slow
def test_twelve_stations_have_the_same_groups_in_any_order(tmp_path: Path) -> None:
    """Shapes are those of the study above, so that nothing compiles again."""
    write_stations(tmp_path)
    study = models.AirQuality(year=2014, inducing=8, rounds=2)
    sites = airquality.sites_of(study, tmp_path)
    names = list(np.random.default_rng(4).permutation(list(sites)))
    assert names != list(sites)
    found = []
    for order in (list(sites), names):
        model = models.zone_model(study).fit(
            {n: (sites[n][0][:, None], sites[n][1]) for n in order}
        )
        found.append(model.cluster(3, draws=0))
    assert found[0].labels == found[1].labels
    assert set(found[0].labels.values()) == {0, 1, 2}
    np.testing.assert_allclose(found[0].distances, found[1].distances, rtol=1e-2, atol=1e-3)


def beijing() -> Path | None:
    """The stations' files, where this machine has them."""
    given = os.environ.get("PFEDHGP_DATA")
    places = [Path(given)] if given else []
    places.append(Path(__file__).resolve().parents[4] / "shared" / "data")
    return next((place / "beijing" for place in places if (place / "beijing").exists()), None)


needs_beijing = pytest.mark.skipif(
    beijing() is None, reason="the Beijing stations are not on this machine"
)


@pytest.mark.slow
@needs_beijing
@pytest.mark.parametrize("hours", [(2, 14), (8, 20)])
@pytest.mark.parametrize("year", [2013, 2014])
def test_the_zones_of_beijing_come_back_from_five_loadings(
    year: int, hours: tuple[int, int]
) -> None:
    study = models.AirQuality(year=year, hours=hours, seed=1)
    sites = airquality.sites_of(study, beijing())
    data = {n: (t[:, None], y) for n, (t, y) in sites.items()}
    zones = models.loadings_model(study, sites).fit(data).cluster(3, draws=0)
    assert zone_scores.ari(zones.labels) == 1.0
    assert zones.numbers == 6


@pytest.mark.slow
@needs_beijing
@pytest.mark.parametrize("year", [2013, 2014])
def test_the_zones_of_beijing_come_back_from_sketches(year: int) -> None:
    study = models.AirQuality(year=year)
    sites = airquality.sites_of(study, beijing())
    model = models.zone_model(study).fit({n: (t[:, None], y) for n, (t, y) in sites.items()})
    own = zone_scores.own_functions(model)
    rows = {n: (t[:, None], y[:, None]) for n, (t, y) in sites.items()}
    attacks, names = zone_scores.attacks_on(model, rows), tuple(sorted(own))
    found, told = [], []
    for seed in range(5):
        compared = Comparison(own, names, size=240, seed=seed, grid="", least=3)
        labels = map(int, compared.label(3, "agglomerative"))
        found.append(zone_scores.ari(dict(zip(names, labels, strict=True))))
        told += sketch_r2(attacks, own, compared.sent).values()
    assert sum(score == 1.0 for score in found) >= 4
    assert np.mean(found) >= 0.95
    assert max(told) <= 0.7
    assert len(told) == 60


@pytest.mark.slow
@needs_beijing
def test_a_station_of_beijing_with_few_rows_comes_into_its_zone_and_is_predicted() -> None:
    study = models.AirQuality(year=2013)
    sites = airquality.sites_of(study, beijing())
    found = sparse_station.sparse_part(
        sites,
        ZONES,
        ["Wanliu"],
        model=lambda: models.zone_model(study),
        predictor=lambda: models.imputing_model(study, sites),
        pooled=zone_scores.pooled_distances,
        seed=5,
        say=lambda line: None,
    )
    assert found["pfedhgp"]["accuracy"] == found["pooled"]["accuracy"] == [1.0]
    assert found["pfedhgp"]["crps"][0] < 0.6 * found["station-gp"]["crps"][0]
    assert 0.88 < found["pfedhgp"]["coverage"][0] < 0.98


@pytest.mark.slow
@needs_beijing
def test_held_out_days_of_beijing_are_imputed_better_than_by_a_station_alone() -> None:
    study = models.AirQuality(year=2014)
    sites = airquality.sites_of(study, beijing())
    parts = imputing.split(sites, share=study.held_out, seed=study.seed)
    found = airquality.imputation_part(study, [parts], lambda line: None)
    (ours,) = found["pfedhgp"]
    for name in ("station-gp", "station-gp-plain", "interpolation"):
        assert ours["crps"] < 0.8 * found[name][0]["crps"]
    assert 0.93 <= ours["coverage"] <= 0.97
