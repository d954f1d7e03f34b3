"""What a site has sent and received, folded from its audit log; and what it is doing now."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pfedhgp.federation.envelope import CODES
from pfedhgp.federation.schema import DELIVER
from pfedhgp.federation.watch import events as e
from pfedhgp.federation.watch.server_state import LAST_LINES, Told

LAST_REFUSALS = 20


@dataclass(frozen=True)
class Passed:
    """Messages of one kind that went one way."""

    messages: int = 0
    bytes: int = 0
    arrays: tuple[str, ...] = ()
    """The names of what they carried."""
    last: float | None = None


@dataclass(frozen=True)
class SiteState:
    """`sent` and `received` are by kind of message, over all runs of this home."""

    name: str
    server: str
    home: str
    started: float
    phase: str = "connecting"
    """connecting, waiting, working, has the model, done or stopped"""
    why: str = ""
    exchange: int = 0
    kind: str = ""
    since: float | None = None
    ended: float | None = None
    sent: Mapping[str, Passed] = field(default_factory=dict)
    received: Mapping[str, Passed] = field(default_factory=dict)
    refusals: tuple[Told, ...] = ()
    """The last ones."""
    refused: int = 0
    broken: bool = False
    """Whether the audit log has a line that says that it was cut off."""
    lines: tuple[Told, ...] = ()

    @property
    def bytes_sent(self) -> int:
        return sum(each.bytes for each in self.sent.values())

    @property
    def bytes_received(self) -> int:
        return sum(each.bytes for each in self.received.values())

    @property
    def messages_sent(self) -> int:
        return sum(each.messages for each in self.sent.values())


def after(state: SiteState, event: e.Event, now: float) -> SiteState:
    """The state after an event."""
    match event:
        case e.Audited():
            return _doing(counted(state, event), event, now)
        case e.Contact():
            if not event.here:
                return replace(state, phase="connecting", why=event.why, since=now)
            if state.phase == "connecting":
                return replace(state, phase="waiting", why="", since=now)
        case e.Line():
            told = Told(now, event.level, event.text)
            return replace(state, lines=(*state.lines, told)[-LAST_LINES:])
        case e.Ended():
            phase = "stopped" if event.why else "done"
            return replace(state, phase=phase, why=event.why, ended=now)
    return state


def counted(state: SiteState, event: e.Audited) -> SiteState:
    """One more line of the audit log."""
    at = _seconds(event.time)
    if event.direction in ("sent", "received"):
        known = getattr(state, event.direction)
        before = known.get(event.kind, Passed())
        names = tuple(dict.fromkeys((*before.arrays, *event.arrays)))
        passed = Passed(before.messages + 1, before.bytes + event.bytes, names, at)
        changed = {**known, event.kind: passed}
        if event.direction == "sent":
            return replace(state, sent=changed)
        return replace(state, received=changed)
    if event.direction == "refused":
        about = f"exchange {event.exchange}, {event.kind}: " if event.kind else ""
        told = Told(at or 0.0, "warning", about + CODES.get(event.code, event.code))
        refusals = (*state.refusals, told)[-LAST_REFUSALS:]
        return replace(state, refused=state.refused + 1, refusals=refusals)
    return replace(state, broken=True) if event.direction == "break" else state


def _doing(state: SiteState, event: e.Audited, now: float) -> SiteState:
    if event.direction == "received":
        state = replace(state, exchange=event.exchange, kind=event.kind)
        return replace(state, phase="working", why="", since=now)
    delivered = event.direction == "sent" and event.kind == DELIVER
    phase = "has the model" if delivered or state.phase == "has the model" else "waiting"
    return replace(state, phase=phase, why="", since=now)


def read(state: SiteState, log: Path) -> SiteState:
    """`state` with everything that an audit log has from before. Lines that are none are left out."""
    if not log.is_file():
        return state
    for line in log.read_bytes().splitlines():
        try:
            state = counted(state, audited(json.loads(line)))
        except (ValueError, KeyError, TypeError):
            continue
    return state


def audited(entry: Mapping[str, object]) -> e.Audited:
    """A line of the audit log as an event."""
    names = ("direction", "exchange", "kind", "bytes", "arrays", "code", "time")
    return e.Audited(**{name: entry[name] for name in names})  # type: ignore[arg-type]


def _seconds(text: str) -> float | None:
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
