"""Where a site's server is, and whether it is there: with the right certificate, or why not."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pfedhgp.errors import InputError

PROBE_EVERY = 5.0
"""Seconds between two looks at whether the server is there."""
CONNECT_TIMEOUT = 10.0
DATE_ERRORS, NAME_ERRORS = (9, 10), (62, 64)
"""OpenSSL's verify codes: not yet valid, expired; another name, another address."""
MOST_DOUBTS = 3
"""Wrong certificates in a row before a server that had a right one is not believed any more: bytes may have
been garbled on the way."""


@dataclass(frozen=True)
class ServerAddress:
    """Where the server is, the CA of its certificate, and this site's key. No CA: without TLS."""

    host: str
    port: int
    ca: Path | None
    key: Path | None

    @property
    def text(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def arguments(self) -> list[str]:
        """The options of `flower-supernode`."""
        if self.ca is None:
            return ["--superlink", self.text, "--insecure"]
        key = ["--auth-supernode-private-key", str(self.key)]
        return ["--superlink", self.text, "--root-certificates", str(self.ca), *key]


def check_certificate(server: ServerAddress) -> str:
    """Raises if the server's certificate is not the CA's. Returns why there is no server yet, or ""."""
    try:
        context = None if server.ca is None else ssl.create_default_context(cafile=str(server.ca))
    except (OSError, ssl.SSLError):
        raise InputError(f"{server.ca}: not a certificate in PEM form") from None
    try:
        with socket.create_connection((server.host, server.port), timeout=CONNECT_TIMEOUT) as plain:
            if context is not None:
                context.wrap_socket(plain, server_hostname=server.host).close()
            return ""
    except ssl.SSLCertVerificationError as error:
        problem = {
            **dict.fromkeys(DATE_ERRORS, "is not valid now, or this machine's clock is wrong"),
            **dict.fromkeys(NAME_ERRORS, "is for another name"),
        }.get(error.verify_code, f"was not signed by {server.ca}")
        raise InputError(
            f"the certificate of {server.text} {problem}: {error.verify_message}"
        ) from None
    except OSError as error:
        return _why_unreachable(error)


def _why_unreachable(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"its name is unknown here ({error.strerror})"
    if isinstance(error, ssl.SSLError):
        return f"what listens there does not speak TLS correctly ({error.reason})"
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused: no server listens there"
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_TIMEOUT:g} s: a firewall, or the machine is down"
    return error.strerror or type(error).__name__


@dataclass
class ServerProbe:
    """Looks now and then whether the server is there with a certificate of the CA, until it was.

    Flower's SuperNode cannot tell a wrong certificate from a server that has not started.
    """

    server: ServerAddress
    say: Callable[[str], None] = lambda text: None
    was_there: bool = False
    probed: float = -PROBE_EVERY
    last_reason: str = ""
    """Why the server was not there when it was last looked for."""
    told: set[str] = field(default_factory=set)
    """The reasons that the user was told since the server was last there."""
    doubts: int = 0

    def probe(self, *, now: bool = False) -> bool:
        """Whether the server was there; with `now`, whether it is. Raises if its certificate is wrong."""
        if now or (not self.was_there and time.monotonic() - self.probed > PROBE_EVERY):
            why = self._check()
            self.was_there, self.probed = self.was_there or not why, time.monotonic()
            if why and why not in self.told:
                self.say(f"waiting for the server at {self.server.text}: {why}")
            self.told = {*self.told, why} if why else set()
            self.last_reason = why
            return not why
        return self.was_there

    def _check(self) -> str:
        try:
            why = check_certificate(self.server)
        except InputError:
            self.doubts += 1
            if not self.was_there or self.doubts >= MOST_DOUBTS:
                raise
            return "its certificate could not be read"
        self.doubts = 0
        return why
