"""A new client on a frozen global block, by the solver whose form the model has."""

from __future__ import annotations

from pfedhgp.data.rows import ClientRows
from pfedhgp.inference.markov import adoption as markov
from pfedhgp.inference.structured import adoption as structured
from pfedhgp.inference.structured.adoption import Adopted
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.model.fitted import FittedModel


def adopt(
    model: FittedModel,
    client: ClientRows,
    *,
    noise: str,
    settings: Structured,
    local_inducing: int | str,
    local_latents: int | None,
) -> Adopted:
    """The client's posterior given the shared functions, and what else it keeps.

    A model whose shared functions are at knots has the population of the Markov solver; files of earlier
    versions have not, and their new clients are fitted with dense matrices.
    """
    if model.shared.knot_J is not None and model.population.traits is not None:
        averaging = settings.averaging is not None
        found = markov.adopt(model, client, noise=noise, averaging=averaging)
        return Adopted(*found, None)
    return structured.adopt(
        model,
        client,
        noise=noise,
        settings=settings,
        local_inducing=local_inducing,
        local_latents=local_latents,
    )
