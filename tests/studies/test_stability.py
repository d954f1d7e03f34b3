"""Recovery of the shared function: the rule of thumb against simulation, and the study's files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pfedhgp.cli.main import main
from pfedhgp.errors import InputError
from pfedhgp.studies.stability import (
    Stability,
    effective_clients,
    expected_recovery,
    recovery,
    run_point,
    runs_of,
    split_is_stable,
    summarise,
)
from pfedhgp.studies.stability_report import figure, table
from pfedhgp.studies.store import Store


def test_effective_clients_count_balanced_ones_fully():
    assert effective_clients([7] * 5) == pytest.approx(5.0)
    assert effective_clients([1000, 1, 1]) == pytest.approx(1.0, abs=0.01)
    assert effective_clients([10, 20]) == pytest.approx(900 / 500)
    with pytest.raises(InputError, match="positive numbers of rows"):
        effective_clients([3, 0])


@pytest.mark.parametrize(("rows", "phi"), [([50] * 6, 1.2), ([50] * 2, 4.0), ([10, 90], 0.5)])
def test_the_rule_is_the_correlation_of_the_weighted_mean_of_clients(rows, phi):
    """Monte Carlo: corr(g, g + Σ w_i δ_i) with weights n_i/Σn and Var δ = φ Var g."""
    rng = np.random.default_rng(0)
    g = rng.normal(size=200_000)
    weights = np.array(rows) / np.sum(rows)
    mean = g + np.sqrt(phi) * weights @ rng.normal(size=(len(rows), 200_000))
    assert np.corrcoef(g, mean)[0, 1] == pytest.approx(expected_recovery(rows, phi), abs=0.005)


def test_the_rule_of_thumb():
    assert split_is_stable([50] * 24, 4.0) == (expected_recovery([50] * 24, 4.0) >= 0.9)
    assert not split_is_stable([50] * 3, 1.2)
    assert expected_recovery([50] * 6, 0.0) == 1.0
    with pytest.raises(InputError, match="`phi` must not be negative"):
        expected_recovery([1, 1], -0.1)


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
