"""A federation of real processes on one machine: `pfedhgp server` and a `pfedhgp client` for every site."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pfedhgp.errors import InputError
from pfedhgp.federation.flower.processes import PARENT, FlowerError, free_port, private_folder


@dataclass(frozen=True)
class Member:
    """A site: its name, its rows, its key and its home."""

    name: str
    data: Path
    key: Path
    home: Path


@dataclass(frozen=True)
class Federation:
    """All that the processes need to know; `command` is how to start `pfedhgp` as a child process."""

    command: tuple[str, ...]
    config: Path
    certificates: Path
    out: Path
    members: tuple[Member, ...]
    overwrite: bool = False
    timeout: float = 600.0

    def run(self, *, quiet: bool = False) -> None:
        """Until the server has written RUN and the sites have their models."""
        port = free_port()
        sink = subprocess.DEVNULL if quiet else None
        server = self._start(self.server_arguments(port), sink)
        sites = []
        try:
            for member in self.members:
                private_folder(member.home, "the home")
                with open(member.home / "site.log", "ab") as log:
                    sites.append(self._start(self.client_arguments(member, port), log))
            while server.poll() is None:
                ended = next((s for s in sites if s.poll() not in (None, 0)), None)
                if ended is not None:
                    place = self.members[sites.index(ended)].home / "site.log"
                    raise FlowerError(f"a site ended with an error: see {place}")
                time.sleep(0.2)
            if server.returncode == 2:
                raise InputError("the server refused the settings: see above")
            if server.returncode:
                raise FlowerError("the server ended with an error: see above")
            end = time.monotonic() + 30.0
            while any(s.poll() is None for s in sites) and time.monotonic() < end:
                time.sleep(0.2)
        finally:
            for process in (server, *sites):
                _stop(process)

    def server_arguments(self, port: int) -> list[str]:
        return [
            "server",
            *("--config", str(self.config), "--sites", str(self.certificates / "sites.toml")),
            *("--certs", str(self.certificates), "--listen", f"127.0.0.1:{port}"),
            *("--out", str(self.out), "--timeout", str(self.timeout)),
            *(["--overwrite"] if self.overwrite else []),
        ]

    def client_arguments(self, member: Member, port: int) -> list[str]:
        return [
            "client",
            *("--data", str(member.data), "--name", member.name, "--home", str(member.home)),
            *("--server", f"127.0.0.1:{port}", "--ca", str(self.certificates / "ca.crt")),
            *("--key", str(member.key), "--least-rows", "1"),
        ]

    def _start(self, arguments: list[str], sink: IO[bytes] | int | None) -> subprocess.Popen[bytes]:
        command = [*self.command, *arguments]
        surroundings = {**os.environ, PARENT: str(os.getpid())}
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=surroundings
        )


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(15.0)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
