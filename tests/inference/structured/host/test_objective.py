"""The bound and its gradient in NumPy against JAX's own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
from jax.flatten_util import ravel_pytree

from pfedhgp.inference.structured import client_step
from pfedhgp.inference.structured.bound import cavity_bound
from pfedhgp.inference.structured.coordinates import parameters
from pfedhgp.model.blocks import from_free, to_free
from support.client_batches import batch, on_jax
from support.host_batches import compared, each_client, every_case, host_batch


@partial(jax.jit, static_argnums=0)
def density_and_slope(options, broadcast, others, block, expected, rows, jitter, floor):
    """One client's log p(y, ψ), and its gradient by JAX."""
    model = client_step.model_of(options, broadcast, block, rows, jitter)

    def density(free):
        prior = client_step.log_prior(options.structure, free, expected, broadcast.block, floor)
        return cavity_bound(replace(model, client=from_free(free)).grams(), *others) + prior

    return jax.value_and_grad(density)(to_free(block))


@every_case
def test_bound_and_gradient(case):
    given = batch(**case)
    made = host_batch(given)
    value, gradient = made.objective.value_and_gradient(made.start.rows())
    broadcast = on_jax(given.broadcast)
    for i, own in each_client(given, "others", "blocks", "expected", "rows", "jitter", "floor"):
        expected, slope = density_and_slope(given.options, broadcast, *own)
        compared(value[i], expected)
        compared(gradient[i], ravel_pytree(parameters(slope))[0], rel=1e-8)
