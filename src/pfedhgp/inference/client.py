"""The client's step: L-BFGS on its cavity bound, then the sums that it sends."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from pfedhgp.inference import lbfgs
from pfedhgp.inference.grams import accumulate
from pfedhgp.inference.structured import Statistics, cavity_bound, design_of, statistics
from pfedhgp.inference.surrogate import Surrogate
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows, Structure, from_free, to_free


class StepOptions(NamedTuple):
    """What is fixed when the client's step is compiled."""

    structure: Structure
    evaluations: int = 40
    learn_inputs: bool = False
    chunk: int = 4096


class Broadcast(eqx.Module):
    """The global block and the totals ΣJ and Σh at it."""

    block: GlobalBlock
    J: Float[Array, "RM RM"]
    h: Float[Array, " RM"]


class Info(NamedTuple):
    """How the client's search went."""

    before: Array
    after: Array
    accepted: Array


def log_prior(structure: Structure, free: ClientBlock, anchor: ClientBlock, phi: Array) -> Array:
    """B̃ ~ N(0, φ), B_l ~ N(0, 1), log kernel parameters ~ N(start, 2²); no part of a reported ELBO."""
    value = -0.5 * jnp.sum(free.loadings**2)
    if structure.deviation and not structure.tied:
        value -= 0.5 * (jnp.sum(free.deviation**2) / phi + free.deviation.size * jnp.log(phi))
    gaps = jax.tree.map(lambda a, b: jnp.sum((a - b) ** 2), free.kernels, anchor.kernels)
    return value - 0.125 * sum(jax.tree.leaves(gaps), start=jnp.zeros(()))


def movable(free: ClientBlock, *, lengthscales: Array, inputs: bool) -> Array:
    """1 for coordinates that the search may move. `lengthscales` is 0 while kernels are frozen."""
    ones = jax.tree.map(jnp.ones_like, free)
    mask = eqx.tree_at(
        lambda b: (b.kernels, b.inputs, b.active),
        ones,
        (
            jax.tree.map(lambda v: v * lengthscales, ones.kernels),
            free.active[:, None] * jnp.ones_like(free.inputs) * float(inputs),
            jnp.zeros_like(free.active),
        ),
    )
    return ravel_pytree(mask)[0]


def send(
    options: StepOptions, broadcast: Broadcast, client: ClientBlock, rows: Rows, J_rest: Array, h_rest: Array, jitter: Array
) -> Statistics:
    """The sums at the client's current block."""
    shared = broadcast.block
    return statistics(
        options.structure, shared, shared.basis(jitter), client, rows, J_rest, h_rest, jitter, options.chunk
    )


def first_step(options: StepOptions, broadcast: Broadcast, client: ClientBlock, rows: Rows, jitter: Array) -> Statistics:
    """The exchange before the first round: sums at the starting values."""
    return send(options, broadcast, client, rows, jnp.zeros_like(broadcast.J), jnp.zeros_like(broadcast.h), jitter)


def step(
    options: StepOptions,
    broadcast: Broadcast,
    own: Surrogate,
    client: ClientBlock,
    anchor: ClientBlock,
    rows: Rows,
    lengthscales: Array,
    jitter: Array,
) -> tuple[ClientBlock, Statistics, Info]:
    """One round at the client: improve its block on the cavity bound, then sum up."""
    shared = broadcast.block
    basis = shared.basis(jitter)
    J_own, h_own = own.carried(options.structure, shared, jitter)
    J_rest, h_rest = broadcast.J - J_own, broadcast.h - h_own
    start, unravel = ravel_pytree(to_free(client))
    anchor_free = to_free(anchor)

    def objective(vector: Array) -> Array:
        free = unravel(vector)
        design = design_of(options.structure, shared, basis, from_free(free), jitter)
        bound = cavity_bound(accumulate(rows, design, chunk=options.chunk), J_rest, h_rest)
        return -(bound + log_prior(options.structure, free, anchor_free, shared.phi))

    mask = movable(to_free(client), lengthscales=lengthscales, inputs=options.learn_inputs)
    found = lbfgs.minimize(objective, start, evaluations=options.evaluations, movable=mask)
    better = from_free(unravel(found.x))
    sums = send(options, broadcast, better, rows, J_rest, h_rest, jitter)
    return better, sums, Info(-found.first_value, -found.value, found.accepted)


@partial(jax.jit, static_argnums=0)
def batched_first_step(options: StepOptions, broadcast: Broadcast, clients: ClientBlock, rows: Rows, jitter: Array) -> Statistics:
    return jax.vmap(lambda c, r: first_step(options, broadcast, c, r, jitter))(clients, rows)


@partial(jax.jit, static_argnums=0)
def batched_step(
    options: StepOptions, broadcast: Broadcast, own: Surrogate, clients: ClientBlock, anchors: ClientBlock, rows: Rows, lengthscales: Array, jitter: Array
) -> tuple[ClientBlock, Statistics, Info]:
    def one(o, c, a, r):
        return step(options, broadcast, Surrogate(own.block, o), c, a, r, lengthscales, jitter)
    return jax.vmap(one)(own.sums, clients, anchors, rows)
