"""The air-quality study: end to end on made-up stations, and its parts against plain NumPy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pfedhgp.cli.main import main
from pfedhgp.data.beijing import HEADER, ZONES
from pfedhgp.studies import air_imputation as imputing
from pfedhgp.studies import airquality


def write_stations(folder: Path, days: int = 60) -> None:
    """Twelve files of UCI's layout: a common wave, one more a zone, hours 2 and 14 alone."""
    rng = np.random.default_rng(0)
    t = np.arange(2 * days) / 2.0
    common = np.cumsum(rng.normal(size=2 * days))
    waves = {zone: np.sin((2 + i) * t) for i, zone in enumerate(("Urban", "West", "East"))}
    for name, zone in ZONES.items():
        values = 60.0 * np.exp(
            0.3 * common / common.std() + 0.5 * waves[zone] + 0.1 * rng.normal(size=len(t))
        )
        lines = [",".join(HEADER)]
        for i, value in enumerate(values):
            date = np.datetime64("2014-01-01") + i // 2
            _, month, day = str(date).split("-")
            cell = "NA" if rng.uniform() < 0.03 else f"{value:.0f}"
            lines.append(
                f"{i},2014,{int(month)},{int(day)},{2 + 12 * (i % 2)},{cell},1,1,1,1,1,1,1,1,1,N,1,{name}"
            )
        path = folder / f"PRSA_Data_{name}_20130301-20170228.csv"
        path.write_text("\n".join(lines) + "\n")


def test_pooled_distances_are_over_common_hours() -> None:
    sites = {
        "b": (np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])),
        "a": (np.array([1.0, 2.0, 3.0]), np.array([2.0, 5.0, 9.0])),
    }
    names, squared = airquality.pooled_distances(sites)
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
    mean, variance = imputing._posterior(free, t, y - 3.0, at)
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


@pytest.mark.parametrize("change", ["station", "header", "year"])
def test_bad_data_is_one_line_and_code_2(
    tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_stations(tmp_path, days=3)
    file = tmp_path / "PRSA_Data_Shunyi_20130301-20170228.csv"
    if change == "station":
        file.unlink()
    elif change == "header":
        file.write_text(file.read_text().replace("PM2.5", "PM25"))
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
    ]
    assert main(command) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert {"station": "Shunyi", "header": "PM2.5", "year": "no rows of 2015"}[change] in lines[0]
    assert not out.exists()


@pytest.mark.slow
def test_the_study_writes_its_results(tmp_path: Path) -> None:
    """Files, records and curves; two rounds on 8 inputs promise no zones (docs/zones.md has those)."""
    source = tmp_path / "data"
    source.mkdir()
    write_stations(source)
    study = airquality.AirQuality(year=2014, inducing=8, rounds=2, impute_inducing=20, sketches=2)
    results = airquality.run(study, source, tmp_path / "out", lambda line: None)
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert written == json.loads(json.dumps(results))
    found = {(r["model"], r["metric"]): r["mean"] for r in written["records"]}
    assert {m for m, metric in found if metric == "ari"} >= {
        "pfedhgp",
        "operator",
        "paper",
        "pooled",
    }
    assert found["pooled", "ari"] == 1.0
    for name in ("pfedhgp", "station-gp", "interpolation", "pooled-gp", "others-mean"):
        assert found[f"{name} (imputation)", "crps"] > 0
    curve = written["curves"]["ari against r2"]
    assert [p["r2"] for p in curve] == sorted(p["r2"] for p in curve)
    for figure in ("map-paper", "map-pfedhgp", "dendrogram", "heat-map", "curve"):
        assert (tmp_path / "out" / f"{figure}.svg").read_text().count("<svg") == 1
