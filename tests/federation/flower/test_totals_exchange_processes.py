"""Private runs by totals between processes: kill -9 costs nothing twice, and attacks on what left."""

from __future__ import annotations

import json
import signal

import polars as pl
import pytest

from pfedhgp.model import files
from support.flower_processes import needs_flower
from support.reference_federation import rows_of

needs_flower()
pytestmark = pytest.mark.flower
MODEL = {"kernel": "rbf(1)", "domain": ["0..5"], "local_inducing": 5, "inducing": "auto"}


def test_distributed_sites_and_server_are_killed_and_nothing_is_paid_twice(deployment, run):
    """A site dies after it was charged, the server after the first total: both go on from their disks."""
    rows = rows_of(["north", "south", "east"], rows=40)
    here = deployment(
        rows,
        model=MODEL,
        federation={"masks": True},
        run={"privacy": "distributed", "epsilon": 2.0, "output_bounds": ["-2..2"]},
    )
    clients = {i: _client(here, i) for i in (0, 1, 2)}
    server = here.server("--certs", "certs", "--timeout", "300")
    here.wait_for(lambda: _lines(here, 1) >= 1, "a charge")
    clients[1].send_signal(signal.SIGKILL)
    clients[1].wait()
    clients[1] = _client(here, 1)
    here.wait_for(lambda: len(here.participation()) >= 1, "the first total")
    server.send_signal(signal.SIGKILL)
    server.wait()
    server = here.server("--certs", "certs", "--timeout", "300")
    assert here.wait(server, "server") == 0, here.out("server")
    for i in (0, 1, 2):
        assert here.wait(clients[i], f"client-{i}") == 0, here.out(f"client-{i}")
        assert run("audit", here.home(i), "--against", here.run).code == 0
        said = run("ledger", here.home(i)).out
        assert "3 releases, ε = 2.000" in said, said
        assert list(files.load(here.home(i) / "model").clients) == [rows[i].name]
        sent = [e for e in here.audit(i) if e["direction"] == "sent" and e["kind"] != "deliver"]
        assert {name.partition(":")[0] for e in sent for name in e["arrays"]} == {"masks"}
    assert [entry["exchange"] for entry in here.participation()] == [1, 2, 3, 4]
    spent = files.load(here.run).settings["privacy_spent"]
    assert (spent["mode"], spent["epsilon"], spent["tolerated"]) == ("distributed", 2.0, 1)
    _write(rows[0], here.folder / "rows.csv")
    done = run("audit", here.home(0), "--attack", "--data", here.folder / "rows.csv", "--json")
    assert done.code == 0, done.err
    found = {(f["attack"], f["measure"]): f for f in json.loads(done.out)["attacks"]}
    assert "AUC at most" in found["membership", "AUC"]["promised"]


def test_central_by_federate_and_the_attacks_on_its_run(tmp_path, run):
    """The server that adds the noise can compute rows; who gets the model cannot."""
    rows = rows_of(["north", "south", "east"], rows=40)
    for row in rows:
        _write(row, tmp_path / f"{row.name}.csv")
    tables = [
        pl.read_csv(tmp_path / f"{r.name}.csv").with_columns(pl.lit(r.name).alias("site"))
        for r in rows
    ]
    pl.concat(tables).write_csv(tmp_path / "all.csv")
    given = ["--client", "site", "--input", "x", "--output", "y", "--kernel", "rbf(1)"]
    given += ["--privacy", "central", "--epsilon", "2", "--domain", "0..5", "--output-bounds=-2..2"]
    done = run("federate", tmp_path / "all.csv", *given, "--no-report", "--out", tmp_path / "RUN")
    assert done.code == 0, done.err
    found = files.load(tmp_path / "RUN")
    assert sorted(found.clients) == ["east", "north", "south"]
    assert found.settings["privacy_spent"]["noise_at_server"] is True
    done = run("audit", tmp_path / "RUN", "--attack", "--data", tmp_path / "all.csv", "--json")
    assert done.code == 0, done.err
    told = {(f["attack"], f["measure"]): f["found"] for f in json.loads(done.out)["attacks"]}
    assert told["membership", "AUC, by the server"]["value"] > 0.95
    assert told["membership", "AUC, by who gets the model"]["value"] < 0.8


def _write(row, path):
    pl.DataFrame({"x": row.X[:, 0], "y": row.Y[:, 0]}).write_csv(path)


def _lines(here, i):
    path = here.home(i) / "ledger" / "ledger.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def _client(here, i):
    more = ("--epsilon-ceiling", "2", "--roster", "certs/sites.toml")
    return here.client(i, *here.credentials(i), *more)
