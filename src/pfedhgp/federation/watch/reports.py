"""What the server's parts report, as events: from envelopes, log entries and plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pfedhgp.federation.envelope import CODES, Envelope
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.watch import events


def listening(address: str, sites: Sequence[str], plan: Plan, *, resumed: bool) -> events.Listening:
    how = plan.inference
    return events.Listening(
        address,
        tuple(sites),
        how.rounds * plan.restarts,
        start_is_round=how.start_is_round,
        resumed=resumed,
    )


def asked(envelopes: Mapping[str, Envelope]) -> events.Asked:
    """An exchange begins; nobody may be left to ask."""
    first = next(iter(envelopes.values()), None)
    if first is None:
        return events.Asked(0, "", 0, ())
    return events.Asked(first.exchange, first.kind, first.round, tuple(envelopes))


def answered(name: str, request: Envelope, reply: Envelope) -> events.Answered:
    return events.Answered(
        name, reply.exchange, reply.kind, reply.nbytes, request.nbytes, reply.seconds
    )


def refused(name: str, envelopes: Mapping[str, Envelope], code: str) -> events.RefusedReply:
    request = envelopes.get(name)
    about = (0, "") if request is None else (request.exchange, request.kind)
    return events.RefusedReply(name, *about, CODES[code])


def counted(entry: Mapping[str, Any]) -> events.Counted:
    """From an entry of the participation log."""
    excluded = entry.get("excluded", {})
    return events.Counted(
        exchange=entry["exchange"],
        kind=entry["kind"],
        round=entry["round"],
        counted=tuple(entry["counted"]),
        missing={name: CODES.get(code, code) for name, code in entry["missing"].items()},
        excluded={name: str(why) for name, why in excluded.items()},
        seconds=entry["seconds"],
        bytes_up=entry["bytes_up"],
        bytes_down=entry["bytes_down"],
    )


def trained(record: Mapping[str, Any]) -> events.Trained:
    """From the record of a round."""
    bound = record["bound"]
    return events.Trained(
        int(record["round"]), int(record["attempt"]), None if bound is None else float(bound)
    )
