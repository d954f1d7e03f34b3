"""Bad networks, a damaged checkpoint, a removed home and a flood of bytes, in one run of processes."""

from __future__ import annotations

import http.client
import shutil
import signal
import ssl
import time
from pathlib import Path

import pytest

from support.bad_network import CUT, DUPLICATE, GARBLE, LOSE, PASS, BadNetwork
from support.flower_processes import needs_flower
from support.reference_federation import replay, rows_of

needs_flower()
from pfedhgp.federation.flower.processes import free_port  # noqa: E402
from support.twins_in_process import assert_global_blocks_agree, plan_of  # noqa: E402

pytestmark = pytest.mark.flower
FAULTS = [(GARBLE, CUT, GARBLE), (DUPLICATE, GARBLE, CUT), (LOSE, DUPLICATE, CUT)]
"""By site: what its network does in training, while the server is away and comes back, and in delivery."""
LAST = 6.0
"""Seconds that a fault lasts; Flower took the first handshake that failed for a wrong certificate."""
FLOOD = 64 * 1024 * 1024


@pytest.mark.slow
def test_sites_come_back_after_every_fault_of_the_network(deployment, run):
    rows = rows_of(["cut", "garbled", "lost"])
    here = deployment(rows, inference={"rounds": 4})
    networks = [BadNetwork(here.port) for _ in rows]
    options = ("--certs", "certs", "--timeout", "300", "--quorum", "3")
    try:
        server = here.server(*options)
        gone = here.client(0, *here.credentials(0), port=free_port(), home="home-gone")
        clients = [here.client(i, port=network.port) for i, network in enumerate(networks)]
        here.wait_for(lambda: len(here.participation()) >= 1, "the census")
        shutil.rmtree(here.folder / "home-gone")
        _suffer(networks, 0)
        here.wait_for(lambda: len(here.participation()) >= 4, "the first round")
        server.send_signal(signal.SIGKILL)
        server.wait()
        skipped = _flip_a_bit(here.run / "checkpoint")
        server = here.server(*options)
        _suffer(networks, 1)
        here.wait_for(lambda: "connected" in here.out("server").partition("going on")[2], "a site")
        _check_flood(here, server.pid)
        here.wait_for(lambda: "training is done" in here.out("server"), "the delivery")
        _suffer(networks, 2)
        assert here.wait(server, "server") == 0, here.out("server")
        for i, client in enumerate(clients):
            assert here.wait(client, f"client-{i}") == 0, here.out(f"client-{i}")
        assert here.wait(gone, "home-gone") == 2, here.out("home-gone")
    finally:
        for network in networks:
            network.close()
    assert all(network.harmed for network in networks)
    assert f"{skipped}/server.safetensors: corrupted" in here.out("server")
    assert "skipped; going on from" in here.out("server")
    assert "still gaining" in here.out("server"), "it warns, as `fit` does"
    assert "home-gone was removed while the site was running" in here.out("home-gone")
    assert "Traceback" not in here.out("home-gone")
    log = here.participation()
    assert not any(entry["missing"] for entry in log)
    assert_global_blocks_agree(here.run, replay(plan_of(here), rows, log))
    assert here.run.stat().st_mode & 0o777 == 0o700
    for i in range(len(rows)):
        assert run("audit", here.home(i), "--against", here.run).code == 0


def _suffer(networks, turn):
    for network, faults in zip(networks, FAULTS, strict=True):
        network.set(faults[turn])
    time.sleep(LAST)
    for network in networks:
        network.set(PASS)


def _flip_a_bit(folder):
    """In the newest checkpoint; returns its name."""
    newest = max(path for path in folder.iterdir() if path.name.isdigit())
    part = newest / "server.safetensors"
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(bytes(content))
    return newest.name


def _check_flood(here, server):
    """Two posts of 64 MB without a key are refused unread, and cost the server no memory."""
    process = _superlink_of(server)
    before = _most_memory(process)
    for _ in range(2):
        context = ssl.create_default_context(cafile=here.certs / "ca.crt")
        there = http.client.HTTPSConnection("127.0.0.1", here.port, context=context, timeout=60.0)
        there.putrequest("POST", "/v1/fleet/push-object")
        there.putheader("content-length", str(FLOOD))
        there.endheaders()
        try:
            for _ in range(FLOOD // 65_536):
                there.send(bytes(65_536))
        except (TimeoutError, OSError):
            pass  # it has hung up
        else:
            assert there.getresponse().status == 413
        there.close()
    assert _most_memory(process) - before < FLOOD / 4


def _superlink_of(server: int) -> Path:
    """The folder in /proc of the server's SuperLink."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and (path / "status").exists():
            words = (path / "cmdline").read_bytes().split(b"\0")
            parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
            if b"pfedhgp.federation.flower.superlink" in words and int(parent) == server:
                return path
    raise AssertionError("there is no SuperLink")


def _most_memory(process: Path) -> int:
    """Bytes that it had in memory at most."""
    line = next(x for x in (process / "status").read_text().splitlines() if x.startswith("VmHWM"))
    return 1024 * int(line.split()[1])
