"""`pfedhgp client`: a SuperNode beside this process, and the site that answers what it brings."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from flwr.app import Message

from pfedhgp.data.table import short
from pfedhgp.errors import InputError
from pfedhgp.federation.flower import processes
from pfedhgp.federation.flower.address import Address
from pfedhgp.federation.flower.answering import answer
from pfedhgp.federation.flower.desk import Desk
from pfedhgp.federation.flower.site import Site
from pfedhgp.federation.schema import DELIVER

log = logging.getLogger("pfedhgp.site")
PAUSE, LOOK = 0.2, 5.0
PATIENCE = 10.0
"""Seconds that one attempt to connect may take."""
DATED, MISNAMED = (9, 10), (62, 64)
"""OpenSSL's verify codes: not yet valid, expired; another name, another address."""
MISNOMER = "name"
LINGER = 2.0
"""Seconds that a site stays after the delivery, in case that its receipt is lost: a few of its looks."""
SENT = "Sent successfully"
STARTING = "Starting Flower SuperNode"
"""What a SuperNode's log says first."""
REFUSALS = 3
"""Times in a row, some seconds apart, after which a refused key is the user's to mend."""
MEMORY = 75.0
"""Seconds, where a client used the home before: Flower believes a killed one there for 60, and refuses it."""


@dataclass(frozen=True)
class Server:
    """Where the server is, how it is recognised, and as whom this site comes; no CA: without TLS."""

    host: str
    port: int
    ca: Path | None
    key: Path | None

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def arguments(self) -> list[str]:
        trust = (
            ["--insecure"]
            if self.ca is None
            else [
                "--root-certificates",
                str(self.ca),
                "--auth-supernode-private-key",
                str(self.key),
            ]
        )
        return ["--superlink", self.address, *trust]


def check_certificate(server: Server) -> str:
    """Refuses a server whose certificate is not the CA's; why there is no server yet, or nothing."""
    try:
        context = None if server.ca is None else ssl.create_default_context(cafile=str(server.ca))
    except (OSError, ssl.SSLError):
        raise InputError(f"{server.ca}: not a certificate in PEM form") from None
    try:
        with socket.create_connection((server.host, server.port), timeout=PATIENCE) as plain:
            if context is not None:
                context.wrap_socket(plain, server_hostname=server.host).close()
            return ""
    except ssl.SSLCertVerificationError as error:
        problem = {
            **dict.fromkeys(DATED, "is out of its dates, or this machine's clock is wrong"),
            **dict.fromkeys(MISNAMED, "is for another name"),
        }.get(error.verify_code, f"is not one of {server.ca}")
        raise InputError(
            f"the certificate of {server.address} {problem}: {error.verify_message}"
        ) from None
    except OSError as error:
        return _unreachable(error)  # not there yet: it is tried again


def _unreachable(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"its name is not known here ({error.strerror})"
    if isinstance(error, ssl.SSLError):
        return f"what answers there does not speak TLS as it should ({error.reason})"
    if isinstance(error, ConnectionRefusedError):
        return "the connection is refused: no server listens there"
    if isinstance(error, TimeoutError):
        return f"no answer within {PATIENCE:g} s: a firewall, or a machine that is down"
    return error.strerror or type(error).__name__


@dataclass
class Acquaintance:
    """Whether the server was ever there with a certificate of the CA's: looked at now and then until it was.

    Flower's SuperNode does not tell a wrong certificate from a server that is not up.
    """

    server: Server
    say: Callable[[str], None] = lambda text: None
    met: bool = False
    looked: float = -LOOK
    told: str = ""
    """Why the server was not there, as it was last said."""

    def look(self, *, now: bool = False) -> bool:
        """Raises where the certificate is wrong; with `now`, whether the server is there at present."""
        if now or (not self.met and time.monotonic() - self.looked > LOOK):
            why = check_certificate(self.server)
            self.met, self.looked = self.met or not why, time.monotonic()
            if why and why != self.told:
                self.say(f"waiting for the server at {self.server.address}: {why}")
            self.told = why
            return not why
        return self.met


@dataclass
class Refusals:
    """How often in a row, and for how long, the server has refused the key."""

    clock: Callable[[], float] = time.monotonic
    count: int = 0
    since: float = 0.0

    def note(self, refused: bool, *, known: bool) -> bool:
        """Whether the user has to mend it; a site that is `known` may be its own killed twin for a while."""
        self.count = self.count + 1 if refused else 0
        if self.count == 1:
            self.since = self.clock()
        lasted = self.clock() - self.since >= (MEMORY if known else 0.0)
        return self.count >= REFUSALS and lasted


def attend(
    site: Site,
    server: Server,
    lock: IO[bytes],
    *,
    stay: bool = False,
    patience: float | None = None,
    say: Callable[[str], None] = lambda text: None,
    heed: Callable[[], None] = lambda: None,
) -> None:
    """Answers until the model is delivered (with `stay`, until it is stopped); `heed` may raise to end it.

    A SuperNode that ends is started again. A key that the server does not know is said so when it was refused
    several times: a server that has just started has yet to register its sites. `patience` bounds how long a
    server that is not there is waited for. `lock` is that of the site's home.
    """
    folder = site.home / "flower"
    meeting = Acquaintance(server, say)
    os.environ.update(processes.QUIET)
    began, came, refusals = time.monotonic(), False, Refusals()
    known = folder.exists()  # a client was here, and may have been killed a moment ago
    delivered: float | None = None
    while True:
        meeting.look()
        secret = processes.secret_file(folder / "secret")
        port = processes.free_port()
        child = processes.start(
            "supernode",
            [
                *server.arguments(),
                *("--host", "127.0.0.1", "--port", str(port), "--isolation", "process"),
                *("--superexec-auth-secret-file", str(folder / "secret")),
            ],
            folder=folder,
            lock=lock,
        )
        desk = Desk(Address(f"127.0.0.1:{port}"), secret)
        try:
            while child.running:
                heed()
                done, worked = _work(site, desk, child, say)
                if done and not stay:
                    delivered = time.monotonic()
                if delivered is not None and time.monotonic() - delivered > LINGER:
                    return
                came = came or worked
                if not worked:
                    meeting.look()
                    _give_up(began, came, patience, server)
                    time.sleep(PAUSE)
        finally:
            desk.close()
            child.stop()
        if delivered is not None:
            return
        refused = meeting.look(now=True) and _was_refused(child)
        if refusals.note(refused, known=known or came):
            raise InputError(
                "the server refused this site's key: it is not in the server's sites.toml, or not "
                "any more; or another client is there with it"
            )
        if refusals.count == 1:
            log.warning("the server refuses this site's key: tried again for a while")
        elif not refused:
            log.warning("Flower's SuperNode ended: it is started again")
        _give_up(began, came, patience, server)
        time.sleep(1.0)


def _work(
    site: Site, desk: Desk, child: processes.Child, say: Callable[[str], None]
) -> tuple[bool, bool]:
    """(whether the model was delivered, whether there was a message)"""
    kinds: list[str] = []
    codes: list[str] = []

    def reply_to(message: Message) -> Message:
        reply = answer(message, site)
        about = reply.content["about"]
        code = str(about["code"])
        codes.append(code)
        kinds.append("" if code else str(about["kind"]))
        if not code:  # a refusal is logged where its reason is known
            say(f"exchange {about['exchange']}, {about['kind']}: answered")
        return reply

    before = child.tail(1 << 20).count(SENT)
    worked = desk.serve_one(reply_to)
    if MISNOMER in codes:
        raise InputError(
            f"--name {short(site.name)!r}: the server's sites.toml has another name for this key: give that"
        )
    if DELIVER not in kinds:
        return False, worked
    end = time.monotonic() + 10.0  # the SuperNode has yet to pass the receipt on
    while child.running and time.monotonic() < end and child.tail(1 << 20).count(SENT) <= before:
        time.sleep(PAUSE)
    return True, worked


def _give_up(began: float, came: bool, patience: float | None, server: Server) -> None:
    if patience is not None and not came and time.monotonic() - began > patience:
        raise processes.FlowerError(f"no message from {server.address} within {patience:g} s")


def _was_refused(child: processes.Child) -> bool:
    """Whether the server knew no such key; that a node of this name is still there passes by itself."""
    text = child.tail().rsplit(STARTING, 1)[-1]  # the log goes on from start to start
    return "Failed to initialize the connection" in text and "online" not in text.lower()
