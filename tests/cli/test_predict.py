"""Predictions and reports of a RUN folder through the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pfedhgp import FederatedGP
from pfedhgp.base import atomic_files
from pfedhgp.cli.predict import read_inputs
from pfedhgp.cli.saved import dropped_of
from pfedhgp.data.columns import Columns, InputColumn
from pfedhgp.errors import PFedHGPWarning
from pfedhgp.report import page

RNG = np.random.default_rng(5)
HOURS = np.arange(14.0)
START = 1709251200.0  # 2024-03-01T00:00:00Z
LAYERS = ["global", "deviation", "local"]
LONG = ["site", "time", "output", "mean", "sd", "lower", "upper", *LAYERS, "known"]


@pytest.fixture(scope="module")
def model_and_run(tmp_path_factory):
    """A model of datetimes that the library fitted and saved as `fit` does."""
    from dataclasses import replace

    X = (START + 3600.0 * HOURS[:, None]).astype("datetime64[s]")
    sites = {
        n: (X, np.sin(HOURS / 2.0) + i + 0.1 * RNG.normal(size=14)) for i, n in enumerate("ab")
    }
    sites["a/b"] = (X[:6], sites["a"][1][:6])
    model = FederatedGP(rounds=3, inducing=6, local_inducing=6, averaging=False).fit(
        sites, inputs=["time"], outputs=["y"]
    )
    found = Columns.from_json(model.model_.settings["columns"])
    assert found == Columns("client", (InputColumn("time", "datetime"),), ("y",))
    columns = replace(found, client="site").to_json()
    kept = {**model.model_.settings, "columns": {**columns, "dropped": []}}
    model.model_ = replace(model.model_, settings=kept, metrics={"holdout": None, "seconds": 1.0})
    path = tmp_path_factory.mktemp("predict") / "RUN"
    model.save(path)
    return model, path


@pytest.fixture
def data(tmp_path):
    """Interleaved clients, columns in another order, and one that is not needed."""
    path = tmp_path / "new.csv"
    path.write_text(
        "extra,time,site\n?,2024-03-01T02:30Z,b\n?,2024-03-01T01:00Z,a/b\n"
        "?,2024-03-01T04:00Z,b\n?,2024-03-01T05:00Z,a\n"
    )
    return path


PLACES = [("b", 2.5), ("a/b", 1.0), ("b", 4.0), ("a", 5.0)]


def _check(table: pl.DataFrame, model: FederatedGP, level: float = 0.95) -> None:
    """Row by row what the library says, in the order of the data."""
    assert table.columns == LONG
    assert table["site"].to_list() == [name for name, _ in PLACES]
    for row, (name, hour) in zip(table.iter_rows(named=True), PLACES, strict=True):
        p = model.predict(name, [[START + 3600.0 * hour]])
        lower, upper = p.interval(level)
        expected = {"mean": p.mean, "sd": p.sd, "lower": lower, "upper": upper}
        expected |= {layer: p.layers[layer].mean for layer in ("global", "deviation", "local")}
        for key, value in expected.items():
            assert row[key] == pytest.approx(value[0], rel=1e-12), key
        assert row["global"] + row["deviation"] + row["local"] == pytest.approx(row["mean"])
        assert row["output"] == "y"
        assert row["known"] is True


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet", ".feather"])
def test_predictions_are_the_librarys(suffix, model_and_run, data, run, tmp_path):
    model, path = model_and_run
    out = tmp_path / f"p{suffix}"
    done = run("predict", path, data, "--out", out, "--level", "0.8", "--json")
    assert done.code == 0, done.err
    read = {".parquet": pl.read_parquet, ".feather": pl.read_ipc}.get(suffix, pl.read_csv)
    table = read(out)
    _check(table, model, 0.8)
    if suffix.startswith(".csv"):
        assert table["time"][0] == "2024-03-01T02:30:00Z"
    else:
        assert str(table["time"][0]) == "2024-03-01 02:30:00+00:00"
    assert json.loads(done.out) == {
        **{"out": str(out), "rows": 4, "clients": 3, "unknown_clients": []},
        **{"level": 0.8, "warnings": []},
    }
    assert "already exists" in run("predict", path, data, "--out", out).complaint
    assert run("predict", path, data, "--out", out, "--overwrite", "-q") == (0, "", "")


def test_held_out_rows_are_listed_and_score_as_the_fit_said(run, tmp_path):
    """So that another method can be scored on them. The fit's own metrics come from another path."""
    rng, x = np.random.default_rng(3), np.arange(20.0)
    lines = [
        f"{site},{t},{np.sin(t / 3) + i + 0.1 * rng.normal()}"
        for i, site in enumerate(("north", "south"))
        for t in x
    ]
    given, folder, out = tmp_path / "rows.csv", tmp_path / "RUN", tmp_path / "held.csv"
    given.write_text("\n".join(["site,x,y", *lines]))
    fit = ["fit", given, "--client", "site", "--input", "x", "--output", "y", "--out", folder]
    fit += ["--inducing", "6", "--local-inducing", "6", "--rounds", "2", "--no-report"]
    assert run(*fit, "--holdout", "random:0.2").code == 0
    done = run("predict", folder, given, "--held-out", "--out", out)
    assert done.code == 0, done.err
    table = pl.read_csv(out)
    assert table.group_by("site").len().sort("site")["len"].to_list() == [4, 4]
    observed = {tuple(line.split(",")[:2]): float(line.split(",")[2]) for line in lines}
    for row in table.iter_rows(named=True):
        assert row["observed"] == pytest.approx(observed[row["site"], str(row["x"])])
    error = np.sqrt(np.mean((table["observed"] - table["mean"]).to_numpy() ** 2))
    metrics = json.loads((folder / "metrics.json").read_text())
    assert error == pytest.approx(metrics["outputs"]["y"]["pooled"]["rmse"], rel=1e-9)
    given.write_text(
        "\n".join(["site,x,y", *lines[1:]])
    )  # a row less: another client than that fitted
    done = run("predict", folder, given, "--held-out", "--out", out, "--overwrite")
    assert "client north: the rows are not those of the fit" in done.err
    assert set(pl.read_csv(out)["site"]) == {"south"}
    given.write_text("\n".join(["site,x,y", *lines[1:-1]]))
    done = run("predict", folder, given, "--held-out", "--out", out, "--overwrite")
    assert done.code == 2
    assert "give the data that were fitted" in done.err
    assert run(*fit, "--overwrite").code == 0
    done = run("predict", folder, given, "--held-out", "--out", out, "--overwrite")
    assert done.code == 2
    assert "fit with --holdout" in done.err


def test_stdout_holds_the_table_alone(model_and_run, data, run):
    model, path = model_and_run
    done = run("predict", path, data, "--out", "-")
    assert done.err == ""
    _check(pl.read_csv(done.out.encode()), model)


def test_unknown_clients_get_the_populations_prediction_and_are_named(
    model_and_run, data, run, tmp_path
):
    _, path = model_and_run
    data.write_text(data.read_text().replace(",a/b", ",who").replace(",a\n", ",else\n"))
    done = run("predict", path, data, "--out", tmp_path / "p.csv", "--json")
    assert done.code == 0
    assert done.err == (
        "pfedhgp: warning: unknown 2 clients who, else: this is the population's prediction\n"
    )
    assert json.loads(done.out)["unknown_clients"] == ["who", "else"]
    table = pl.read_csv(tmp_path / "p.csv")
    unknown = table.filter(pl.col("site") == "who")
    assert dict(zip(table["site"], table["known"], strict=True)) == {
        **{"b": True, "who": False, "else": False}
    }
    assert unknown["deviation"].to_list() == unknown["local"].to_list() == [0.0]
    assert unknown["sd"][0] > table.filter(pl.col("site") == "b")["sd"].max()


def test_a_client_can_be_named_for_all_rows(model_and_run, run, tmp_path):
    model, path = model_and_run
    (tmp_path / "x.csv").write_text("time\n2024-03-01T02:30Z\n2024-03-01T01:00Z\n")
    assert "--client NAME" in run("predict", path, tmp_path / "x.csv", "--out", "-").complaint
    done = run("predict", path, tmp_path / "x.csv", "--out", "-", "--client", "b")
    table = pl.read_csv(done.out.encode())
    expected = model.predict("b", START + 3600.0 * np.array([[2.5], [1.0]])).mean
    np.testing.assert_allclose(table["mean"].to_numpy(), expected, rtol=1e-12)
    assert table["site"].to_list() == ["b", "b"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--out", "p.xlsx"], [".csv", ".parquet"]),
        (["--out", "-", "--json"], ["--json", "--out -"]),
        (["--out", "-", "--level", "95"], ["--level"]),
    ],
)
def test_bad_options_are_refused(arguments, said, model_and_run, data, run):
    line = run("predict", model_and_run[1], data, *arguments).complaint
    assert all(words in line for words in said)


def test_bad_tables_and_folders_are_refused(model_and_run, data, run, tmp_path):
    _, path = model_and_run
    out = ("--out", tmp_path / "p.csv")
    data.write_text("site,hour\nb,1\n")
    line = run("predict", path, data, *out).complaint
    assert "no column 'time'" in line
    assert "site, hour" in line
    data.write_text("site,time\nb,2024-03-01T02:30Z\nb,soon\n")
    assert "row 2 (line 3), column 'time'" in run("predict", path, data, *out).complaint
    assert "no such folder" in run("predict", tmp_path / "none", data, *out).complaint
    (tmp_path / "fake").mkdir()
    assert "spec.json" in run("predict", tmp_path / "fake", data, *out).complaint
    assert not (tmp_path / "p.csv").exists()


def test_observed_is_what_the_data_have(model_and_run, data, run):
    """Text and an empty cell were not observed: predictions need no outputs."""
    _, path = model_and_run
    lines = data.read_text().splitlines()
    cells = ["y", "1.25", "", "broken", "-3"]
    data.write_text("".join(f"{a},{b}\n" for a, b in zip(lines, cells, strict=True)))
    done = run("predict", path, data, "--out", "-")
    assert done.err == ""
    table = pl.read_csv(done.out.encode())
    assert table.columns == [*LONG[:3], "observed", *LONG[3:]]
    assert table["observed"].to_list() == [1.25, None, None, -3.0]
    assert table["site"].to_list() == [name for name, _ in PLACES]


def test_a_model_that_was_cut_off_and_a_full_disk_are_named(model_and_run, data, run, tmp_path):
    import errno
    import shutil

    from pfedhgp.cli.targets import writing_to

    shutil.copytree(model_and_run[1], tmp_path / "CUT")
    spec = tmp_path / "CUT" / "spec.json"
    spec.write_text(spec.read_text()[:1500])
    line = run("predict", tmp_path / "CUT", data, "--out", "-").complaint
    assert "CUT/spec.json: " in line
    assert "copy the folder again, or fit again" in line
    with pytest.raises(OSError, match="No space left") as caught, writing_to(tmp_path / "RUN"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(tmp_path / "RUN")


def test_far_outside_the_data_is_said(model_and_run, run, tmp_path):
    (tmp_path / "x.csv").write_text("site,time\nb,2030-01-01T00:00Z\n")
    done = run("predict", model_and_run[1], tmp_path / "x.csv", "--out", "-")
    assert done.code == 0
    assert "client 'b': 1 of 1 rows are far outside the data" in done.err


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet", ".feather"])
def test_a_full_disk_leaves_the_old_table(suffix, model_and_run, data, run, tmp_path, monkeypatch):
    """Half of the content is on the disk when it is full."""

    def full(path, content):
        with open(path, "wb") as file:
            file.write(bytes(content)[:40])
        raise OSError(28, "No space left on device", str(path))

    out = tmp_path / f"p{suffix}"
    out.write_text("old")
    monkeypatch.setattr(Path, "write_bytes", full)
    done = run("predict", model_and_run[1], data, "--out", out, "--overwrite")
    assert done.code == 1
    assert done.err.endswith("No space left on device\n")
    assert "Traceback" not in done.err
    assert out.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new.csv", out.name]


def test_sigterm_in_mid_write_leaves_the_old_table(model_and_run, data, run, tmp_path, monkeypatch):
    def ended(path, content):
        with open(path, "wb") as file:
            file.write(bytes(content)[:40])
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)  # the handler ends it
        raise AssertionError("SIGTERM did not come")

    out = tmp_path / "p.parquet"
    out.write_text("old")
    monkeypatch.setattr(Path, "write_bytes", ended)
    done = run("predict", model_and_run[1], data, "--out", out, "--overwrite")
    assert (done.code, done.err) == (143, "")
    assert out.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new.csv", "p.parquet"]


LIMITED = """
import resource, sys
import polars as pl
import typer
from pfedhgp.cli import main as cli
from pfedhgp.cli.targets import write_table

app = typer.Typer()

@app.callback()
def root() -> None: ...

@app.command()
def write(out: str) -> None:
    table = pl.DataFrame({"mean": [i * 0.1 for i in range(5000)]})
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    write_table(table, out)

cli.app = app
sys.exit(cli.main(["write", sys.argv[1]]))
"""


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".feather"])
def test_a_disk_that_takes_no_more_is_one_line(suffix, tmp_path):
    """The system itself says no, in the middle of a real file."""
    out = tmp_path / f"p{suffix}"
    out.write_text("old")
    done = subprocess.run([sys.executable, "-c", LIMITED, str(out)], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("File too large\n")
    assert done.stderr.count("\n") == 1
    assert out.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == [out.name]


@pytest.mark.parametrize("command", ["predict", "report"])
def test_places_that_cannot_be_written_to_are_refused(command, model_and_run, data, run, tmp_path):
    _, path = model_and_run
    given = ("predict", path, data) if command == "predict" else ("report", path)
    name = "p.csv" if command == "predict" else "r.html"
    (tmp_path / name).mkdir()
    for more in ([], ["--overwrite"]):
        line = run(*given, "--out", tmp_path / name, *more).complaint
        assert f"{tmp_path / name} is a folder" in line
    assert "new.csv is a file, not a folder" in run(*given, "--out", data / name).complaint
    line = run(*given, "--out", Path("/proc/nowhere") / name).complaint
    assert "nothing can be written there" in line
    assert list((tmp_path / name).iterdir()) == []


# ------------------------------------------------------------------------------------------- report


def test_report_hands_over_model_rows_and_metrics(written, model_and_run, run, tmp_path):
    _, path = model_and_run
    (tmp_path / "d.csv").write_text("site,time,y\nb,2024-03-01T02:30Z,1\nnew,2024-03-01T03:00Z,\n")
    out = tmp_path / "r.html"
    done = run("report", path, "--data", tmp_path / "d.csv", "--out", out, "--json")
    assert json.loads(done.out) == {
        **{"run": str(path), "report": str(out)},
        "warnings": ["client new: not in the model, and not shown"],
    }
    assert out.read_text() == "<html>"
    ((model, rows, metrics, held_out),) = written
    assert held_out == ()
    assert model.clients_ == ("a", "b", "a/b")
    assert [(r.name, r.X[0, 0] - START) for r in rows] == [("b", 9000.0)]
    assert metrics == {"holdout": None, "seconds": 1.0}
    assert "already exists" in run("report", path, "--out", out).complaint


def test_an_input_that_the_fit_dropped_is_said_to_be_unused(tmp_path):
    (tmp_path / "new.csv").write_text("site,time,zone\na,2024-03-01T02:30Z,9\n")
    columns = Columns("site", (InputColumn("time", "datetime"),), ("y",))
    given = {"client": None, "delimiter": None}
    with pytest.warns(PFedHGPWarning, match="'zone' is not used: it was constant in the fit"):
        (rows,) = read_inputs([tmp_path / "new.csv"], columns, **given, dropped=["zone", "height"])
    assert rows.X.shape == (1, 1)
    kept = {"columns": {**columns.to_json(), "dropped": ["zone"]}}
    assert dropped_of({"settings": kept}) == ("zone",)
    assert dropped_of({"settings": {}}) == ()


def test_report_goes_into_the_run_folder(written, model_and_run, run):
    _, path = model_and_run
    done = run("report", path)
    assert (done.code, done.out) == (0, f"{path / 'report.html'}\n")
    (path / "report.html").write_text(
        "precious"
    )  # RUN's own report is an existing file like any other
    line = run("report", path).complaint
    assert f"{path / 'report.html'} already exists" in line
    assert "with --out, or give --overwrite" in line
    assert (path / "report.html").read_text() == "precious"
    assert run("report", path, "--overwrite").code == 0
    assert (path / "report.html").read_text() == "<html>"
    assert FederatedGP.load(path).clients_ == ("a", "b", "a/b")
    assert [rows for _, rows, _, _ in written] == [None, None]
    (path / "report.html").unlink()


def test_a_report_that_fails_leaves_the_old_one(model_and_run, run, tmp_path, monkeypatch):
    out = tmp_path / "r.html"
    out.write_text("old")

    def fail(path):
        path.write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(page, "render", lambda model, **shown: "new")
    monkeypatch.setattr(atomic_files, "sync", fail)
    assert run("report", model_and_run[1], "--out", out, "--overwrite").code == 130
    assert out.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]


def test_several_outputs_and_inputs_named_like_ours_keep_their_places(monkeypatch):
    """The long table of a model whose every number says where it came from."""
    from types import SimpleNamespace

    from pfedhgp.cli.predict import predictions
    from pfedhgp.data.readers import Observations
    from pfedhgp.estimator import long_table

    def predict(model, client, X, device):
        mean = X[:, [0]] * 10 + np.array([[1.0, 2.0]])
        layers = {n: SimpleNamespace(mean=mean + k) for k, n in enumerate(LAYERS, 1)}
        return SimpleNamespace(
            **{"mean": mean, "sd": mean + 4, "layers": layers, "known": client == "b"},
            interval=lambda level: (mean - 5, mean + level),
        )

    monkeypatch.setattr(long_table.prediction, "predict", predict)
    monkeypatch.setattr(long_table, "far_words", lambda *_: None)
    columns = Columns("site", (InputColumn("mean"), InputColumn("t", "datetime")), ("u", "v"))
    X, seen = np.array([[3.0, 0.0], [1.0, 60.0]]), np.array([[7.0, np.nan], [8.0, 9.0]])
    rows = [
        Observations("b", X, seen, None, np.array([2, 0])),
        Observations("a", np.array([[2.0, 1.5]]), np.array([[5.0, 6.0]]), None, np.array([1])),
    ]
    model = SimpleNamespace(
        model_=SimpleNamespace(clients={"a": 1, "b": 2}, outputs=2), device="cpu"
    )
    table = predictions(model, rows, columns, 0.5)
    assert table.columns == ["site", "input mean", "t", "output", "observed", *LONG[3:]]
    assert table["site"].to_list() == ["b", "b", "a", "a", "b", "b"]
    assert table["input mean"].to_list() == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    assert table["output"].to_list() == ["u", "v"] * 3
    assert table["observed"].to_list() == [8.0, 9.0, 5.0, 6.0, 7.0, None]
    assert table["mean"].to_list() == [11.0, 12.0, 21.0, 22.0, 31.0, 32.0]
    assert table["t"].dt.epoch("ms").to_list() == [60_000, 60_000, 1500, 1500, 0, 0]
    assert table["known"].to_list() == [True, True, False, False, True, True]
    for name, added in zip(LONG[4:-1], [4, -5, 0.5, 1, 2, 3], strict=True):
        assert (table[name] - table["mean"]).to_list() == [added] * 6, name
