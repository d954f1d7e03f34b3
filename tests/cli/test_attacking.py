"""`pfedhgp audit RUN --attack`: a table of what an attacker learns, also in the report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from pfedhgp.attacks import audit
from support.overheard import wavy_rows

SAVED = Path(__file__).parents[1] / "fixtures" / "federation"


@pytest.fixture
def fitted(tmp_path, run):
    parts = [
        pl.DataFrame({"site": r.name, "x": r.X[:, 0], "y": r.Y[:, 0]}) for r in wavy_rows(3, 30, 1)
    ]
    pl.concat(parts).write_csv(tmp_path / "all.csv")
    given = ["--client", "site", "--input", "x", "--output", "y", "--inducing", "8"]
    done = run("fit", tmp_path / "all.csv", *given, "--rounds", "1", "--out", tmp_path / "RUN")
    assert done.code == 0, done.err
    return tmp_path


def test_attacks_on_a_run_and_its_report(fitted, run, monkeypatch):
    monkeypatch.setattr(audit, "USUAL", audit.Effort(clients=1, rows=6, outputs=3, splits=1))
    done = run("audit", fitted / "RUN", "--attack", "--data", fitted / "all.csv", "--json")
    assert done.code == 0, done.err
    found = {(f["attack"], f["measure"]): f for f in json.loads(done.out)["attacks"]}
    assert found["membership", "AUC"]["found"]["value"] == 1.0, "nothing protects rows here"
    assert found["attribute", "R²"]["found"]["value"] > 0.99
    assert found["linkage", "halves matched"]["chance"] == pytest.approx(1 / 3)
    assert {f["promised"] for f in found.values()} == {"nothing"}
    shares = [f["found"] for f in found.values() if f["found"]["low"] is not None]
    assert all(s["low"] <= s["value"] <= s["high"] for s in shares)
    written = run("report", fitted / "RUN", "--overwrite")
    assert written.code == 0, written.err
    page = (fitted / "RUN" / "report.html").read_text("utf-8")
    assert "What an attacker learns" in page
    assert "membership" in page
    kept = json.loads((fitted / "RUN" / "attacks.json").read_bytes())
    (fitted / "RUN" / "attacks.json").write_text(json.dumps({**kept, "model": "another"}))
    again = run("report", fitted / "RUN", "--overwrite")
    assert "about another model" in again.err
    assert "What an attacker learns" not in (fitted / "RUN" / "report.html").read_text("utf-8")


def test_a_site_attacks_what_it_sent(tmp_path, run, monkeypatch):
    """From its home, and its own rows."""
    monkeypatch.setattr(audit, "USUAL", audit.Effort(rows=6, outputs=2))
    shutil.copytree(SAVED, tmp_path / "saved")
    home = tmp_path / "saved" / "stopped" / "home-a"
    done = run("audit", home, "--attack", "--data", tmp_path / "saved" / "a.csv", "--json")
    assert done.code == 0, done.err
    found = {f["attack"]: f for f in json.loads(done.out)["attacks"]}
    assert found["membership"]["found"]["value"] == 1.0
    assert found["linkage"]["why"] == "it needs the messages of other sites"
    (home / "runs").rename(home / "elsewhere")
    none = run("audit", home, "--attack", "--data", tmp_path / "saved" / "a.csv")
    assert "nothing to attack" in none.complaint


def test_what_is_missing_is_said(fitted, run):
    assert "needs --data" in run("audit", fitted / "RUN", "--attack").complaint
    table = pl.read_csv(fitted / "all.csv").with_columns(pl.lit("somebody else").alias("site"))
    table.write_csv(fitted / "other.csv")
    done = run("audit", fitted / "RUN", "--attack", "--data", fitted / "other.csv")
    assert "no rows of the fit" in done.complaint
    assert "--data is for --attack" in run("audit", fitted, "--data", "x.csv").complaint


@pytest.mark.parametrize("mode", ["distributed", "central"])
def test_attacks_on_a_run_by_totals_in_one_process(fitted, run, monkeypatch, mode):
    """What the server sees: totals, or each client's sums nearly exactly."""
    few = audit.Effort(clients=1, rows=6, outputs=3, splits=1, noisy=20)
    monkeypatch.setattr(audit, "USUAL", few)
    given = ["--client", "site", "--input", "x", "--output", "y", "--kernel", "rbf(3)"]
    given += ["--privacy", mode, "--epsilon", "1", "--domain", "0..10", "--output-bounds=-3..3"]
    made = run("fit", fitted / "all.csv", *given, "--out", fitted / mode)
    assert made.code == 0, made.err
    done = run("audit", fitted / mode, "--attack", "--data", fitted / "all.csv", "--json")
    assert done.code == 0, done.err
    found = {(f["attack"], f["measure"]): f for f in json.loads(done.out)["attacks"]}
    if mode == "distributed":
        assert found["membership", "AUC"]["promised"].startswith("AUC at most 0.566")
        assert "no message of a single client" in found["linkage", "halves matched"]["why"]
    else:
        assert found["linkage", "halves matched, by the server"]["promised"].startswith("nothing")
        assert ("membership", "AUC, by who gets the model") in found
    assert run("report", fitted / mode, "--overwrite").code == 0
    assert "What an attacker learns" in (fitted / mode / "report.html").read_text("utf-8")
