"""The server of a private run: gathers one release a site, computes everything from them, delivers.

Releases are in the server's checkpoint before it goes on: a killed server delivers what it began with. A site
that is asked again sends the same release, at no further cost. No Flower in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pfedhgp.federation.agreement import Agreement
from pfedhgp.federation.envelope import Envelope
from pfedhgp.federation.flower.exchange import Engine
from pfedhgp.federation.flower.waiting import QuorumError, too_few
from pfedhgp.federation.message_checks import largest_reply
from pfedhgp.federation.messages import hash_arrays
from pfedhgp.federation.private_fit import frame
from pfedhgp.federation.private_messages import Shapes, delivery_arrays, read_release
from pfedhgp.federation.schema import DELIVER, RELEASE
from pfedhgp.inference.arrays import State, below
from pfedhgp.model.fitted import FittedModel
from pfedhgp.privacy.shared_function import SharedFunction, shared_function

SUMMARY = "{}"


@dataclass
class Releases:
    """What sites have released, by site: part of the server's checkpoint."""

    found: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    names: tuple[str, ...] = ("the releases of a private run",)

    def state(self) -> State:
        arrays: dict[str, np.ndarray] = {}
        for number, each in enumerate(self.found.values()):
            arrays |= below(str(number), each)
        return State(arrays, {"sites": list(self.found)})

    def restore(self, state: State) -> None:
        self.found = {n: state.part(str(i)) for i, n in enumerate(state.plain["sites"])}


@dataclass
class PrivateRun:
    """One private run over an engine's link."""

    agreement: Agreement
    engine: Engine
    releases: Releases

    @property
    def shapes(self) -> Shapes:
        return Shapes(self.agreement.public, len(self.agreement.columns.outputs))

    def run(self) -> tuple[FittedModel, dict[str, str]]:
        """The model without any client's layers, and why sites did not get it."""
        engine = self.engine
        if not self.releases.found:
            self._gather()
        names = [name for name in engine.roster.sites if name in self.releases.found]
        releases = [read_release(self.releases.found[name]) for name in names]
        shared = shared_function(self.agreement.public, releases)
        return self._model(shared, len(names)), self._deliver(shared, names)

    def _gather(self) -> None:
        """Exchange 1: every site's release."""
        engine, expected = self.engine, self.shapes.of_release()
        engine.link.expect(largest_reply(expected))
        envelopes = {n: self._envelope(n, RELEASE, 1, {}) for n in engine.roster.sites}
        found = engine.gather(envelopes, expected)
        missing = found.missing(engine.roster.sites)
        if len(found.replies) < engine.patience.quorum:
            about = (missing, engine.patience.quorum, engine.patience.timeout)
            raise QuorumError(too_few(RELEASE, len(found.replies), *about))
        counted = [name for name in engine.roster.sites if name in found.replies]
        self.releases.found = {name: dict(found.replies[name].arrays) for name in counted}
        entry = {
            "exchange": 1,
            "kind": RELEASE,
            "round": 0,
            "attempt": 0,
            "block": hash_arrays({}),
            "counted": counted,
            "missing": missing,
            "audit": {name: found.replies[name].audit for name in counted},
            "seconds": round(found.seconds, 3),
            "site_seconds": {},
            "bytes_up": sum(found.replies[name].nbytes for name in counted),
            "bytes_down": 0,
        }
        engine.roster.counted = dict.fromkeys(counted, 1)
        engine.roster.log.append(entry)
        engine.server.run.exchanges = 1
        engine.save_checkpoint()
        (engine.on_exchange or engine.log_missing)(entry)

    def _deliver(self, shared: SharedFunction, names: list[str]) -> dict[str, str]:
        """Exchange 2: the shared function, and for each site what the others' releases say of it."""
        engine = self.engine
        engine.link.expect(largest_reply({}))
        envelopes = {}
        for name in engine.roster.sites:
            if name not in engine.roster.delivered:
                own = names.index(name) if name in names else None
                envelopes[name] = self._envelope(name, DELIVER, 2, delivery_arrays(shared, own))
        return engine.gather(envelopes, {}, last=True).missing(envelopes)

    def _model(self, shared: SharedFunction, clients: int) -> FittedModel:
        agreement, columns = self.agreement, self.agreement.columns
        assert agreement.promise is not None
        names = (columns.input_names, columns.outputs)
        return frame(agreement.model_settings, agreement.promise, names, shared, clients)

    def _envelope(
        self, name: str, kind: str, number: int, arrays: Mapping[str, np.ndarray]
    ) -> Envelope:
        roster = self.engine.roster
        return Envelope(
            run=roster.run,
            exchange=number,
            kind=kind,
            round=0,
            sender="server",
            arrays=arrays,
            block="" if kind == DELIVER else hash_arrays(arrays),
            receiver=name,
            counted=roster.counted.get(name, 0),
            agreement=roster.agreement,
            summary=SUMMARY if kind == DELIVER else "",
        )
