"""Clients that a model learns after its training: their own layers are fitted to the frozen global block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pfedhgp.data.rows import ClientRows
from pfedhgp.federation import planning
from pfedhgp.inference import adoption
from pfedhgp.inference.structured.adoption import Adopted
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.spec import count_local, noise_form
from pfedhgp.settings.table import ModelSettings


def adopted(model: FittedModel, settings: ModelSettings, rows: Sequence[ClientRows]) -> FittedModel:
    """The model with these clients too; nothing is sent."""
    found = model
    for client in rows:
        found = one_adopted(model, settings, client).into(found, client.name)
    return found


def one_adopted(model: FittedModel, settings: ModelSettings, client: ClientRows) -> Adopted:
    """A client's part of the model, beside its global block."""
    return adoption.adopt(
        model,
        client,
        noise=noise_form(settings.noise, model.outputs),
        settings=planning.settings_of_adoption(settings),
        local_inducing=settings.local_inducing,
        local_latents=None if model.clients else local_latents(settings, model),
    )


def with_adopted(
    model: FittedModel, settings: ModelSettings, rows: Sequence[ClientRows]
) -> FittedModel:
    """The model with all clients of `rows`, in their order: those that training did not ask are adopted."""
    rest = [client for client in rows if client.name not in model.clients]
    if not rest:
        return model
    found = adopted(model, settings, rest)
    return replace(found, clients={client.name: found.clients[client.name] for client in rows})


def local_latents(settings: ModelSettings, model: FittedModel) -> int:
    """How many local functions a client of the model has, if there is none to be looked at."""
    for each in model.settings.get("choice", ()):
        if each["round"] is None and "local_latents" in each:  # training chose it
            return int(each["local_latents"])
    given, outputs = planning.numbers_of_latents(settings)[1], model.outputs
    given = outputs if settings.local == "state-space" else given
    return count_local(given, outputs=outputs, layers=tuple(settings.layers))
