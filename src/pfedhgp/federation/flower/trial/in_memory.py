"""A trial in one process, with a clock that only moves when the server waits.

Server, engine, checks, sites with homes and audit logs, and the packing of messages are the real ones. There
is no network, no encryption and no SuperLink: those are in `over_sockets`.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pfedhgp.base.numerics import numerics
from pfedhgp.federation.agreement import Agreement
from pfedhgp.federation.envelope import Envelope, Refused
from pfedhgp.federation.flower.exchange import Engine
from pfedhgp.federation.flower.site import Site, site_from_files
from pfedhgp.federation.flower.state import Roster
from pfedhgp.federation.flower.transport import LARGEST_REQUEST, from_records, to_records
from pfedhgp.federation.flower.trial.population import Behaviour, Population
from pfedhgp.federation.flower.waiting import Patience
from pfedhgp.federation.server import Server


@dataclass
class VirtualClock:
    """Seconds that pass by sleeping alone."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class MemoryLink:
    """The engine's `Link`: messages are packed and unpacked as for Flower, and arrive when they are due."""

    sites: Mapping[str, Site]
    behaviours: Mapping[str, Behaviour]
    clock: VirtualClock
    most_bytes: int = 0
    due: list[tuple[float, int, str, Any]] = field(default_factory=list)
    sent: int = 0

    def push(self, name: str, request: Envelope, lifetime: float) -> bool:
        how = self.behaviours[name]
        if how.is_gone(request):
            return True
        seen = from_records(to_records(request), most_bytes=LARGEST_REQUEST)
        reply = to_records(how.changed(self.sites[name].answer(seen)))
        self.sites[name].finish()
        self.sent += 1
        heapq.heappush(self.due, (self.clock() + how.seconds(), self.sent, name, reply))
        return True

    def pull(self) -> list[tuple[str, Envelope | Refused]]:
        found: list[tuple[str, Envelope | Refused]] = []
        while self.due and self.due[0][0] <= self.clock():
            _, _, name, records = heapq.heappop(self.due)
            try:
                found.append((name, from_records(records, most_bytes=self.most_bytes)))
            except Refused as refused:
                found.append((name, refused))
        return found

    def lost(self) -> list[str]:
        return []

    def connected(self) -> list[str]:
        return list(self.sites)

    def expect(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes


def run(
    population: Population, terms: Agreement, folder: Path, *, timeout: float, quorum: int
) -> tuple[list[dict[str, Any]], dict[str, str], dict[str, Any]]:
    """(participation log, sites without the model, summary of the training)"""
    behaviours = {name: population.behaviour(name) for name in population.names}
    sites = {name: trial_site(population, name, folder, terms) for name in population.names}
    clock, server = VirtualClock(), Server(terms.plan)
    roster = Roster(population.names, terms.to_json())
    engine = Engine(
        server,
        roster,
        MemoryLink(sites, behaviours, clock),
        Patience(timeout=timeout, quorum=quorum),
        clock=clock,
        sleep=clock.sleep,
    )
    with numerics():
        missing = engine.run()
    return roster.log, missing, server.summary()


def trial_site(population: Population, name: str, folder: Path, terms: Agreement) -> Site:
    """A site that has agreed to `terms`, with its rows and its home below `folder`."""
    number = population.names.index(name)
    data, home = folder / "rows" / f"{number}.parquet", folder / "homes" / str(number)
    data.parent.mkdir(parents=True, exist_ok=True)
    home.mkdir(parents=True, exist_ok=True)
    population.write_rows(name, data)
    return site_from_files(home=home, name=name, data=[data], expected=terms.to_json())
