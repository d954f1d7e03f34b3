"""A new client on a frozen global block: its own block is fitted against q(v_g) as it stands."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pfedhgp.data.rows import ClientRows
from pfedhgp.inference import budget, initial
from pfedhgp.inference.arrays import stack_trees
from pfedhgp.inference.census import Scales
from pfedhgp.inference.client import Broadcast
from pfedhgp.inference.structured_training import Structured, StructuredClients
from pfedhgp.model.blocks import Rows
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.posterior import ClientPosterior
from pfedhgp.model.spec import Spec, starting_kernels


def adopt(
    model: FittedModel, client: ClientRows, *, noise: str, settings: Structured | None = None
) -> tuple[ClientPosterior, float]:
    """The client's posterior given v_g, and the jitter of its own kernel matrix.

    The evidence of all others about v_g is q(v_g) over its prior: J = S⁻¹ − I, h = S⁻¹m.
    """
    settings = settings or Structured()
    spec = _spec_of(model, noise)
    scales = Scales(**model.settings["starting_scales"])
    X, Y = model.scaling.inputs(client.X), model.scaling.outputs(client.Y)
    Z = _inputs(spec, scales, X, model.scaling.extent)
    block = initial.client_block(spec, scales, Y, Z, model.scaling.extent, None)
    seen = np.isfinite(Y)
    rows = Rows(jnp.asarray(X), jnp.asarray(np.where(seen, Y, 0.0)), jnp.asarray(seen * 1.0))
    party = StructuredClients(
        settings, spec, model.shared.block.kernels, stack_trees([block]), stack_trees([rows])
    )
    precision = jnp.linalg.inv(model.shared.covariance)
    rest = precision - jnp.eye(precision.shape[0]), precision @ model.shared.mean
    stacked = jax.tree.map(lambda v: v[None], rest)
    for kernels_free, evaluations in ((0.0, 100), (1.0, 150)):
        broadcast = Broadcast(
            block=model.shared.block,
            J=rest[0],
            h=rest[1],
            kernels_free=jnp.asarray(kernels_free),
            jitter=jnp.asarray(model.jitter),
            evaluations=jnp.asarray(evaluations),
        )
        party.improve(broadcast, stacked, (client.name,))
    posterior = party.posteriors(model.shared, model.jitter)[0]
    return posterior, float(party.jitter[0])


def _spec_of(model: FittedModel, noise: str) -> Spec:
    typical = next(iter(model.clients.values())).block
    return Spec(
        inputs=model.inputs,
        outputs=model.outputs,
        kernel=model.kernel,
        local_kernel=model.local_kernel,
        latents=model.shared.block.loadings.shape[1],
        local_latents=typical.loadings.shape[1],
        deviation=model.structure.deviation,
        tied=model.structure.tied,
        noise=noise,
    )


def _inputs(spec: Spec, scales: Scales, X: np.ndarray, extent: np.ndarray) -> np.ndarray:
    if spec.local_latents == 0:
        return X[:0]
    distinct = np.unique(X, axis=0)
    if len(distinct) <= budget.ALL_ROWS:
        return distinct
    kernels = starting_kernels(
        spec.local_kernel, scale=scales.short, count=spec.local_latents, extent=extent
    )
    return budget.greedy_rows(
        kernels,
        X,
        budget.tolerance(scales.noise_variance, scales.short_variance, X.size * spec.outputs),
        200,
    )
