"""A private fit by totals in one process: "distributed" (in fixed point, as under masks) and "central"."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pfedhgp.base.choices import DISTRIBUTED_PRIVACY
from pfedhgp.data.tables import GivenData
from pfedhgp.federation.masks.fixed_point import decoded, encoded
from pfedhgp.federation.masks.in_process import MaskedClients
from pfedhgp.federation.masks.keys import check_installed
from pfedhgp.federation.masks.roster import unmasking
from pfedhgp.federation.messages import Message, hash_arrays, logged
from pfedhgp.federation.private_fit import (
    Promise,
    frame,
    own_layers,
    public_basis,
    public_scaling,
)
from pfedhgp.federation.schema import RELEASE
from pfedhgp.federation.totals_fit import Terms, TotalsClient, learned_from_totals
from pfedhgp.model.fitted import FittedModel
from pfedhgp.privacy.discrete_gaussian import Below
from pfedhgp.privacy.ledger import ledger_of, request_of
from pfedhgp.privacy.noise_shares import tolerated
from pfedhgp.settings.table import ModelSettings

SERVER, TOTAL = "server", "total of all clients"


@dataclass
class Totals:
    """Asks all clients, adds their answers up, and logs what crossed."""

    clients: Sequence[TotalsClient]
    mu: float
    hidden: bool
    """whether totals alone reach the server"""
    masked: MaskedClients | None = None
    """secure aggregation; None: answers are added up in fixed point, with the same result"""
    messages: list[dict[str, Any]] = field(default_factory=list)
    exchanges: int = 0

    def ask(
        self, question: str, asked: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], int]:
        self.exchanges += 1
        answers = {c.rows.name: c.answer(question, asked, self.mu) for c in self.clients}
        if asked:
            self._log(SERVER, "every client", asked)
        if not self.hidden:
            for name, answer in answers.items():
                self._log(name, SERVER, answer)
            return {
                n: np.sum([each[n] for each in answers.values()], axis=0)
                for n in next(iter(answers.values()))
            }, len(answers)
        shapes = {n: a.shape for n, a in next(iter(answers.values())).items()}
        values = {name: encoded(each, shapes, len(answers)) for name, each in answers.items()}
        if self.masked is None:
            found = decoded(sum(values.values(), np.zeros(1, np.uint64)), shapes, len(values))
        else:
            request = Message(
                kind=RELEASE,
                round=self.exchanges,
                sender=SERVER,
                arrays=dict(asked),
                block=hash_arrays(asked),
            )
            found, _ = self.masked.sum_of(request, values, shapes)
        self._log(TOTAL, SERVER, found)
        return found, len(answers)

    def _log(self, sender: str, receiver: str, arrays: Mapping[str, np.ndarray]) -> None:
        self.messages.append(logged(RELEASE, self.exchanges, (sender, receiver), arrays))


def model_from_totals(
    settings: ModelSettings,
    promise: Promise,
    data: GivenData,
    below: Below = secrets.randbelow,
) -> FittedModel:
    """The fitted model of privacy="distributed" or "central"."""
    hidden, count = settings.privacy == DISTRIBUTED_PRIVACY, len(data.clients)
    scaling = public_scaling(promise)
    masks = unmasking(count) if settings.masks else None
    missing = tolerated(count, settings.tolerated, masks) if hidden else 0
    terms = Terms(promise, public_basis(settings.kernel, scaling), count, missing)
    clients = [
        TotalsClient(terms, scaling.rows(each), ledger_of(settings.ledger, each.name), below=below)
        for each in data.clients
    ]
    among = request_of({each.rows.name: each.stamp for each in clients})
    for each in clients:
        each.among = among
    masked = None
    if settings.masks:
        check_installed()
        masked = MaskedClients(None, [each.name for each in data.clients])
    totals = Totals(clients, min(each.mu for each in clients), hidden, masked)
    learned = learned_from_totals(terms, totals.mu, totals.ask)
    names = (data.inputs, data.outputs)
    shared = learned.shared()
    crossed = (totals.messages, totals.exchanges, missing)
    model = frame(settings, promise, names, shared, count, *crossed)
    posteriors, jitter = {}, {}
    for client, rows in zip(clients, data.clients, strict=True):
        others = learned.without(client).posterior()
        posteriors[rows.name], jitter[rows.name] = own_layers(settings, model, others, rows)
    return replace(model, clients=posteriors, client_jitter=jitter)
