"""Masks between real processes: kill -9 of a site and of the server, and the sum of those who are counted."""

from __future__ import annotations

import signal

import pytest

from pfedhgp.model import files
from support.flower_processes import needs_flower
from support.reference_federation import replay, rows_of

needs_flower()
from support.twins_in_process import assert_global_blocks_agree, plan_of  # noqa: E402

pytestmark = pytest.mark.flower


def test_four_sites_with_masks_one_killed_and_the_server_killed(deployment, run):
    """A site and the server are killed in mid-exchange. The server goes on; the site comes back later."""
    rows = rows_of(["north", "south", "east", "west"])
    here = deployment(rows, federation={"masks": True}, inference={"rounds": 2})
    server = here.server("--certs", "certs", "--timeout", "400")
    clients = [_client(here, i) for i in range(4)]
    here.wait_for(lambda: len(here.participation()) == 4, "the extent")
    for process in (clients[1], server):
        process.send_signal(signal.SIGKILL)
        process.wait()
    server = here.server("--certs", "certs", "--timeout", "60")  # for the one that is gone
    here.wait_for(lambda: len(here.participation()) == 5, "the start, without it")
    clients[1] = _client(here, 1)
    assert here.wait(server, "server") == 0, here.out("server")
    for i, client in enumerate(clients):
        assert here.wait(client, f"client-{i}") == 0, here.out(f"client-{i}")
    log = here.participation()
    assert [entry["kind"] for entry in log[:4]] == ["magnitude", "magnitude", "census", "extent"]
    assert log[4]["missing"] == {"south": "no-answer"}
    assert all(set(entry["missing"]) <= {"south"} for entry in log)
    assert_global_blocks_agree(here.run, replay(plan_of(here), rows, log))
    assert "masks: the list of sites has SHA-256" in here.out("server").replace("\n", " ")
    for i, row in enumerate(rows):
        assert run("audit", here.home(i), "--against", here.run).code == 0
        assert list(files.load(here.home(i) / "model").clients) == [row.name]
        sent = [e for e in here.audit(i) if e["direction"] == "sent" and e["kind"] != "deliver"]
        assert {name.partition(":")[0] for e in sent for name in e["arrays"]} == {"masks"}
    for path in here.run.rglob("*"):  # the server has the keys of nobody, and no reply
        assert path.name != "masks.json"


def _client(here, i):
    return here.client(i, *here.credentials(i), "--roster", "certs/sites.toml")
