"""A new client on a frozen global block: its own block is fitted against q(v_g) as it stands."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pfedhgp.data.rows import ClientRows, in_order
from pfedhgp.data.scaling import Scaling
from pfedhgp.inference import budget, initial
from pfedhgp.inference.arrays import stack_trees
from pfedhgp.inference.census import Scales
from pfedhgp.inference.client import Broadcast
from pfedhgp.inference.cycle_rows import cycle_rows, noise_of
from pfedhgp.inference.structured_posterior import evidence_of
from pfedhgp.inference.structured_training import Structured, StructuredClients
from pfedhgp.kernels import RBF
from pfedhgp.model.blocks import Rows
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.posterior import ClientPosterior
from pfedhgp.model.spec import Spec, starting_kernels

LARGEST_LOCAL = 200


def adopt(
    model: FittedModel, client: ClientRows, *, noise: str, settings: Structured | None = None
) -> tuple[ClientPosterior, float]:
    """The client's posterior given v_g, and the jitter of its own kernel matrix.

    The evidence of all others about v_g is q(v_g) over its prior: J = S⁻¹ − I, h = S⁻¹m.
    """
    settings = settings or Structured()
    spec = _spec_of(model, noise)
    client = in_order(client) if spec.state_space else client
    scales = Scales(**model.settings["starting_scales"])
    X, Y = model.scaling.inputs(client.X), model.scaling.outputs(client.Y)
    extent = model.scaling.extent
    kernels = starting_kernels(
        spec.local_kernel, scale=scales.short, count=spec.local_latents, extent=extent
    )
    spare = budget.tolerance(scales.noise_variance, scales.short_variance, Y.size)
    cap = LARGEST_LOCAL if spec.local_latents and not spec.state_space else 0
    Z = budget.local_inputs(kernels, X, spare, cap) if cap else X[:0]
    block = initial.client_block(spec, scales, Y, Z, model.scaling.extent, None)
    if model.cycle_layer is None or client.cycles is None:
        rows = _white_rows(client, X, Y, model.scaling)
    else:
        cycles, layer = model.scaling.outputs(client.cycles), model.cycle_layer
        rows = cycle_rows(X, cycles, layer, separate=noise == "full", client=client.name)
        block = eqx.tree_at(lambda b: b.noise, block, noise_of(layer, noise))
    party = StructuredClients(
        settings, spec, model.shared.block.kernels, stack_trees([block]), stack_trees([rows])
    )
    rest = evidence_of(model.shared)
    stacked = jax.tree.map(lambda v: v[None], rest)
    for kernels_free, evaluations in ((0.0, 100), (1.0, 150)):
        broadcast = Broadcast(
            block=model.shared.block,
            J=rest[0],
            h=rest[1],
            kernels_free=jnp.asarray(kernels_free),
            jitter=jnp.asarray(model.jitter),
            evaluations=jnp.asarray(evaluations),
            derivatives=jnp.asarray(0),
        )
        party.improve(broadcast, stacked, (client.name,))
    posterior = party.posteriors(model.shared, model.jitter, stacked)[0]
    return posterior, float(party.jitter[0])


def _white_rows(client: ClientRows, X: np.ndarray, Y: np.ndarray, scaling: Scaling) -> Rows:
    seen = np.isfinite(Y)
    counts = seen * 1.0 if client.counts is None else np.where(seen, client.counts, 0.0)
    scatter = None
    if client.scatter is not None:
        spread = np.broadcast_to(scaling.spread, (Y.shape[1],))
        scatter = jnp.asarray(client.scatter / spread[:, None] / spread[None, :])
    filled = jnp.asarray(np.where(seen, Y, 0.0))
    return Rows(jnp.asarray(X), filled, jnp.asarray(counts), scatter)


def _spec_of(model: FittedModel, noise: str) -> Spec:
    local = np.shape(next(iter(model.clients.values())).block.loadings)[1] if model.clients else 0
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
    )
