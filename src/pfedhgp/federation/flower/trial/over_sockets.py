"""A trial over real sockets: `pfedhgp server` with its SuperLink, and sites in a few processes.

TLS, keys, Flower's Fleet API, the server's process and its files are the real ones. Simulated are the sites'
machines: many sites share a process, and all share this machine with the server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pfedhgp.federation.flower import processes
from pfedhgp.federation.flower.certificates import make_certificates
from pfedhgp.federation.flower.processes import FlowerError
from pfedhgp.federation.flower.trial.population import Population

TICKS, PAGE = os.sysconf("SC_CLK_TCK"), 1024


@dataclass(frozen=True)
class Usage:
    """What a process has taken: seconds of processor time, and MB of memory at its most."""

    seconds: float = 0.0
    peak_mb: float = 0.0


def usage_of(pid: int, before: Usage = Usage()) -> Usage:
    """From /proc; `before` if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return before
    peak = next((line.split()[1] for line in status if line.startswith("VmHWM")), None)
    seconds = (int(fields[11]) + int(fields[12])) / TICKS
    return Usage(seconds, before.peak_mb if peak is None else int(peak) / PAGE)


def child_of(pid: int) -> int | None:
    """The server's SuperLink."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    return int(found[0]) if found else None


@dataclass(frozen=True)
class Trial:
    """`command` is how to start `pfedhgp`; everything is written below `folder`."""

    population: Population
    command: Sequence[str]
    config: Path
    folder: Path
    processes: int = 2
    timeout: float = 120.0
    quorum: int = 1

    def run(self, say: Callable[[str], None]) -> tuple[list[dict[str, Any]], dict[str, Usage]]:
        """(participation log, what the server's two processes took)"""
        folder, names = self.folder, self.population.names
        say(f"making keys for {len(names)} sites")
        keys = make_certificates(folder / "certs", names, ["127.0.0.1"])
        address = f"127.0.0.1:{processes.free_port()}"
        environment = {**os.environ, **processes.OFFLINE, processes.PARENT: str(os.getpid())}
        with open(folder / "server.log", "ab") as log:
            server = subprocess.Popen(
                [
                    *(*self.command, "server", "--config", str(self.config), "--listen", address),
                    *(
                        "--sites",
                        str(folder / "certs" / "sites.toml"),
                        "--out",
                        str(folder / "RUN"),
                    ),
                    *("--timeout", str(self.timeout), "--quorum", str(self.quorum)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        hosts: list[subprocess.Popen[bytes]] = []
        try:
            hosts = [self._host(i, address, keys, environment) for i in range(self.processes)]
            used = self._watch(server, say)
        finally:
            for process in (*hosts, server):
                processes.stop_process(process, patience=15.0)
        if server.returncode not in (0, 1):
            raise FlowerError(f"the server ended with an error: see {folder / 'server.log'}")
        lines = (folder / "RUN" / "participation.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines], used

    def _host(
        self, i: int, server: str, keys: dict[str, Path], environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        mine = list(self.population.names)[i :: self.processes]
        settings = self.folder / f"host-{i}.json"
        given = {
            "population": asdict(self.population),
            "folder": str(self.folder),
            "config": str(self.config),
            "server": server,
            "ca": str(self.folder / "certs" / "ca.crt"),
            "keys": {name: str(keys[name]) for name in mine},
        }
        settings.write_text(json.dumps(given), "utf-8")
        own = {"FLWR_HOME": str(self.folder / f"host-{i}")}
        with open(self.folder / f"host-{i}.log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "pfedhgp.federation.flower.trial.host", str(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**environment, **own},
            )

    def _watch(
        self, server: subprocess.Popen[bytes], say: Callable[[str], None]
    ) -> dict[str, Usage]:
        """Until the server ends; says what it says, and how much it takes."""
        own = link = Usage()
        superlink, shown = None, 0
        while server.poll() is None:
            own = usage_of(server.pid, own)
            superlink = superlink or child_of(server.pid)
            link = link if superlink is None else usage_of(superlink, link)
            text = (self.folder / "server.log").read_text(errors="replace")
            for line in text[shown:].splitlines() if text.endswith("\n") else []:
                say(f"server: {line}")
            shown = len(text) if text.endswith("\n") else shown
            time.sleep(0.5)
        return {"server": own, "superlink": link}
