"""`pfedhgp server`: a SuperLink beside this process, the sites' keys registered, training over its Grid."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfedhgp.errors import InputError
from pfedhgp.federation.flower import control, processes
from pfedhgp.federation.flower.address import Address
from pfedhgp.federation.flower.certs import check_server_certificate, public_bytes
from pfedhgp.federation.flower.coordinator import Coordinator
from pfedhgp.federation.flower.grid_link import ByKey, GridLink


@dataclass(frozen=True)
class Listening:
    """Where the server listens, and with what certificate; None: without TLS, for this machine alone."""

    host: str
    port: int
    certificates: Path | None
    """A folder with ca.crt, server.crt and server.key."""

    def arguments(self) -> list[str]:
        if self.certificates is None:
            return ["--insecure"]
        files = {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}
        named = [(f"--ssl-{option}", self.certificates / name) for option, name in files.items()]
        return [*(str(each) for pair in named for each in pair), "--enable-supernode-auth"]

    def check(self) -> None:
        """Refuses an address or a certificate that Flower would fail with, in words of its own."""
        where = f"--listen {self.host}:{self.port}"
        try:
            family, kind, _, _, address = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen()
        except OSError as error:
            busy = f"port {self.port} is in use by another program: choose another port"
            why = {errno.EADDRINUSE: busy, errno.EADDRNOTAVAIL: "not an address of this machine"}
            problem = why.get(error.errno or 0, error.strerror or str(error))
            raise InputError(f"{where}: {problem}") from None
        if self.certificates is not None:
            check_server_certificate(self.certificates, self.local_host)

    @property
    def local_host(self) -> str:
        """The name by which the server's own processes reach it."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "localhost", "127.0.0.1") else self.host
        return "::1" if self.host in ("::", "::1") else host

    @property
    def local(self) -> Address:
        """How this machine reaches it."""
        host = f"[{self.local_host}]" if ":" in self.local_host else self.local_host
        return Address(
            f"{host}:{self.port}",
            None if self.certificates is None else self.certificates / "ca.crt",
        )


def serve(coordinator: Coordinator, listening: Listening) -> dict[str, Any]:
    """Trains, writes RUN and ends; after a kill the same call goes on from the checkpoint."""
    folder = coordinator.out / "checkpoint" / "flower"
    processes.private_folder(coordinator.out / "checkpoint", "--out")
    with processes.locked(coordinator.out / "checkpoint", "server") as lock:
        listening.check()  # a server that was killed holds the lock until its port is free
        secret = processes.secret_file(folder / "secret")
        if not coordinator.resume:
            (folder / "state.db").unlink(missing_ok=True)
        (folder / "ready").unlink(missing_ok=True)
        child = processes.start(
            "superlink",
            [
                *listening.arguments(),
                *("--host", listening.host, "--port", str(listening.port)),
                *("--isolation", "process", "--superexec-auth-secret-file", str(folder / "secret")),
                *("--database", str(folder / "state.db")),
                "--disable-runtime-dependency-installation",
            ],
            folder=folder,
            lock=lock,
        )
        os.environ.update(processes.QUIET)
        try:
            return _train(coordinator, listening, secret, folder, child)
        finally:
            child.stop()


def _train(
    coordinator: Coordinator,
    listening: Listening,
    secret: bytes,
    folder: Path,
    child: processes.Child,
) -> dict[str, Any]:
    address, directory = listening.local, None
    control.wait_until_up(address, lambda: child.running, log=child.log)
    if listening.certificates is not None:
        names = {public_bytes(key, name): name for name, key in coordinator.keys.items()}
        control.register(address, names)
        directory = ByKey(names)
    (folder / "ready").touch()
    coordinator.waiting()
    noted = folder / "run"
    before = int(noted.read_text()) if coordinator.resume and noted.is_file() else None
    run_id = control.start_run(address, before)
    noted.write_text(str(run_id))
    with control.server_grid(address, secret, run_id) as grid:
        return coordinator.run(GridLink(grid, coordinator.sites, directory))
