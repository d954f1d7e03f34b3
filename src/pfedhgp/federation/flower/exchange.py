"""The server's side of an exchange: asks every site, waits, counts the replies. No Flower in here.

A `Link` carries envelopes. An exchange ends when every site has answered or its time is up (`waiting`). Sites
that were missing in the exchange before get only as much extra time as the others took. For each exchange the
participation log says whose reply was counted, and why another's was not; the run can be repeated in one
process from it. The server's own log calls sites by their names in sites.toml.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from pfedhgp.base.checks import short
from pfedhgp.federation import message_checks
from pfedhgp.federation.diagnosing import delivered_arrays
from pfedhgp.federation.envelope import ANSWER, CODES, Envelope, Refused, missed_arrays
from pfedhgp.federation.flower.judged_replies import admit, kept_replies
from pfedhgp.federation.flower.masked_exchange import MaskedExchanges
from pfedhgp.federation.flower.participation import Gathered, entry_of
from pfedhgp.federation.flower.reply_checks import check_reply
from pfedhgp.federation.flower.spool import Spool
from pfedhgp.federation.flower.state import Roster
from pfedhgp.federation.flower.waiting import (
    Accept,
    Deadline,
    Limits,
    Patience,
    QuorumError,
    WaitingLines,
    changes,
    too_few,
)
from pfedhgp.federation.message_checks import Expected
from pfedhgp.federation.messages import Message, hash_arrays
from pfedhgp.federation.schema import ALARM, DELIVER, RELEASE
from pfedhgp.federation.server import Server, known
from pfedhgp.federation.watch import events, reports
from pfedhgp.inference.arrays import below

log = logging.getLogger("pfedhgp.server")
TRAINED = ("round", "finish", DELIVER)
ALARMED = "alarm of %s: alone, it predicts its held-out rows better than with the shared model"
"""Requests that a client can answer only after the start request."""


class Link(Protocol):
    """Carries envelopes to sites and back."""

    def push(self, name: str, request: Envelope, lifetime: float) -> bool:
        """Sends; False if the site cannot be reached yet."""

    def pull(self) -> Iterable[tuple[str, Envelope | Refused]]:
        """The replies that have come, each with its site; `Refused` if one cannot be read."""

    def lost(self) -> list[str]:
        """Sites that started again after they were asked, and will not answer."""

    def expect(self, most_bytes: int) -> None:
        """Sets how large a reply may be."""

    def connected(self) -> Collection[str]:
        """The sites that are connected now."""


@dataclass
class Engine:
    """Trains a `Server` with sites over a `Link`, as `federation.inprocess` does in one process."""

    server: Server
    roster: Roster
    link: Link
    patience: Patience
    record: Callable[[Any, str], None] = lambda message, receiver: None
    """Gets each `Message` of an exchange that was accepted; with masks each `Envelope`."""
    save_checkpoint: Callable[[], None] = lambda: None
    on_exchange: Callable[[dict[str, Any]], None] | None = None
    """Gets each entry of the participation log. By default the missing sites are logged."""
    on_delivery: Callable[[str], None] = lambda name: None
    """Gets the name of each site that has the model, as soon as it says so."""
    callbacks: Sequence[Callable[[dict[str, Any]], bool | None]] = ()
    tell: Callable[[events.Event], None] = lambda event: None
    """Gets what happens, for those who watch."""
    say: Callable[[str], None] = lambda text: None
    """Gets lines while sites are waited for."""
    masks: MaskedExchanges | None = None
    """If there are masks: every exchange goes through it."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    spool: Spool = field(default_factory=Spool)
    """Where replies wait for the others."""
    _connected: set[str] = field(default_factory=set)
    announced: Mapping[str, Any] = field(default_factory=dict)
    """What the delivery's summary says beside the training: whether zones come next."""
    asked: int = 0  # exchanges after the delivery

    def run(self) -> dict[str, str]:
        """Trains and delivers the model. Returns why sites did not get it, by name."""
        while (request := self.server.request()) is not None:
            if request.kind == "finish" and not message_checks.finish_is_answered(self.server.plan):
                self.server.gather([])
                break
            if self.masks is not None:
                total, entry = self.masks.exchange(self, request)
                self._update_roster(request, entry)
                record = self.server.take(total, entry["counted"], entry["bytes_up"])
            else:
                replies, entry = self._exchange(request)
                kept = kept_replies(self.server, replies, entry)
                self._update_roster(request, entry)
                record = self.server.gather(kept)
                self.spool.clear()
            if record is not None and record["bound"] is not None:
                entry["bound"] = float(record["bound"])
            self.tell(reports.counted(entry))
            if record is not None:
                self.tell(reports.trained(record))
            if record is not None and any([call(record) is True for call in self.callbacks]):
                self.server.stop()
            self.save_checkpoint()
            (self.on_exchange or self.log_missing)(entry)
        return self._deliver()

    def ask(self, kind: str, requests: Mapping[str, Mapping[str, np.ndarray]]) -> Gathered:
        """An exchange that is no part of training, with the sites `requests` names; all get equal shapes."""
        self.asked += 1
        self.spool.clear()
        expected = message_checks.of_reply(self.server.plan, kind, next(iter(requests.values())))
        self.link.expect(message_checks.largest_reply(expected))
        number = self.server.exchanges + 1 + self.asked
        about = (self.roster.run, number, kind, self.server.run.round, "server")
        # As if all had been counted: nobody is away from the first exchange of its kind.
        common = Envelope(*about, agreement=self.roster.agreement, counted=number - 1)
        envelopes = {
            name: replace(common, receiver=name, arrays=arrays, block=hash_arrays(arrays))
            for name, arrays in requests.items()
        }
        found = self.gather(envelopes, expected)
        entry = entry_of(envelopes, found, list(found.replies), attempt=self.server.attempt)
        self.roster.log.append(entry)
        (self.on_exchange or self.log_missing)(entry)
        return found

    # ------------------------------------------------------------------------------ one exchange

    def _exchange(self, request: Message) -> tuple[dict[str, Message], dict[str, Any]]:
        """The replies that count, and the entry of the participation log."""
        number = self.server.exchanges + 1
        expected = message_checks.of_reply(self.server.plan, request.kind, request.arrays)
        self.link.expect(message_checks.largest_reply(expected))
        asked = [name for name in self.roster.sites if self._is_asked(request, name)]
        envelopes = {name: self._envelope(request, number, name) for name in asked}
        found = self.gather(envelopes, expected)
        found.refusals.update({n: "few-rows" for n in self.roster.sites if n not in envelopes})
        replies, counted = found.replies, [n for n in self.roster.sites if n in found.replies]
        entry = entry_of(envelopes, found, counted, attempt=self.server.attempt)
        entry |= {"missing": found.missing(self.roster.sites), **self.roster.changes}
        if len(counted) < min(self.patience.quorum, len(asked)):
            about = (entry["missing"], self.patience.quorum, self.patience.timeout)
            raise QuorumError(too_few(request.kind, len(counted), *about))
        return {name: replies[name].message() for name in counted}, entry

    def trip(
        self,
        request: Message,
        trip: str,
        sealed: Mapping[str, bytes],
        accept: Accept,
        limits: Limits,
    ) -> tuple[Gathered, int]:
        """One trip of an exchange with masks, and the bytes that went down in it."""
        envelopes = {}
        for name, told in sealed.items():
            made = self._envelope(request, self.server.exchanges + 1, name)
            arrays = made.arrays if trip == ANSWER else {}
            envelopes[name] = replace(made, arrays=arrays, trip=trip, sealed=told)
        found = self.gather(envelopes, {}, accept=accept, limits=limits)
        return found, sum(envelopes[name].nbytes for name in found.replies)

    def _is_asked(self, request: Message, name: str) -> bool:
        """Not in training, if the site has too few rows for privacy="sums"."""
        return request.kind not in ("start", "round") or name not in self.server.unable

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
        """Which site has received what, once the exchange is complete.

        A site that was left out has answered: it goes on from there, but its sums are not in the totals.
        """
        roster, counted = self.roster, entry["counted"]
        if request.kind == "cycles":
            roster.setup["cycles"] = dict(request.arrays)
        if request.kind == "start":
            roster.setup[f"start {self.server.attempt}"] = dict(request.arrays)
        if request.kind in ("start", "round"):
            roster.last_round[self.server.attempt] = list(counted)
        for name in (*counted, *entry.get("excluded", ())):
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

    def gather(
        self,
        envelopes: Mapping[str, Envelope],
        expected: Expected,
        *,
        last: bool = False,
        accept: Accept | None = None,
        limits: Limits = Limits(),  # noqa: B008
    ) -> Gathered:
        """Sends to all sites and waits."""
        began = self.clock()
        grace = self.patience.last_grace if last else self.patience.grace
        most = self.patience.timeout if limits.most is None else limits.most
        quorum = self.patience.quorum if limits.least is None else limits.least
        deadline = Deadline(began, most)
        away = (
            {n for n, e in envelopes.items() if e.counted < e.exchange - 1}
            if self.roster.counted  # if none was counted, all sites are new
            else set()
        )
        found = Gathered({}, {})
        self.tell(reports.asked(envelopes))
        waiting, to_send = set(envelopes), set(envelopes)
        lines = WaitingLines(_about(envelopes), began)
        while waiting:
            now = self.clock()
            here = self._told_of_changes()
            if now >= deadline.end(not waiting.isdisjoint(here)):
                break
            for line in lines.lines(now, deadline, waiting, here):
                self.say(line)
            for name in sorted(to_send):
                if self.link.push(name, envelopes[name], deadline.lifetime):
                    to_send.discard(name)
            for name, reply in self.link.pull():
                deadline.answered(now)
                self._accept(name, reply, envelopes, expected, found, accept)
                waiting.discard(name)
            if limits.enough is not None and len(found.replies) >= limits.enough:
                break
            gone = set(self.link.lost()) & waiting
            to_send |= gone
            if last:  # a site that left after the delivery may have its model
                away |= gone
            if waiting and waiting <= away and len(found.replies) >= quorum:
                # All that answered last time have answered: the others get as much time again.
                deadline.limit = min(deadline.limit, began + 2.0 * (now - began) + grace)
                away = set()
            if waiting:
                self.sleep(self.patience.pause)
        return found._replace(seconds=self.clock() - began)

    def _told_of_changes(self) -> Collection[str]:
        """The sites that are connected; says who came and who left."""
        now = self.link.connected()
        for line in changes(self._connected, now, self.roster.sites):
            self.say(line)
        self._connected = set(now)
        return now

    def _accept(
        self,
        name: str,
        reply: Envelope | Refused,
        envelopes: Mapping[str, Envelope],
        expected: Expected,
        found: Gathered,
        accept: Accept | None = None,
    ) -> None:
        """Keeps a good reply. A bad one is logged and changes nothing."""
        try:
            if isinstance(reply, Refused):
                raise reply
            there = name in found.replies
            check_reply(name, reply, envelopes.get(name), expected, there=there)
            if accept is not None:
                accept(name, reply)
            elif reply.kind.partition(":")[0] not in (DELIVER, RELEASE, "zones"):  # no sums
                admit(self.server, reply)
        except Refused as refused:
            if name not in found.replies:
                found.refusals[name] = refused.code  # said with the exchange, or with the quorum
                self.tell(reports.refused(name, envelopes, refused.code))
            level = logging.WARNING if name in found.replies else logging.INFO
            why = f" ({refused.why})" if refused.code == "inadmissible" else ""
            log.log(level, "refused a reply of %s: %s%s", short(name), CODES[refused.code], why)
            return
        found.refusals.pop(name, None)
        if accept is not None:
            self.record(envelopes[name].shown(), name)
            self.record(reply.shown(), "server")
        else:
            self.record(envelopes[name].message(), name)
            self.record(reply.message(), "server")
        found.replies[name] = replace(reply, arrays=self.spool.keep(reply.arrays))
        self.tell(reports.answered(name, envelopes[name], reply))
        if reply.kind == DELIVER:
            self.roster.delivered.append(name)
            alarm = bool(np.any(reply.arrays.get(ALARM, False)))
            self.tell(events.Delivered(name, alarm))
            if alarm:
                log.warning(ALARMED, short(name))
            self.on_delivery(name)

    def log_missing(self, entry: dict[str, Any]) -> None:
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
        expected = message_checks.of_reply(server.plan, DELIVER, {})
        self.link.expect(message_checks.largest_reply(expected))
        left = sum(name not in self.roster.delivered for name in self.roster.sites)
        if left:
            self.say(
                f"training is done: delivering the model to {left} of {len(self.roster.sites)} sites"
            )
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
        said = {k: v for k, v in self.server.summary().items() if k != "left_out"}  # names of sites
        summary = json.dumps({**said, **self.announced})
        for name in self.roster.sites if names is None else names:
            if name not in self.roster.delivered:
                made = self._envelope(request, number, name)
                envelopes[name] = replace(made, kind=DELIVER, summary=summary)
        expected = message_checks.of_reply(self.server.plan, DELIVER, {})
        return self.gather(envelopes, expected, last=True).missing(envelopes)

    def _forget(self, names: Sequence[str]) -> None:
        """Sites that have lost their state are told everything again."""
        for name in names:
            self.roster.counted[name], self.roster.knows[name] = 0, []


def _about(envelopes: Mapping[str, Envelope]) -> str:
    """Exchange and kind, for a line."""
    first = next(iter(envelopes.values()), None)
    return "" if first is None else f"exchange {first.exchange}, {first.kind}"
