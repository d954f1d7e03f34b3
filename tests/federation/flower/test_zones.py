"""Zones between real processes: with `federate`, and later, with sites that stayed."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from pfedhgp.data.rows import ClientRows
from pfedhgp.model import files
from pfedhgp.zones.clustering import ClusterSettings, discover
from support.flower_processes import needs_flower

needs_flower()
pytestmark = pytest.mark.flower
NAMES = ("a", "b", "c", "d")


def rows_of_zones() -> list[ClientRows]:
    """Two zones of two sites."""
    found = []
    for i, name in enumerate(NAMES):
        rng = np.random.default_rng([3, i])
        X = np.sort(rng.uniform(0.0, 5.0, (20, 1)), axis=0)
        sign = 1.0 if name in "ab" else -1.0
        Y = np.sin(X) + sign * np.cos(3.0 * X) + 0.05 * rng.normal(size=X.shape)
        found.append(ClientRows(name, X, Y))
    return found


def test_zones_come_later_with_sites_that_stayed(deployment, run):
    """One site reveals nothing, and is left out. The labels are those of one process."""
    rows = rows_of_zones()
    here = deployment(rows, inference={"rounds": 1})
    for i in range(4):
        reveal = ["--reveal", "1"] if i < 3 else []
        here.client(i, *here.credentials(i), "--stay", *reveal)
    assert here.wait(here.server(), "server") == 0, here.out("server")
    assert not (here.run / "zones").exists()
    assert here.wait(here.server("--zones", "2"), "server") == 0, here.out("server")
    found = json.loads((here.run / "zones" / "zones.json").read_text())
    assert found["clients"] == ["a", "b", "c"]
    assert found["labels"] == {"a": 0, "b": 0, "c": 1}
    models = [files.load(here.home(i) / "model") for i in range(3)]
    clients = {n: m.clients[n] for n, m in zip(NAMES, models, strict=False)}
    jitter = {n: m.client_jitter[n] for n, m in zip(NAMES, models, strict=False)}
    whole = replace(models[0], clients=clients, client_jitter=jitter)
    known = {row.name: (row.X, row.Y) for row in rows}
    expected = discover(whole, ClusterSettings(groups=2), rows=known)
    assert found["labels"] == expected.labels
    np.testing.assert_allclose(found["distances"], expected.distances, rtol=1e-9, atol=1e-9)
    for name in found["clients"]:
        assert found["r2"][name] == pytest.approx(expected.r2[name], abs=0.0051)
    (asked,) = (e for e in here.participation() if e["kind"] == "zones")
    assert asked["missing"] == {"d": "reveal"}
    assert "this site sends nothing for zones" in here.out("client-3")
    for i in range(4):
        kinds = {line["kind"] for line in here.audit(i) if "kind" in line}
        assert {"deliver", "zones", "zones: groups"} <= kinds
        group = json.loads((here.home(i) / "zones.json").read_text())["group"]
        assert group == (1, 1, 2, 0)[i]
    assert not (here.run / "checkpoint").exists()
    assert (here.run / "zones" / "zones.html").stat().st_size > 1_000
    assert run("audit", here.home(0), "--against", here.run).code == 0


def test_federate_finds_the_zones_of_cluster(deployment, run, tmp_path):
    """In the trial on one machine, sites reveal whatever it takes; RUN and the report have the groups."""
    here = deployment(rows_of_zones())
    table = [
        pl.DataFrame({"site": row.name, "x": row.X[:, 0], "y": row.Y[:, 0]}) for row in here.rows
    ]
    pl.concat(table).write_csv(tmp_path / "all.csv")
    out = tmp_path / "TRIAL"
    options = ["--client", "site", "--input", "x", "--output", "y", "--inducing", "5"]
    options += ["--local-inducing", "5", "--rounds", "1", "--zones", "2", "--out", str(out)]
    options += ["--privacy", "none"]  # sums of 20 rows would tell too much
    program = [sys.executable, "-m", "pfedhgp.cli.main", "federate", str(tmp_path / "all.csv")]
    done = here.start("federate", [*program, *options])
    assert here.wait(done, "federate") == 0, here.out("federate")
    found = json.loads((out / "zones" / "zones.json").read_text())
    assert found["labels"] == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert "zones.html" in here.out("federate")
    again = run("cluster", out, "--groups", "2", "--out", tmp_path / "again", "--json")
    assert again.code == 0, again.err
    assert json.loads(again.out)["labels"] == found["labels"]
    assert "group 2" in (out / "report.html").read_text().lower()
    assert run("report", out, "--overwrite").code == 0, "zones belong to the model of RUN"
