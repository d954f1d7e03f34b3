"""`pfedhgp federate`: a trial on one machine, with cycles and restarts; killed, and resumed."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from pfedhgp import FederatedGP
from support.flower_processes import Deployment, needs_flower

needs_flower()
import httpx  # noqa: E402

from pfedhgp.federation.flower.processes import free_port, heartbeat_of  # noqa: E402
from support.reference_federation import rows_of  # noqa: E402

pytestmark = pytest.mark.flower
COLUMNS = {"data": {"inputs": ["x"], "outputs": ["y"]}}
GRID = np.linspace(0.0, 5.0, 8)
OPTIONS = [
    *("--client", "site", "--input", "x", "--output", "y", "--cycle", "stroke"),
    *("--cycles", "free", "--cycle-basis", "4", "--rounds", "1", "--restarts", "2"),
    *("--inducing", "5", "--local-inducing", "5", "--no-report", "--privacy", "none"),
]


def strokes() -> pl.DataFrame:
    """Two presses, each with six strokes on one grid; a stroke has its own slow departure."""
    rng = np.random.default_rng(5)
    parts = []
    for i, site in enumerate(("north", "south")):
        for stroke in range(6):
            departure = 0.3 * rng.normal() * np.sin(GRID) + 0.2 * rng.normal()
            y = np.cos(GRID + 0.4 * i) + departure + 0.05 * rng.normal(size=len(GRID))
            parts.append(pl.DataFrame({"site": site, "stroke": str(stroke), "x": GRID, "y": y}))
    return pl.concat(parts)


def test_federate_is_fit_with_processes(tmp_path, cache, run):
    """After kill -9 in the middle, `--resume` goes on; the model is that of `fit`, one client at a time."""
    here = Deployment(tmp_path, cache, rows_of(["unused"]), COLUMNS, free_port())
    strokes().write_parquet(tmp_path / "all.parquet")
    table, many = str(tmp_path / "all.parquet"), tmp_path / "many"
    done = run("fit", table, *OPTIONS, "--one-by-one", "--out", tmp_path / "one")
    assert done.code == 0, done.err
    program = [sys.executable, "-m", "pfedhgp.cli.main", "federate"]
    first = here.start("federate", [*program, table, *OPTIONS, "--out", str(many)])
    try:
        here.wait_for(lambda: _exchanges(many) >= 3, "three exchanges")
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    stopped, rows = _exchanges(many), Path((many / "checkpoint" / "private").read_text())
    assert len(list(rows.glob("*.parquet"))) == 2
    second = here.start("resumed", [*program, "--resume", "--out", str(many)])
    assert here.wait(second, "resumed") == 0, here.out("resumed")
    assert "going on with the run that stopped" in here.out("resumed")

    one, two = FederatedGP.load(tmp_path / "one"), FederatedGP.load(many)
    assert one.exchanges_ == two.exchanges_ > stopped
    assert [r["attempt"] for r in two.history_] == [0, 0, 1, 1]
    assert two.model_.cycle_layer.form == one.model_.cycle_layer.form == "free"
    for name in ("north", "south"):
        found, expected = two.predict(name, GRID[:, None]), one.predict(name, GRID[:, None])
        np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-8)
        np.testing.assert_allclose(found.sd, expected.sd, rtol=1e-8)
    assert len(list((many / "sites").iterdir())) == 2
    assert not list(many.rglob("*.parquet"))
    assert not rows.exists(), "resuming takes away what the killed one left"
    audited = run("audit", many)
    assert (audited.code, audited.out.count("whole, ends in")) == (0, 3), "the sites' logs, too"


def _exchanges(run) -> int:
    """How many exchanges the newest checkpoint has."""
    folder = run / "checkpoint"
    there = [int(p.name) for p in folder.iterdir() if p.name.isdigit()] if folder.is_dir() else []
    return max(there, default=0)


def test_a_task_that_is_over_ends_no_heartbeat():
    answer = httpx.Response(401, request=httpx.Request("POST", "http://127.0.0.1"))

    def over(request):
        raise httpx.HTTPStatusError("Unauthorized", request=answer.request, response=answer)

    sender = heartbeat_of(SimpleNamespace(SendTaskHeartbeat=over))
    assert sender.heartbeat_fn() is False
