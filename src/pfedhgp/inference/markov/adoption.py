"""A new client beside shared functions at knots: its own block is found against q(u) as it stands.

q(u) is what all others know, so the client stands beside it (`cavity`): its evidence is exact, in O(n), and
no matrix of all knots is needed for it. Drift and noise are expected to be like those of the others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pfedhgp.base.trees import stack_trees
from pfedhgp.data.rows import ClientRows, in_order
from pfedhgp.inference.jitter import WEIGHTS, expect_finite
from pfedhgp.inference.markov.parties import MarkovClients
from pfedhgp.inference.rows import white_rows
from pfedhgp.inference.starts.candidates import Start, client_block
from pfedhgp.inference.structured.adoption import spec_of
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.posterior import ClientPosterior
from pfedhgp.model.spec import starting_kernels

PASSES = 2
"""Searches: noise that depends on the level needs a first one to know the levels."""


def adopt(
    model: FittedModel, client: ClientRows, *, noise: str, averaging: bool
) -> tuple[ClientPosterior, float]:
    """The client's posterior given u, and the jitter of its kernel matrix."""
    party = newcomer(model, client, noise=noise, averaging=averaging)
    for _ in range(PASSES if noise == "level" else 1):
        party.look(model.shared)
    posterior = party.posteriors(model.shared, model.jitter)[0]
    expect_finite("the posterior", posterior, matrix=WEIGHTS, client=client.name)
    return posterior, float(party.jitter[0])


def newcomer(
    model: FittedModel, client: ClientRows, *, noise: str, averaging: bool
) -> MarkovClients:
    """The client as it comes: the population's loadings, drift and noise."""
    spec = spec_of(model, noise, model.outputs)
    start = Start.from_json(model.settings["starting_scales"])
    kernels = starting_kernels(
        spec.local_kernel,
        scale=start.local,
        count=spec.local_latents,
        extent=model.scaling.extent,
    )
    own = model.scaling.rows(in_order(client))
    block = replace(
        client_block(spec, start, own.Y, own.X[:0], kernels, None),
        global_loadings=np.asarray(model.shared.block.loadings),
    )
    settings = Structured() if averaging else Structured(averaging=None)
    party = MarkovClients(
        settings,
        spec,
        model.shared.block.kernels,
        stack_trees([block]),
        stack_trees([white_rows(own, full_noise=False)]),
    )
    party.names = (client.name,)
    party.join(model.population)
    return party
