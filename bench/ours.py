"""The bound and its gradient as the client's step computes them, compiled."""

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
from pfedhgp.inference.structured.bound import cavity_bound, design_of
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows, Structure

Gradient = dict[str, Any]


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
