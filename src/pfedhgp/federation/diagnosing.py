"""A diagnosis over sites, as exchanges: in one process, and as a phase of a federation's server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from pfedhgp.diagnosis.federated import messages as sent
from pfedhgp.diagnosis.federated.party import Party, answers
from pfedhgp.diagnosis.federated.server import DiagnosisServer
from pfedhgp.diagnosis.run_classifier import RunClassifier
from pfedhgp.diagnosis.run_sums import RunSums
from pfedhgp.diagnosis.training import Training
from pfedhgp.errors import InputError
from pfedhgp.federation import message_checks
from pfedhgp.federation.messages import Message, hash_arrays
from pfedhgp.federation.phases import Outcome, Prepared, RunState, Sums
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.training import Starts
from pfedhgp.inference.arrays import State, below
from pfedhgp.inference.messages import pack, unpack


def train_with(
    plan: Plan,
    sites: Mapping[str, Party],
    record: Callable[[Message, str], None] = lambda message, receiver: None,
) -> Training:
    """Trains with sites in this process; every message is checked as between machines."""
    assert plan.diagnosis is not None
    for name, party in sites.items():
        Q = party.own.cycles.shape[1]
        if plan.spec.outputs != Q:
            raise InputError(
                f"site {name!r} has {Q} channels, and {plan.spec.outputs} were agreed: use the same "
                "channels at all sites"
            )
    server = DiagnosisServer(plan.diagnosis)
    while server.step is not None:
        arrays, kind = server.request(), server.step
        message_checks.check_arrays(arrays, message_checks.of_request(plan, kind, arrays))
        expected = message_checks.of_reply(plan, kind, arrays)
        request = Message(kind, 0, "server", arrays, hash_arrays(arrays))
        total: dict[str, np.ndarray] = {}
        for name, reply in zip(sites, answers(list(sites.values()), kind, arrays), strict=True):
            message_checks.check_arrays(reply, expected)
            record(request, name)
            record(Message(kind, 0, name, reply, request.block), "server")
            server.see(name, reply)
            total = {n: total[n] + a for n, a in reply.items()} if total else dict(reply)
        server.take(total)
    assert server.training is not None
    return server.training


@dataclass
class Diagnosing:
    """A phase of a federation's server, before training: the exchanges of a diagnosis."""

    run: RunState
    prepared: Prepared
    server: DiagnosisServer

    @property
    def kind(self) -> str:
        return str(self.server.step)

    def request(self) -> dict[str, np.ndarray]:
        return self.server.request()

    def see(self, reply: Message) -> None:
        """Refuses, by name, a site whose cycles are on another grid."""
        self.server.see(reply.sender, reply.arrays)

    def take(self, sums: Sums, senders: Sequence[str]) -> Outcome:
        self.server.take(sums)
        if self.server.training is None:
            return Outcome(self)
        self.run.diagnosis = self.server.training
        return Outcome(Starts(self.run, self.prepared))

    def state(self) -> State:
        """For a checkpoint."""
        return State(dict(self.server.kept), {"step": self.server.step})

    @staticmethod
    def restored(run: RunState, prepared: Prepared, state: State) -> Diagnosing:
        found = started(run, prepared)
        found.server.kept, found.server.step = dict(state.arrays), state.plain["step"]
        return found


def started(run: RunState, prepared: Prepared) -> Diagnosing:
    """The phase at its beginning."""
    assert prepared.plan.diagnosis is not None
    return Diagnosing(run, prepared, DiagnosisServer(prepared.plan.diagnosis))


# ----------------------------------------------------------------------------- to arrays and back


def delivered_arrays(training: Training | None, outputs: int) -> dict[str, np.ndarray]:
    """The classifier in the delivery, below `diagnosis.`; what is text goes with the summary."""
    if training is None:
        return {}
    found, made = training.classifier, training.classifier.coordinates
    used = np.zeros(outputs)
    used[list(found.used)] = 1.0
    own = {f.name: getattr(found.sums, f.name) for f in fields(RunSums)}
    arrays = {
        **{"grid": made.grid, "centre": made.centre, "unit": made.spread},
        **{"used": used, "rank": np.asarray(float(made.rank))},
        **{"own": np.asarray(float(found.sums.own))},
        **pack(sent.CLASSIFIER, own),
    }
    return below("diagnosis", {name: np.asarray(a, np.float64) for name, a in arrays.items()})


def text_of(training: Training) -> dict[str, Any]:
    """What a model's settings and the delivery's summary have of it."""
    return {**training.facts, **training.classifier.to_json()}


def from_delivery(arrays: Mapping[str, np.ndarray], text: Mapping[str, Any]) -> Training:
    """The inverse of both."""
    own = unpack(sent.CLASSIFIER, State(arrays).part("diagnosis"))
    made = {"grid": own["grid"], "centre": own["centre"], "spread": own["unit"]}
    sums = {f"sums.{f.name}": own[f.name] for f in fields(RunSums)}
    return trained_from({**made, **sums}, text)


def trained_from(arrays: Mapping[str, np.ndarray], text: Mapping[str, Any]) -> Training:
    """From the arrays and the text of a model folder."""
    classifier = RunClassifier.read(arrays, text)
    known = classifier.to_json()
    facts = {name: value for name, value in text.items() if name not in known}
    return Training(classifier, facts)
