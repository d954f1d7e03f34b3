"""Sites that are killed, lie, repeat themselves, say nothing, fail or never come; a server that is killed."""

from __future__ import annotations

import signal
import sys

import pytest

from pfedhgp.model import files
from support.flower_processes import needs_flower
from support.reference_federation import replay, rows_of

needs_flower()
from support.twins_in_process import assert_global_blocks_agree, plan_of  # noqa: E402

pytestmark = pytest.mark.flower
FAULTS = {0: "", 1: "slow", 2: "nan", 3: "replay", 4: "silent", 5: "raise"}
"""By site; the seventh is in the list and is never started."""


@pytest.mark.slow
def test_kills_nan_replays_and_silence(deployment, run):
    """A site is killed in mid-round, the server after the census and in mid-round, others misbehave.

    The log tells all of it. Three sites end without the model. One gets it when the server's command is given
    again; the others are taken out of sites.toml, and the key of one is refused.
    """
    rows = rows_of(["steady", "killed", "nan", "replay", "silent", "raises", "absent"])
    here = deployment(rows, inference={"rounds": 3})
    options = ("--certs", "certs", "--quorum", "2", "--timeout")
    server = here.server(*options, "120")  # two sites that do not answer cost it, once
    clients = {i: here.client(i, fault=fault) for i, fault in FAULTS.items()}
    here.wait_for(lambda: len(here.participation()) == 1, "the census")
    server.send_signal(signal.SIGKILL)
    server.wait()
    server = here.server(*options, "400")

    def at(number):
        return lambda: any(e["code"] == f"slow {number}" for e in here.audit(1))

    here.wait_for(at(1), "the slow site's first round")
    clients[1].send_signal(signal.SIGKILL)
    clients[1].wait()
    clients[1] = here.client(1, fault="slow")
    here.wait_for(at(2), "its second round, after its return")
    server.send_signal(signal.SIGKILL)
    server.wait()
    server = here.server(*options, "400")
    assert here.wait(server, "server") == 0, here.out("server")
    assert here.out("server").count("going on with the run that stopped") == 2
    assert "3 of 7 sites do not have the model yet" in here.out("server")

    _check_participation(here.participation())
    expected = replay(plan_of(here), rows, here.participation())
    assert_global_blocks_agree(here.run, expected)
    _check_no_exception_texts(here.folder)
    _deliver_again(here, clients, options)
    assert_global_blocks_agree(here.run, expected)
    for i in FAULTS:
        assert run("audit", here.home(i)).code == 0


def _check_participation(log):
    assert [entry["kind"] for entry in log] == ["census", "extent", "start", *3 * ["round"]]
    away = {"silent": "no-answer", "absent": "no-answer"}
    spoilt = {"nan": "not-finite", "raises": "internal"}
    for entry in log:
        expected = away | (spoilt if entry["kind"] in ("start", "round") else {})
        expected |= {"replay": "stale"} if entry["kind"] == "round" else {}
        assert {n: c for n, c in entry["missing"].items() if n != "killed"} == expected
    missing = {entry["round"]: entry["missing"] for entry in log if entry["kind"] == "round"}
    assert "killed" not in missing[1], "it was killed and came back within the round"
    assert log[0]["seconds"] >= 120.0, "the census waits for all"
    assert max(entry["seconds"] for entry in log) < 400.0, "later exchanges do not"


def _check_no_exception_texts(folder):
    texts = [p for p in folder.rglob("*") if p.suffix in (".out", ".log", ".jsonl")]
    assert len(texts) > 20
    for path in texts:
        assert "division by zero" not in path.read_text(errors="replace"), path


def _deliver_again(here, clients, options):
    """The silent one is mended, those that failed or never came are withdrawn; the others have gone."""
    for i in (4, 5):
        assert not (here.home(i) / "model").exists()
        clients[i].send_signal(signal.SIGKILL)
        clients[i].wait()
    before = here.participation()
    listed = here.certs / "sites.toml"
    gone = ('"raises"', '"absent"')
    lines = [line for line in listed.read_text().splitlines() if not line.startswith(gone)]
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
    assert not here.home(6).exists()
    assert here.participation() == before, "nothing was trained again"
    assert not (here.run / "checkpoint").exists()
