"""Recovery of the shared function: the rule of thumb against simulation, and the study's files."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest

from pfedhgp.cli.main import main
from pfedhgp.report.recovery_rule import expected_recovery
from pfedhgp.studies.common.store import Store
from pfedhgp.studies.stability import study as stability
from pfedhgp.studies.stability.report import figure, table, write_stability
from pfedhgp.studies.stability.study import (
    Stability,
    recovery,
    run_point,
    run_stability,
    runs_of,
    summarise,
)


def test_points_keep_the_number_of_rows_and_have_the_ranges_of_the_study():
    study = Stability()
    points = study.points()
    assert {s for s, _ in points} == {"clients", "balance", "phi"}
    ends = {s: [v for name, v in points if name == s] for s in ("clients", "balance", "phi")}
    assert (ends["clients"][0], ends["clients"][-1]) == (2, 24)
    assert (ends["balance"][0], ends["balance"][-1]) == (1, 20)
    assert (ends["phi"][0], ends["phi"][-1]) == (0.05, 4.0)
    for value in ends["balance"]:
        sizes = study.sizes("balance", value)
        assert sum(sizes) == 300
        assert max(sizes) / min(sizes) == pytest.approx(value, rel=0.1)


def test_recovery_does_not_see_constants_or_scale():
    truth = np.random.default_rng(0).normal(size=(30, 2))
    assert recovery(3.0 * truth + [5.0, -2.0], truth) == pytest.approx(1.0)
    assert recovery(-truth, truth) == pytest.approx(-1.0)


def made(tmp_path, study, runs):
    store = Store(tmp_path, {}, key=("sweep", "value", "run"))
    for i, (sweep, value) in enumerate(study.points()):
        for run in range(runs):
            values = {"correlation": 0.9 - 0.01 * i, "crps": 0.2 + 0.1 * run, "coverage": 0.9}
            store.add({"sweep": sweep, "value": value, "run": run, "metrics": values, "rule": 0.8})
    return store


def test_table_and_figure_have_every_point(tmp_path):
    study = Stability()
    records = summarise(made(tmp_path, study, 2), study, 2)
    head, rows = table(records, study)
    assert [row[0] for row in rows] == [sweep for sweep, _ in study.points()]
    balance = [row[1] for row in rows if row[0] == "balance"]
    assert balance == ["50:50", "83:17", "95:5"]  # what clients have, not what was asked for
    assert [row[1] for row in rows if row[0] == "phi"] == ["0.05", "0.3", "1.2", "4"]
    first = dict(zip(head, rows[0], strict=True))
    assert first["correlation"] == "0.900 [0.900, 0.900]"
    assert first["CRPS"].startswith("0.250 [")
    assert first["rule"] == "0.800"
    assert figure(records, study).count('id="axes_') == 6


def test_runs_that_were_there_before_are_kept(tmp_path):
    study = Stability(quick=True)
    store = made(tmp_path, study, 3)
    assert runs_of(store, study, 1) == 3
    del store.records["phi", 4.0, 2]
    assert runs_of(store, study, 1) == 2


def invented(calls):
    """Stands for a fit: a record of the right form, and a note of what was asked for."""

    def point(study, cell):
        calls.append(cell)
        sweep, value, run = cell
        values = {"correlation": (0.9, 1.0, 1.0)[run], "crps": 0.01 + 0.3 * (run == 0)}
        values["coverage"] = (0.8, 1.0, 1.0)[run]
        rule = expected_recovery(study.sizes(sweep, value), study.phi(sweep, value))
        named = {"sweep": sweep, "value": value, "run": run, "seed": study.seed + run}
        return {**named, "metrics": values, "rule": rule}

    return point


def test_a_point_that_sweeps_have_in_common_is_fitted_once(tmp_path, monkeypatch):
    calls, told = [], []
    monkeypatch.setattr(stability, "run_point", invented(calls))
    study = Stability()
    store = run_stability(
        study, runs=2, folder=tmp_path, progress=lambda *given: told.append(given[:2])
    )
    common = [("clients", 6.0), ("balance", 1.0), ("phi", 1.2)]
    assert all(study.alike(*point) == common for point in common)
    assert all(study.alike(*p) == [p] for p in study.points() if p not in common)
    assert len(calls) == len(set(calls)) == 20
    assert set(store.records) == {(*point, run) for point in study.points() for run in (0, 1)}
    one, *others = [store.records[(*point, 1)] for point in common]
    for other in others:
        assert {**other, "sweep": "clients", "value": 6.0} == one
    for point in common:  # they have the same truth
        np.testing.assert_array_equal(study.truth(*point, 1).Y[5], study.truth(*common[0], 1).Y[5])
    assert told[0] == (0, 24)
    assert told[-1] == (24, 24)


def test_an_interrupted_stability_study_resumes(tmp_path, monkeypatch):
    """What is there is not fitted again, nor what has the data of something that is there."""
    calls = []
    monkeypatch.setattr(stability, "run_point", invented(calls))
    study = Stability()
    whole = run_stability(study, runs=1, folder=tmp_path / "whole").records
    kept = [("balance", 1.0, 0), ("phi", 4.0, 0), ("clients", 2.0, 0)]
    cut = Store(tmp_path / "cut", {"study": "stability", **asdict(study)}, key=stability.KEY)
    for cell in kept:
        cut.add(whole[cell])
    before = (tmp_path / "cut" / "runs.jsonl").read_text()
    (tmp_path / "cut" / "runs.jsonl").write_text(before + '{"sweep": "phi", "va')
    calls.clear()
    found = run_stability(study, runs=1, folder=tmp_path / "cut").records
    skipped = {*kept, ("clients", 6.0, 0), ("phi", 1.2, 0)}
    assert set(calls) == set(whole) - skipped
    assert {cell: r["metrics"] for cell, r in found.items()} == {
        cell: r["metrics"] for cell, r in whole.items()
    }
    assert (tmp_path / "cut" / "runs.jsonl").read_text().startswith(before)
    calls.clear()
    run_stability(study, runs=1, folder=tmp_path / "cut")
    assert calls == []


def test_intervals_end_where_metrics_do(tmp_path, monkeypatch):
    """.9, 1, 1 has a mean of .967, and Student's interval reaches to 1.11."""
    monkeypatch.setattr(stability, "run_point", invented([]))
    study = Stability(quick=True)
    store = run_stability(study, runs=3, folder=tmp_path)
    write_stability(store, study, runs=3)
    records = json.loads((tmp_path / "results.json").read_text())["records"]
    ends = {r["metric"]: r["ci95"] for r in records if r["model"] == "24"}
    assert ends["correlation"] == [pytest.approx(0.8232, abs=1e-4), 1.0]
    assert ends["coverage"][1] == 1.0
    assert ends["crps"][0] == 0.0
    assert ends["crps"][1] > 0.3
    assert "0.967 [0.823, 1.000]" in (tmp_path / "tables.md").read_text()


def test_bad_arguments_exit_2(tmp_path, capsys):
    assert main(["reproduce", "stability", "--out", str(tmp_path / "o"), "--runs", "0"]) == 2
    assert "--runs must be at least 1" in capsys.readouterr().err
    assert main(["reproduce", "stability", "--out", str(tmp_path / "o"), "--rows", "1"]) == 2
    assert "--rows must be at least 4" in capsys.readouterr().err
    assert main(["reproduce", "stability", "--out", str(tmp_path / "o"), "--rounds", "0"]) == 2
    assert "--rounds must be at least 1, got 0" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


@pytest.mark.slow
def test_more_clients_recover_more(tmp_path):
    """Two fits far apart; and the command on the ends of each range."""
    study = Stability(rows=30, grid=40)
    few, many = (
        np.mean([run_point(study, ("clients", n, r))["metrics"]["correlation"] for r in range(2)])
        for n in (2.0, 12.0)
    )
    assert many > few
    out = tmp_path / "out"
    arguments = ["--runs", "1", "--rounds", "2", "--rows", "12", "--grid", "20", "--quick"]
    assert main(["reproduce", "stability", "--out", str(out), *arguments]) == 0
    found = json.loads((out / "results.json").read_text())
    assert {r["metric"] for r in found["records"]} >= {"correlation", "crps"}
    assert (out / "stability.svg").exists()
    assert (out / "report.html").exists()
