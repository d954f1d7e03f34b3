"""The bound and its gradient as the client's step computes them: on the host, as on a CPU, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from bench.problem import JITTER, Problem
from pfedhgp.gp import kernels
from pfedhgp.gp.noise import DiagonalNoise
from pfedhgp.inference import lbfgs
from pfedhgp.inference.grams import accumulate
from pfedhgp.inference.structured.bound import GlobalEvidence, cavity_bound, design_of
from pfedhgp.inference.structured.client_step import StepOptions
from pfedhgp.inference.structured.host import search as host_search
from pfedhgp.inference.structured.host import step as host
from pfedhgp.inference.structured.traits import Expected, traits_of
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows, Structure, to_free

Gradient = dict[str, Any]


def on_host(problem: Problem, *, batched: bool) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """A function that returns log p(y, ψ) and its gradient, by what a search on a CPU calls.

    Of all clients, in turns that fit the cache, or of the first alone.
    """
    batch = _host_batch(problem, clients=problem.sizes.clients if batched else 1)
    density, rows = host_search.quickest(batch.objective), batch.start.rows()
    turns = host_search.in_turns(density, lambda part, turn: (part, rows[turn]))

    def evaluate() -> tuple[np.ndarray, np.ndarray]:
        found = [part.value_and_gradient(own) for part, own in turns]
        if len(found) == 1:
            return found[0]
        values, gradients = zip(*found, strict=True)
        return np.concatenate(values), np.concatenate(gradients)

    return evaluate


def host_gradient(problem: Problem, *, batched: bool) -> dict[str, np.ndarray]:
    """The same gradient without the prior's, by the names of what is learned."""
    batch = _host_batch(problem, clients=problem.sizes.clients if batched else 1)
    _, rows = on_host(problem, batched=batched)()
    found = batch.start.from_rows(rows)
    prior = batch.objective.prior.value_and_gradient(batch.start)[1]
    named = {
        "log_lengthscale": found.kernels.lengthscale - prior.kernels.lengthscale,
        "deviation": found.deviation - prior.deviation,
        "loadings": found.loadings - prior.loadings,
        "log_noise": found.noise.log_variance - prior.noise.log_variance,
    }
    shapes = {name: value[: len(rows)].shape for name, value in problem.learned.items()}
    named = {name: value.reshape(shapes[name]) for name, value in named.items()}
    return named if batched else {name: value[0] for name, value in named.items()}


def search_on_host(problem: Problem, *, evaluations: int) -> Callable[[], np.ndarray]:
    """A function that searches as a fit on a CPU does, priors and early ends included; returns the bounds."""
    batch = _host_batch(problem, clients=problem.sizes.clients)

    def run() -> np.ndarray:
        at, _ = host_search.maximise(
            batch.objective, batch.start, batch.pairs, host_search.Effort(evaluations)
        )
        return batch.objective.cavity(at)

    return run


def _host_batch(problem: Problem, *, clients: int) -> host.HostBatch:
    """The first clients as a fit on a CPU holds them, with starting values as the prior's centres."""
    own = {name: value[:clients] for name, value in problem.learned.items()}
    blocks = ClientBlock(
        kernels=kernels.RBF(np.exp(own["log_lengthscale"])[..., None]),
        inputs=problem.local_inputs[:clients],
        active=np.ones(problem.local_inputs[:clients].shape[:2]),
        deviation=own["deviation"],
        loadings=own["loadings"],
        noise=DiagonalNoise(own["log_noise"], floor=0.0),
    )
    shared = GlobalBlock(
        kernels.RBF(problem.shared_lengthscales),
        problem.shared_inputs,
        problem.shared_loadings,
        np.float64(0.3),
    )
    options = StepOptions(Structure(), False, 1024, 0, True)
    rows = Rows(problem.X[:clients], problem.Y[:clients], problem.mask[:clients])
    cells = host.host_cells(options, rows, blocks, shared.kernels)
    assert cells is not None
    others = GlobalEvidence(problem.J_rest[:clients], problem.h_rest[:clients])
    jitter, sizes = np.full(clients, JITTER), problem.learned.values()
    pairs = lbfgs.Pairs.none(clients, sum(v[0].size for v in sizes))
    free = to_free(blocks)
    traits = traits_of(options.structure, free)
    expected = Expected(traits, np.full(traits.shape, 0.25))
    own = host.HostClients(options, rows, cells, blocks, expected, jitter, None, pairs)
    return host.batch_of(own, shared, JITTER, others)


def compiled(
    problem: Problem, *, batched: bool, groups_of: int | None = None
) -> Callable[[], tuple[Any, Gradient]]:
    """A function that returns bound and gradient: of all clients by vmap, or of the first alone.

    With `groups_of`, so many clients at a time go through vmap, one group after the other.
    """
    bound, data = _bound_and_data(problem, batched=batched)
    function = jax.value_and_grad(bound)
    if groups_of is not None:
        step = jax.jit(lambda *all: lax.map(lambda one: function(*one), all, batch_size=groups_of))
    else:
        step = jax.jit(jax.vmap(function) if batched else function)
    return lambda: jax.block_until_ready(step(*data))


def search(problem: Problem, *, evaluations: int) -> Callable[[], np.ndarray]:
    """A function that maximises every client's bound by the solver's own search; returns the bounds."""
    bound, data = _bound_and_data(problem, batched=True)

    def one(learned: Gradient, *rest: Any) -> Any:
        start, unravel = ravel_pytree(learned)
        found = lbfgs.minimize(
            lambda vector: -bound(unravel(vector), *rest),
            start,
            evaluations=evaluations,
            movable=jnp.ones_like(start),
        )
        return -found.value

    step = jax.jit(jax.vmap(one))
    return lambda: np.asarray(step(*data))


def _bound_and_data(problem: Problem, *, batched: bool) -> tuple[Callable[..., Any], tuple]:
    shared = GlobalBlock(
        kernels.RBF(jnp.asarray(problem.shared_lengthscales)),
        jnp.asarray(problem.shared_inputs),
        jnp.asarray(problem.shared_loadings),
        jnp.asarray(0.3),
    )
    basis = shared.basis(JITTER)

    def bound(learned: Gradient, rows: Rows, Z: Any, J_rest: Any, h_rest: Any) -> Any:
        client = ClientBlock(
            kernels=kernels.RBF(jnp.exp(learned["log_lengthscale"])[:, None]),
            inputs=Z,
            active=jnp.ones(Z.shape[0]),
            deviation=learned["deviation"],
            loadings=learned["loadings"],
            noise=DiagonalNoise(learned["log_noise"], floor=0.0),
        )
        design = design_of(Structure(), shared, basis, client, JITTER)
        return cavity_bound(accumulate(rows, design), J_rest, h_rest)

    rows = Rows(problem.X, problem.Y, problem.mask)
    data = (problem.learned, rows, problem.local_inputs, problem.J_rest, problem.h_rest)
    data = jax.tree.map(jnp.asarray if batched else lambda a: jnp.asarray(a[0]), data)
    return bound, data


def as_numpy(gradient: Gradient) -> dict[str, np.ndarray]:
    """The gradient's arrays, for comparisons."""
    return {name: np.asarray(value) for name, value in gradient.items()}
