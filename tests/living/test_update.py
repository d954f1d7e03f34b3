"""`update` and `forget` as people call them: what is refused, what is said, what stays on the disk."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pfedhgp import FederatedGP
from pfedhgp.errors import ConvergenceWarning, InputError, StaleWarning
from pfedhgp.federation import grouping
from pfedhgp.gp.tails import as_the_model_says
from pfedhgp.living.staleness import Expected, chance

FIXTURES = Path(__file__).parents[1] / "fixtures"
RNG = np.random.default_rng(5)


def wave(x: np.ndarray, site: int) -> np.ndarray:
    return np.sin(x) + 0.3 * site + 0.1 * np.random.default_rng(site).normal(size=len(x))


@pytest.fixture(scope="module")
def rows() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    grids = [np.sort(np.random.default_rng(i + 7).uniform(0.0, 8.0, 40)) for i in range(3)]
    return {f"site {i}": (x, wave(x, i)) for i, x in enumerate(grids)}


@pytest.fixture(scope="module")
def saved(rows, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("living") / "RUN"
    model = FederatedGP(rounds=4, inducing=10, local_inducing=10, domain=[(0.0, 10.0)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(rows).save(path)
    return path


@pytest.fixture
def model(saved) -> FederatedGP:
    return FederatedGP.load(saved)


def new_rows(seed: int = 0, count: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(8.0, 9.0, count))
    return x, np.sin(x) + 0.1 * rng.normal(size=count)


def test_new_rows_are_learned_from_and_forgotten_again(model):
    grid = np.linspace(0.0, 9.0, 20)[:, None]
    before = model.predict("site 0", grid)
    x, y = new_rows()
    model.update({"site 0": (x, y)})
    after = model.predict("site 0", grid)
    assert after.sd[-2] < 0.9 * before.sd[-2]
    assert model.last_update_.rows == {"site 0": 6}
    assert not model.last_update_.stale
    model.forget("site 0", (x, y))
    again = model.predict("site 0", grid)
    np.testing.assert_allclose(again.mean, before.mean, rtol=0, atol=1e-8)
    np.testing.assert_allclose(again.sd, before.sd, rtol=0, atol=1e-8)


def test_a_table_a_new_client_and_a_stretch(model):
    x, y = new_rows()
    table = pl.DataFrame({"who": ["site 1"] * 6 + ["newcomer"] * 6, "x": [*x, *x], "y": [*y, *y]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StaleWarning)
        model.update(table, client="who")
    assert model.last_update_.new_clients == ("newcomer",)
    assert model.clients_[-1] == "newcomer"
    assert model.model_.sums["newcomer"].counted
    model.forget("site 1", (x, y), between=(x[2], x[4]))
    assert model.last_update_.rows == {"site 1": 3}
    model.forget("newcomer")
    assert model.last_update_.gone_clients == ("newcomer",)
    assert [each["what"] for each in model.model_.metrics["updates"]] == [
        "update",
        "forget",
        "forget",
    ]


def test_what_is_refused(model, rows):
    x, y = rows["site 0"]
    with pytest.raises(InputError, match=r"2 of 3 rows are in the model already .*row 0"):
        model.update({"site 0": ([x[3], x[5], 9.5], [0.0, 0.0, 0.0])})
    with pytest.raises(InputError, match=r"1 of 2 rows are not in the model .*row 1"):
        model.forget("site 0", (x[:2], [y[0], y[1] + 1e-9]))
    with pytest.raises(InputError, match="given twice"):
        model.forget("site 0", (x[[0, 0]], y[[0, 0]]))
    with pytest.raises(InputError, match="`between` needs `rows`"):
        model.forget("site 0", between=(0.0, 1.0))
    with pytest.raises(InputError, match="2 inputs"):
        model.update({"site 0": (np.zeros((1, 2)), [0.0])})
    with pytest.raises(InputError, match="no new row has an observed output"):
        model.update({"site 0": ([9.9], [np.nan])})


def test_rows_that_do_not_fit_the_parameters_give_a_warning(model):
    x, y = new_rows(1, 12)
    with pytest.warns(StaleWarning, match="'site 2'.*fit again with all rows"):
        model.update({"site 2": (x, y + RNG.normal(size=12))})
    assert model.last_update_.p < 1e-3


def test_an_alarm_is_false_in_one_of_a_hundred_cases(model):
    """Rows that the model draws itself; with few cells to learn the noise from, alarms are as rare."""
    x = np.linspace(8.0, 9.0, 5)[:, None]
    expected = Expected.of(model.model_, "site 0", x)
    draws = model.predict("site 0", x).sample(10_000, seed=1)
    z = [expected.whitened(y)[0] for y in draws]
    nominal = [as_the_model_says(0.01)]
    chances = np.array([chance(each, 10**9, nominal) for each in z])
    assert np.mean(chances < 0.01) == pytest.approx(0.01, abs=0.003)
    assert np.mean(chances < 0.5) == pytest.approx(0.5, abs=0.02)
    louder = np.sqrt(30.0 / np.random.default_rng(2).chisquare(30, len(z)))
    chances = np.array([chance(a * s, 30, nominal) for a, s in zip(z, louder, strict=True)])
    assert np.mean(chances < 0.01) == pytest.approx(0.01, abs=0.003)


@pytest.mark.parametrize("name", ["structured", "mean-field", "cycles"])
def test_older_models_say_what_is_missing(name):
    model = FederatedGP.load(FIXTURES / name / "RUN")
    first, Q = model.clients_[0], model.model_.outputs
    with pytest.raises(InputError, match="fit again"):
        model.update({first: ([[0.123]], np.zeros((1, Q)))})
    with pytest.raises(InputError, match="fit again"):
        model.forget(first)


def test_so_many_clients_that_their_sums_would_fill_the_memory_keep_none(monkeypatch):
    x = np.linspace(0.0, 5.0, 12)
    sites = {name: (x, np.sin(x) + shift) for name, shift in [("a", 0.0), ("b", 0.5)]}
    model = FederatedGP(rounds=1, inducing=6, local_inducing=6)
    numbers = [own.precision.size for own in model.fit(sites).model_.sums.values()]
    monkeypatch.setattr(grouping, "KEPT_TOGETHER", 2 * max(numbers))
    assert set(model.fit(sites).model_.sums) == {"a", "b"}
    monkeypatch.setattr(grouping, "KEPT_TOGETHER", 2 * max(numbers) - 1)
    assert not model.fit(sites).model_.sums
    with pytest.raises(InputError, match="over 2 GiB"):
        model.update({"a": ([2.2], [0.8])})


def test_training_goes_on_from_the_fitted_kernels(model, rows):
    x, y = new_rows()
    with pytest.warns(ConvergenceWarning, match="limit of 2 rounds.*it has not settled") as told:
        model.update({"site 0": (x, y)}, retrain=rows, rounds=2)
    assert {each.filename for each in told if each.category is ConvergenceWarning} == {__file__}
    cold = FederatedGP(rounds=2, inducing=10, local_inducing=10, domain=[(0.0, 10.0)])
    old = rows["site 0"]
    cold.fit(rows | {"site 0": (np.append(old[0], x), np.append(old[1], y))})
    assert model.bound_ > cold.bound_
    assert model.model_.metrics["updates"][-1]["what"] == "retrain"
    assert model.rounds == 4
    with pytest.raises(InputError, match="among the old ones too"):
        model.update({"site 0": rows["site 0"]}, retrain=rows)


# ----------------------------------------------------------------------------------- the command line


@pytest.fixture
def folder(saved, tmp_path, monkeypatch) -> Path:
    FederatedGP.load(saved).save(tmp_path / "RUN")
    x, y = new_rows()
    table = pl.DataFrame({"client": ["site 0"] * len(x), "x": x, "y": y})
    table.write_csv(tmp_path / "new.csv", float_precision=17)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commands_keep_what_they_replace(folder, run):
    before = (folder / "RUN" / "spec.json").read_bytes()
    done = run("update", "RUN", "new.csv", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["rows"] == {"site 0": 6}
    assert (folder / "RUN" / "previous" / "spec.json").read_bytes() == before
    old, new = FederatedGP.load(folder / "RUN" / "previous"), FederatedGP.load(folder / "RUN")
    at = [[8.5]]
    assert new.predict("site 0", at).sd[0] < old.predict("site 0", at).sd[0]
    told = run("update", "RUN", "new.csv").complaint
    assert "6 of 6 rows are in the model already (the first is row 1 (line 2) of new.csv" in told
    assert run("forget", "RUN", "new.csv", "--client", "site 0", "--from", "8.2").code == 0
    (folder / "RUN" / "report.html").write_text("of the model before")
    told = run("forget", "RUN", "new.csv", "--client", "site 0", "--to", "8.2")
    assert "`pfedhgp report RUN` writes a new report" in told.err + told.out
    assert (folder / "RUN" / "previous" / "report.html").is_file()
    assert "need DATA" in run("forget", "RUN", "--client", "site 0", "--from", "1").complaint
    assert "no client 'x'" in run("forget", "RUN", "--client", "x").complaint
    done = run("forget", "RUN", "--client", "site 2")
    assert done.code == 0
    assert "rows and client 'site 2': RUN" in done.err + done.out
    assert FederatedGP.load(folder / "RUN").clients_ == ("site 0", "site 1")
    assert not (folder / "RUN" / "previous" / "previous").exists()


def test_a_row_that_is_refused_is_named_by_its_place_in_its_file(folder, run):
    known = pl.read_csv("new.csv")
    assert run("update", "RUN", "new.csv").code == 0
    fresh = known.with_columns(x=pl.col("x") + 0.9)
    others = known[:3].with_columns(client=pl.lit("site 1"), x=pl.col("x") + 0.7)
    fresh.write_csv("a.csv", float_precision=17)
    pl.concat([others, known[2:]]).write_csv("b.csv", float_precision=17)
    told = run("update", "RUN", "a.csv", "b.csv").complaint
    assert "4 of 10 rows are in the model already (the first is row 4 (line 5) of b.csv, by" in told
    (x,) = known["x"][2:3]
    told = run("forget", "RUN", "b.csv", "a.csv", "--client", "site 0", "--from", str(x + 1e-9))
    assert (
        "6 of 9 rows are not in the model (the first is row 1 (line 2) of a.csv)" in told.complaint
    )


def test_a_table_without_the_client_column_is_refused_in_updates_own_words(model):
    x, y = new_rows()
    with pytest.raises(InputError, match=r"no column 'client', which named the clients .*`client`"):
        model.update(pl.DataFrame({"x": x, "y": y}))


def test_broken_sums_stop_updates_and_not_predictions(folder, run):
    path = next((folder / "RUN" / "clients").glob("*.sums.safetensors"))
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    told = run("update", "RUN", "new.csv").complaint
    assert "corrupted: its SHA-256 is not the one in spec.json: copy the folder again" in told
    done = run("predict", "RUN", "new.csv", "--out", "-")
    assert done.code == 0, done.err
    assert done.out.count("site 0") == 6


def test_rows_far_outside_are_told_of_in_one_line_that_names_the_option(folder, run):
    rows = {"client": ["site 0", "site 1"], "x": [99.0, 99.0], "y": [0.0, 0.0]}
    pl.DataFrame(rows).write_csv("far.csv")
    told = [
        line for line in run("update", "RUN", "far.csv").err.splitlines() if "far outside" in line
    ]
    assert told == [
        "pfedhgp: warning: 2 of 2 rows are far outside the data: no global inducing input is near them "
        "(clients site 0, site 1); fit again, with --domain up to where rows will come"
    ]


NOTES = ("report.html", "zones", "classified.json", "backtest.json", "attacks.json", "checkpoint")


def with_notes(run: Path) -> dict[str, bytes]:
    """All that commands may keep beside a model; zones and checkpoints are folders."""
    files = {name: run / name for name in NOTES}
    files |= {"zones": run / "zones" / "zones.json", "checkpoint": run / "checkpoint" / "0" / "a"}
    for name, path in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"{name} of the model before".encode())
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in files.values()}


@pytest.mark.parametrize("command", ["update", "forget"])
def test_what_was_found_about_a_model_goes_with_it_to_previous_and_is_told(folder, run, command):
    notes = with_notes(folder / "RUN")
    rest = ["new.csv"] if command == "update" else ["--client", "site 2"]
    done = run(command, "RUN", *rest)
    assert done.code == 0, done.err
    previous = folder / "RUN" / "previous"
    assert {name: (previous / name).read_bytes() for name in notes} == notes
    assert not any((folder / "RUN" / name).exists() for name in NOTES)
    assert (
        "report.html, zones, classified.json, backtest.json, attacks.json are about the model before, and "
        "went with it to RUN/previous, which the next update replaces"
    ) in done.err
    FederatedGP.load(previous)


def test_what_was_found_about_a_model_stands_in_no_ones_way(folder, run):
    with_notes(folder / "RUN")
    FederatedGP.load("RUN").save("RUN", overwrite=True)
    assert not (folder / "RUN" / "backtest.json").exists()
    with_notes(folder / "RUN")
    columns = ("--client", "client", "--input", "x", "--output", "y")
    how = ("--rounds", 1, "--no-report", "--out", "RUN")
    done = run("fit", "new.csv", *columns, *how, "--overwrite")
    assert done.code == 0, done.err
    assert not any((folder / "RUN" / name).exists() for name in NOTES)


def test_a_strange_file_is_refused_before_anything_is_done(folder, run):
    (folder / "RUN" / "mine.txt").write_text("keep")
    for rest in (["update", "RUN", "new.csv"], ["forget", "RUN", "--client", "site 2"]):
        assert "holds 'mine.txt', which is no part of a model: move it elsewhere" in (
            run(*rest).complaint
        )


AT_ONCE = """
import sys, time
from pathlib import Path
from pfedhgp.model import files
usual = files.save
def late(*given, **named):
    Path(sys.argv[1] + ".ready").touch()
    while not Path("go").exists():
        time.sleep(0.01)
    usual(*given, **named)
files.save = late
from pfedhgp.cli.main import main
sys.exit(main(["update", "RUN", sys.argv[1]]))
"""


def test_of_two_updates_at_once_one_is_refused_and_no_row_is_lost(folder, run):
    x, y = new_rows(4)
    table = pl.DataFrame({"client": ["site 1"] * len(x), "x": x, "y": y})
    table.write_csv("other.csv", float_precision=17)
    both = {
        name: subprocess.Popen(
            [sys.executable, "-c", AT_ONCE, name], cwd=folder, stderr=subprocess.PIPE, text=True
        )
        for name in ("new.csv", "other.csv")
    }
    while not all(Path(f"{name}.ready").exists() for name in both):
        assert all(each.poll() is None for each in both.values())
        time.sleep(0.05)
    (folder / "go").touch()
    told = {name: each.communicate()[1] for name, each in both.items()}
    codes = {name: each.returncode for name, each in both.items()}
    assert sorted(codes.values()) == [0, 2], told
    (late,) = [name for name, code in codes.items() if code == 2]
    assert "RUN was changed meanwhile by another command: nothing was written" in told[late]
    done = run("update", "RUN", late)
    assert done.code == 0, done.err
    metrics = FederatedGP.load("RUN").model_.metrics
    assert [each["rows"] for each in metrics["updates"]] in (
        [{"site 0": 6}, {"site 1": 6}],
        [{"site 1": 6}, {"site 0": 6}],
    )
    assert not [p.name for p in folder.iterdir() if p.name.startswith(".pfedhgp-")]


KILLED = """
import os, signal, sys
from pfedhgp.model import run_folder
setattr(run_folder, sys.argv[1], lambda *args: os.kill(os.getpid(), signal.SIGKILL))
from pfedhgp.cli.main import main
main(["update", "RUN", "new.csv"])
"""


@pytest.mark.parametrize(
    ("step", "swapped"),
    [
        ("_link_model", False),  # before RUN/previous is made
        ("_put_in_place", False),  # the new folder is whole
        ("exchange", False),
        ("_take_over", True),  # the old model is still beside the new one
    ],
)
def test_kill_9_leaves_the_old_model_or_the_new_one(folder, run, step, swapped):
    before = (folder / "RUN" / "spec.json").read_bytes()
    (folder / "RUN" / "audit.jsonl").write_text("of the site")
    done = subprocess.run([sys.executable, "-c", KILLED, step], cwd=folder)
    assert done.returncode == -9
    assert ((folder / "RUN" / "spec.json").read_bytes() == before) is not swapped
    assert (folder / "RUN" / "audit.jsonl").read_text() == "of the site"
    model = FederatedGP.load(folder / "RUN")
    if swapped:
        assert (folder / "RUN" / "previous" / "spec.json").read_bytes() == before
        FederatedGP.load(folder / "RUN" / "previous")
        assert model.model_.metrics["updates"][-1]["rows"] == {"site 0": 6}
        assert "in the model already" in run("update", "RUN", "new.csv").complaint
    else:
        assert run("update", "RUN", "new.csv").code == 0
