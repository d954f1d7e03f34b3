"""The study end to end on tiny sizes: files, schema, resuming, batching, costs, and refusals."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest

from pfedhgp.cli.main import main
from pfedhgp.gp import metrics
from pfedhgp.studies.__main__ import main as bare
from pfedhgp.studies.common import schedule
from pfedhgp.studies.common.store import Store
from pfedhgp.studies.synthetic import study as synthetic
from pfedhgp.studies.synthetic.models import STRUCTURED, chosen, clients_of, outcome_of
from pfedhgp.studies.synthetic.study import Study, run_processes, run_study

TINY = ["--clients", "2", "--rows", "12", "--grid", "10", "--rounds", "2"]
MODELS = "local-only,pfedgp,oracle"
SIZES = {"rounds": 2, "clients": 2, "rows": 12, "grid": 10}
LISTED = {"rmse", "nll", "crps", "coverr", "width", "coverage", "ece", "rounds", "exchanges"}
LISTED |= {"bytes", "seconds"}


def command(out, *more, models=MODELS) -> int:
    arguments = ["reproduce", "synthetic", "--scenarios", "A,C", "--models", models, "--runs", "2"]
    return main([*arguments, *TINY, "--out", str(out), *more])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("study") / "out"
    assert command(out) == 0
    return out


def results(folder) -> dict:
    return json.loads((folder / "results.json").read_text())


def without_clock(found: dict) -> list:
    return [r for r in found["records"] if r["metric"] != "seconds"]


def test_results_have_the_agreed_form(folder):
    found = results(folder)
    assert set(found) == {"records", "curves", "tables", "config"}
    for record in found["records"]:
        assert set(record) - {"printed"} == {
            "scenario",
            "model",
            "metric",
            "mean",
            "ci95",
            "runs",
        }
        assert record["metric"] in LISTED
    ours = [r for r in found["records"] if "printed" not in r]
    assert {(r["scenario"], r["model"]) for r in ours} == {
        (s, m) for s in "AC" for m in MODELS.split(",")
    }
    assert all(r["runs"] == 2 and r["ci95"][0] <= r["mean"] <= r["ci95"][1] for r in ours)
    assert found["config"]["seed"] == 0
    (made,) = found["config"]["made"]
    assert (made["jax"], made["device"], made["runs"]) == (jax.__version__, "cpu", 12)


def test_scores_are_the_metrics_of_the_predictions(folder):
    """The record of a run, computed again from the simulator and the oracle's own formulas."""
    lines = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    run = next(r for r in lines if (r["scenario"], r["model"], r["run"]) == ("A", "oracle", 1))
    truth = Study(**SIZES).truth("A", 1)
    cases = [
        metrics.Scored(y=y, mean=m, cov=c, clean=clean, noise=0.05**2)
        for y, clean, (m, c) in zip(
            truth.Y_test, truth.clean_test, outcome_of("oracle", truth).predictions, strict=True
        )
    ]
    for name, value in metrics.evaluate(cases).items():
        assert run["metrics"][name] == pytest.approx(value, rel=1e-12), name
    assert run["seed"] == 1


def test_tables_figures_and_report_are_there(folder):
    text = (folder / "tables.md").read_text()
    assert "| A | oracle |" in text
    assert "(printed)" in text
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == 2  # the prediction belongs to `full`, which was not asked for
    for loads in ("src=", "<script", "<link", "@import", "url(http", 'href="http'):
        assert loads not in page  # nothing comes from elsewhere
    assert (folder / "robustness.svg").exists()
    assert (folder / "calibration.svg").exists()


def test_an_interrupted_study_resumes_to_the_same_results(folder, tmp_path):
    lines = (folder / "runs.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "runs.jsonl").write_text("".join(lines[:5]) + lines[5][:40])
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    assert command(tmp_path) == 0
    assert without_clock(results(tmp_path)) == without_clock(results(folder))
    assert (tmp_path / "runs.jsonl").read_text().startswith("".join(lines[:5]))


def test_a_finished_study_is_not_repeated(folder, capsys):
    before = (folder / "runs.jsonl").read_bytes()
    assert command(folder, "--json") == 0
    assert json.loads(capsys.readouterr().out)["records"] == results(folder)["records"]
    assert (folder / "runs.jsonl").read_bytes() == before


def test_lockstep_gives_what_one_at_a_time_does(folder, tmp_path, monkeypatch):
    """As on a GPU, all runs of a model in one batch; rounding differs there, and searches may drift by it."""
    monkeypatch.setattr(schedule, "first_gpu", lambda: jax.devices("cpu")[0])
    run_study(
        Study(**SIZES),
        scenarios=["A"],
        models=["local-only"],
        runs=2,
        folder=tmp_path,
        device="gpu",
        joins=True,
    )
    together = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    alone = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    alone = {(r["scenario"], r["run"]): r for r in alone if r["model"] == "local-only"}
    assert len(together) == 2
    for run in together:
        one = alone[run["scenario"], run["run"]]
        for name in ("nll", "rmse", "crps", "coverr"):
            assert run["metrics"][name] == pytest.approx(one["metrics"][name], rel=1e-3, abs=1e-3)
        assert run["metrics"]["bytes"] == one["metrics"]["bytes"]
        assert run["metrics"]["exchanges"] == one["metrics"]["exchanges"]


def test_stopping_early_is_what_the_curve_says(monkeypatch):
    """But for averaging over parameters, which the points of a curve are without."""
    plug_in = {**STRUCTURED["local-only"], "averaging": False}
    monkeypatch.setitem(STRUCTURED, "local-only", plug_in)
    truth = Study(**SIZES).truth("A", 0)
    long = outcome_of("local-only", truth, rounds=3, curve=True)
    short = outcome_of("local-only", truth, rounds=2)
    plain = outcome_of("local-only", truth, rounds=3)
    assert long.bound == plain.bound  # watching changes nothing
    exchange, sent, nll = long.curve[-2]
    want = np.mean([metrics.nll(y, *p) for y, p in zip(truth.Y_test, short.predictions)])
    assert nll == pytest.approx(want, rel=1e-9)
    assert (exchange, sent) == (short.costs["exchanges"], short.costs["bytes"])
    assert long.curve[-1][:2] == (long.costs["exchanges"], long.costs["bytes"])


def test_bytes_and_exchanges_count_scaling_and_the_final_delivery():
    """local-only, two clients: census up, start, rounds and the ending, array by array."""
    truth = Study(**SIZES).truth("A", 0)
    from pfedhgp import FederatedGP

    model = FederatedGP(domain=[(0.0, 10.0)], noise="scalar", rounds=2, **STRUCTURED["local-only"])
    model.fit(clients_of(truth))
    outcome = outcome_of("local-only", truth, rounds=2)
    assert outcome.costs["exchanges"] == 1 + 1 + 2
    by_hand = sum(
        8 * int(np.prod(shape)) for entry in model.messages_ for shape in entry["arrays"].values()
    )
    assert {entry["kind"] for entry in model.messages_} == {"census", "start", "round", "finish"}
    assert outcome.costs["bytes"] == by_hand


def test_kernels_are_chosen_by_the_bound_at_the_price_of_all():
    def made(bound, exchanges, sent, nll):
        costs = {"rounds": exchanges - 2.0, "exchanges": exchanges, "bytes": sent, "seconds": 1.5}
        named = {"scenario": "B", "run": 4, "seed": 4, "coverage": [nll], "curve": [[3, sent, nll]]}
        return {**named, "model": "x", "bound": bound, "metrics": {**costs, "nll": nll}}

    found = chosen({"a": made(-5.0, 12.0, 100.0, -1.0), "b": made(7.0, 9.0, 300.0, -2.0)})
    assert (found["scenario"], found["model"], found["run"]) == ("B", "full-kernels", 4)
    assert found["chosen"] == "b"
    assert found["bound"] == 7.0
    costs = {"rounds": 10.0, "exchanges": 12.0, "bytes": 400.0, "seconds": 3.0}
    assert found["metrics"] == {**costs, "nll": -2.0}
    assert (found["curve"], found["coverage"]) == ([[3, 400, -2.0]], [-2.0])
    assert found["exchanges one after another"] == 21.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--scenarios", "A,E"], "no scenario 'E'; there are A, B, C, D"),
        (["--scenarios", "A,A"], "a scenario is given twice"),
        (["--scenarios", ","], "no scenario given"),
        (["--models", "full,fuller"], "no model 'fuller'; there are full, full-kernels"),
        (["--runs", "0"], "--runs must be at least 1"),
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--seed", "-1"], "--seed must be at least 0"),
        (["--device", "tpu"], "--device must be cpu or gpu, got 'tpu'"),
        (["--rows", "1"], "--rows must be at least 2"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_2(tmp_path, capsys, arguments, says):
    out = tmp_path / "out"
    assert main(["reproduce", "synthetic", "--out", str(out), *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_the_bare_command_names_options_too(tmp_path, capsys):
    out = tmp_path / "out"
    assert bare(["--out", str(out), "--curve-runs", "-1"]) == 2
    assert capsys.readouterr().err == "error: --curve-runs must be at least 0, got -1\n"
    assert not out.exists()


def test_other_settings_in_the_same_folder_are_refused(folder, capsys):
    before = (folder / "runs.jsonl").read_bytes()
    assert command(folder, "--seed", "7") == 2
    assert "holds a study with --seed 0, not 7" in capsys.readouterr().err
    assert (folder / "runs.jsonl").read_bytes() == before


@pytest.mark.slow
def test_every_row_of_the_table_runs_and_full_beats_its_ablations(tmp_path):
    names = "full,no-deviation,no-local,global-only,local-only,pfedgp,algorithm1,oracle"
    arguments = ["--scenarios", "A", "--models", names, "--runs", "1", "--rows", "40"]
    out = tmp_path / "out"
    assert main(["reproduce", "synthetic", "--out", str(out), "--clients", "4", *arguments]) == 0
    nll = {r["model"]: r["mean"] for r in results(out)["records"] if r["metric"] == "nll"}
    for name in ("no-deviation", "no-local", "global-only", "local-only", "pfedgp", "algorithm1"):
        assert nll["full"] < nll[name] - 0.5, name
    assert nll["oracle"] < nll["full"]
    assert (out / "prediction.svg").exists()


@pytest.mark.slow
def test_full_kernels_keeps_the_training_of_the_highest_bound(tmp_path):
    """Three trainings, each a row on disk; the row of the table is one of them at the price of all."""
    out = tmp_path / "out"
    arguments = ["--scenarios", "B", "--models", "full-kernels", "--runs", "1", *TINY]
    assert main(["reproduce", "synthetic", "--out", str(out), *arguments]) == 0
    rows = [json.loads(line) for line in (out / "runs.jsonl").read_text().splitlines()]
    found = {row["model"]: row for row in rows}
    row = found.pop("full-kernels")
    assert set(found) == set(synthetic.PARTS.values())
    best = max(found.values(), key=lambda one: one["bound"])
    assert synthetic.PARTS[row["chosen"]] == best["model"]
    assert row["metrics"]["nll"] == best["metrics"]["nll"]
    assert row["metrics"]["exchanges"] == 4.0  # census, start and two rounds
    assert row["exchanges one after another"] == 12.0
    assert row["metrics"]["bytes"] == sum(one["metrics"]["bytes"] for one in found.values())
    assert "| B | full-kernels |" in (out / "tables.md").read_text()


@pytest.mark.slow
def test_the_study_needs_jax_numpy_scipy_equinox_and_optax_alone(tmp_path):
    """On a machine with a GPU where nothing can be installed."""
    program = """
    import sys

    class Missing:
        gone = {"narwhals", "safetensors", "threadpoolctl", "rich", "polars", "matplotlib", "typer"}
        gone |= {"click", "pydantic", "jinja2", "sklearn", "pandas"}

        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in self.gone:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Missing())
    from pfedhgp.studies.__main__ import main

    sys.exit(main(sys.argv[1:]))
    """
    out = tmp_path / "out"
    arguments = ["--out", str(out), "--scenarios", "A", "--models", "full,oracle", "--runs", "1"]
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments, *TINY],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = {r["model"] for r in results(out)["records"]}
    assert {"full", "oracle"} <= found
    assert not (out / "robustness.svg").exists()


def test_processes_share_a_study(folder, tmp_path, monkeypatch):
    """As on a GPU, a process a model: of local-only all runs are there, and the oracle compiles nothing."""
    monkeypatch.setattr(schedule, "first_gpu", lambda: jax.devices("cpu")[0])
    original = synthetic.joining_command
    monkeypatch.setattr(synthetic, "joining_command", lambda *given: original(*given[:-1], "cpu"))
    lines = (folder / "runs.jsonl").read_text().splitlines(keepends=True)
    there = "".join(line for line in lines if json.loads(line)["model"] == "local-only")
    (tmp_path / "runs.jsonl").write_text(there)
    models = ["local-only", "oracle"]
    store = run_study(
        Study(**SIZES), scenarios=["A", "C"], models=models, runs=2, folder=tmp_path, device="gpu"
    )
    assert sorted(store.records) == [(s, m, r) for s in "AC" for m in models for r in (0, 1)]
    assert (tmp_path / "runs.jsonl").read_text().startswith(there)
    want = synthetic.run_cell(Study(**SIZES), ("C", "oracle", 1))
    assert store.records["C", "oracle", 1]["metrics"] == want["metrics"]


def test_the_row_of_chosen_kernels_comes_from_the_stored_trainings(folder, tmp_path):
    """Bounds decide; a run of which a candidate is missing has no such row yet."""
    lines = (folder / "runs.jsonl").read_text().splitlines()
    one = next(r for r in map(json.loads, lines) if r["model"] == "local-only")
    store = Store(tmp_path, {}, key=synthetic.KEY)
    for bound, row in zip((1.0, 3.0, 2.0), synthetic.PARTS.values(), strict=True):
        store.add({**one, "run": 0, "model": row, "bound": bound})
    store.add({**one, "run": 1, "model": "full", "bound": 1.0})
    synthetic.choose_kernels(store)
    synthetic.choose_kernels(store)
    rows = [record for record in store.records.values() if record["model"] == "full-kernels"]
    assert [row["run"] for row in rows] == [0]
    assert rows[0]["chosen"] == list(synthetic.PARTS)[1]
    assert synthetic.trainings_of(["full-kernels", "oracle"]) == [
        *synthetic.PARTS.values(),
        "oracle",
    ]


def test_a_process_that_fails_ends_the_study():
    with pytest.raises(RuntimeError, match=r"ended with codes \[3, "):
        run_processes(
            [
                [sys.executable, "-c", "import sys; sys.exit(3)"],
                [sys.executable, "-c", "import time; time.sleep(60)"],
            ]
        )
