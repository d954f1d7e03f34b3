"""Files that an older version wrote (tests/fixtures) are still read, and give the numbers that they gave."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pfedhgp import FederatedGP

FIXTURES = Path(__file__).parent / "fixtures"
FITTED = ["structured", "mean-field", "state-space"]
TOLERANCE = 1e-9


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


def check_bound(model: FederatedGP, stored: dict) -> None:
    if stored["bound"] is None:  # mean-field has none
        assert model.bound_ is None
    else:
        assert model.bound_ == pytest.approx(stored["bound"], rel=TOLERANCE)


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
        *("client", "time", "output", "mean", "sd", "lower", "upper"),
        *("global", "deviation", "local", "known"),
    ]
    rows = pl.read_csv("rows.csv")
    assert table["time"].to_list() == [f"{time}Z" for time in rows["time"]]
    np.testing.assert_allclose(
        table["global"] + table["deviation"] + table["local"], table["mean"], rtol=1e-9
    )


# ------------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("name", ["stopped", "stopped-mean-field"])
def test_a_fit_that_an_older_version_began_is_resumed(name, run, copied):
    """It ends where a fit that was not stopped had ended."""
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
    check_bound(model, stored)
    assert model.exchanges_ == stored["exchanges"]
    if name == "stopped-mean-field":  # the other one averages over parameters, after training
        check_numbers(model, stored)


def test_other_settings_than_those_of_the_stopped_fit_are_refused(run, copied):
    folder = copied("stopped")
    settings = folder / "RUN" / "checkpoint" / "run.json"
    settings.write_text(settings.read_text("ascii").replace("{here}", str(folder.resolve())))
    assert "--seed is 1" in run("fit", "--resume", "--out", "RUN", "--seed", "1").complaint
