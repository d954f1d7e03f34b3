"""What the server of a private run does in every mode: asks all sites, notes an exchange, delivers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pfedhgp.federation.envelope import Envelope
from pfedhgp.federation.flower.exchange import Engine
from pfedhgp.federation.flower.participation import entry_of
from pfedhgp.federation.flower.waiting import QuorumError, too_few
from pfedhgp.federation.message_checks import Expected, largest_reply
from pfedhgp.federation.messages import hash_arrays
from pfedhgp.federation.schema import DELIVER, RELEASE
from pfedhgp.federation.watch import reports

Arrays = Mapping[str, np.ndarray]
SUMMARY = "{}"


def ask_all(
    engine: Engine, number: int, arrays: Arrays, expected: Expected, *, round: int = 0
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]:
    """Every site's answer in an exchange, and the entry of the participation log."""
    engine.link.expect(largest_reply(expected))
    envelopes = {
        n: _envelope(engine, n, RELEASE, number, arrays, round) for n in engine.roster.sites
    }
    found = engine.gather(envelopes, expected)
    counted = [name for name in engine.roster.sites if name in found.replies]
    entry = entry_of(envelopes, found, counted, attempt=0)
    if len(counted) < engine.patience.quorum:
        about = (entry["missing"], engine.patience.quorum, engine.patience.timeout)
        raise QuorumError(too_few(RELEASE, len(counted), *about))
    return {name: dict(found.replies[name].arrays) for name in counted}, entry


def note(engine: Engine, entry: dict[str, Any]) -> None:
    """The exchange is over: what came of it is in the checkpoint before the server goes on."""
    engine.spool.clear()
    for name in entry["counted"]:
        engine.roster.counted[name] = entry["exchange"]
    engine.roster.log.append(entry)
    engine.server.run.exchanges = entry["exchange"]
    engine.save_checkpoint()
    engine.tell(reports.counted(entry))
    (engine.on_exchange or engine.log_missing)(entry)


def deliver(engine: Engine, number: int, arrays_for: Callable[[str], Arrays]) -> dict[str, str]:
    """To every site that lacks the model; why some did not get it."""
    engine.link.expect(largest_reply({}))
    envelopes = {
        name: _envelope(engine, name, DELIVER, number, arrays_for(name))
        for name in engine.roster.sites
        if name not in engine.roster.delivered
    }
    return engine.gather(envelopes, {}, last=True).missing(envelopes)


def _envelope(
    engine: Engine, name: str, kind: str, number: int, arrays: Arrays, round: int = 0
) -> Envelope:
    roster = engine.roster
    return Envelope(
        run=roster.run,
        exchange=number,
        kind=kind,
        round=round,
        sender="server",
        arrays=arrays,
        block="" if kind == DELIVER else hash_arrays(arrays),
        receiver=name,
        counted=roster.counted.get(name, 0),
        agreement=roster.agreement,
        summary=SUMMARY if kind == DELIVER else "",
    )
