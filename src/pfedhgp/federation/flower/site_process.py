"""`pfedhgp client`: a SuperNode beside this process, and the site that answers the messages it brings."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from flwr.app import Message

from pfedhgp.base.checks import short
from pfedhgp.errors import InputError
from pfedhgp.federation.flower import processes, transport
from pfedhgp.federation.flower.connection import read_mark
from pfedhgp.federation.flower.server_probe import ServerAddress, ServerProbe
from pfedhgp.federation.flower.site import Site, check_home
from pfedhgp.federation.flower.supernode import MessageQueue
from pfedhgp.federation.flower.watchdog import Starts, Ticker, Watchdog, at_work
from pfedhgp.federation.schema import DELIVER
from pfedhgp.federation.watch import events

log = logging.getLogger("pfedhgp.site")
PAUSE = 0.2
RECEIPT = 60.0
"""Seconds that a site with its model tries to tell the server so."""
STAY_AFTER_DELIVERY = 2.0
"""Seconds that a site stays after the delivery, in case its receipt is lost."""
SENT_LINE, START_LINE = "Sent successfully", "Starting Flower SuperNode"
"""Lines of a SuperNode's log: for each answer, and the first one."""
GROUPS = "zones: groups"
"""The last message of zones, which come after the delivery."""
MOST_REFUSALS = 3
"""The number of refusals in a row after which the user is told that the key is wrong."""
STALE_NODE = 75.0
"""Seconds that a known site goes on if it is refused: Flower refuses a client for 60 s after a kill."""


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
    tell: Callable[[events.Event], None] = lambda event: None
    """Gets what happens, for those who watch."""

    def __post_init__(self) -> None:
        self._probe = ServerProbe(self.server, self.say)
        self._folder = self.site.home / "flower"
        self._began = time.monotonic()
        self._last_request = self._began
        self._asked = self._brought = self._rests = False
        """Whether there was a request; whether this SuperNode brought one; whether a run is over."""
        self._delivered = math.inf
        """When the model came, and the server knew."""
        self._receipt: tuple[int, float] | None = None
        """With the model here: answers sent before, and until when to wait for one more."""
        self._contact: events.Contact | None = None
        self._owes = False
        """Whether a delivery is here whose answer may not have been sent."""

    def run(self) -> None:
        """Answers until the model is delivered, and makes the model of a private run.

        What a killed process left of that is done after its answer was sent, for which the server may wait.
        Nobody is connected then: a server that sees how long a site needs, or that it fails, learns of rows.
        """
        self._owes = bool(self.site.unfinished())
        if self.stay:
            self._finish_and_stay()
        self._serve()
        self.site.finish()

    def _finish_and_stay(self) -> None:
        try:
            self.site.finish()
        except InputError as error:
            log.warning("%s", error)

    def _serve(self) -> None:
        """Answers until the model is delivered. Starts the SuperNode again if it ends or is stuck.

        A server that has just started may not have registered its sites yet: only if it refuses the key
        several times is the user told.
        """
        os.environ.update(processes.OFFLINE)
        refusals, starts = KeyRefusals(), Starts()
        known = self._folder.exists()  # another client was here, and may have been killed just now
        while True:
            check_home(self.site.home, self.lock)
            self._probe.probe()
            child = self._run_supernode()
            if self._delivered < math.inf:
                return
            there = self._probe.probe(now=True)
            refused = there and _was_refused(child)
            if refusals.add(refused, known=known or self._asked):
                raise InputError(
                    "the server refused this site's key: the server's sites.toml does not list it "
                    "(any more), or another client uses it"
                )
            if there and not starts.add(lived=self._watchdog.lived, answered=self._brought):
                raise processes.FlowerError(
                    f"no lasting connection to {self.server.text}: {starts.count} tries in a row failed: "
                    f"see {child.log}; the same command goes on from here"
                )
            if refusals.count == 1:
                log.warning("the server refuses this site's key: trying again for a while")
            elif not refused:
                self.say(
                    f"the connection to {self.server.text} failed: trying again in {starts.pause:g} s"
                )
            self._pause(starts.pause)

    def _run_supernode(self) -> processes.Child:
        """Starts a SuperNode and answers its messages until it ends, is stuck, or the model is delivered."""
        secret = processes.secret_file(self._folder / "secret")
        port = processes.free_port()
        mark = self._folder / "progress"
        mark.unlink(missing_ok=True)
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
        if self._owes and not self.stay:
            self._owes = False
            self._receipt = (child.tail(1 << 20).count(SENT_LINE), time.monotonic() + RECEIPT)
        queue = MessageQueue(processes.Address(f"127.0.0.1:{port}"), secret)
        self._watchdog = watchdog = Watchdog(lambda: self._probe.probe(now=True))
        self._brought, ticker = False, Ticker()
        try:
            while child.running:
                self.check_signals()
                check_home(self.site.home, self.lock)
                if queue.failures == 0:
                    away = watchdog.see(read_mark(mark))
                    if away is not None:
                        self.say(f"connected again after {away:.0f} s")
                self._tell_contact(watchdog)
                if self._answer_one(queue, child):
                    watchdog.busy()
                    ticker.reset()
                    self._brought = True
                self._check_receipt(child)
                if time.monotonic() > self._delivered + STAY_AFTER_DELIVERY:
                    break
                if watchdog.stuck():
                    log.warning("Flower's SuperNode is stuck: starting it again")
                    break
                self._probe.probe()
                if ticker.due():
                    self._tell(watchdog)
                self._check_wait()
                time.sleep(PAUSE)
        finally:
            queue.close()
            child.stop()
        return child

    def _tell_contact(self, watchdog: Watchdog) -> None:
        here = bool(watchdog.mark) and not watchdog.interrupted
        found = events.Contact(here, "" if here else self._probe.last_reason)
        if found != self._contact:
            self._contact = found
            self.tell(found)

    def _tell(self, watchdog: Watchdog) -> None:
        """A line while nothing happens."""
        silent = watchdog.silent()
        if watchdog.interrupted or not watchdog.mark:
            if self._probe.probe(now=True):
                self.say(f"no contact with the server for {silent:.0f} s: trying again")
            else:
                why = self._probe.last_reason
                self.say(f"waiting for the server at {self.server.text} for {silent:.0f} s: {why}")
        elif not self._rests:
            waited = time.monotonic() - self._last_request
            self.say(f"connected, waiting for the server's next request for {waited:.0f} s")

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.check_signals()
            self._check_wait()
            time.sleep(PAUSE)

    def _answer_one(self, queue: MessageQueue, child: processes.Child) -> bool:
        """Whether there was a message."""
        kinds: list[str] = []
        codes: list[str] = []

        def reply_to(message: Message) -> Message:
            began = time.monotonic()
            with at_work(self.say, f"exchange {message.metadata.group_id}"):
                reply = transport.reply_to(message, self.site)
            about = reply.content[transport.ABOUT]
            codes.append(str(about["code"]))
            if not about["code"]:  # the site has logged a refusal, with its reason
                kinds.append(str(about["kind"]))
                spent = f"{time.monotonic() - began:.1f} s"
                self.say(f"exchange {about['exchange']}, {about['kind']}: answered in {spent}")
                checked = self.site.checked if about["kind"] == DELIVER else None
                if checked is not None and not checked.alarm:  # an alarm was logged
                    self.say(checked.line)
            return reply

        before = child.tail(1 << 20).count(SENT_LINE)
        answered = queue.answer_one(reply_to)
        self._asked = self._asked or answered
        if answered:
            self._last_request, self._rests = time.monotonic(), False
        if "name" in codes:
            raise InputError(
                f"--name {short(self.site.name)!r}: the server's sites.toml has another name for this "
                "key: use that one"
            )
        over = GROUPS in kinds or (DELIVER in kinds and not self.site.awaits_zones)
        self._rests = self._rests or DELIVER in kinds
        if self.stay and DELIVER in kinds:
            self._finish_and_stay()
        if over and not self.stay:  # this answer still has to be sent, also if one before it was
            self._receipt, self._delivered = (before, time.monotonic() + RECEIPT), math.inf
        return answered

    def _check_receipt(self, child: processes.Child) -> None:
        """The model is delivered when the server knows: if the connection fails now, it asks again."""
        if self._receipt is None or self._delivered < math.inf:
            return
        before, end = self._receipt
        if child.tail(1 << 20).count(SENT_LINE) > before or time.monotonic() > end:
            self._delivered = time.monotonic()

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
