"""Rows with times that come later: other formats of datetimes, and lines that cannot be read."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from pfedhgp import FederatedGP
from pfedhgp.living import watching

GERMAN = "%d/%m/%Y %H:%M"
HOURS = 60


def hours(first: int, count: int) -> pd.DatetimeIndex:
    return pd.date_range("2024-03-01", periods=first + count, freq="h", tz="UTC")[first:]


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    rng, x = np.random.default_rng(1), np.arange(HOURS)
    table = pd.concat(
        pd.DataFrame(
            {
                "site": name,
                "time": hours(0, HOURS),
                "y": np.sin(x / 4) + 0.1 * rng.normal(size=HOURS),
            }
        )
        for name in ("north", "south")
    )
    span = (hours(0, 1)[0], hours(100, 1)[0])
    model = FederatedGP(rounds=2, inducing=12, local_inducing=8, averaging=False, domain=[span])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(table, client="site", inputs="time", outputs="y")
    path = tmp_path_factory.mktemp("times") / "RUN"
    model.save(path)
    return path


@pytest.fixture
def folder(saved, tmp_path, monkeypatch) -> Path:
    FederatedGP.load(saved).save(tmp_path / "RUN")
    monkeypatch.chdir(tmp_path)
    x = np.arange(HOURS, HOURS + 6)
    for name, words in (("german.csv", GERMAN), ("iso.csv", "%Y-%m-%dT%H:%MZ")):
        texts = hours(HOURS, 6).strftime(words)
        pl.DataFrame({"site": ["north"] * 6, "time": list(texts), "y": np.sin(x / 4)}).write_csv(
            name
        )
    return tmp_path


def test_every_command_that_reads_rows_takes_the_format_of_their_datetimes(folder, run):
    how = ("--datetime-format", GERMAN)
    advice = f"give --datetime-format '{GERMAN}'"
    assert advice in run("predict", "RUN", "german.csv", "--out", "-").complaint
    one, other = (
        run("predict", "RUN", *given, "--out", "-")
        for given in (("german.csv", *how), ("iso.csv",))
    )
    assert one.code == 0, one.err
    assert one.out == other.out
    assert advice in run("watch", "RUN", "german.csv", "--once").complaint
    assert "6 rows judged" in run("watch", "RUN", "german.csv", "--once", *how).err
    assert advice in run("update", "RUN", "german.csv").complaint
    assert run("update", "RUN", "german.csv", *how).code == 0
    assert "6 of 6 rows are in the model already" in run("update", "RUN", "iso.csv").complaint
    done = run("forget", "RUN", "german.csv", "--client", "north", *how)
    assert done.code == 0, done.err
    back = ("forecast", "RUN", "--horizon", "3h", "--backtest", 1, "--data", "german.csv")
    assert advice in run(*back).complaint
    assert advice not in run(*back, *how).err
    wrong = ("predict", "RUN", "german.csv", "--out", "-", "--datetime-format", "%d/%Y")
    assert (
        "row 1 (line 2), column 'time': no datetime of the format '%d/%Y'" in run(*wrong).complaint
    )


def test_a_format_without_datetimes_is_refused(folder, run):
    x = np.linspace(0.0, 5.0, 12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FederatedGP(rounds=1, averaging=False).fit({n: (x, np.sin(x)) for n in "ab"})
    model.save("NUMBERS")
    done = run("update", "NUMBERS", "iso.csv", "--datetime-format", GERMAN)
    assert "--datetime-format: no input of the model is a datetime" in done.complaint


def test_watch_names_the_file_and_the_line_that_it_cannot_read(folder, run):
    lines = Path("iso.csv").read_text().splitlines()
    lines[3] = "north,2024-03-03T14:00Z,broken"
    Path("iso.csv").write_text("\n".join(lines) + "\n")
    told = run("watch", "RUN", "iso.csv", "--once").complaint
    assert told.startswith("pfedhgp: error: iso.csv: row 3 (line 4), column 'y': text instead of a")


def test_a_line_that_cannot_be_read_is_left_out_and_watching_goes_on(folder, run, monkeypatch):
    lines = Path("iso.csv").read_text().splitlines(keepends=True)
    path = Path("grow.csv")
    path.write_text("".join(lines[:3]))
    rest = iter(["".join([lines[3], "north,yesterday,1\n", "north,2024-03-03T20:00Z,50\n"])])

    def grow(_: float) -> None:
        more = next(rest, None)
        if more is None:
            raise KeyboardInterrupt
        path.write_text(path.read_text() + more)

    monkeypatch.setattr(watching.time, "sleep", grow)
    done = run("watch", "RUN", "grow.csv", "--json")
    assert "pfedhgp: left out: grow.csv: row 4 (line 5), column 'time': not a datetime" in done.err
    found = [json.loads(line) for line in done.out.splitlines()][-1]
    assert found["time"] == "2024-03-03T20:00:00Z"
    assert found["what"] == "row"


def test_watch_refuses_a_header_without_the_columns(folder, run):
    Path("other.csv").write_text("site,time,z\nnorth,2024-03-03T14:00Z,1\n")
    told = run("watch", "RUN", "other.csv").complaint
    assert "other.csv: no column 'y'" in told
