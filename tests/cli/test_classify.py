"""Cycles through the command line: tables, arrays, thresholds, reasons and refusals."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from pfedhgp import FederatedGP
from support.press import GRID, SETTINGS, press

X = GRID[:, 0]


@pytest.fixture(scope="module")
def model_and_run(tmp_path_factory):
    model = FederatedGP(cycles="stationary", **SETTINGS)
    model.fit(press((8, 8)), inputs=["x"], outputs=["p", "q"])
    path = tmp_path_factory.mktemp("classify") / "RUN"
    model.save(path)
    return model, path


def new_cycles(count: int = 6, seed: int = 9):
    data = press((count, count), seed=seed)
    cycles = np.concatenate([Y for _, Y in data.values()])
    return cycles, [name for name in data for _ in range(count)]


def as_table(path, cycles, labels) -> None:
    parts = [
        pl.DataFrame({"run": f"c{c}", "truth": label, "x": X, "p": cycle[0], "q": cycle[1]})
        for c, (cycle, label) in enumerate(zip(cycles, labels, strict=True))
    ]
    pl.concat(parts).write_csv(path)


def test_a_table_an_archive_and_python_say_the_same(run, model_and_run, tmp_path):
    model, folder = model_and_run
    cycles, labels = new_cycles()
    expected = model.classify(cycles, grid=X)
    as_table(tmp_path / "new.csv", cycles, labels)
    np.savez(
        tmp_path / "new.npz",
        **{"cycles": cycles, "grid": X, "channels": np.array(["p", "q"]), "label": labels},
    )
    for name, more in (
        ("new.csv", ["--cycle", "run", "--label", "truth"]),
        ("new.npz", ["--label", "label"]),
    ):
        out = tmp_path / f"{name}.out.csv"
        done = run("classify", folder, tmp_path / name, *more, "--out", out, "--json")
        assert done.code == 0, done.err
        table = pl.read_csv(out)
        assert table["class"].to_list() == list(expected.labels)
        for k, each in enumerate(expected.classes):
            np.testing.assert_allclose(
                table[f"log density: {each}"], expected.log_density[:, k], rtol=1e-7
            )
        said = json.loads(done.out)
        right = np.mean([a == b for a, b in zip(expected.labels, labels, strict=True)])
        assert said["scores"]["accuracy"] == pytest.approx(right)
        assert right > 0.9


def test_other_grids_gaps_and_a_missing_channel_are_valid(run, model_and_run, tmp_path):
    model, folder = model_and_run
    cycles, labels = new_cycles(3)
    as_table(tmp_path / "new.csv", cycles, labels)
    table = pl.read_csv(tmp_path / "new.csv").drop("q")
    table.filter((pl.col("run") != "c1") | (pl.col("x") > 0.3)).write_csv(tmp_path / "gaps.csv")
    out = tmp_path / "out.csv"
    done = run("classify", folder, tmp_path / "gaps.csv", "--cycle", "run", "--out", out)
    assert done.code == 0, done.err
    found = {row["cycle"]: row for row in pl.read_csv(out).iter_rows(named=True)}
    alone = cycles.copy()
    alone[:, 1] = np.nan
    alone[1, 0, X <= 0.3] = np.nan
    expected = model.classify(alone, grid=X)
    for c in range(6):
        got = [found[f"c{c}"][f"log density: {name}"] for name in expected.classes]
        np.testing.assert_allclose(got, expected.log_density[c], rtol=1e-7)


def test_held_out_cycles_give_thresholds_and_reasons_are_written(run, model_and_run, tmp_path):
    _, folder = model_and_run
    as_table(tmp_path / "held.csv", *new_cycles(20, seed=11))
    cycles, labels = new_cycles(4)
    cycles[0] += 40.0
    as_table(tmp_path / "new.csv", cycles, labels)
    options = ["--cycle", "run", "--label", "truth", "--held-out", tmp_path / "held.csv"]
    out, why = tmp_path / "out.csv", tmp_path / "why.csv"
    done = run("classify", folder, tmp_path / "new.csv", *options, "--why", why, "--out", out)
    assert done.code == 0, done.err
    table = pl.read_csv(out)
    assert table["class"][0] == "none of these"
    assert table.filter(pl.col("class") == "none of these").height <= 2
    reasons = pl.read_csv(why)
    kept = json.loads((folder / "classified.json").read_text())
    assert kept["counts"]["none of these"] == table["class"].to_list().count("none of these")
    assert kept["scores"]["accuracy"] > 0.5
    assert len(kept["calls"]) == 3
    page = tmp_path / "report.html"
    assert run("report", folder, "--out", page).code == 0
    assert f"Cycle {kept['calls'][0]['cycle']}" in page.read_text()
    assert set(reasons.columns) == {
        "cycle",
        "class",
        "against",
        "channel",
        "start",
        "end",
        "nats",
        "runs wild",
    }
    for c in range(1, 8):
        row = table.row(c, named=True)
        densities = [row[name] for name in table.columns if name.startswith("log density")]
        total = reasons.filter(pl.col("cycle") == f"c{c}")["nats"].sum()
        assert total == pytest.approx(max(densities) - min(densities), rel=1e-6)


@pytest.mark.parametrize(
    ("change", "more", "words"),
    [
        (lambda t: t.with_columns(x=pl.col("x") + 100), [], "'c0' overlaps no training input"),
        (lambda t: t.drop("p", "q"), [], "no column 'p'"),
        (
            lambda t: t.with_columns(p=pl.lit(None), q=pl.lit(None)),
            [],
            "cycle 'c0' has no values: all its samples are missing",
        ),
        (lambda t: t, ["--prior", "nobody=2"], "no class 'nobody' in the model"),
        (lambda t: t, ["--prior", "much"], "--prior must look like CLASS=WEIGHT"),
        (
            lambda t: t,
            ["--prior", "press 0=3"],
            "--prior: no weight for press 1: every class needs",
        ),
        (lambda t: t, ["--prior", "press 0=-1"], "--prior press 0=-1: the weight must be above 0"),
        (lambda t: t, ["--false-alarms", "0.02"], "--false-alarms needs --held-out"),
        (
            lambda t: t.with_columns(batch=pl.lit(None, pl.String)),
            ["--propose", "--block", "batch"],
            "cycle 'c0' has no block",
        ),
        (lambda t: t.with_columns(truth=pl.lit("else")), ["--label", "truth"], "no class 'else'"),
    ],
)
def test_wrong_cycles_are_one_line(run, model_and_run, tmp_path, change, more, words):
    as_table(tmp_path / "good.csv", *new_cycles(1))
    change(pl.read_csv(tmp_path / "good.csv")).write_csv(tmp_path / "bad.csv")
    out = tmp_path / "out.csv"
    _, folder = model_and_run
    done = run("classify", folder, tmp_path / "bad.csv", "--cycle", "run", *more, "--out", out)
    assert words in done.complaint
    assert not out.exists()


def test_wrong_arrays_and_options_are_one_line(run, model_and_run, tmp_path):
    _, folder = model_and_run
    cycles, labels = new_cycles(1)
    as_table(tmp_path / "new.csv", cycles, labels)
    np.savez(tmp_path / "nose.npz", cycles=cycles, grid=X, channels=np.array(["p", "nose"]))
    bogus = np.array(["channel 1", "bogus"])
    np.savez(tmp_path / "bogus.npz", cycles=cycles, grid=X, channels=bogus)
    wide, far = np.r_[X, X + 100], np.full((2, 2, 24), np.nan)
    far[0, :, :12], far[1, :, 12:] = cycles  # the grid overlaps; the second cycle does not
    np.savez(tmp_path / "far.npz", cycles=far, grid=wide)
    np.savez(tmp_path / "nan.npz", cycles=np.full_like(cycles, np.nan), grid=X)
    np.savez(tmp_path / "three.npz", cycles=np.repeat(cycles[:, :1], 3, axis=1), grid=X)
    held = ["--held-out", tmp_path / "new.csv", "--label", "truth", "--cycle", "run"]
    out = ["--out", tmp_path / "out.csv"]
    for arguments, words in (
        ([tmp_path / "nose.npz", *out], "no channel 'nose' in the model; it has p, q"),
        ([tmp_path / "bogus.npz", *out], "no channel 'channel 1' in the model; it has p, q"),
        ([tmp_path / "far.npz", *out], "cycle '1' overlaps no training input"),
        ([tmp_path / "nan.npz", *out], "NaN everywhere"),
        (
            [tmp_path / "three.npz", *out],
            "3 channels without names, but the model has 2 outputs (p, q)",
        ),
        ([tmp_path / "new.csv", *held, "--false-alarms", "2", *out], "between 0 and 1, got 2"),
        ([tmp_path / "new.csv", *out], "a table needs --cycle"),
        ([tmp_path / "new.csv", "--cycle", "run", "--held-out", "x.csv", *out], "needs --label"),
    ):
        assert words in run("classify", folder, *arguments).complaint
    assert not (tmp_path / "out.csv").exists()


def test_one_client_leaves_nothing_to_compare(run, tmp_path):
    model = FederatedGP(cycles="stationary", **SETTINGS)
    model.fit(press((8,)), inputs=["x"], outputs=["p", "q"]).save(tmp_path / "ONE")
    as_table(tmp_path / "new.csv", *new_cycles(1))
    cycles = [tmp_path / "new.csv", "--cycle", "run", "--out", tmp_path / "out.csv"]
    done = run("classify", tmp_path / "ONE", *cycles, "--why", tmp_path / "why.csv")
    assert "--why compares two classes" in done.complaint
    assert not (tmp_path / "out.csv").exists()
    done = run("classify", tmp_path / "ONE", *cycles)
    assert done.code == 0, done.err
