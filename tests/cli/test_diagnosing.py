"""`fit --diagnose`: rows become cycles of classes; refusals. docs/diagnosis.md has it from end to end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from pfedhgp.cli import fit_from_files
from pfedhgp.cli.diagnosing import cycles_of, hint
from pfedhgp.data.readers import Observations
from pfedhgp.diagnosis.decision import FALSE_ALARMS
from pfedhgp.errors import InputError
from pfedhgp.estimator import diagnosis_training
from pfedhgp.settings.config import Config

GRID = np.array([[0.0], [1.0], [2.0]])
COLUMNS = ("--client", "state", "--input", "x", "--output", "y")


def rows() -> Observations:
    """Cycle b before cycle a, and a lacks its last sample."""
    X = np.array([[0.0], [1.0], [2.0], [1.0], [0.0]])
    Y = np.array([[1.0], [2.0], [3.0], [5.0], [4.0]])
    return Observations("worn", X, Y, np.array(list("bbbaa")), np.arange(5) + 10)


def test_rows_become_cycles_in_their_order_with_gaps():
    blocks = np.array([""] * 10 + ["late"] * 3 + ["early"] * 2, dtype=object)
    cycles, owners = cycles_of(rows(), GRID, blocks)
    np.testing.assert_array_equal(cycles, [[[1.0, 2.0, 3.0]], [[4.0, 5.0, np.nan]]])
    assert owners == ["late", "early"]
    assert cycles_of(rows(), GRID, None)[1] == []


def test_a_cycle_in_two_blocks_or_with_two_rows_is_refused():
    blocks = np.array([""] * 10 + ["1", "2", "2", "2", "2"], dtype=object)
    with pytest.raises(InputError, match="'worn': cycle 'b' is in two blocks"):
        cycles_of(rows(), GRID, blocks)
    twice = rows().take(np.array([0, 0, 1]))
    with pytest.raises(InputError, match="'worn': cycle 'b' has two rows at the same inputs"):
        cycles_of(twice, GRID, None)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--diagnose"], "--diagnose needs --cycle"),
        (["--cycles", "white-shared"], "--cycles white-shared needs --cycle: the column"),
        (["--cycles", "free"], "--cycles free needs --cycle: the column"),
        (["--cycle", "c", "--block", "b"], "--block is for --diagnose"),
        (["--cycle", "c", "--false-alarms", "0.1"], "--false-alarms is for --diagnose"),
        (
            ["--cycle", "c", "--diagnose", "--false-alarms", "2"],
            "above 0 and below 1, got 2.0",
        ),
        (["--cycle", "c", "--diagnose", "--cycles", "free"], "leave --cycles and --cycle-sharing"),
        (["--cycle", "c", "--diagnose", "--block", "nose"], "no column 'nose'"),
        (["--cycle", "c", "--diagnose"], "it needs two at least, and there is one"),
    ],
)
def test_what_cannot_be_diagnosed_is_one_line(run, tmp_path, more, words):
    table = {"state": "one", "c": [1, 1, 2, 2], "b": 1, "x": [0.0, 1.0] * 2, "y": [1.0, 2, 3, 4]}
    pl.DataFrame(table).write_csv(tmp_path / "t.csv")
    done = run("fit", tmp_path / "t.csv", *COLUMNS, *more, "--out", tmp_path / "RUN")
    assert words in done.complaint
    assert not (tmp_path / "RUN").exists()


@pytest.mark.parametrize("where", ["option", "file", "neither"])
def test_the_rate_of_false_alarms_is_that_of_the_option_or_the_file(
    run, tmp_path, monkeypatch, where
):
    asked = {}

    def stop(*_: object, **given: object) -> None:
        asked.update(given)
        raise InputError("far enough")

    monkeypatch.setattr(diagnosis_training, "train_diagnosis", stop)
    table = {"state": list("aabb"), "c": 1, "x": [0.0, 1.0] * 2, "y": [1.0, 2, 3, 4]}
    pl.DataFrame(table).write_csv(tmp_path / "t.csv")
    words = ["fit", tmp_path / "t.csv", *COLUMNS, "--cycle", "c", "--diagnose"]
    if where != "neither":
        words += ["--false-alarms", "0.05"]
    if where == "file":
        settings = tmp_path / "settings.toml"
        assert run(*words, "--write-config", settings).code == 0
        assert "false_alarms = 0.05" in settings.read_text()
        words = ["fit", "--config", settings]
    assert "far enough" in run(*words, "--quiet", "--out", tmp_path / "RUN").complaint
    assert asked["false_alarms"] == (FALSE_ALARMS if where == "neither" else 0.05)


def test_a_cycle_without_a_value_is_named():
    empty = rows()
    empty.Y[3:] = np.nan
    with pytest.raises(InputError, match="client 'worn': cycle 'a' has no value"):
        cycles_of(empty, GRID, None)


def test_a_federation_needs_the_column_of_classes_and_a_fit_has_clients():
    config = Config(files=("t",), inputs=("x",), outputs=("y",), out="R", cycle="c", diagnose=True)
    with pytest.raises(InputError, match="--diagnose in a federation needs --label"):
        fit_from_files.check_settings(config, federated=True)
    fit_from_files.check_settings(config, federated=False)
    labelled = replace(config, label="state")
    fit_from_files.check_settings(labelled, federated=True)
    with pytest.raises(InputError, match="--label is for `pfedhgp federate --diagnose`"):
        fit_from_files.check_settings(labelled, federated=False)
    with pytest.raises(InputError, match="uses all cycles: leave --holdout out"):
        fit_from_files.check_settings(replace(labelled, holdout="random:0.2"), federated=True)


def test_cycles_of_several_clients_are_told_of_diagnose():
    """Not where it was asked for, not in a federation, not for one client or for rows without cycles."""
    config = Config(cycle="c")
    assert "with --diagnose" in (hint(config, clients=2, federated=False) or "")
    assert hint(config, clients=1, federated=False) is None
    assert hint(config, clients=2, federated=True) is None
    assert hint(Config(), clients=2, federated=False) is None
    asked = Config(cycle="c", diagnose=True)
    assert hint(asked, clients=2, federated=False) is None


@pytest.mark.parametrize("quiet", [False, True])
def test_the_hint_is_one_line_to_stderr_and_quiet_leaves_it_out(
    tmp_path, monkeypatch, capsys, quiet
):
    def stop(*_: object, **__: object) -> None:
        raise InputError("far enough")

    monkeypatch.setattr(fit_from_files, "train_here", stop)
    table = {"state": list("aabb"), "c": 1, "x": [0.0, 1.0] * 2, "y": [1.0, 2, 3, 4]}
    pl.DataFrame(table).write_csv(tmp_path / "t.csv")
    columns = {"client": "state", "inputs": ("x",), "outputs": ("y",), "cycle": "c"}
    config = Config(files=(str(tmp_path / "t.csv"),), **columns, out=str(tmp_path / "RUN"))
    with pytest.raises(InputError, match="far enough"):
        fit_from_files.fit_from_files(config, quiet=quiet)
    found = capsys.readouterr()
    lines = [line for line in found.err.splitlines() if "--diagnose" in line]
    assert len(lines) == (0 if quiet else 1)
    assert found.out == ""


def test_arrays_with_blocks_are_diagnosed_classified_and_reported(run, tmp_path):
    """An .npz with `block`: fit, classify with `why`, and a report of what held-out runs showed."""
    rng, grid = np.random.default_rng(0), np.linspace(0.0, 1.0, 10)

    def strokes(seed: int, runs: int = 5) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        state = np.repeat(["normal", "worn"], runs * 4)
        level = np.repeat(rng.normal(size=(2 * runs, 1, 1)), 4, axis=0)
        dent = (state == "worn")[:, None, None] * np.exp(-0.5 * ((grid - 0.5) / 0.1) ** 2)
        cycles = dent + 0.3 * level + 0.05 * rng.normal(size=(8 * runs, 2, 10))
        return {
            "cycles": cycles,
            "grid": grid,
            "channels": np.array(["p", "q"]),
            "label": state,
            "block": np.repeat(np.arange(2 * runs), 4),
        }

    np.savez(tmp_path / "known.npz", **strokes(0))
    new = strokes(1)
    new["cycles"][0, 1] += 40.0 * rng.normal(size=10)  # the second channel of one cycle runs wild
    np.savez(tmp_path / "new.npz", **new)
    folder = tmp_path / "RUN"
    columns = ("--client", "label", "--input", "grid", "--output", "p", "--output", "q")
    how = ("--cycle", "cycle", "--block", "block", "--diagnose", "--rounds", "1")
    done = run("fit", tmp_path / "known.npz", *columns, *how, "--out", folder)
    assert done.code == 0, done.err
    page = (folder / "report.html").read_text("utf-8")
    assert "40 cycles in 10 runs of 2 classes" in page.replace("\n", " ")
    asked = ("--label", "label", "--why", tmp_path / "why.csv", "--out", tmp_path / "out.csv")
    done = run("classify", folder, tmp_path / "new.npz", *asked)
    assert done.code == 0, done.err
    found = pl.read_csv(tmp_path / "out.csv")
    right = np.mean(found["most probable"].to_numpy() == new["label"])
    assert right >= 0.95
    reasons = pl.read_csv(tmp_path / "why.csv")
    wild = reasons.filter(pl.col("runs wild").is_not_null())
    assert "0" in wild["cycle"].cast(pl.String).to_list()
    assert wild.filter(pl.col("cycle") == 0)["runs wild"].unique().to_list() == ["q"]
    how = ("--cycle", "cycle", "--diagnose", "--rounds", "1", "--no-report")
    done = run("fit", tmp_path / "known.npz", *columns, *how, "--out", tmp_path / "ALONE")
    assert "name the run of each cycle (--block), or probabilities will be" in done.err


def test_an_array_file_without_cycles_is_one_line(run, tmp_path):
    np.savez(tmp_path / "odd.npz", x=np.zeros(3))
    done = run("fit", tmp_path / "odd.npz", *COLUMNS, "--out", tmp_path / "RUN")
    assert "no array 'cycles'; it has x" in done.complaint
