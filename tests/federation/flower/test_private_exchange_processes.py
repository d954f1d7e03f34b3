"""A private run between processes: a site that is killed spends once, one refuses above its ceiling."""

from __future__ import annotations

import signal

import pytest

from pfedhgp.model import files
from support.flower_processes import needs_flower
from support.reference_federation import rows_of

needs_flower()
pytestmark = pytest.mark.flower


def test_three_sites_release_one_is_killed_and_a_fourth_refuses(deployment, run):
    rows = rows_of(["north", "south", "east", "west"], rows=40)
    here = deployment(
        rows,
        model={"kernel": "rbf(1)", "domain": ["0..5"], "local_inducing": 5, "inducing": "auto"},
        run={"privacy": "local", "epsilon": 2.0, "output_bounds": ["-2..2"]},
    )
    clients = {i: _client(here, i, "2") for i in (0, 1, 2)}
    clients[3] = _client(here, 3, "1")
    server = here.server("--certs", "certs", "--timeout", "300")
    here.wait_for(lambda: (here.home(1) / "ledger" / "ledger.jsonl").exists(), "a release")
    clients[1].send_signal(signal.SIGKILL)
    clients[1].wait()
    clients[1] = _client(here, 1, "2")
    assert here.wait(server, "server") == 0, here.out("server")
    for i in (0, 1, 2):
        assert here.wait(clients[i], f"client-{i}") == 0, here.out(f"client-{i}")
        assert run("audit", here.home(i), "--against", here.run).code == 0
        said = run("ledger", here.home(i)).out
        assert "1 release, ε = 2.000" in said, said
        assert list(files.load(here.home(i) / "model").clients) == [rows[i].name]
    (entry,) = here.participation()
    assert entry["missing"] == {"west": "budget"}
    assert "above this site's --epsilon-ceiling 1" in here.out("client-3").replace("\n", " ")
    assert not (here.home(3) / "ledger").exists()
    assert files.load(here.run).settings["privacy_spent"]["epsilon"] == 2.0


def _client(here, i, ceiling):
    return here.client(i, *here.credentials(i), "--epsilon-ceiling", ceiling)
