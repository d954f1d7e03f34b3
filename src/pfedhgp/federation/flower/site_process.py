"""`pfedhgp client`: a SuperNode beside this process, and the site that answers the messages it brings."""

from __future__ import annotations

import logging
import math
import os
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from flwr.app import Message

from pfedhgp.base.checks import short
from pfedhgp.errors import InputError
from pfedhgp.federation.flower import processes, transport
from pfedhgp.federation.flower.site import Site
from pfedhgp.federation.flower.supernode import MessageQueue
from pfedhgp.federation.schema import DELIVER

log = logging.getLogger("pfedhgp.site")
PAUSE = 0.2
PROBE_EVERY = 5.0
"""Seconds between two looks at whether the server is there."""
CONNECT_TIMEOUT = 10.0
DATE_ERRORS, NAME_ERRORS = (9, 10), (62, 64)
"""OpenSSL's verify codes: not yet valid, expired; another name, another address."""
STAY_AFTER_DELIVERY = 2.0
"""Seconds that a site stays after the delivery, in case its receipt is lost."""
SENT_LINE, START_LINE = "Sent successfully", "Starting Flower SuperNode"
"""Lines of a SuperNode's log: for each answer, and the first one."""
MOST_REFUSALS = 3
"""The number of refusals in a row after which the user is told that the key is wrong."""
STALE_NODE = 75.0
"""Seconds that a known site goes on if it is refused: Flower refuses a client for 60 s after a kill."""


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
    """Why the server was not there, as the user was last told."""

    def probe(self, *, now: bool = False) -> bool:
        """Whether the server was there; with `now`, whether it is. Raises if its certificate is wrong."""
        if now or (not self.was_there and time.monotonic() - self.probed > PROBE_EVERY):
            why = check_certificate(self.server)
            self.was_there, self.probed = self.was_there or not why, time.monotonic()
            if why and why != self.last_reason:
                self.say(f"waiting for the server at {self.server.text}: {why}")
            self.last_reason = why
            return not why
        return self.was_there


@dataclass
class KeyRefusals:
    """How often in a row, and for how long, the server has refused this site's key."""

    clock: Callable[[], float] = time.monotonic
    count: int = 0
    since: float = 0.0

    def add(self, refused: bool, *, known: bool) -> bool:
        """Whether the user has to act. A `known` site may be mistaken for its own killed process."""
        self.count = self.count + 1 if refused else 0
        if self.count == 1:
            self.since = self.clock()
        lasted = self.clock() - self.since >= (STALE_NODE if known else 0.0)
        return self.count >= MOST_REFUSALS and lasted


@dataclass
class SiteProcess:
    """A site with its SuperNode. `lock` is the lock of the site's home; `check_signals` may raise to end.

    `wait` limits the seconds until the first message. With `stay` the site goes on after the delivery.
    """

    site: Site
    server: ServerAddress
    lock: IO[bytes]
    stay: bool = False
    wait: float | None = None
    say: Callable[[str], None] = lambda text: None
    check_signals: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._probe = ServerProbe(self.server, self.say)
        self._folder = self.site.home / "flower"
        self._began = time.monotonic()
        self._asked = False
        self._delivered = math.inf
        """When the model came."""

    def run(self) -> None:
        """Answers until the model is delivered. Starts the SuperNode again if it ends.

        A server that has just started may not have registered its sites yet: only if it refuses the key
        several times is the user told.
        """
        os.environ.update(processes.OFFLINE)
        refusals = KeyRefusals()
        known = self._folder.exists()  # another client was here, and may have been killed just now
        while True:
            self._probe.probe()
            child = self._run_supernode()
            if self._delivered < math.inf:
                return
            refused = self._probe.probe(now=True) and _was_refused(child)
            if refusals.add(refused, known=known or self._asked):
                raise InputError(
                    "the server refused this site's key: the server's sites.toml does not list it "
                    "(any more), or another client uses it"
                )
            if refusals.count == 1:
                log.warning("the server refuses this site's key: trying again for a while")
            elif not refused:
                log.warning("Flower's SuperNode ended: starting it again")
            self._check_wait()
            time.sleep(1.0)

    def _run_supernode(self) -> processes.Child:
        """Starts a SuperNode and answers its messages until it ends or the model is delivered."""
        secret = processes.secret_file(self._folder / "secret")
        port = processes.free_port()
        child = processes.start(
            "supernode",
            [
                *self.server.arguments(),
                *("--host", "127.0.0.1", "--port", str(port), "--isolation", "process"),
                *("--superexec-auth-secret-file", str(self._folder / "secret")),
            ],
            folder=self._folder,
            lock=self.lock,
        )
        queue = MessageQueue(processes.Address(f"127.0.0.1:{port}"), secret)
        try:
            while child.running:
                self.check_signals()
                answered = self._answer_one(queue, child)
                if time.monotonic() > self._delivered + STAY_AFTER_DELIVERY:
                    break
                if not answered:
                    self._probe.probe()
                    self._check_wait()
                    time.sleep(PAUSE)
        finally:
            queue.close()
            child.stop()
        return child

    def _answer_one(self, queue: MessageQueue, child: processes.Child) -> bool:
        """Whether there was a message."""
        kinds: list[str] = []
        codes: list[str] = []

        def reply_to(message: Message) -> Message:
            reply = transport.reply_to(message, self.site)
            about = reply.content[transport.ABOUT]
            codes.append(str(about["code"]))
            if not about["code"]:  # the site has logged a refusal, with its reason
                kinds.append(str(about["kind"]))
                self.say(f"exchange {about['exchange']}, {about['kind']}: answered")
            return reply

        before = child.tail(1 << 20).count(SENT_LINE)
        answered = queue.answer_one(reply_to)
        self._asked = self._asked or answered
        if "name" in codes:
            raise InputError(
                f"--name {short(self.site.name)!r}: the server's sites.toml has another name for this "
                "key: use that one"
            )
        if DELIVER in kinds:
            end = time.monotonic() + 10.0  # the SuperNode still has to send the receipt
            while child.running and time.monotonic() < end:
                if child.tail(1 << 20).count(SENT_LINE) > before:
                    break
                time.sleep(PAUSE)
            if not self.stay:
                self._delivered = time.monotonic()
        return answered

    def _check_wait(self) -> None:
        if self.wait is None or self._asked:
            return
        if time.monotonic() - self._began > self.wait:
            text = f"no message from {self.server.text} within {self.wait:g} s"
            raise processes.FlowerError(text)


def _was_refused(child: processes.Child) -> bool:
    """Whether the server refused the key. A node of this name that is still online goes by itself."""
    text = child.tail().rsplit(START_LINE, 1)[-1]  # the log goes on from start to start
    return "Failed to initialize the connection" in text and "online" not in text.lower()
