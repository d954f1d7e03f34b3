"""Files that an older version wrote (tests/fixtures) are still read, and give the numbers that they gave."""

from __future__ import annotations

import json
import lzma
import re
import shutil
import tomllib
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pfedhgp import FederatedGP
from pfedhgp.errors import PFedHGPWarning
from pfedhgp.inference import host_lbfgs
from pfedhgp.inference.structured.host import search

FIXTURES = Path(__file__).parent / "fixtures"
FITTED = ["structured", "mean-field", "state-space", "cycles", "diagnosis", "zones"]
TOLERANCE = 1e-9
TRAINED = 1e-7
"""After training goes on: rounding differs between processors, and training makes it 1e-9 to 1e-8."""


def tree(name: str, file: str):
    return json.loads((FIXTURES / name / file).read_text("ascii"))


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A fixture in a folder of its own, which is then the current one."""

    def copy(name: str) -> Path:
        shutil.copytree(FIXTURES / name, tmp_path, dirs_exist_ok=True)
        monkeypatch.chdir(tmp_path)
        return tmp_path

    return copy


def check_numbers(model: FederatedGP, stored: dict) -> None:
    """Relative to each array's own size, but for a layer that vanishes: relative to the prediction's."""
    assert model.exchanges_ == stored["exchanges"]
    check_bound(model, stored)
    inputs = np.array(stored["inputs"])[:, None]
    for name, expected in stored["clients"].items():
        with warnings.catch_warnings():
            if name == "a stranger":
                warnings.simplefilter("ignore")
            found = model.predict(name, inputs)
        size = {kind: np.abs(expected[kind]).max() for kind in ("mean", "sd", "covariance")}
        parts = {"mean": found.mean, "sd": found.sd, "covariance": found.covariance("outputs")}
        for kind, array in parts.items():
            close(array, expected[kind], size[kind])
        assert found.layers.keys() == expected["layers"].keys()
        for layer, numbers in expected["layers"].items():
            close(found.layers[layer].mean, numbers["mean"], size["mean"])
            close(found.layers[layer].sd, numbers["sd"], size["sd"])


def check_bound(model: FederatedGP, stored: dict, tolerance: float = TOLERANCE) -> None:
    if stored["bound"] is None:  # mean-field has none
        assert model.bound_ is None
    else:
        assert model.bound_ == pytest.approx(stored["bound"], rel=tolerance)


def close(found, expected, size: float) -> None:
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE * size)


# ------------------------------------------------------------------------------------ model files


@pytest.mark.parametrize("name", FITTED)
def test_a_saved_model_predicts_as_it_did(name):
    model, stored = FederatedGP.load(FIXTURES / name / "RUN"), tree(name, "predictions.json")
    assert [*model.clients_, "a stranger"] == list(stored["clients"])
    check_numbers(model, stored)


@pytest.mark.parametrize("name", FITTED)
def test_a_saved_model_that_is_saved_again_keeps_every_number(name, tmp_path):
    before, after = FIXTURES / name / "RUN", tmp_path / "RUN"
    FederatedGP.load(before).save(after)
    kept = ["global.safetensors", "metrics.json", "messages.jsonl"]
    kept += [str(path.relative_to(before)) for path in before.glob("clients/*")]
    for file in kept:
        assert (after / file).read_bytes() == (before / file).read_bytes(), file
    specs = [json.loads((run / "spec.json").read_text("ascii")) for run in (before, after)]
    for key in ("scaling", "population", "clients", "settings"):
        assert specs[1][key] == specs[0][key], key


def test_predict_reads_a_saved_model(run, copied):
    """Inputs that are datetimes come back as they were; a row has a line for each output."""
    copied("mean-field")
    done = run("predict", "RUN", "rows.csv", "--out", "-")
    assert done.code == 0, done.err
    table = pl.read_csv(done.out.encode())
    assert table.columns == [
        *("site", "time", "output", "observed", "mean", "sd", "lower", "upper"),
        *("global", "deviation", "local", "known"),
    ]
    rows = pl.read_csv("rows.csv")
    assert table["time"].to_list() == [f"{time}Z" for time in rows["time"]]
    np.testing.assert_allclose(
        table["global"] + table["deviation"] + table["local"], table["mean"], rtol=1e-9
    )


# ------------------------------------------------------------------------------------- checkpoints


class _SearchesAsBefore:
    """They used all their evaluations, and knew nothing of the one before."""

    State = host_lbfgs.State

    @staticmethod
    def minimize(*args, settled, share, pairs, **options):
        return host_lbfgs.minimize(*args, **options)


@pytest.mark.parametrize("name", ["stopped", "stopped-mean-field"])
def test_a_fit_that_an_older_version_began_is_resumed(name, run, copied, monkeypatch):
    """It ends where a fit that was not stopped had ended, if clients search for as long as they did then.

    The structured one ends near there: clients' scales had fixed priors then, and have a population's now.
    """
    monkeypatch.setattr(search, "host_lbfgs", _SearchesAsBefore)
    folder = copied(name)
    settings = folder / "RUN" / "checkpoint" / "run.json"
    settings.write_text(settings.read_text("ascii").replace("{here}", str(folder.resolve())))
    (log,) = (folder / "RUN" / "checkpoint").glob("*/messages.jsonl")
    crossed = log.read_bytes()
    done = run("fit", "--resume", "--out", "RUN")
    assert done.code == 0, done.err
    assert "round 3 of" in done.err
    assert "round 1 of" not in done.err, "it began again"
    assert not (folder / "RUN" / "checkpoint").exists()
    assert (folder / "RUN" / "messages.jsonl").read_bytes().startswith(crossed)
    model, stored = FederatedGP.load("RUN"), tree(name, "end.json")
    assert model.exchanges_ == stored["exchanges"]
    if name == "stopped-mean-field":
        check_bound(model, stored, TRAINED)
        check_numbers(model, stored)
    else:
        bounds = [record["bound"] for record in model.history_]
        assert bounds[-1] > bounds[1] > bounds[0], "it goes on from the checkpoint"
        assert model.bound_ == pytest.approx(stored["bound"], abs=0.5)


def test_other_settings_than_those_of_the_stopped_fit_are_refused(run, copied):
    folder = copied("stopped")
    settings = folder / "RUN" / "checkpoint" / "run.json"
    settings.write_text(settings.read_text("ascii").replace("{here}", str(folder.resolve())))
    assert "--seed is 1" in run("fit", "--resume", "--out", "RUN", "--seed", "1").complaint


# ------------------------------------------------------------------------- cycles, zones, reports


def test_a_saved_diagnosis_classifies_as_it_did(run, copied):
    copied("diagnosis")
    asked = ("new.csv", "--cycle", "stroke", "--label", "state", "--out", "again.csv")
    done = run("classify", "RUN", *asked)
    assert done.code == 0, done.err
    found, expected = pl.read_csv("again.csv"), pl.read_csv("classified.csv")
    assert found.columns == expected.columns
    for name in expected.columns:
        if expected[name].dtype == pl.String:
            assert found[name].to_list() == expected[name].to_list()
        else:
            np.testing.assert_allclose(found[name], expected[name], rtol=TOLERANCE)
    kept, known = (
        FederatedGP.load("RUN").calibration_.to_json(),
        tree("diagnosis", "calibration.json"),
    )
    del known["margin"]  # of a choice that is no longer made
    assert {name: kept[name] for name in known} == known


def test_a_report_shows_the_cycles_that_were_classified(run, copied):
    copied("diagnosis")
    done = run("report", "RUN", "--data", "rows.csv", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["warnings"] == []
    page = Path("RUN/report.html").read_text("utf-8")
    kept = tree("diagnosis", "RUN/classified.json")
    assert kept["counts"] == {"normal": 2, "worn": 0, "none of these": 2}
    section = page.partition('id="diagnosis"')[2].partition("</section>")[0]
    for name, count in kept["counts"].items():
        assert re.search(rf"<th[^>]*>{name}</th><td[^>]*>{count}</td>", section), name


def zones_in(page: str) -> str:
    return page.partition("<!-- zones -->")[2].partition("<!-- end of zones -->")[0]


def test_a_report_shows_saved_zones(run, copied):
    copied("zones")
    done = run("report", "RUN", "--data", "rows.csv", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["warnings"] == []
    section = zones_in(Path("RUN/report.html").read_text("utf-8"))
    members = tree("zones", "RUN/zones/zones.json")["members"]
    assert members == [["a", "b", "c"], ["d", "e"]]
    assert all(", ".join(names) in section for names in members)


def test_zones_are_found_again_and_go_into_a_saved_report(run, copied):
    """With the log of what was sent for the saved ones, which counts as sent before."""
    folder = copied("zones")
    page = folder / "RUN" / "report.html"
    before = lzma.decompress((folder / "report.html.xz").read_bytes()).decode("utf-8")
    page.write_text(before, encoding="utf-8")
    assert not zones_in(before).strip()
    log = (folder / "RUN" / "zones" / "messages.jsonl").read_bytes()
    how = ("--groups", "2", "--size", "12", "--data", "rows.csv", "--places", "places.csv")
    done = run("cluster", "RUN", *how, "--overwrite", "--json")
    assert done.code == 0, done.err
    stored, found = tree("zones", "RUN/zones/zones.json"), json.loads(done.out)
    assert found["labels"] == stored["labels"]
    for name in ("distances", "between"):
        size = np.abs(stored[name]).max()
        close(found[name], stored[name], size)
    # Computed anew, not loaded: another processor's rounding moves it by 2.6e-9, as it moves training.
    assert found["r2"] == pytest.approx(stored["r2"], rel=TRAINED)
    assert (folder / "RUN" / "zones" / "messages.jsonl").read_bytes().startswith(log)
    after = page.read_text("utf-8")
    assert "a, b, c" in zones_in(after)
    assert after.partition("<!-- zones -->")[0].count("<svg") == (
        before.partition("<!-- zones -->")[0].count("<svg")
    )


# --------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize("name", ["given", "diagnose", "cycles"])
def test_saved_settings_arrive(name, run, copied):
    copied("settings")
    done = run("fit", "--config", f"{name}.toml", "--write-config", "again.toml")
    assert done.code == 0, done.err
    before, after = (tomllib.loads(Path(f).read_text()) for f in (f"{name}.toml", "again.toml"))
    for table, keys in before.items():
        assert keys.items() <= after[table].items()


@pytest.mark.slow
def test_a_fit_has_the_saved_settings(run, copied):
    copied("settings")
    done = run("fit", "--config", "given.toml")
    assert done.code == 0, done.err
    model = FederatedGP.load("RUN")
    given = tomllib.loads(Path("given.toml").read_text())
    found = model.get_params()
    for table, names in (
        ("model", ["latents", "local_latents", "noise", "inducing", "local_inducing", "layers"]),
        ("model", ["learn_inducing", "largest_local_inducing", "local"]),
        ("inference", ["rounds", "tolerance", "restarts", "batch", "averaging"]),
        ("run", ["seed", "device"]),
    ):
        assert {name: found[name] for name in names} == {n: given[table][n] for n in names}
    assert found["domain"] == [[1_709_251_200.0, 1_709_596_800.0]]  # the days, in seconds
    assert {record["attempt"] for record in model.history_} == {0, 1}
    assert (model.clients_, len(model.messages_) > 0) == (("north", "south"), True)
    holdout = json.loads(Path("RUN/metrics.json").read_text())["holdout"]
    assert (holdout["kind"], holdout["fraction"]) == ("last", 0.25)


# -------------------------------------------------------------------------------------- federations


@pytest.mark.parametrize("which", ["ended", "stopped"])
def test_saved_audit_logs_are_whole(which, run, copied):
    """Of the server, and of a site against what the server kept of it; a line that was altered is found."""
    copied("federation")
    for words in ([f"{which}/RUN"], [f"{which}/home-a", "--against", f"{which}/RUN"]):
        done = run("audit", *words, "--json")
        assert done.code == 0, done.out
        said, log = json.loads(done.out), Path(words[0], "audit.jsonl")
        lines = log.read_bytes().splitlines()
        assert (said["lines"], said["bad_line"]) == (len(lines), None)
        assert said["head"] == json.loads(lines[-1])["hash"]
        log.write_bytes(log.read_bytes().replace(b'"exchange": 2,', b'"exchange": 3,', 1))
        bad = run("audit", *words, "--json")
        first = next(n for n, line in enumerate(lines, 1) if b'"exchange": 2,' in line)
        assert (bad.code, json.loads(bad.out)["bad_line"]) == (1, first)


def test_a_saved_home_and_a_saved_server_predict(run, copied):
    """A site's home as it did; the server's RUN has no client's block, and takes all for strangers."""
    folder = copied("federation")
    stored = tree("federation", "end.json")["a"]
    check_numbers(FederatedGP.load(folder / "ended" / "home-a" / "model"), stored)
    done = run("predict", "ended/home-a", "a.csv", "--client", "a", "--out", "-")
    assert done.code == 0, done.err
    assert pl.read_csv(done.out.encode())["known"].all()
    server = FederatedGP.load(folder / "ended" / "RUN")
    assert server.clients_ == ()
    with pytest.warns(PFedHGPWarning, match="no client 'a stranger'"):
        found = server.predict("a stranger", np.array(stored["inputs"])[:, None])
    expected = stored["clients"]["a stranger"]
    close(found.mean, expected["mean"], np.abs(expected["mean"]).max())
    close(found.sd, expected["sd"], np.abs(expected["sd"]).max())
