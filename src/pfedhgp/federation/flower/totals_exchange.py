"""The server of a private run by totals: asks four questions, learns from the totals, delivers them.

With "distributed" the totals come through masks. With "central" the server has each site's sums, adds them up
and draws the noise itself. A question is on its disk before it is asked, and the total with its noise before
the next one: a killed server asks the same again, and nothing that left it is ever drawn anew. No Flower in
here.

    RUN/checkpoint/question.safetensors   the question of the exchange that comes next
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pfedhgp.base.atomic_files import write_bytes
from pfedhgp.federation.agreement import Agreement
from pfedhgp.federation.checkpoint import decode, encode
from pfedhgp.federation.flower import private_asking
from pfedhgp.federation.flower.exchange import Engine
from pfedhgp.federation.flower.waiting import QuorumError
from pfedhgp.federation.messages import Message, hash_arrays
from pfedhgp.federation.private_fit import frame
from pfedhgp.federation.schema import RELEASE
from pfedhgp.federation.totals_fit import Learned, Terms, learned_from_totals
from pfedhgp.federation.totals_messages import DELIVERY, QUESTIONS, Shapes, delivery_arrays
from pfedhgp.inference.arrays import State, below
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.run_folder import naming
from pfedhgp.privacy.accounting import mu_for

Arrays = Mapping[str, np.ndarray]


class Total(NamedTuple):
    """A total with its noise, and whose answers are in it."""

    arrays: dict[str, np.ndarray]
    counted: list[str]


@dataclass
class Totals:
    """By exchange, what is known so far: part of the server's checkpoint."""

    known: list[Total] = field(default_factory=list)
    names: tuple[str, ...] = ("the totals of a private run",)

    def state(self) -> State:
        arrays: dict[str, np.ndarray] = {}
        for number, each in enumerate(self.known):
            arrays |= below(str(number), each.arrays)
        return State(arrays, {"counted": [each.counted for each in self.known]})

    def restore(self, state: State) -> None:
        counted = state.plain["counted"]
        self.known = [Total(state.part(str(i)), list(names)) for i, names in enumerate(counted)]


@dataclass(frozen=True)
class NextQuestion:
    """The file that has the question of the next exchange."""

    path: Path

    def kept(self, number: int, asked: Arrays) -> dict[str, np.ndarray]:
        """What is asked in an exchange: what was kept, or this question, which is kept now."""
        if self.path.is_file():
            with naming(self.path):
                state = decode(self.path.read_bytes())
                if state.plain["exchange"] == number:
                    return dict(state.arrays)
        state = State(
            {n: np.asarray(a, np.float64) for n, a in asked.items()}, {"exchange": number}
        )
        write_bytes(self.path, encode(state))
        return dict(state.arrays)


@dataclass
class TotalsRun:
    """One private run by totals over an engine's link."""

    agreement: Agreement
    terms: Terms
    engine: Engine
    totals: Totals
    next: NextQuestion
    number: int = 0
    """Questions that this process has come to so far"""

    @property
    def mu(self) -> float:
        return mu_for(self.terms.promise.epsilon, self.terms.promise.delta)

    def run(self) -> tuple[FittedModel, dict[str, str]]:
        """The model without any client's layers, and why sites did not get it."""
        if not self.terms.at_server:  # with fewer sites in a total its noise would be too little
            patience, needed = self.engine.patience, self.terms.clients - self.terms.missing
            self.engine.patience = replace(patience, quorum=max(patience.quorum, needed))
        learned = learned_from_totals(self.terms, self.mu, self.ask)
        return self._model(learned), self._deliver(learned)

    def ask(self, question: str, asked: Arrays) -> tuple[dict[str, np.ndarray], int]:
        """The total of the answers, and of how many sites it is: asked now, or known already."""
        self.number += 1
        assert QUESTIONS[self.number - 1] == question
        known = self.totals.known
        if len(known) < self.number:
            kept = self.next.kept(self.number, asked)
            arrays, entry = self._total(question, kept)
            known.append(Total(arrays, list(entry["counted"])))
            private_asking.note(self.engine, entry)
        here = known[self.number - 1]
        return here.arrays, len(here.counted)

    def _total(self, question: str, asked: Arrays) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The total with its noise, and the entry of the participation log."""
        engine, expected = self.engine, Shapes(self.terms).of_answer(question)
        if engine.masks is None:
            about = (self.number, asked, expected)
            answers, entry = private_asking.ask_all(engine, *about, round=self.number)
            exact = {n: np.sum([a[n] for a in answers.values()], axis=0) for n in expected}
            arrays = self.terms.with_servers_noise(exact, self.mu)
        else:
            request = Message(RELEASE, self.number, "server", asked, hash_arrays(asked))
            try:
                arrays, entry = engine.masks.total_of(engine, request, expected)
            except QuorumError as error:
                raise QuorumError(f"{error}; a total of fewer would not be private") from None
        return arrays, entry

    def _deliver(self, learned: Learned) -> dict[str, str]:
        first = self.totals.known[0]

        def arrays_for(name: str) -> dict[str, np.ndarray]:
            about = (self.terms, learned, first.arrays, len(first.counted))
            return delivery_arrays(*about, within=name in first.counted)

        return private_asking.deliver(self.engine, DELIVERY, arrays_for)

    def _model(self, learned: Learned) -> FittedModel:
        agreement, columns, terms = self.agreement, self.agreement.columns, self.terms
        return frame(
            agreement.model_settings,
            terms.promise,
            (columns.input_names, columns.outputs),
            learned.shared(),
            len(self.totals.known[0].counted),
            exchanges=len(QUESTIONS),
            missing=terms.missing,
            at_server=terms.at_server,
        )
