"""A private fit in one process: one noisy release a client, the shared function from releases, own layers."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace
from pathlib import Path

from pfedhgp.data.tables import GivenData
from pfedhgp.federation.messages import logged
from pfedhgp.federation.private_fit import (
    frame,
    own_layers,
    promise_of,
    public_basis,
    public_scaling,
    released,
    sent,
)
from pfedhgp.model.fitted import FittedModel
from pfedhgp.privacy.discrete_gaussian import Below
from pfedhgp.privacy.ledger import Ledger
from pfedhgp.privacy.shared_function import shared_function
from pfedhgp.settings.table import ModelSettings


def private_model(
    settings: ModelSettings, data: GivenData, below: Below = secrets.randbelow
) -> FittedModel:
    """The fitted model of a private fit in one process."""
    promise = promise_of(settings, len(data.inputs), len(data.outputs))
    scaling = public_scaling(promise)
    public = public_basis(settings.kernel, scaling)
    releases = [
        released(
            promise,
            public,
            scaling.rows(client),
            ledger=ledger_of(settings.ledger, client.name),
            below=below,
        )
        for client in data.clients
    ]
    shared = shared_function(public, releases)
    messages = [
        logged("release", 0, (client.name, "server"), sent(each))
        for client, each in zip(data.clients, releases, strict=True)
    ]
    names = (data.inputs, data.outputs)
    model = frame(settings, promise, names, shared, len(data.clients), messages)
    posteriors, jitter = {}, {}
    for index, client in enumerate(data.clients):
        others = shared.posterior(without=index)
        posteriors[client.name], jitter[client.name] = own_layers(settings, model, others, client)
    return replace(model, clients=posteriors, client_jitter=jitter)


def ledger_of(folder: str | None, name: str) -> Ledger | None:
    """Each client's ledger has a folder of its own, named by a hash of the client's name."""
    if folder is None:
        return None
    return Ledger(Path(folder) / hashlib.sha256(name.encode()).hexdigest()[:16])
