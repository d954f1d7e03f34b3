"""Sites that are killed, lie, repeat themselves, fall silent or fail, and a server that is killed."""

from __future__ import annotations

import signal
import sys

import pytest

from flower_processes import needs_flower
from pfedhgp.model import files
from reference_federation import replay, rows_of

needs_flower()
from twins_in_process import assert_global_blocks_agree, plan_of  # noqa: E402

pytestmark = pytest.mark.flower
FAULTS = {0: "", 1: "slow", 2: "nan", 3: "replay", 4: "silent", 5: "raise"}


@pytest.mark.slow
def test_kills_nan_replays_and_silence(deployment, run):
    """A site and the server are killed in mid-round, others misbehave; the log tells all of it.

    Two sites end without the model. One gets it when the server's command is given again; the other one is
    taken out of sites.toml, and its key is refused.
    """
    rows = rows_of(["steady", "killed", "nan", "replay", "silent", "raises"])
    here = deployment(rows, inference={"rounds": 3})
    options = ("--certs", "certs", "--quorum", "2", "--timeout")
    server = here.server(*options, "400")
    clients = {i: here.client(i, fault=fault) for i, fault in FAULTS.items()}

    def at(number):
        return lambda: any(e["code"] == f"slow {number}" for e in here.audit(1))

    here.wait_for(at(1), "the slow site's first round")
    clients[1].send_signal(signal.SIGKILL)
    clients[1].wait()
    clients[1] = here.client(1, fault="slow")
    here.wait_for(at(2), "its second round, after its return")
    server.send_signal(signal.SIGKILL)
    server.wait()
    server = here.server(*options, "120")  # the site that falls silent in round 2 costs it, once
    assert here.wait(server, "server") == 0, here.out("server")
    assert "going on with the run that stopped" in here.out("server")
    assert "2 of 6 sites have not got the model" in here.out("server")

    _check_participation(here.participation())
    expected = replay(plan_of(here), rows, here.participation())
    assert_global_blocks_agree(here.run, expected)
    _check_no_exception_texts(here.folder)
    _deliver_again(here, clients, options)
    assert_global_blocks_agree(here.run, expected)
    for i in range(len(rows)):
        assert run("audit", here.home(i)).code == 0


def _check_participation(log):
    missing = {entry["round"]: entry["missing"] for entry in log if entry["kind"] == "round"}
    assert set(missing) == {1, 2, 3}
    for found in missing.values():
        assert found["nan"] == "not-finite"
        assert found["replay"] == "stale"
        assert found["raises"] == "internal"
    assert "silent" not in missing[1]
    assert missing[2]["silent"] == missing[3]["silent"] == "no-answer"
    assert "killed" not in missing[1], "it was killed and came back within the round"
    assert all("steady" not in found for found in missing.values())


def _check_no_exception_texts(folder):
    texts = [p for p in folder.rglob("*") if p.suffix in (".out", ".log", ".jsonl")]
    assert len(texts) > 20
    for path in texts:
        assert "division by zero" not in path.read_text(errors="replace"), path


def _deliver_again(here, clients, options):
    """The one that fell silent is mended, the one that always failed withdrawn; the others have gone."""
    for i in (4, 5):
        assert not (here.home(i) / "model").exists()
        clients[i].send_signal(signal.SIGKILL)
        clients[i].wait()
    before = here.participation()
    listed = here.certs / "sites.toml"
    lines = [line for line in listed.read_text().splitlines() if '"raises"' not in line]
    listed.write_text("\n".join(lines))
    again = here.server(*options, "300")
    anew = [*here.client_arguments(5)[:-1], str(here.folder / "home-anew"), *here.credentials(5)]
    refused = here.start("withdrawn", [sys.executable, "-m", "pfedhgp.cli.main", *anew])
    assert here.wait(refused, "withdrawn") == 2, here.out("withdrawn")
    assert "refused this site's key" in here.out("withdrawn").replace("\n", " ")
    late = here.client(4)
    assert here.wait(again, "server") == 0, here.out("server")
    assert here.wait(late, "client-4") == 0, here.out("client-4")
    assert "raises was withdrawn" in here.out("server")
    for i, row in enumerate(here.rows[:5]):
        assert list(files.load(here.home(i) / "model").clients) == [row.name]
    assert not (here.home(5) / "model").exists()
    assert here.participation() == before, "nothing was trained again"
    assert not (here.run / "checkpoint").exists()
