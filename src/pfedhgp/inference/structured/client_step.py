"""The client's step of the structured solver: L-BFGS on its cavity bound, then the sums that it sends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Float

from pfedhgp.base.arrays_of import Array
from pfedhgp.base.batching import batchable
from pfedhgp.gp.noise import Noise
from pfedhgp.inference import lbfgs
from pfedhgp.inference.grams import residual_of
from pfedhgp.inference.rows import first_rows, some_rows
from pfedhgp.inference.structured import long_series
from pfedhgp.inference.structured.bound import (
    ClientModel,
    GlobalEvidence,
    Statistics,
    cavity_bound,
)
from pfedhgp.inference.structured.coordinates import movable, parameters, with_parameters
from pfedhgp.inference.structured.statistics import ThetaDerivatives, statistics
from pfedhgp.inference.structured.surrogate import Surrogate
from pfedhgp.inference.structured.traits import (
    Expected,
    TraitCurvature,
    below_floor,
    sites_by_slopes,
    traits_of,
)
from pfedhgp.model.blocks import (
    ClientBlock,
    GlobalBlock,
    Rows,
    Structure,
    deviation_loadings,
    deviation_variances,
    from_free,
    global_loadings,
    to_free,
)

LOUDER = np.log(4.0) * np.arange(8)
"""Multiples of the starting noise, as logarithms, among which a client chooses when training opens."""

MANY_ROWS = 4096
"""With more than twice as many rows, a client chooses on about this many of them, at equal steps."""
OPENING_ROWS = 1024
"""With a long series, it chooses on this many of its first rows."""
SETTLED = 1e-5
"""Nats: a client stops its search when two steps in a row gained less than this."""
SHARE = 1e-3
"""It also stops in a round when a step gained less than this share of all that the search has gained: the
others' evidence will have moved by the next round, where it goes on. Its last search does not."""


class StepOptions(NamedTuple):
    """What is fixed when the client's step is compiled."""

    structure: Structure
    learn_inputs: bool = False
    chunk: int = 4096
    probes: int = 0
    learn_shared: bool = True


class Broadcast(eqx.Module):
    """The global block and the totals ΣJ and Σh at it; `kernels_free` is 0 while lengthscales are held."""

    block: GlobalBlock
    J: Float[Array, "RM RM"]
    h: Float[Array, " RM"]
    kernels_free: Array
    jitter: Array
    evaluations: Array
    share: Array
    derivatives: Array | None
    """1 where the server will move θ_g next, and so needs derivatives in it; None: no code for them"""

    def __init__(
        self,
        block: GlobalBlock,
        J: Array,
        h: Array,
        *,
        kernels_free: ArrayLike,
        jitter: ArrayLike,
        evaluations: ArrayLike,
        derivatives: ArrayLike | None,
        share: ArrayLike = SHARE,
    ) -> None:
        """With one dtype for scalars: a Python number is of a weak type, for which all is compiled again."""
        self.block, self.J, self.h = block, J, h
        self.kernels_free = np.asarray(kernels_free, np.float64)
        self.jitter = np.asarray(jitter, np.float64)
        self.evaluations = np.asarray(evaluations, np.int64)
        self.share = np.asarray(share, np.float64)
        self.derivatives = None if derivatives is None else np.asarray(derivatives, np.int64)


class Info(NamedTuple):
    """How the client's search went, and what its inducing inputs cost; stays with the client."""

    before: Array
    after: Array
    accepted: Array
    local_nats: Array
    pairs: lbfgs.Pairs
    curvature: TraitCurvature | None = None
    """like the pairs, what the next round may use of the curvature"""


def log_prior(
    structure: Structure,
    free: ClientBlock,
    expected: Expected,
    shared: GlobalBlock,
    floor: Float[Array, " d"] | None = None,
) -> Array:
    """B̃ ~ N(0, φ), B_l ~ N(0, 1), B_g,i ~ N(B_g, Σ_B), traits as the population has them.

    No part of a reported ELBO. Without loadings B_l is a standard deviation, and log B_l² is a trait too, or
    a client whose rows say nothing about its local layer would be sure that there is none. Without the
    prior of log σ², noise goes to nothing.
    """
    gap = traits_of(structure, free) - expected.mean
    value = -0.5 * jnp.sum(expected.precision * gap**2) - 0.125 * free.noise.mixing()
    if not structure.tied:
        value -= 0.5 * jnp.sum(free.loadings**2)
    if structure.deviation and not structure.tied:
        of_entries = jnp.sum(free.deviation**2 / deviation_variances(shared)[None, :])
        value -= 0.5 * (of_entries + free.deviation.size * jnp.log(shared.phi))
    if free.global_loadings is not None and shared.loadings_covariance is not None:
        gap_g = (free.global_loadings - shared.loadings).reshape(-1)
        value -= 0.5 * gap_g @ jnp.linalg.solve(shared.loadings_covariance, gap_g)
    if floor is not None:
        value -= below_floor(free.kernels, floor)
    return value


def model_of(
    options: StepOptions, broadcast: Broadcast, client: ClientBlock, rows: Rows, jitter: Array
) -> ClientModel:
    """The client beside the broadcast block."""
    shared, of_shared = broadcast.block, broadcast.jitter
    basis = shared.basis(of_shared)
    return ClientModel(
        options.structure, shared, basis, client, rows, jitter, of_shared, options.chunk
    )


def send(
    options: StepOptions,
    model: ClientModel,
    others: GlobalEvidence,
    derivatives: Array | None,
    residual_draws: Array | None = None,
) -> tuple[Statistics, Array]:
    """The sums at the client's current block, and the nats that its local inducing inputs cost."""
    sums = statistics(
        model,
        others,
        learn_inputs=options.learn_inputs,
        derivatives=derivatives,
        residual_draws=residual_draws,
    )
    if not options.learn_shared:
        sums = without_derivatives(sums)
    B_g = global_loadings(model.shared, model.client)
    B_dev = deviation_loadings(model.structure, model.shared, model.client)
    of_shared = sum(residual_of(sums.shared_residual, B) for B in (B_g, B_dev))
    return sums, 0.5 * (sums.residual - of_shared)


def without_derivatives(sums: Statistics) -> Statistics:
    """The sums with no room for derivatives in θ_g, which nobody will ask for: P R² M² numbers less."""
    zeros = {
        name: jnp.zeros((0, *getattr(sums, name).shape[1:])) for name in ThetaDerivatives._fields
    }
    return replace(sums, **zeros)


def step(
    options: StepOptions,
    broadcast: Broadcast,
    others: GlobalEvidence,
    client: ClientBlock,
    expected: Expected,
    rows: Rows,
    jitter: Array,
    floor: Float[Array, " d"] | None,
    pairs: lbfgs.Pairs,
) -> tuple[ClientBlock, Statistics, Info]:
    """One round at the client: improve its block on the cavity bound, then sum up.

    With no evaluations it is the exchange before the first round: sums at the starting values.
    """
    model = model_of(options, broadcast, client, rows, jitter)

    def bound(block: ClientBlock) -> Array:
        return cavity_bound(replace(model, client=block).grams(), *others)

    better, found = search(options, broadcast, bound, client, expected, rows, floor, pairs)
    sums, nats = send(options, replace(model, client=better), others, broadcast.derivatives)
    if expected.asked is not None:
        told = trait_sites(options, broadcast, bound, better, expected, rows, floor)
        sums = replace(sums, traits=told)
    return better, sums, Info(-found.first_value, -found.value, found.accepted, nats, found.pairs)


def search(
    options: StepOptions,
    broadcast: Broadcast,
    bound: Callable[[ClientBlock], Array],
    client: ClientBlock,
    expected: Expected,
    rows: Rows,
    floor: Float[Array, " d"] | None,
    pairs: lbfgs.Pairs,
) -> tuple[ClientBlock, lbfgs.State]:
    """The client's block after L-BFGS on `bound` and the priors."""
    now = to_free(client)
    start, unravel = ravel_pytree(parameters(now, inputs=options.learn_inputs))

    def objective(vector: Array) -> Array:
        free = with_parameters(now, unravel(vector))
        prior = log_prior(options.structure, free, expected, broadcast.block, floor)
        return -(bound(from_free(free)) + prior)

    mask = movable(
        now,
        kernels_free=broadcast.kernels_free,
        inputs=options.learn_inputs,
        noise=rows.cycles is None,  # a cycle layer's noise was fixed with it, before training
        mixed=not options.structure.state_space,
    )
    found = lbfgs.minimize(
        objective,
        start,
        evaluations=broadcast.evaluations,
        movable=mask,
        settled=SETTLED,
        share=broadcast.share,
        pairs=pairs,
    )
    return from_free(with_parameters(now, unravel(found.x))), found


def trait_sites(
    options: StepOptions,
    broadcast: Broadcast,
    bound: Callable[[ClientBlock], Array],
    client: ClientBlock,
    expected: Expected,
    rows: Rows,
    floor: Float[Array, " d"] | None,
) -> Float[Array, "5 t"]:
    """What the client's rows say of its traits, by the curvature of log p(ψ | y) in them."""
    structure, free = options.structure, to_free(client)

    def density(moved: ClientBlock) -> Array:
        prior = log_prior(structure, moved, expected, broadcast.block, floor)
        return bound(from_free(moved)) + prior

    of_kernels = sum(leaf.size for leaf in jax.tree.leaves(free.kernels))
    of_noise = free.noise.levels().size if rows.cycles is not None else 0
    size = expected.mean.size
    moves = jnp.where(np.arange(size) < of_kernels, broadcast.kernels_free, 1.0)
    moves = jnp.where(np.arange(size) < size - of_noise, moves, 0.0)
    return sites_by_slopes(structure, density, free, expected, moves)


@batchable(static=1, order=1, effort="low")
def batched_step(
    options: StepOptions,
    broadcast: Broadcast,
    others: GlobalEvidence,
    clients: ClientBlock,
    expected: Expected,
    rows: Rows,
    jitter: Array,
    floor: Float[Array, "n d"] | None,
    pairs: lbfgs.Pairs,
) -> tuple[ClientBlock, Statistics, Info]:
    """`step` for a batch of clients of equal shapes."""
    one = partial(step, options, broadcast)
    return jax.vmap(one)(others, clients, expected, rows, jitter, floor, pairs)


@batchable(static=1, order=1)
def batched_step_at_q(
    options: StepOptions,
    broadcast: Broadcast,
    mean_and_probes: Float[Array, "K k"],
    residual_draws: Float[Array, "c n R p"],
    clients: ClientBlock,
    expected: Expected,
    rows: Rows,
    jitter: Array,
    floor: Float[Array, "n d"],
    pairs: lbfgs.Pairs,
) -> tuple[ClientBlock, Statistics, Info]:
    """`step` with the search at q(v_g), for a batch of clients (see `long_series`).

    Clients search side by side and sum up one after the other, because the sums take the memory.
    """
    shared = broadcast.block
    basis = shared.basis(broadcast.jitter)
    columns = jax.lax.map(
        lambda own: long_series.search_columns(
            own[0], basis, mean_and_probes, own[1], options.chunk
        ),
        (rows, residual_draws),
    )

    def one(
        columns: long_series.SearchColumns,
        client: ClientBlock,
        expected: Expected,
        rows: Rows,
        floor: Array,
        pairs: lbfgs.Pairs,
    ) -> tuple[ClientBlock, lbfgs.State, Array]:
        def bound(block: ClientBlock) -> Array:
            return long_series.expected_bound(columns, global_loadings(shared, block), block, rows)

        better, found = search(options, broadcast, bound, client, expected, rows, floor, pairs)
        told = trait_sites(options, broadcast, bound, better, expected, rows, floor)
        return better, found, told

    better, found, told = jax.vmap(one)(columns, clients, expected, rows, floor, pairs)
    others = GlobalEvidence(broadcast.J, broadcast.h)  # for derivatives, which are not asked for

    def sum_up(own: tuple) -> tuple[Statistics, Array]:
        model = model_of(options, broadcast, *own[:3])
        return send(options, model, others, broadcast.derivatives, own[3])

    sums, nats = jax.lax.map(sum_up, (better, rows, jitter, residual_draws))
    sums = replace(sums, traits=told)
    return better, sums, Info(-found.first_value, -found.value, found.accepted, nats, found.pairs)


@batchable(static=1, effort="lowest")
def batched_opening(
    options: StepOptions,
    broadcast: Broadcast,
    clients: ClientBlock,
    rows: Rows,
    jitter: Array,
    residual_draws: Float[Array, "c n R p"] | None = None,
) -> tuple[Noise, Statistics, Array]:
    """Sums at the starting values, without the search and its derivatives: quick to compile.

    Only the noise is chosen before: among a few multiples of its start, the one that fits the client's own
    rows best. Noise that is too small makes any start look bad, and starts could not be compared.
    """
    nothing = GlobalEvidence(jnp.zeros_like(broadcast.J), jnp.zeros_like(broadcast.h))

    def one(
        client: ClientBlock, rows: Rows, jitter: Array, left: Array | None
    ) -> tuple[Noise, Statistics, Array]:
        model = model_of(options, broadcast, client, rows, jitter)
        part = some_rows(rows, MANY_ROWS) if left is None else first_rows(rows, OPENING_ROWS)
        some = None if left is None else left[:OPENING_ROWS]

        def at(log_factor: Array) -> ClientModel:
            noise = client.noise.louder(log_factor)
            return replace(model, client=eqx.tree_at(lambda b: b.noise, client, noise))

        def bound(log_factor: Array) -> Array:
            seen = replace(at(log_factor), rows=part)
            return cavity_bound(seen.grams(seen.design(some)), *nothing)

        if rows.cycles is None:
            levels = jnp.asarray(LOUDER)
            model = at(levels[jnp.nanargmax(jax.lax.map(bound, levels))])
        return model.client.noise, *send(options, model, nothing, None, left)

    if residual_draws is not None:  # one after the other: sums are what takes memory
        return jax.lax.map(lambda own: one(*own), (clients, rows, jitter, residual_draws))
    return jax.vmap(lambda c, r, own: one(c, r, own, None))(clients, rows, jitter)


@batchable(static=1, host=True)
def batched_others(
    structure: Structure, broadcast: Broadcast, block: GlobalBlock, own: Statistics
) -> GlobalEvidence:
    """The other clients' J and h: the totals less each one's last message, carried to the new θ_g."""
    J, h = Surrogate(block, own).carried(structure, broadcast.block, broadcast.jitter)
    return GlobalEvidence(broadcast.J - J, broadcast.h - h)
