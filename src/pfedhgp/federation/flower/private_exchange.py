"""The server of a private run: gathers one release a site, computes everything from them, delivers.

Releases are in the server's checkpoint before it goes on: a killed server delivers what it began with. A site
that is asked again sends the same release, at no further cost. No Flower in here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pfedhgp.federation.agreement import Agreement
from pfedhgp.federation.flower import private_asking
from pfedhgp.federation.flower.exchange import Engine
from pfedhgp.federation.private_fit import frame
from pfedhgp.federation.private_messages import Shapes, delivery_arrays, read_release
from pfedhgp.inference.arrays import State, below
from pfedhgp.model.fitted import FittedModel
from pfedhgp.privacy.shared_function import SharedFunction, shared_function


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
        shapes = Shapes(self.agreement.public, len(self.agreement.columns.outputs))
        self.releases.found, entry = private_asking.ask_all(self.engine, 1, {}, shapes.of_release())
        private_asking.note(self.engine, entry)

    def _deliver(self, shared: SharedFunction, names: list[str]) -> dict[str, str]:
        """Exchange 2: the shared function, and for each site what the others' releases say of it."""

        def arrays_for(name: str) -> dict[str, np.ndarray]:
            return delivery_arrays(shared, names.index(name) if name in names else None)

        return private_asking.deliver(self.engine, 2, arrays_for)

    def _model(self, shared: SharedFunction, clients: int) -> FittedModel:
        agreement, columns = self.agreement, self.agreement.columns
        assert agreement.promise is not None
        names = (columns.input_names, columns.outputs)
        return frame(agreement.model_settings, agreement.promise, names, shared, clients)
