"""The server's side of an exchange: asks every site, waits, counts the replies. No Flower in here.

A `Link` carries envelopes. An exchange ends when every site has answered or the time is up. Sites that were
missing in the exchange before get only as much extra time as the others took. For each exchange, the
participation log says whose reply was counted, and why another's was not; the run can be repeated in one
process from it. The server's own log calls sites by their names in sites.toml.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from pfedhgp.base.checks import short
from pfedhgp.errors import PFedHGPError
from pfedhgp.federation import message_checks
from pfedhgp.federation.diagnosing import delivered_arrays
from pfedhgp.federation.envelope import CODES, Envelope, Refused, missed_arrays
from pfedhgp.federation.flower.state import Roster
from pfedhgp.federation.message_checks import Expected
from pfedhgp.federation.messages import Message
from pfedhgp.federation.schema import DELIVER
from pfedhgp.federation.server import Server, known
from pfedhgp.inference.arrays import below

log = logging.getLogger("pfedhgp.server")
TRAINED = ("round", "finish", DELIVER)
"""Requests that a client can answer only after the start request."""


class QuorumError(PFedHGPError):
    """Too few sites answered. Training can go on from the checkpoint."""


class Link(Protocol):
    """Carries envelopes to sites and back."""

    def push(self, name: str, request: Envelope, lifetime: float) -> bool:
        """Sends; False if the site cannot be reached yet."""

    def pull(self) -> list[tuple[str, Envelope | Refused]]:
        """The replies that have come, each with its site; `Refused` if one cannot be read."""

    def lost(self) -> list[str]:
        """Sites that started again after they were asked, and will not answer."""

    def expect(self, most_bytes: int) -> None:
        """Sets how large a reply may be."""


@dataclass(frozen=True)
class Patience:
    """How long the server waits, and for how many sites."""

    timeout: float = 600.0
    """Seconds that an exchange waits for sites."""
    quorum: int = 1
    """The fewest replies with which an exchange counts."""
    grace: float = 5.0
    """Seconds that a site that was missing gets at least, once the others have answered."""
    last_grace: float = 15.0
    """The same for the delivery, which is repeated only when the server is started again."""
    pause: float = 0.25
    """Seconds between two calls of the link's `pull`."""


class Gathered(NamedTuple):
    """What came of asking sites: replies by site, codes of refusals by site, and the seconds it took."""

    replies: dict[str, Envelope]
    refusals: dict[str, str]
    seconds: float = 0.0

    def missing(self, names: Iterable[str]) -> dict[str, str]:
        """Why there is no reply, for those of the sites `names` that have none."""
        return {n: self.refusals.get(n, "no-answer") for n in names if n not in self.replies}


@dataclass
class Engine:
    """Trains a `Server` with sites over a `Link`, as `federation.inprocess` does in one process."""

    server: Server
    roster: Roster
    link: Link
    patience: Patience
    record: Callable[[Message, str], None] = lambda message, receiver: None
    save_checkpoint: Callable[[], None] = lambda: None
    on_exchange: Callable[[dict[str, Any]], None] | None = None
    """Gets each entry of the participation log. By default the missing sites are logged."""
    on_delivery: Callable[[str], None] = lambda name: None
    """Gets the name of each site that has the model, as soon as it says so."""
    callbacks: Sequence[Callable[[dict[str, Any]], bool | None]] = ()
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def run(self) -> dict[str, str]:
        """Trains and delivers the model. Returns why sites did not get it, by name."""
        while (request := self.server.request()) is not None:
            if request.kind == "finish" and not message_checks.finish_is_answered(self.server.plan):
                self.server.gather([])
                break
            replies, entry = self._exchange(request)
            self._update_roster(request, entry)
            record = self.server.gather([replies[name] for name in entry["counted"]])
            if record is not None and any([call(record) is True for call in self.callbacks]):
                self.server.stop()
            self.save_checkpoint()
            (self.on_exchange or self._log_missing)(entry)
        return self._deliver()

    # ------------------------------------------------------------------------------ one exchange

    def _exchange(self, request: Message) -> tuple[dict[str, Message], dict[str, Any]]:
        """The replies that count, and the entry of the participation log."""
        number = self.server.exchanges + 1
        expected = message_checks.of_reply(self.server.plan, request.kind, request.arrays)
        self.link.expect(message_checks.largest_reply(expected))
        envelopes = {name: self._envelope(request, number, name) for name in self.roster.sites}
        found = self._gather(envelopes, expected)
        replies, counted = found.replies, [n for n in self.roster.sites if n in found.replies]
        entry: dict[str, Any] = {
            "exchange": number,
            "kind": request.kind,
            "round": request.round,
            "attempt": self.server.attempt,
            "block": request.block,
            "counted": counted,
            "missing": found.missing(self.roster.sites),
            **self.roster.changes,
            "audit": {name: replies[name].audit for name in counted},
            "seconds": round(found.seconds, 3),
            "site_seconds": {name: round(replies[name].seconds, 3) for name in counted},
            "bytes_up": sum(replies[name].nbytes for name in counted),
            "bytes_down": sum(envelopes[name].nbytes for name in counted),
        }
        if len(counted) < self.patience.quorum:
            self._log_missing(entry)
            raise QuorumError(
                f"{len(counted)} of {len(self.roster.sites)} sites answered the {request.kind} request "
                f"within {self.patience.timeout:g} s, and the quorum is {self.patience.quorum}: "
                "the same command goes on from here"
            )
        return {name: replies[name].message() for name in counted}, entry

    def _envelope(self, request: Message, number: int, name: str) -> Envelope:
        roster, arrays = self.roster, dict(request.arrays)
        training = request.kind in TRAINED
        attempt = self.server.attempt
        if request.kind in ("finish", DELIVER):
            assert self.server.best is not None
            attempt = self.server.best.attempt
        late = -1 not in roster.knows.get(name, [])
        if late and request.kind in ("start", *TRAINED) and "cycles" in roster.setup:
            arrays |= missed_arrays("cycles", roster.setup["cycles"])
        if training and attempt not in roster.knows.get(name, []):
            arrays |= missed_arrays("start", roster.setup[f"start {attempt}"])
        return Envelope(
            run=roster.run,
            exchange=number,
            kind=request.kind,
            round=request.round,
            sender="server",
            arrays=arrays,
            block=request.block,
            receiver=name,
            counted=roster.counted.get(name, 0),
            left_out=training and name not in roster.last_round.get(attempt, []),
            agreement=roster.agreement,
        )

    def _update_roster(self, request: Message, entry: dict[str, Any]) -> None:
        """Which site has received what, once the exchange is complete."""
        roster, counted = self.roster, entry["counted"]
        if request.kind == "cycles":
            roster.setup["cycles"] = dict(request.arrays)
        if request.kind == "start":
            roster.setup[f"start {self.server.attempt}"] = dict(request.arrays)
        if request.kind in ("start", "round"):
            roster.last_round[self.server.attempt] = list(counted)
        for name in counted:
            roster.counted[name] = entry["exchange"]
            knows = roster.knows.setdefault(name, [])
            learnt = {"cycles": [-1], "start": [-1, self.server.attempt]}
            learnt["round"] = learnt["start"]
            for attempt in learnt.get(request.kind, []):
                if attempt not in knows:
                    knows.append(attempt)
        self._forget([name for name, code in entry["missing"].items() if code == "forgotten"])
        roster.log.append(entry)
        roster.changes = {}

    def _gather(
        self, envelopes: Mapping[str, Envelope], expected: Expected, *, last: bool = False
    ) -> Gathered:
        """Sends to all sites and waits."""
        began = self.clock()
        grace = self.patience.last_grace if last else self.patience.grace
        end = began + self.patience.timeout
        away = (
            {n for n, e in envelopes.items() if e.counted < e.exchange - 1}
            if self.roster.counted  # if none was counted, all sites are new
            else set()
        )
        found = Gathered({}, {})
        waiting, to_send = set(envelopes), set(envelopes)
        while waiting:
            now = self.clock()
            if now >= end:
                break
            for name in sorted(to_send):
                if self.link.push(name, envelopes[name], end - now):
                    to_send.discard(name)
            for name, reply in self.link.pull():
                self._accept(name, reply, envelopes, expected, found)
                waiting.discard(name)
            gone = set(self.link.lost()) & waiting
            to_send |= gone
            if last:  # a site that left after the delivery may have its model
                away |= gone
            if waiting and waiting <= away and len(found.replies) >= self.patience.quorum:
                # All that answered last time have answered: the others get as much time again.
                end = min(end, began + 2.0 * (now - began) + grace)
                away = set()
            if waiting:
                self.sleep(self.patience.pause)
        return found._replace(seconds=self.clock() - began)

    def _accept(
        self,
        name: str,
        reply: Envelope | Refused,
        envelopes: Mapping[str, Envelope],
        expected: Expected,
        found: Gathered,
    ) -> None:
        """Keeps a good reply. A bad one is logged and changes nothing."""
        try:
            if isinstance(reply, Refused):
                raise reply
            there = name in found.replies
            check_reply(name, reply, envelopes.get(name), expected, there=there)
        except Refused as refused:
            if name not in found.replies:
                found.refusals[name] = refused.code
            log.warning("refused a reply of %s: %s", short(name), CODES[refused.code])
            return
        found.refusals.pop(name, None)
        found.replies[name] = reply
        if reply.kind == DELIVER:
            self.roster.delivered.append(name)
            self.on_delivery(name)
        self.record(envelopes[name].message(), name)
        self.record(reply.message(), "server")

    def _log_missing(self, entry: dict[str, Any]) -> None:
        for name, code in entry["missing"].items():
            about = (entry["exchange"], entry["kind"], short(name), CODES[code])
            log.warning("exchange %d, %s: without %s: %s", *about)

    # ---------------------------------------------------------------------------------- delivery

    def _deliver(self) -> dict[str, str]:
        """Sends the global block, with all that a prediction needs, to every site that lacks it."""
        server = self.server
        assert server.best is not None
        assert server.best.population is not None
        arrays = server.best.as_arrays()
        arrays |= below("population", known(server.best.population))
        arrays |= delivered_arrays(server.run.diagnosis, server.plan.spec.outputs)
        request = Message("finish", server.run.round, "server", arrays)
        self.link.expect(message_checks.largest_reply({}))
        missing = self._deliver_to(request)
        lost = [name for name, code in missing.items() if code == "forgotten"]
        if lost:  # they are asked again, as new sites
            self._forget(lost)
            others = {name: code for name, code in missing.items() if name not in lost}
            missing = others | self._deliver_to(request, lost)
        for name, code in missing.items():
            log.warning("%s did not get the model: %s", short(name), CODES[code])
        return missing

    def _deliver_to(self, request: Message, names: Sequence[str] | None = None) -> dict[str, str]:
        """To all sites, or `names`, that lack the model. Returns why some did not get it."""
        envelopes, number = {}, self.server.exchanges + 1
        summary = json.dumps(self.server.summary())
        for name in self.roster.sites if names is None else names:
            if name not in self.roster.delivered:
                made = self._envelope(request, number, name)
                envelopes[name] = replace(made, kind=DELIVER, summary=summary)
        return self._gather(envelopes, {}, last=True).missing(envelopes)

    def _forget(self, names: Sequence[str]) -> None:
        """Sites that have lost their state are told everything again."""
        for name in names:
            self.roster.counted[name], self.roster.knows[name] = 0, []


def check_reply(
    name: str, reply: Envelope, asked: Envelope | None, expected: Expected, *, there: bool
) -> None:
    """Raises unless the reply belongs to this request, comes from this site and has the right form."""
    if asked is None or reply.sender != name:
        raise Refused("name" if asked is not None and reply.code == "name" else "other-request")
    if reply.run == asked.run and reply.exchange < asked.exchange:
        raise Refused("stale")
    for part in ("run", "exchange", "kind", "round", "block"):
        if getattr(reply, part) != getattr(asked, part):
            raise Refused("other-request")
    if there:
        raise Refused("duplicate")
    if reply.code:
        raise Refused(reply.code if reply.code in CODES else "internal")
    message_checks.check_arrays(reply.arrays, expected)
