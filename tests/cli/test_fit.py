"""Fits through the command line: what is written, what is refused, stopping and going on."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO

import numpy as np
import pytest

import pfedhgp.base.progress
from pfedhgp import FederatedGP
from pfedhgp.base import atomic_files
from pfedhgp.base.progress import Progress
from pfedhgp.cli.fit_summary import print_summary, score_lines
from pfedhgp.cli.main import main
from pfedhgp.data.holdout import Holdout, split
from pfedhgp.data.readers import Observations
from pfedhgp.errors import InputError

RNG = np.random.default_rng(5)
ROWS = {"a/b": 19, "007": 19, "NA": 8}
TRAINED = {"a/b": 14, "007": 14, "NA": 6}
SITES = {}
for _name, _n in ROWS.items():
    _x = np.sort(RNG.uniform(0.0, 10.0, _n)).round(3)
    SITES[_name] = (_x, (np.sin(_x) + len(_name) + 0.1 * RNG.normal(size=_n)).round(4))
TABLE = "site,x,y\n" + "".join(
    f"{name},{a},{b}\n" for name, (x, y) in SITES.items() for a, b in zip(x, y, strict=True)
)
OPTIONS = (
    *("--client", "site", "--input", "x", "--output", "y", "--rounds", "3", "--no-report"),
    *("--holdout", "blocks:0.25", "--inducing", "6"),
)


def _digest(folder) -> dict[str, str]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A RUN folder, its data, and what the fit printed; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("fit")
    (folder / "d.csv").write_text(TABLE)
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setenv("PFEDHGP_CACHE", "")
        given = ["fit", str(folder / "d.csv"), *OPTIONS, "--json"]
        code = main([*given, "--out", str(folder / "RUN")])
    assert code == 0, err.getvalue()
    return folder, json.loads(out.getvalue()), err.getvalue()


def test_a_fit_writes_a_model_that_knows_its_columns(fitted):
    folder, summary, told = fitted
    assert sorted(p.name for p in (folder / "RUN").iterdir()) == sorted(
        ["spec.json", "global.safetensors", "clients", "metrics.json", "messages.jsonl"]
    )
    model = FederatedGP.load(folder / "RUN")
    assert model.clients_ == tuple(ROWS)
    assert model.model_.settings["columns"] == {
        **{"client": "site", "outputs": ["y"], "cycle": None, "dropped": []},
        "inputs": [{"name": "x", "kind": "number", "format": None}],
    }
    assert summary["rows"] == sum(ROWS.values())
    assert (summary["bound"], summary["rounds"]) == (model.bound_, 3)
    (warning,) = summary["warnings"]
    assert warning.startswith(f"training {summary['ended']}: it has not settled")
    assert warning.endswith("fit with a higher limit, such as --rounds=40")
    assert summary["ended"].startswith("stopped at the limit of 3 rounds")
    lines = [line for line in told.splitlines() if not line.startswith("still ")]  # a slow machine
    assert lines[0].startswith("3 clients, 46 rows, 12 of them held out, from 1 file: y by x")
    assert [line.split(",")[0] for line in lines[1:] if "has not settled" not in line] == [
        "preparing: scales",
        *(f"round {i} of at most 3" for i in range(4)),
        "averaging over clients' parameters: one more search",
        "scoring 12 held-out rows of 3 clients",
    ]
    assert not any(str(v) in told for v in SITES["007"][1])


@pytest.mark.parametrize(
    ("ended", "line"),
    [
        ("converged after 1 round", "training converged after 1 round"),
        (
            "stopped at the limit of 1 round",
            "training stopped at the limit of 1 round",
        ),
        (
            "stopped at the limit of 6 rounds, 8.1 nats below round 4",
            "training stopped at the limit of 6 rounds, 8.1 nats below round 4",
        ),
    ],
)
def test_the_summary_says_how_training_ended_and_counts_in_english(ended, line, capsys):
    summary = {"clients": 1, "seconds": 2.0, "rounds": 1, "exchanges": 3, "bound": -1.5}
    more = {"ended": ended, "overall": None, "run": "RUN", "report": None}
    print_summary({**summary, **more})
    assert capsys.readouterr().out.splitlines() == [
        "fitted 1 client in 2 s: 1 round, 3 exchanges, bound -1.50",
        line,
        "model   RUN",
    ]


def test_the_fit_is_the_librarys_on_the_training_rows(fitted):
    folder, summary, _ = fitted
    clients = [Observations(name, x[:, None], y[:, None]) for name, (x, y) in SITES.items()]
    training, _ = split(clients, Holdout("blocks", 0.25, 0))
    assert {c.name: len(c.X) for c in training} == TRAINED
    direct = FederatedGP(rounds=3, inducing=6).fit({c.name: (c.X, c.Y) for c in training})
    assert summary["bound"] == direct.bound_
    grid = np.linspace(0.0, 10.0, 7)[:, None]
    loaded = FederatedGP.load(folder / "RUN")
    for name in ROWS:
        np.testing.assert_array_equal(
            loaded.predict(name, grid).mean, direct.predict(name, grid).mean
        )


def test_metrics_are_those_of_the_held_out_rows(fitted):
    folder, summary, _ = fitted
    metrics = json.loads((folder / "RUN" / "metrics.json").read_text())
    assert metrics["holdout"] == {"kind": "blocks", "fraction": 0.25, "seed": 0}
    model = FederatedGP.load(folder / "RUN")
    assert model.model_.metrics == {k: v for k, v in metrics.items() if k != "history"}
    errors, scored = {}, metrics["outputs"]["y"]
    clients = [Observations(name, x[:, None], y[:, None]) for name, (x, y) in SITES.items()]
    for test in split(clients, Holdout("blocks", 0.25, 0))[1]:
        name = test.name
        p = model.predict(name, test.X)
        errors[name] = test.Y[:, 0] - p.mean[:, 0]
        found = scored["clients"][name]
        assert found["rows"] == len(test.X) == ROWS[name] - TRAINED[name]
        assert found["rmse"] == pytest.approx(np.sqrt(np.mean(errors[name] ** 2)), rel=1e-9)
        nll = 0.5 * np.log(2 * np.pi * p.sd[:, 0] ** 2) + 0.5 * (errors[name] / p.sd[:, 0]) ** 2
        assert found["nll"] == pytest.approx(np.mean(nll), rel=1e-9)
    each = [np.sqrt(np.mean(e**2)) for e in errors.values()]
    assert scored["client_mean"]["rmse"] == pytest.approx(np.mean(each), rel=1e-9)
    every = np.concatenate(list(errors.values()))
    assert scored["pooled"]["rmse"] == pytest.approx(np.sqrt(np.mean(every**2)), rel=1e-9)
    averages = {name: scored[name] for name in ("pooled", "client_mean")}
    assert metrics["overall"] == summary["overall"] == summary["by_output"]["y"] == averages
    assert sum(metrics["calibration"]["pit"]["counts"]) == len(every) == 12
    assert len(metrics["calibration"]["levels"]) == len(metrics["calibration"]["coverage"])
    assert metrics["seconds"] > 0.0


def test_the_model_keeps_counts_from_which_the_split_can_be_made_again(fitted):
    folder, _, _ = fitted
    kept = json.loads((folder / "RUN" / "metrics.json").read_text())["data"]
    assert {n: (e["rows"], e["cells"], e["held_out"]) for n, e in kept.items()} == {
        name: (n, TRAINED[name], n - TRAINED[name]) for name, n in ROWS.items()
    }


def test_people_are_told_what_is_averaged_over_what(fitted):
    _, summary, _ = fitted
    lines = score_lines(summary)
    s = summary["by_output"]["y"]
    assert lines[0] == "on 12 held-out rows (blocks), in each output's own units:"
    assert (
        f"y  over rows     RMSE {s['pooled']['rmse']:.4g}, NLL {s['pooled']['nll']:.4g}" in lines[1]
    )
    assert f"y  over clients  RMSE {s['client_mean']['rmse']:.4g}" in lines[2]
    assert "the mean of clients' scores" in lines[3]


@pytest.mark.parametrize("reordered", [False, True])
def test_a_report_with_the_same_data_marks_the_same_held_out_rows(
    reordered, fitted, written, run, tmp_path
):
    """By value: what the fit trained on and tested on, found again from a table and no stored row."""
    folder, _, _ = fitted
    header, *lines = TABLE.splitlines()
    (tmp_path / "d.csv").write_text(
        "\n".join([header, *(lines[::-1] if reordered else lines)]) + "\n"
    )
    out = ("--out", tmp_path / "r.html")
    done = run("report", folder / "RUN", "--data", tmp_path / "d.csv", *out)
    assert (done.code, done.err) == (0, "")
    ((_, rows, _, held_out),) = written
    clients = [Observations(name, x[:, None], y[:, None]) for name, (x, y) in SITES.items()]
    for found, expected in zip(
        (rows, held_out), split(clients, Holdout("blocks", 0.25, 0)), strict=True
    ):
        assert {r.name: sorted(r.Y[:, 0]) for r in found} == {
            c.name: sorted(c.Y[:, 0]) for c in expected
        }


def test_other_data_are_neither_called_fitted_nor_held_out(fitted, run, tmp_path, monkeypatch):
    import pfedhgp.report

    calls = []
    monkeypatch.setattr(
        pfedhgp.report,
        "write",
        lambda path, model, **more: (path.write_text("x"), calls.append(more)),
    )
    lines = TABLE.splitlines()
    changed = [line + "5" if line.startswith("NA,") else line for line in lines]
    (tmp_path / "d.csv").write_text("\n".join([*changed, "new,1,2", "new,2,3"]) + "\n")
    data, out = ("--data", tmp_path / "d.csv"), ("--out", tmp_path / "r.html")
    done = run("report", fitted[0] / "RUN", *data, *out, "--json")
    (given,) = calls
    assert [r.name for r in given["rows"]] == ["a/b", "007"]
    assert {r.name for r in given["held_out"]} <= {"a/b", "007"}
    assert [(r.name, len(r.X)) for r in given["others"]] == [("NA", ROWS["NA"])]
    assert json.loads(done.out)["warnings"] == [
        "client new: not in the model, and not shown",
        "client NA: rows that are not those of the fit, nor came since: drawn as other rows",
    ]


def test_an_existing_run_stays_unless_it_may_be_replaced(fitted, run):
    folder = fitted[0]
    before = _digest(folder)
    line = run("fit", folder / "d.csv", *OPTIONS, "--out", folder / "RUN").complaint
    assert "RUN already exists" in line
    assert _digest(folder) == before


def only_says_that_it_has_not_settled(told: str) -> None:
    (line,) = told.splitlines()
    assert line.startswith("pfedhgp: warning: training stopped at the limit of 3 rounds")


def test_quiet_says_nothing_but_warnings(run, tmp_path):
    (tmp_path / "d.csv").write_text(TABLE)
    done = run("fit", tmp_path / "d.csv", *OPTIONS, "--out", tmp_path / "RUN", "--quiet")
    assert (done.code, done.out) == (0, "")
    only_says_that_it_has_not_settled(done.err)
    assert FederatedGP.load(tmp_path / "RUN").clients_ == tuple(ROWS)


def test_a_report_shows_training_and_held_out_rows_apart(written, run, tmp_path):
    (tmp_path / "d.csv").write_text(TABLE)
    done = run("fit", tmp_path / "d.csv", *OPTIONS, "--report", "--out", tmp_path / "RUN", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["report"] == str(tmp_path / "RUN" / "report.html")
    assert (tmp_path / "RUN" / "report.html").read_text() == "<html>"
    ((model, rows, metrics, held_out),) = written
    assert {each.name: len(each.X) for each in rows} == TRAINED
    assert sum(len(each.X) for each in held_out) == metrics["overall"]["pooled"]["rows"] == 12
    assert model.model_.metrics == metrics


# -------------------------------------------------------------------------------- stopping, resuming


def _interrupt(monkeypatch, *, after: int) -> None:
    """Ctrl-C when the record of exchange `after` comes."""

    @contextmanager
    def progress(**settings):
        def callback(record):
            if record["exchange"] >= after:
                raise KeyboardInterrupt

        yield Progress(callback, lambda text: None, "finishing")

    monkeypatch.setattr(pfedhgp.base.progress, "progress", progress)


@pytest.fixture
def stopped(run, tmp_path, monkeypatch):
    """A run that was stopped by Ctrl-C after its second round."""
    (tmp_path / "d.csv").write_text(TABLE)
    with monkeypatch.context() as patch:
        _interrupt(patch, after=5)
        done = run("fit", tmp_path / "d.csv", *OPTIONS, "--out", tmp_path / "RUN")
    assert done.code == 130
    assert f"--resume --out {tmp_path / 'RUN'}" in done.err
    assert "Traceback" not in done.err
    return tmp_path


@pytest.mark.parametrize("again", ["only the folder", "the same command"])
def test_a_resumed_fit_writes_the_very_same_model(again, stopped, fitted, run):
    whole = []
    if again == "the same command":
        whole = [stopped / "d.csv", *OPTIONS]
    done = run("fit", *whole, "--out", stopped / "RUN", "--resume", "--json")
    assert done.code == 0, done.err
    assert done.err.count("round ") == 2, "it did not go on from the middle"
    resumed, uninterrupted = _digest(stopped / "RUN"), _digest(fitted[0] / "RUN")
    assert resumed.keys() == uninterrupted.keys()
    for name in resumed.keys() - {"metrics.json", "spec.json"}:  # these hold seconds, or its hash
        assert resumed[name] == uninterrupted[name], name
    trees = [
        json.loads((folder / "RUN" / "metrics.json").read_text()) for folder in (stopped, fitted[0])
    ]
    for tree in trees:
        del tree["seconds"]
    assert trees[0] == trees[1]


def test_changed_files_and_settings_are_not_resumed(stopped, run):
    resume = ("--out", stopped / "RUN", "--resume")
    assert "--rounds is 4" in run("fit", *resume, "--rounds", "4").complaint
    assert "--kernel is 'matern52'" in run("fit", *resume, "--kernel", "matern52").complaint
    assert "--seed is 1" in run("fit", *resume, "--seed", "1").complaint
    before = _digest(stopped / "RUN")
    (stopped / "d.csv").write_text(TABLE.replace("007", "008"))
    line = run("fit", *resume).complaint
    assert "d.csv has changed" in line
    assert "holds a run that was stopped" in run("fit", *_again(stopped)).complaint
    assert _digest(stopped / "RUN") == before
    done = run("fit", *_again(stopped), "--overwrite")
    assert done.code == 0
    assert not (stopped / "RUN" / "checkpoint").exists()


def _again(folder) -> tuple:
    return (folder / "d.csv", *OPTIONS, "--out", folder / "RUN")


def test_a_run_that_cannot_begin_leaves_nothing(run, tmp_path):
    (tmp_path / "d.csv").write_text(TABLE)
    line = run("fit", *_again(tmp_path), "--domain", "0..1", "--quiet").complaint
    assert "--domain 0..1: client 'a/b' has rows with input 'x' outside it" in line
    assert [p.name for p in tmp_path.iterdir()] == ["d.csv"]


# ------------------------------------------------------------------------------------ disks, signals


@pytest.mark.parametrize(
    ("error", "code"),
    [(OSError(28, "No space left on device"), 1), (KeyboardInterrupt(), 130), (None, 143)],
    ids=["disk full", "Ctrl-C", "SIGTERM"],
)
def test_a_write_that_fails_leaves_the_old_model(error, code, run, tmp_path, monkeypatch):
    (tmp_path / "d.csv").write_text(TABLE)
    assert run("fit", *_again(tmp_path)).code == 0
    before = _digest(tmp_path / "RUN")
    real, calls = atomic_files._write_one, []

    def fail(path, content):
        if "checkpoint" in path.parts:
            return real(path, content)
        calls.append(path)
        if len(calls) == 3:
            if error is not None:
                path.write_bytes(content[:10])
                raise error
            os.kill(os.getpid(), signal.SIGTERM)  # ends the process after the files under way
        return real(path, content)

    monkeypatch.setattr(atomic_files, "_write_one", fail)
    done = run("fit", *_again(tmp_path), "--overwrite", "--seed", "3")
    assert done.code == code
    assert len(calls) >= 3
    assert "Traceback" not in done.err
    if code == 1:
        line = f"pfedhgp: error: {tmp_path / 'RUN'}: No space left on device"
        assert done.err.splitlines()[-1] == line
    left = {k: v for k, v in _digest(tmp_path / "RUN").items() if not k.startswith("checkpoint")}
    assert left == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["RUN", "d.csv"]
    assert FederatedGP.load(tmp_path / "RUN").clients_ == tuple(ROWS)


# Ctrl-C as the system sends it, when the record of exchange 5 comes.
INTERRUPTED = """
import os, signal, sys
from contextlib import contextmanager
import pfedhgp.base.progress
from pfedhgp.base import atomic_files
from pfedhgp.base.progress import Progress
from pfedhgp.cli.main import main

@contextmanager
def progress(**settings):
    def callback(record):
        if record["exchange"] >= 5:
            os.kill(os.getpid(), signal.SIGINT)
    yield Progress(callback, lambda text: None, "finishing")

pfedhgp.base.progress.progress = progress
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_ctrl_c_and_resume_in_processes_of_their_own(tmp_path):
    (tmp_path / "d.csv").write_text(TABLE)
    environment = {**os.environ, "PFEDHGP_CACHE": str(tmp_path / "cache")}
    # The first would win; the second JAX has set in this process, and it is not the user's.
    for name in ("JAX_COMPILATION_CACHE_DIR", "TF_CPP_MIN_LOG_LEVEL"):
        environment.pop(name, None)

    def process(*arguments, program=("-m", "pfedhgp")):
        return subprocess.run(
            [sys.executable, *program, "fit", *arguments],
            **{"cwd": tmp_path, "env": environment, "text": True, "capture_output": True},
        )

    whole = process("d.csv", *OPTIONS, "--out", "WHOLE")
    assert whole.returncode == 0, whole.stderr
    assert not list((tmp_path / "cache").rglob("*-cache")), "something was compiled"
    stopped = process("d.csv", *OPTIONS, "--out", "RUN", program=("-c", INTERRUPTED))
    assert (stopped.returncode, stopped.stdout) == (130, ""), stopped.stderr
    assert "--resume --out RUN" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    resumed = process("--resume", "--out", "RUN", "--quiet")
    assert (resumed.returncode, resumed.stdout) == (0, "")
    only_says_that_it_has_not_settled(resumed.stderr)
    found, expected = _digest(tmp_path / "RUN"), _digest(tmp_path / "WHOLE")
    assert found.keys() == expected.keys()
    for name in found.keys() - {"metrics.json", "spec.json"}:
        assert found[name] == expected[name], name


@pytest.mark.slow
def test_a_fit_that_was_killed_goes_on_to_the_very_same_model(tmp_path):
    """SIGKILL leaves no time to tidy: twice in one fit, in the midst of training and while it averages."""
    (tmp_path / "d.csv").write_text(TABLE)
    command = [sys.executable, "-m", "pfedhgp", "fit"]
    surroundings = dict(os.environ)
    surroundings.pop("TF_CPP_MIN_LOG_LEVEL", None)  # JAX, imported by this process, has set it
    place = {"cwd": tmp_path, "env": surroundings, "text": True}

    def killed_at(words: str, *arguments: str) -> list[str]:
        """Runs until a line of progress has `words`, kills it there, and returns the lines."""
        with subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, **place) as process:
            lines = []
            for line in process.stderr:
                lines.append(line)
                if words in line:
                    process.kill()
                    break
        assert process.returncode == -signal.SIGKILL, lines
        return lines

    killed_at("round 1 of", "d.csv", *OPTIONS, "--out", "RUN")
    assert [p.name for p in (tmp_path / "RUN").iterdir()] == ["checkpoint"]
    # As it is when the end comes while a checkpoint is written:
    half = tmp_path / "RUN" / "checkpoint" / ".pfedhgp-0123456789abcdef"
    half.mkdir()
    (half / "server.safetensors").write_bytes(b"half")
    lines = killed_at("averaging over", "--resume", "--out", "RUN")
    assert not any("round 0" in line for line in lines), "it began again"
    for arguments in (["--resume", "--out", "RUN"], ["d.csv", *OPTIONS, "--out", "WHOLE"]):
        done = subprocess.run([*command, *arguments, "--quiet"], capture_output=True, **place)
        assert (done.returncode, done.stdout) == (0, "")
        only_says_that_it_has_not_settled(done.stderr)
    found, expected = _digest(tmp_path / "RUN"), _digest(tmp_path / "WHOLE")
    assert found.keys() == expected.keys()
    for name in found.keys() - {"metrics.json", "spec.json"}:  # these hold seconds, or its hash
        assert found[name] == expected[name], name
    trees = [json.loads((tmp_path / n / "metrics.json").read_text()) for n in ("RUN", "WHOLE")]
    for tree in trees:
        del tree["seconds"]
    assert trees[0] == trees[1]


@pytest.mark.slow
def test_what_is_accepted_all_at_once(run, tmp_path):
    """BOM, a padded header, a constant input and output, missing cells, one row, no rows, 1e12, datetimes."""
    lines = ["\ufeff site,time,height,y,flat,big"]
    for name, rows in (("NA", 9), ("1e5", 9), ("one", 1)):
        for i in range(rows):
            y = "" if i == 4 else f"{np.sin(i):.3f}"
            lines.append(f"{name},2024-03-01 {i:02d}:00,5,{y},7,{1e12 * (i + 1):.0f}")
    lines += ["empty,2024-03-01 00:00,5,,,"] * 2
    (tmp_path / "d.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    outputs = [each for name in ("y", "flat", "big") for each in ("--output", name)]
    done = run(
        *("fit", tmp_path / "d.csv", "--client", "site", "--input", "time", "--input", "height"),
        *(*outputs, "--out", tmp_path / "RUN", "--rounds", "2", "--json", "--no-report"),
    )
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert (summary["clients"], summary["missing"], summary["dropped"]) == (3, 2, ["height"])
    for words in (
        "spaces around column names",
        "no time zone: taken as UTC",
        "left out, because no output was observed: client empty",
        "client 'one': one row, which",
        "output 'y': 2 of 19 cells are missing",
        "output 'flat' is constant",
        "input 'height' is constant: dropped",
    ):
        assert sum(words in warning for warning in summary["warnings"]) == 1, words
    model = FederatedGP.load(tmp_path / "RUN")
    assert model.clients_ == ("NA", "1e5", "one")
    assert model.model_.metrics.keys() == {"holdout", "data", "seconds"}
    assert model.model_.metrics["data"]["one"] == {"rows": 1, "cells": 3, "held_out": 0}
    assert model.model_.metrics["holdout"] is None
    moment = 1709251200.0 + 3600.0 * np.array([[2.0], [4.5]])
    for name in (*model.clients_, "new"):
        with pytest.warns() if name == "new" else _nothing():
            p = model.predict(name, moment)
        assert np.isfinite(p.mean).all()
        assert (p.sd > 0.0).all()
        assert np.isfinite(p.sd).all()
        np.testing.assert_allclose(p.mean[:, 1], 7.0, atol=1e-3)
    np.testing.assert_allclose(model.predict("NA", moment).mean[0, 2], 3e12, rtol=0.05)


@contextmanager
def _nothing():
    yield


def test_files_are_read_once_kernels_parsed_once_and_settings_checked_once(
    run, tmp_path, monkeypatch
):
    from pathlib import Path

    from pfedhgp.cli import fit_from_files
    from pfedhgp.estimator import federated_gp
    from pfedhgp.gp import kernel_text
    from pfedhgp.settings import config
    from pfedhgp.settings.setting import Setting

    calls = []

    def counting(where, name):
        real = getattr(where, name)

        def counted(*given, **more):
            calls.append((name, getattr(given[0], "name", given[0])))
            return real(*given, **more)

        monkeypatch.setattr(where, name, counted)

    def stop(*_, **__):
        raise InputError("far enough")

    (tmp_path / "d.csv").write_text(TABLE)
    counting(Path, "read_bytes")
    counting(kernel_text, "parse")
    for name in ("checked_text", "checked"):
        counting(Setting, name)
    for where in (config, fit_from_files):
        counting(where, "check_together")
    monkeypatch.setattr(federated_gp, "group_clients", stop)
    words = ("--client", "site", "--input", "x", "--output", "y", "--kernel", "rbf + matern12")
    done = run("fit", tmp_path / "d.csv", *words, "--out", tmp_path / "RUN", "--quiet")
    assert "far enough" in done.complaint
    found = {}
    for name, of in calls:
        found.setdefault(name, []).append(of)
    assert found["read_bytes"].count("d.csv") == 1
    assert found["parse"] == ["rbf + matern12"]
    given = ["files", "client", "inputs", "outputs", "kernel", "out"]
    assert sorted(found["checked_text"]) == sorted(given)  # what is not given is a default
    assert "checked" not in found  # not again as values
    assert len(found["check_together"]) == 1


def test_a_client_whose_only_value_is_held_out_is_left_out_with_a_warning(run, tmp_path):
    rows = [f"{site},{x},{x}" for site in "ab" for x in range(20)]
    rows += [f"c,{x},{x if x == 19 else ''}" for x in range(20)]
    (tmp_path / "d.csv").write_text("site,x,y\n" + "\n".join(rows) + "\n")
    words = ("--client", "site", "--input", "x", "--output", "y", "--holdout", "last:0.2")
    out = tmp_path / "RUN"
    done = run("fit", tmp_path / "d.csv", *words, "--rounds", 1, "--out", out, "--json")
    assert done.code == 0
    told = json.loads(done.out)["warnings"]
    assert [text for text in told if "left out" in text] == [
        "left out, because no output was observed: client c"
    ]
    assert sorted(FederatedGP.load(out).clients_) == ["a", "b"]
