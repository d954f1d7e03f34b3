"""A new client on a frozen global block: its own block is fitted against q(v_g) as it stands."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np

from pfedhgp.base.trees import stack_trees
from pfedhgp.data.rows import ClientRows, in_order
from pfedhgp.gp.kernels import RBF
from pfedhgp.inference.jitter import WEIGHTS, expect_finite
from pfedhgp.inference.merged_rows import merge_rows
from pfedhgp.inference.rows import cycle_rows, noise_of, white_rows
from pfedhgp.inference.starts import budget
from pfedhgp.inference.starts.candidates import Start, client_block
from pfedhgp.inference.structured.client_step import Broadcast
from pfedhgp.inference.structured.own_tails import with_tails
from pfedhgp.inference.structured.posterior import evidence_of
from pfedhgp.inference.structured.settings import Structured, StructuredClients
from pfedhgp.inference.structured.traits import Expected, count_traits, traits_of, with_traits
from pfedhgp.model.blocks import ClientBlock, from_free, to_free
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.kept_sums import KeptSums, of_rows
from pfedhgp.model.posterior import ClientPosterior
from pfedhgp.model.spec import Spec, starting_kernels

LARGEST_LOCAL = 200


class Adopted(NamedTuple):
    """A new client's part of a model."""

    posterior: ClientPosterior
    jitter: float
    """of its own kernel matrix"""
    sums: KeptSums | None
    """for updates; not counted in q(v_g)"""

    def into(self, model: FittedModel, name: str) -> FittedModel:
        """The model with this client."""
        return replace(
            model,
            clients={**model.clients, name: self.posterior},
            client_jitter={**model.client_jitter, name: float(self.jitter)},
            sums=model.sums if self.sums is None else {**model.sums, name: self.sums},
        )


def adopt(
    model: FittedModel,
    client: ClientRows,
    *,
    noise: str,
    settings: Structured | None = None,
    local_inducing: int | str = "auto",
    local_latents: int | None = None,
) -> Adopted:
    """The client's posterior given v_g, the jitter of its own kernel matrix, and its sums.

    The evidence of all others about v_g is q(v_g) over its prior: J = S⁻¹ − I, h = S⁻¹m. A model of a
    server, or of a site before it has its own block, has no client to read `local_latents` from.
    """
    settings = settings or Structured()
    spec = spec_of(model, noise, local_latents)
    given, client = client, model.scaling.rows(in_order(client) if spec.state_space else client)
    start = Start.from_json(model.settings["starting_scales"])
    X, extent = client.X, model.scaling.extent
    kernels = starting_kernels(
        spec.local_kernel, scale=start.local, count=spec.local_latents, extent=extent
    )
    spare = budget.tolerance(start.noise_variance, start.local_variance, client.Y.size)
    Z = X[:0]
    if spec.local_latents and not spec.state_space:
        Z = budget.local_inputs(
            client.name, kernels, X, local_inducing, tolerance=spare, largest=LARGEST_LOCAL
        )
    block = client_block(spec, start, client.Y, Z, kernels, None)
    traits = model.population.traits
    if spec.tied and (traits is None or traits.shape[-1] != count_traits(spec)):
        block = replace(block, deviation=block.deviation[:, :0])  # older models know no φ_i
    if spec.client_loadings:
        block = replace(block, global_loadings=np.asarray(model.shared.block.loadings))
    if model.cycle_layer is None or client.cycles is None:
        few = merge_rows(client, spec, start, extent)
        rows = white_rows(few, full_noise=noise == "full")
        # The population's σ² is where the search starts.
        typical = np.maximum(np.diagonal(np.asarray(model.population.noise)), 1e-8)
        block = eqx.tree_at(lambda b: b.noise, block, block.noise.at(typical))
        block = _typical(model, block)
    else:
        layer = model.cycle_layer
        rows = cycle_rows(X, client.cycles, layer, separate=noise == "full", client=client.name)
        block = eqx.tree_at(lambda b: b.noise, block, noise_of(layer, noise))
    party = StructuredClients(
        settings, spec, model.shared.block.kernels, stack_trees([block]), stack_trees([rows])
    )
    if model.population.traits is not None:
        mean, variance = (np.asarray(v)[None] for v in model.population.traits)
        party.expected = Expected(mean, 1.0 / variance)
    others = evidence_of(model.shared)
    stacked = jax.tree.map(lambda v: v[None], others)
    for kernels_free, evaluations in ((0.0, 100), (1.0, 150)):
        broadcast = Broadcast(
            block=model.shared.block,
            J=others.J,
            h=others.h,
            kernels_free=kernels_free,
            jitter=model.jitter,
            evaluations=evaluations,
            derivatives=0,
            share=0.0,
        )
        party.improve(broadcast, stacked, (client.name,))
    posterior = party.posteriors(model.shared, model.jitter, stacked)[0]
    expect_finite("the posterior", posterior, matrix=WEIGHTS, client=client.name)
    (sums,) = party.kept(model.shared, model.jitter, [posterior])
    if sums is not None:
        sums = of_rows(replace(sums, counted=False), given) if given.counts is None else None
    (sums,) = with_tails([sums], model.structure, model.shared.block, [posterior], [client])
    return Adopted(posterior, float(party.jitter[0]), sums)


def _typical(model: FittedModel, block: ClientBlock) -> ClientBlock:
    """The block with the traits of a typical client, where the model knows them."""
    if model.population.traits is None:
        return block
    free = to_free(block)
    now = traits_of(model.structure, free)
    return from_free(with_traits(model.structure, free, model.population.traits[0] - now))


def spec_of(model: FittedModel, noise: str, local_latents: int | None) -> Spec:
    """What a client of the model is like; `local_latents` where the model has no client to tell."""
    local = local_latents
    if local is None:
        local = np.shape(next(iter(model.clients.values())).block.loadings)[1]
    return Spec(
        inputs=model.inputs,
        outputs=model.outputs,
        kernel=model.kernel or RBF(),
        local_kernel=model.local_kernel or RBF(),
        latents=model.shared.block.loadings.shape[1],
        local_latents=local,
        deviation=model.structure.deviation,
        tied=model.structure.tied,
        noise=noise,
        state_space=model.structure.state_space,
        client_loadings=model.structure.client_loadings,
    )
