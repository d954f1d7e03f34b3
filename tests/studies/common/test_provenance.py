"""Who computed a result is read from its records, never from who writes the report."""

from __future__ import annotations

import json

from pfedhgp.studies.common import provenance
from pfedhgp.studies.common.provenance import MADE, common, devices, lines, made_here, sets
from pfedhgp.studies.common.records import measured
from pfedhgp.studies.common.store import Store
from pfedhgp.studies.synthetic import report
from pfedhgp.studies.synthetic.study import KEY

THERE = {"device": "gpu", "accelerator": "Some GPU", "machine": "x86_64", "processor": "Some CPU"}
THERE |= {
    "cores": 16,
    "pfedhgp": "0.1",
    "python": "3.12",
    "jax": "0.11",
    "numpy": "2",
    "scipy": "1",
}


def record(run: int, made: dict | None) -> dict:
    values = {"rmse": 0.3, "nll": 1.0, "crps": 0.1, "coverr": 0.1, "width": 1.0, "coverage": 0.9}
    values |= {"ece": 0.01, "rounds": 2.0, "exchanges": 4.0, "bytes": 9.0, "seconds": 100.0}
    found = {"scenario": "A", "model": "local-only", "run": run, "metrics": values, "curve": []}
    return {**found, "coverage": [0.5] * 19, **({MADE: made} if made else {})}


def test_sets_are_told_one_a_line_and_mixed_is_said():
    days = ("2026-01-03", "2026-01-02", "2026-01-02")
    found = sets([*(record(r, {**THERE, "date": d}) for r, d in enumerate(days)), record(3, None)])
    assert [one["runs"] for one in found] == [3, 1]
    assert found[0]["dates"] == ["2026-01-02", "2026-01-03"]
    assert devices(found) == "mixed"
    told = lines(found)
    assert told[0].startswith("Mixed: ")
    assert told[1].startswith(
        "3 records: 2026-01-02 to 2026-01-03, gpu (Some GPU), 16 cores (x86_64, "
    )
    assert told[2] == "1 records: device, machine, versions and date not recorded."
    assert devices(found[:1]) == "gpu"
    assert len(lines(found[:1])) == 1
    (alone,) = lines(sets([record(0, {**THERE, "cores": 1, "date": days[0]})]))
    assert "gpu (Some GPU), 1 core (x86_64, " in alone


def test_a_report_written_elsewhere_names_who_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "machine", lambda: {"date": "2030-01-01", "python": "9.9"})
    store = Store(tmp_path, {}, key=KEY)
    for run in (0, 1):
        store.add(record(run, {**THERE, "date": "2026-01-02"}))
    chosen = {"scenarios": ["A"], "models": ["local-only"], "runs": 2}
    report.write_synthetic(store, figures=False, **chosen)
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["config"]["device"] == "gpu"
    assert found["config"]["made"][0]["accelerator"] == "Some GPU"
    for name in ("results.json", "tables.md", "report.html"):
        text = (tmp_path / name).read_text()
        assert "2030" not in text
        assert "2026-01-02" in text
    assert not any(r["metric"] == "seconds" for r in found["records"])  # a batch's, nobody's own


def test_a_part_asked_for_later_does_not_hide_the_rest(tmp_path):
    store = Store(tmp_path, {}, key=KEY)
    for run in (0, 1):
        store.add(record(run, None))
    store.add({**record(0, None), "scenario": "C", "model": "oracle"})
    asked = {"scenarios": ["C"], "models": ["oracle"], "runs": 1}
    found = report.write_synthetic(store, figures=False, **asked)
    rows = {(r["scenario"], r["model"]): r["runs"] for r in found["records"] if "printed" not in r}
    assert rows == {("C", "oracle"): 1, ("A", "local-only"): 2}
    assert found["config"]["scenarios"] == ["A", "C"]
    assert found["config"]["runs"] == 2
    page = (tmp_path / "report.html").read_text()
    assert "<p>oracle: the exact" in page
    assert "<p>algorithm1: " not in page  # notes are on the rows that are there
    assert '<meta name="viewport" content="width=device-width' in page
    assert page.count("<table>") == page.count('<div class="wide"><table>') == 1  # no empty ones


def test_seconds_are_kept_of_runs_one_by_one():
    here = made_here("cpu")
    assert here["device"] == "cpu"
    assert here["cores"] >= 1
    assert "seconds" in measured([record(0, here)])
    assert "seconds" not in measured([record(0, here), record(1, THERE)])


def test_a_row_put_together_has_what_its_parts_share():
    assert common([record(0, THERE), record(1, THERE)]) == THERE
    assert common([record(0, THERE), record(1, None)]) is None
