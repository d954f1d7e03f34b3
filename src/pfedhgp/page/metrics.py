"""A state in Prometheus' text format. Names and labels are listed in docs/deploy.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pfedhgp.federation.watch import server_state as servers
from pfedhgp.federation.watch.server_state import ServerState
from pfedhgp.federation.watch.site_state import SiteState
from pfedhgp.version import __version__

Sample = tuple[Mapping[str, str], float | None]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def escaped(value: str) -> str:
    """A label's value: backslashes, quotes and line ends."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def family(name: str, kind: str, words: str, samples: Iterable[Sample]) -> str:
    """One metric with its help; samples without a value are left out."""
    lines = []
    for labels, value in samples:
        if value is not None:
            inside = ",".join(f'{key}="{escaped(text)}"' for key, text in labels.items())
            lines.append(f"pfedhgp_{name}{f'{{{inside}}}' if inside else ''} {float(value)!r}")
    if not lines:
        return ""
    head = [f"# HELP pfedhgp_{name} {words}", f"# TYPE pfedhgp_{name} {kind}"]
    return "\n".join([*head, *lines]) + "\n"


def metrics(state: ServerState | SiteState, now: float) -> str:
    """All metrics of a server or a site."""
    found = _server(state, now) if isinstance(state, ServerState) else _site(state)
    role = "server" if isinstance(state, ServerState) else "site"
    info = [({"role": role, "version": __version__}, 1.0)]
    common = [
        family("info", "gauge", "Version and role.", info),
        family("phase", "gauge", "1 for the present phase.", [({"phase": state.phase}, 1.0)]),
        family("start_time_seconds", "gauge", "When it began, Unix time.", [({}, state.started)]),
    ]
    return "".join([*common, *found])


def _server(state: ServerState, now: float) -> list[str]:
    sites = state.sites.values()
    bound = state.bounds[-1][1] if state.bounds else None
    counts = servers.by_status(state, now)
    traffic = [
        ({"kind": kind, "direction": way}, float(size))
        for kind, each in state.traffic.items()
        for way, size in (("up", each.up), ("down", each.down))
    ]
    return [
        family("round", "gauge", "Rounds done.", [({}, state.round)]),
        family("rounds_limit", "gauge", "The most rounds.", [({}, state.rounds)]),
        family("exchanges_total", "counter", "Exchanges begun.", [({}, state.exchange)]),
        family("bound_nats", "gauge", "Bound on the log evidence.", [({}, bound)]),
        family(
            "seconds_left",
            "gauge",
            "At most, for rounds.",
            [({}, servers.seconds_left(state, now))],
        ),
        family(
            "sites",
            "gauge",
            "Sites by status.",
            [({"status": status}, n) for status, n in counts.items()],
        ),
        family(
            "site_connected",
            "gauge",
            "Whether a site is connected.",
            [({"site": s.name}, s.connected) for s in sites],
        ),
        family(
            "site_excluded",
            "gauge",
            "Whether a site's sums are left out.",
            [({"site": s.name}, bool(s.excluded)) for s in sites],
        ),
        family(
            "site_answers_total",
            "counter",
            "Answers of a site.",
            [({"site": s.name}, s.answers) for s in sites],
        ),
        family(
            "site_missed_total",
            "counter",
            "Exchanges without a site.",
            [({"site": s.name}, s.missed) for s in sites],
        ),
        family("message_bytes_total", "counter", "Bytes of arrays.", traffic),
    ]


def _site(state: SiteState) -> list[str]:
    ways = (("sent", state.sent), ("received", state.received))
    kinds = [(way, kind, each) for way, by_kind in ways for kind, each in by_kind.items()]
    labels = [{"kind": kind, "direction": way} for way, kind, _ in kinds]
    return [
        family(
            "messages_total",
            "counter",
            "Messages in the audit log.",
            [(label, each.messages) for label, (_, _, each) in zip(labels, kinds, strict=True)],
        ),
        family(
            "message_bytes_total",
            "counter",
            "Bytes of arrays.",
            [(label, each.bytes) for label, (_, _, each) in zip(labels, kinds, strict=True)],
        ),
        family("refused_total", "counter", "Requests refused.", [({}, state.refused)]),
        family("audit_broken", "gauge", "Whether the log was cut off.", [({}, state.broken)]),
    ]
