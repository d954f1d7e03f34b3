"""Where a server listens, checked before Flower is started."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from pathlib import Path

from pfedhgp.errors import InputError
from pfedhgp.federation.flower import processes
from pfedhgp.federation.flower.certificates import check_server_certificate


@dataclass(frozen=True)
class ListenAddress:
    """Where the server listens, and its certificates; None: without TLS, for this machine alone."""

    host: str
    port: int
    certificates: Path | None
    """A folder with ca.crt, server.crt and server.key."""

    def arguments(self) -> list[str]:
        """The options of `flower-superlink`."""
        where = ["--host", self.host, "--port", str(self.port)]
        if self.certificates is None:
            return ["--insecure", *where]
        named = {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}
        pairs = [(f"--ssl-{option}", self.certificates / name) for option, name in named.items()]
        return [*(str(each) for pair in pairs for each in pair), "--enable-supernode-auth", *where]

    def check(self) -> None:
        """Refuses an address or certificate with which Flower would fail."""
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
    def local(self) -> processes.Address:
        """The address for the server's own processes."""
        host = f"[{self.local_host}]" if ":" in self.local_host else self.local_host
        ca = None if self.certificates is None else self.certificates / "ca.crt"
        return processes.Address(f"{host}:{self.port}", ca)
