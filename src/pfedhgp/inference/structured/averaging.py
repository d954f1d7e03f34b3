"""Averaging over a client's own parameters, instead of trusting the best ones.

50 rows do not settle a client's loadings, lengthscales and noise, and a prediction at their best values is
too sure of itself. With ψ for these parameters, the cavity bound and the priors are log p(ψ | y) up to a
constant. Its Gaussian approximation N(ψ̄, FFᵀ) comes from Laplace's at the best ψ̂, and one step on from it
towards the best Gaussian. Predictions are those at ψ̄, and half the difference between both ends of each
direction, as far (s ≤ 1) as the client's bound allows:
    f(x; ψ̄ + Fe) ≈ f(x; ψ̄) + ½ Σ_p (f(x; ψ̄ + s_pFe_p) − f(x; ψ̄ − s_pFe_p)) e_p,   e ~ N(0, I)
so they stay Gaussian, need no rows, and cost two narrow matrices more. Nothing is sent for it. For a settled
client a derivative at ψ̄ says about the same; where f bends on the way, it can be 40 times too long.

The step matters as much as the spread: posteriors of loadings and lengthscales are skewed, and their best
values lie on the overconfident side. docs/notes/inference.md has the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from pfedhgp.base.arrays_of import Array
from pfedhgp.base.batching import batchable
from pfedhgp.errors import NumericsWarning, warn
from pfedhgp.gp import linalg
from pfedhgp.inference.grams import Grams, accumulate
from pfedhgp.inference.jitter import not_finite
from pfedhgp.inference.structured.bound import GlobalEvidence, cavity_bound, design_of
from pfedhgp.inference.structured.client_step import StepOptions, log_prior
from pfedhgp.inference.structured.coordinates import parameters, with_parameters
from pfedhgp.inference.structured.posterior import client_posterior
from pfedhgp.inference.structured.traits import Expected, at_mean_variances
from pfedhgp.model.blocks import (
    ClientBlock,
    GlobalBlock,
    Rows,
    Structure,
    deviation_loadings,
    from_free,
    to_free,
)
from pfedhgp.model.posterior import ClientPosterior, Tangents, limits_in_words

Density = Callable[[Float[Array, " P"]], Array]

CURVATURE_STEP = 1e-4
SOFTEST = 1.0
"""The least precision in any direction of ψ: weak ones are not followed further than loadings' prior."""
LEVEL = 1.0
"""How much log p may differ at one standard deviation: twice what a Gaussian says."""
SHORTENINGS = 3


class Averaging(NamedTuple):
    """When to average, and how far the step from Laplace's mean may go, in its standard deviations."""

    cells: int = 400
    """A client with more observed cells than this per parameter is not averaged: nothing is to be gained."""
    reach: float = 2.0


@batchable(static=2, order=2, effort="low")
def batched_average(
    options: StepOptions,
    settings: Averaging,
    shared: GlobalBlock,
    jitter: Array,
    others: GlobalEvidence,
    clients: ClientBlock,
    expected: Expected,
    rows: Rows,
    local_jitter: Array,
    floor: Array | None = None,
) -> ClientPosterior:
    """`average` for a batch of clients of equal shapes."""

    def one(others: GlobalEvidence, *own: Any) -> ClientPosterior:
        found = target(options, shared, jitter, others, *own)
        return average(found, settings, options.structure, shared, others)

    return jax.vmap(one)(others, clients, expected, rows, local_jitter, floor)


class Target(NamedTuple):
    """log p(ψ | y) of one client up to a constant, and what follows from a ψ."""

    best: Float[Array, " P"]
    block_at: Callable[[Array], ClientBlock]
    grams_at: Callable[[Array], Grams]
    height: Callable[[Array, Grams], Array]
    """log p(ψ | y), where the sums at ψ are known already"""
    at_mean_variances: Callable[[Array, Array], Array]
    """ψ̄ with variances at their means, given the variances of ψ"""

    def log_density(self, z: Float[Array, " P"]) -> Array:
        """log p(ψ | y)"""
        return self.height(z, self.grams_at(z))


def target(
    options: StepOptions,
    shared: GlobalBlock,
    jitter: Array,
    others: GlobalEvidence,
    client: ClientBlock,
    expected: Expected,
    rows: Rows,
    local_jitter: Array,
    floor: Array | None = None,
) -> Target:
    """The cavity bound and the priors as a function of ψ alone; `others` has the other clients' J and h."""
    basis = shared.basis(jitter)
    free = to_free(client)
    best, unravel = ravel_pytree(parameters(free, noise=rows.cycles is None))

    def block_at(z: Array) -> ClientBlock:
        return from_free(with_parameters(free, unravel(z)))

    def grams_at(z: Array) -> Grams:
        design = design_of(options.structure, shared, basis, block_at(z), local_jitter)
        return accumulate(rows, design, chunk=options.chunk)

    def height(z: Array, grams: Grams) -> Array:
        values = with_parameters(free, unravel(z))
        prior = log_prior(options.structure, values, expected, shared, floor)
        return cavity_bound(grams, *others) + prior

    def with_means(z: Array, variances: Array) -> Array:
        at, v = (with_parameters(free, unravel(each)) for each in (z, variances))
        means = at_mean_variances(options.structure, at, v)
        fixed = rows.cycles is not None
        moved = replace(at, **(means._replace(noise=at.noise) if fixed else means)._asdict())
        return ravel_pytree(parameters(moved, noise=not fixed))[0]

    return Target(best, block_at, grams_at, height, with_means)


def average(
    found: Target,
    settings: Averaging,
    structure: Structure,
    shared: GlobalBlock,
    others: GlobalEvidence,
) -> ClientPosterior:
    """The client's posterior at ψ̄, its own view of v_g, and how both move with ψ; NaN where that fails."""
    centre, factor = gaussian(found.log_density, found.best, settings.reach)
    centre = found.at_mean_variances(centre, jnp.sum(factor**2, axis=1))

    def made_of(z: Array, grams: Grams) -> tuple[Array, Tangents]:
        """log p(ψ | y), and what predictions at ψ are made of."""
        block = found.block_at(z)
        kernels, _ = ravel_pytree(block.kernels)
        B_dev = deviation_loadings(structure, shared, block)
        weights = _joint(grams, others)[0]
        made = Tangents(
            kernels,
            B_dev,
            block.loadings,
            weights,
            global_loadings=block.global_loadings,
            noise=ravel_pytree(block.noise)[0],
        )
        return found.height(z, grams), made

    size = others.h.shape[0]
    grams = found.grams_at(centre)
    own = client_posterior(grams, found.block_at(centre), size)
    mean, covariance = _joint(grams, others)
    return replace(
        own,
        shared_mean=mean[:size],
        shared_covariance=covariance[:size, :size],
        tangents=secants(
            lambda z: made_of(z, found.grams_at(z)), made_of(centre, grams), centre, factor
        ),
    )


def with_averages(
    plain: Sequence[ClientPosterior],
    averaged: ClientPosterior,
    few: np.ndarray,
    names: Sequence[str],
) -> list[ClientPosterior]:
    """`plain`, but the averaged posteriors for clients with `few` rows; says where these were limited."""
    found, bad = list(plain), not_finite(averaged, len(plain))
    for i in (int(index) for index in np.flatnonzero(few)):
        if bad[i]:
            why = "keeps its best parameters: an average over them is not finite"
            warn(f"client {names[i]!r} {why}", NumericsWarning, stacklevel=3)
            continue
        found[i] = jax.tree.map(lambda leaf, i=i: leaf[i], averaged)
    told = limits_in_words(dict(zip(names, found, strict=True)), unless_only_shortened=True)
    if told is not None:
        warn(told, stacklevel=3)
    return found


def secants(
    look: Callable[[Array], tuple[Array, Tangents]],
    here: tuple[Array, Tangents],
    centre: Float[Array, " P"],
    factor: Float[Array, "P P"],
) -> Tangents:
    """(f(ψ̄ + sFe_p) − f(ψ̄ − sFe_p))/2 for each p, with s = 1, or as far as the client's bound allows.

    A Gaussian falls by ½ from ψ̄ to one standard deviation. Where log p, as the mean of both ends, is more
    than LEVEL below ψ̄'s (too long a direction) or above it (no maximum: the search has not settled), s is
    halved, SHORTENINGS times at most. A direction that fails even then is dropped: s = 0. `look` gives log p
    and what predictions are made of, `here` the same at ψ̄.
    """
    size = centre.shape[0]

    def fails(heights: Array) -> Array:
        rise = 0.5 * (heights[:size] + heights[size:]) - here[0]
        return ~(jnp.abs(rise) <= LEVEL)  # not finite fails too

    def going(state: tuple) -> Array:
        tries, _, heights, _ = state
        return (tries <= SHORTENINGS) & jnp.any(fails(heights))

    def shorter(state: tuple) -> tuple:
        tries, s, heights, _ = state
        s = jnp.where(fails(heights), 0.5 * s, s)
        return (tries + 1, s, *_ends(look, centre, s[:, None] * factor.T))

    unseen = jax.tree.map(
        lambda leaf: jnp.full(leaf.shape, jnp.nan, leaf.dtype),
        jax.eval_shape(partial(_ends, look), centre, factor.T),
    )
    start = (jnp.zeros((), int), jnp.full(size, 2.0, centre.dtype), *unseen)
    _, s, heights, ends = jax.lax.while_loop(going, shorter, start)
    s = jnp.where(fails(heights), 0.0, s)

    halves = (slice(None, size), slice(size, None))

    def kept(rows: Array) -> Array:
        return jnp.where(s.reshape(-1, *[1] * (rows.ndim - 1)) > 0, rows, 0.0)

    up, down = (jax.tree.map(lambda leaf, at=at: leaf[at], ends) for at in halves)
    half = jax.tree.map(lambda a, b: kept(0.5 * (a - b)), up, down)
    middle = jax.tree.map(lambda a, b, now: kept(0.5 * (a + b) - now[None]), up, down, here[1])
    return replace(half, reach=s, middle=middle)


def _ends(
    look: Callable[[Array], tuple[Array, Tangents]], centre: Array, columns: Array
) -> tuple[Array, Tangents]:
    """`look` at ψ̄ + each column, then at ψ̄ − each."""
    return jax.lax.map(look, jnp.concatenate([centre[None] + columns, centre[None] - columns]))


def gaussian(
    log_density: Density, best: Float[Array, " P"], reach: float
) -> tuple[Float[Array, " P"], Float[Array, "P P"]]:
    """ψ̄ and F: one step from Laplace's N(ψ̂, AAᵀ) towards the Gaussian of least KL(q ‖ p).

    At that one E[∇ log p] = 0 and −E[∇² log p] = (FFᵀ)⁻¹. In the coordinates ψ = ψ̂ + Aq, with Gauss and
    Hermite's nodes 0 and ±√3 on each axis and g for the gradient there,
        E[∇] ≈ (1 − P/3) g(0) + ⅙ Σ_p (g_p⁺ + g_p⁻),   E[∇²] e_p ≈ (√3/6)(g_p⁺ − g_p⁻).
    """
    size = best.shape[0]
    gradient, eye = jax.grad(log_density), jnp.eye(size, dtype=best.dtype)

    def stage(state: tuple[Array, Array], step: Array) -> tuple[tuple[Array, Array], None]:
        """g at the nodes ±step on the axes A; the first stage's are for Laplace's A."""
        A, _ = state
        nodes = step * jnp.concatenate([jnp.zeros((1, size), best.dtype), eye, -eye])
        slopes = jax.lax.map(lambda q: gradient(best + A @ q) @ A, nodes)
        first = step == CURVATURE_STEP
        curvature = (slopes[1 : 1 + size] - slopes[1 + size :]) / (2.0 * step)
        return (jnp.where(first, laplace_factor(curvature), A), slopes), None

    start = (eye, jnp.zeros((2 * size + 1, size), best.dtype))
    steps = jnp.array([CURVATURE_STEP, np.sqrt(3.0)], best.dtype)
    (A, slopes), _ = jax.lax.scan(stage, start, steps)
    up, down = slopes[1 : 1 + size], slopes[1 + size :]
    slope = (1.0 - size / 3.0) * slopes[0] + jnp.sum(up + down, axis=0) / 6.0
    curvature = -(jnp.sqrt(3.0) / 6.0) * (up - down)
    values, vectors = jnp.linalg.eigh(0.5 * (curvature + curvature.T))
    values = jnp.clip(values, 0.25, 4.0)
    step = vectors @ ((vectors.T @ slope) / values)
    step = step * jnp.minimum(1.0, reach / jnp.maximum(jnp.linalg.norm(step), 1e-300))
    shift = A @ step
    shift = shift * _believable(log_density, best, shift, jnp.sum(step**2))
    return best + shift, A @ (vectors / jnp.sqrt(values)[None, :])


def _believable(log_density: Density, best: Array, shift: Array, length: Array) -> Array:
    """The largest of 1, ½, ¼, 0 for which that part of `shift` costs at most twice what a Gaussian says.

    N(ψ̂, AAᵀ) says ½|step|² for a whole step, `length` being |step|²: one that costs far more left the region
    where gradients at the nodes have anything to say.
    """
    parts = jnp.array([0.0, 0.25, 0.5, 1.0], best.dtype)
    heights = jax.lax.map(lambda part: log_density(best + part * shift), parts)
    return jnp.max(jnp.where(heights >= heights[0] - parts**2 * length, parts, 0.0))


def laplace_factor(hessian: Float[Array, "P P"]) -> Float[Array, "P P"]:
    """A with AAᵀ = (−∇² log p)⁻¹, no direction softer than SOFTEST.

    The Hessian is by central differences of the gradient: it only has to give good coordinates.
    """
    values, vectors = jnp.linalg.eigh(-0.5 * (hessian + hessian.T))
    return vectors / jnp.sqrt(jnp.maximum(values, SOFTEST))[None, :]


def _joint(grams: Grams, others: GlobalEvidence) -> tuple[Array, Array]:
    """Moments of all weights [v_g | w] given this client's rows and the others' evidence."""
    k = others.J.shape[0]
    precision = grams.precision.at[:k, :k].add(others.J)
    return linalg.posterior_moments(precision, grams.linear.at[:k].add(others.h))
