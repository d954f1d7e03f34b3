"""What a server knows of its federation: `after(state, event, now)` is the next state. Times are Unix's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

from pfedhgp.federation.schema import DELIVER
from pfedhgp.federation.watch import events as e

LAST_LINES, LAST_ROUNDS = 40, 5
SLOW_AT_LEAST = 5.0
"""Seconds that a site has at least before it is called slow."""
STATUSES = (
    *("excluded", "refused", "missing", "slow", "not connected"),
    *("working", "connected", "answered", "has the model"),
)
"""What a site can be, worst first."""
TROUBLE = STATUSES[:5]
ALARMED = "alarm: alone, it predicts its held-out rows better"


class Told(NamedTuple):
    """A line, when it came, and how much it matters."""

    time: float
    level: str
    text: str


@dataclass(frozen=True)
class Traffic:
    """Messages of one kind, and the bytes of their arrays."""

    messages: int = 0
    up: int = 0
    down: int = 0


@dataclass(frozen=True)
class SiteView:
    """One site, as the server sees it."""

    name: str
    connected: bool = False
    seen: float | None = None
    """When it was last connected."""
    asked: float | None = None
    """Since when the server waits for its answer."""
    took: float | None = None
    """Seconds from the last question to its answer."""
    answers: int = 0
    missed: int = 0
    missing: str = ""
    """Why the last exchange went on without it."""
    refused: str = ""
    excluded: str = ""
    has_model: bool = False
    alarm: bool = False
    """Its own rows speak against the model."""
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True)
class ServerState:
    """`sites` are in the order of sites.toml."""

    started: float
    address: str = ""
    rounds: int = 0
    start_is_round: bool = False
    phase: str = "starting"
    """starting, waiting, preparing, training, delivering, done or stopped"""
    why: str = ""
    """Why it stopped."""
    round: int = 0
    exchange: int = 0
    kind: str = ""
    asked: float | None = None
    ended: float | None = None
    bounds: tuple[tuple[int, float], ...] = ()
    """The bound after each round."""
    round_ends: tuple[float, ...] = ()
    """When the last rounds ended."""
    sites: Mapping[str, SiteView] = field(default_factory=dict)
    traffic: Mapping[str, Traffic] = field(default_factory=dict)
    lines: tuple[Told, ...] = ()


def after(state: ServerState, event: e.Event, now: float) -> ServerState:
    """The state after an event."""
    match event:
        case e.Listening():
            sites = {name: state.sites.get(name, SiteView(name)) for name in event.sites}
            state = replace(state, rounds=event.rounds, start_is_round=event.start_is_round)
            return replace(state, phase="waiting", address=event.address, sites=sites)
        case e.Connected():
            return _connected(state, set(event.sites), now)
        case e.Asked():
            return _asked(state, event, now)
        case e.Answered():
            return _answered(state, event, now)
        case e.RefusedReply():
            return _site(state, event.site, asked=None, refused=event.why)
        case e.Counted():
            return _counted(state, event)
        case e.Trained():
            return _trained(state, event, now)
        case e.Delivered():
            found = {"has_model": True, "alarm": event.alarm}
            return _site(state, event.site, **found, missing="", refused="")
        case e.Line():
            told = Told(now, event.level, event.text)
            return replace(state, lines=(*state.lines, told)[-LAST_LINES:])
        case e.Ended():
            waiting = {n: replace(s, asked=None) for n, s in state.sites.items()}
            phase = "stopped" if event.why else "done"
            return replace(state, phase=phase, why=event.why, ended=now, asked=None, sites=waiting)
    return state


def _site(state: ServerState, name: str, **change: object) -> ServerState:
    if name not in state.sites:
        return state
    changed = replace(state.sites[name], **change)  # type: ignore[arg-type]
    return replace(state, sites={**state.sites, name: changed})


def _connected(state: ServerState, names: set[str], now: float) -> ServerState:
    def seen(site: SiteView) -> SiteView:
        here = site.name in names
        at = now if here or site.connected else site.seen
        return replace(site, connected=here, seen=at)

    return replace(state, sites={name: seen(site) for name, site in state.sites.items()})


def _asked(state: ServerState, event: e.Asked, now: float) -> ServerState:
    """`missing` and `excluded` stay until the next exchange is over; who is asked again has not refused."""
    sites = {
        name: replace(site, asked=now, refused="") if name in event.sites else site
        for name, site in state.sites.items()
    }
    phase = {"round": "training", "start": "training", DELIVER: "delivering"}.get(
        event.kind, "preparing" if not state.bounds else "training"
    )
    return replace(
        state, phase=phase, exchange=event.exchange, kind=event.kind, asked=now, sites=sites
    )


def _answered(state: ServerState, event: e.Answered, now: float) -> ServerState:
    site = state.sites.get(event.site)
    if site is None:
        return state
    known = state.traffic.get(event.kind, Traffic())
    added = Traffic(known.messages + 1, known.up + event.bytes_up, known.down + event.bytes_down)
    state = replace(state, traffic={**state.traffic, event.kind: added})
    return _site(
        state,
        event.site,
        asked=None,
        took=None if site.asked is None else now - site.asked,
        answers=site.answers + 1,
        missing="",
        refused="",
        seen=now,
        bytes_up=site.bytes_up + event.bytes_up,
        bytes_down=site.bytes_down + event.bytes_down,
    )


def _counted(state: ServerState, event: e.Counted) -> ServerState:
    def counted(site: SiteView) -> SiteView:
        why = event.missing.get(site.name, "")
        excluded = event.excluded.get(site.name, "")
        missed = site.missed + (1 if why or excluded else 0)
        return replace(site, asked=None, missing=why, excluded=excluded, missed=missed)

    sites = {name: counted(site) for name, site in state.sites.items()}
    return replace(state, exchange=event.exchange, asked=None, sites=sites)


def _trained(state: ServerState, event: e.Trained, now: float) -> ServerState:
    done = event.round + 1 if state.start_is_round else event.round - event.attempt
    bounds = state.bounds if event.bound is None else (*state.bounds, (done, event.bound))
    ends = (*state.round_ends, now)[-LAST_ROUNDS - 1 :]
    return replace(state, phase="training", round=done, bounds=bounds, round_ends=ends)


# --------------------------------------------------------------------------- what follows from it


def seconds_left(state: ServerState, now: float) -> float | None:
    """At most, for rounds: those left times the median of the last ones. None while that is unknown.

    The first round may compile, and does not count. Training may converge before.
    """
    if state.phase != "training" or len(state.round_ends) < 3:
        return None
    took = [b - a for a, b in zip(state.round_ends[:-1], state.round_ends[1:], strict=True)]
    left = max(state.rounds - state.round, 0) * median(took)
    return max(left - (now - state.round_ends[-1]), 0.0)


def is_slow(state: ServerState, site: SiteView, now: float) -> bool:
    """Half of the sites have answered, and this one has taken twice as long as they did."""
    if site.asked is None or state.asked is None:
        return False
    asked = [s for s in state.sites.values() if s.asked is not None]
    took = [s.took for s in state.sites.values() if s.asked is None and s.took is not None]
    if len(took) < len(asked):
        return False
    return now - site.asked > max(SLOW_AT_LEAST, 2.0 * median(took))


def status_of(state: ServerState, site: SiteView, now: float) -> tuple[str, str]:
    """One of `STATUSES`, and why."""
    if site.has_model:
        return "has the model", ALARMED if site.alarm else ""
    if site.excluded:
        return "excluded", site.excluded
    if site.refused:
        return "refused", site.refused
    if site.missing and not (site.connected and site.asked is not None):
        return "missing", site.missing
    if not site.connected and site.asked is not None and site.seen is not None:
        return "missing", "the connection is lost"
    if not site.connected and site.seen is None:
        return "not connected", "has not come yet"
    if site.asked is not None:
        return ("slow", "others have answered") if is_slow(state, site, now) else ("working", "")
    return ("answered", "") if site.answers else ("connected", "")


def by_status(state: ServerState, now: float) -> dict[str, int]:
    """How many sites are in each status."""
    found = dict.fromkeys(STATUSES, 0)
    for site in state.sites.values():
        found[status_of(state, site, now)[0]] += 1
    return found
