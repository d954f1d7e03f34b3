"""A private fit in one process: one noisy release a client, the shared function from releases, own layers."""

from __future__ import annotations

import secrets
from dataclasses import replace

from pfedhgp.base.choices import LOCAL_PRIVACY
from pfedhgp.data.tables import GivenData
from pfedhgp.estimator.private_totals import model_from_totals
from pfedhgp.federation.messages import logged
from pfedhgp.federation.private_fit import (
    frame,
    own_layers,
    promise_of,
    public_basis,
    public_scaling,
    released,
    sent,
    warn_of_few_clients,
)
from pfedhgp.model.fitted import FittedModel
from pfedhgp.privacy.discrete_gaussian import Below
from pfedhgp.privacy.ledger import ledger_of
from pfedhgp.privacy.shared_function import shared_function
from pfedhgp.settings.table import ModelSettings


def private_model(
    settings: ModelSettings, data: GivenData, below: Below = secrets.randbelow
) -> FittedModel:
    """The fitted model of a private fit in one process."""
    promise = promise_of(settings, len(data.inputs), len(data.outputs))
    warn_of_few_clients(promise, len(data.clients), stacklevel=6)
    if settings.privacy != LOCAL_PRIVACY:
        return model_from_totals(settings, promise, data, below)
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
