"""Traits: the logarithms of a client's own scales, and what a population of clients says about them.

A client's traits t are the logarithms of its local kernels' parameters, of its noise variances and, without
loadings, of its local layer's variance and of φ_i/φ, the scale of its deviation. They are counted from the
start that all clients agreed on. Clients are a population:
    t_i ~ N(μ, τ²),   μ ~ N(0, 2²),   τ² ~ scaled inverse χ²(4, 0.4²),   each trait on its own.
(For φ_i/φ, μ ~ N(0, 0.1²): φ is learned by itself.)
What client i's rows say of a trait is about N(t; m_i, s_i²), its site. With w = 1/(τ² + s²) at the last τ²,
and u = m − μ, five sums over clients are enough for the best μ and the next Newton step in log τ²:
    Σw, Σwu, Σw², Σw²u, Σw²u².
A client takes its own part out of them, as it does with J and h. Its prior is what the others say of a
client that nobody has seen, with the uncertainty of μ and τ² in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pfedhgp.base.arrays_of import Array, namespace
from pfedhgp.gp.kernels import Kernel, Periodic, leaves_of
from pfedhgp.gp.noise import Noise
from pfedhgp.inference.starts.candidates import Start
from pfedhgp.model.blocks import ClientBlock, Structure
from pfedhgp.model.spec import Spec, starting_kernels

WIDE = 2.0
"""Standard deviation of μ around the start."""
NARROW = 0.1
"""That of log φ_i/φ: φ itself is learned, as part of θ_g."""
WORTH, SPREAD = 4.0, 0.4
"""How many clients the hyperprior of τ² is worth, and the τ that it expects."""
LEAST, MOST = 0.1, 3.0
"""τ stays between these."""
LONGEST = 1.0
"""A Newton step in log τ² is at most this long."""
TRAIT_STEP = 1e-4
"""Between the points at which slopes give the curvature in the traits."""
SUMS = 5
TINY = 1e-12
"""Added to a variance before its logarithm is taken."""
USUAL_NOISE = 0.01
"""The noise variance that is expected before any client has replied, in scaled units."""


class Reference(eqx.Module):
    """The population at which clients count their next reply: μ of the traits themselves, and τ²."""

    mean: Float[Array, "*c t"]
    variance: Float[Array, "*c t"]


class Expected(eqx.Module):
    """N(mean, 1/precision): what is expected of each trait of a client."""

    mean: Float[Array, "*c t"]
    precision: Float[Array, "*c t"]
    asked: Reference | None = None
    """at which the client says what its rows tell; None: it need not"""


class TraitCurvature(NamedTuple):
    """∂² log p(y | ψ) in each client's traits, and ψ where it was taken."""

    at: Float[Array, "c P"]
    """NaN: that was not free then, or nothing is known"""
    hessian: Float[Array, "c t t"]

    @staticmethod
    def unknown(rows: Float[Array, "c P"], traits: int) -> TraitCurvature:
        return TraitCurvature(np.full_like(rows, np.nan), np.zeros((len(rows), traits, traits)))

    def of_some(self, which: Array | slice) -> TraitCurvature:
        return TraitCurvature(self.at[which], self.hessian[which])


class Population(NamedTuple):
    """μ and τ² of each trait, counted from the agreed start."""

    mean: Float[np.ndarray, " t"]
    variance: Float[np.ndarray, " t"]

    @staticmethod
    def unknown(count: int) -> Population:
        """Before any client has replied."""
        return Population(np.zeros(count), np.full(count, SPREAD**2))


class HasTraits(Protocol):
    """ψ of a client or of a batch: kernels are logarithms."""

    @property
    def kernels(self) -> Kernel: ...
    @property
    def deviation(self) -> Array: ...
    @property
    def loadings(self) -> Array: ...
    @property
    def noise(self) -> Noise: ...


def traits_of(structure: Structure, free: HasTraits) -> Float[Array, "*c t"]:
    """Logarithms of the kernels' parameters, without loadings of φ_i/φ and B_l², and of σ²."""
    # By its class: equinox makes a module of a bound method, which takes longer than all of this.
    loadings, levels = free.loadings, type(free.noise).levels(free.noise)
    lead = loadings.shape[:-2]
    parts = [leaf.reshape(*lead, -1) for leaf in jax.tree.leaves(free.kernels)]
    if structure.tied:
        xp = namespace(loadings)
        for B in (free.deviation, loadings):
            parts.append(xp.log(B**2 + TINY).reshape(*lead, -1))
    return namespace(levels, *parts).concatenate([*parts, levels], axis=-1)


def below_floor(log_kernels: Kernel, floor: Float[Array, " d"]) -> Array:
    """½ Σ (log(floor/ℓ)/¼)² over lengthscales below it: what is shorter than rows lie apart is noise."""
    xp = namespace(floor)
    cost = xp.zeros(())
    for leaf in leaves_of(log_kernels):
        if isinstance(leaf, Periodic):
            continue
        own = floor if leaf.dims is None else floor[np.asarray(leaf.dims)]
        short = xp.maximum(xp.log(own)[None, :] - leaf.lengthscale, 0.0)
        cost += 8.0 * xp.sum(short**2)
    return cost


def with_traits(structure: Structure, free: ClientBlock, by: Float[Array, " t"]) -> ClientBlock:
    """A block with `by` added to its traits; kernels are logarithms."""
    leaves, form = jax.tree.flatten(free.kernels)
    moved, start = [], 0
    for leaf in leaves:
        moved.append(leaf + by[start : start + leaf.size].reshape(leaf.shape))
        start += leaf.size
    scales = [free.deviation, free.loadings]
    for i, B in enumerate(scales if structure.tied else ()):
        part = by[start : start + B.size].reshape(B.shape)
        scales[i], start = B * namespace(by).exp(0.5 * part), start + B.size
    return replace(
        free,
        kernels=jax.tree.unflatten(form, moved),
        deviation=scales[0],
        loadings=scales[1],
        noise=free.noise.shifted(by[start:]),
    )


class MeanVariances(NamedTuple):
    """What has variances at their means: √(φ_i/φ) and B_l without loadings, and the noise."""

    deviation: Float[Array, "*c Q R"]
    loadings: Float[Array, "*c Q Rl"]
    noise: Noise


def at_mean_variances(structure: Structure, at: HasTraits, variances: HasTraits) -> MeanVariances:
    """φ_i and B_l² at their means (without loadings), noise at its mean, given coordinates' variances.

    A prediction's variance is a mean over parameters. It is not the variance at the parameters' mean: σ² at
    the mean of log σ² is too small.
    """
    deviation, loadings = at.deviation, at.loadings
    if structure.tied:
        deviation = _at_mean_square(deviation, variances.deviation)
        loadings = _at_mean_square(loadings, variances.loadings)
    return MeanVariances(deviation, loadings, at.noise.at_mean(variances.noise))


def _at_mean_square(B: Array, variance: Array) -> Array:
    xp = namespace(B)
    return xp.where(B < 0, -1.0, 1.0) * xp.sqrt(B**2 + variance)


def count_traits(spec: Spec) -> int:
    """How many traits a client of such a model has."""
    return starting_traits(spec, Start(1.0, 1.0, 1.0, 1.0, 1.0), np.ones(spec.inputs)).size


def starting_traits(spec: Spec, start: Start, extent: np.ndarray) -> Float[np.ndarray, " t"]:
    """The traits of the agreed start, from which the population's are counted."""
    kernels = starting_kernels(
        spec.local_kernel, scale=start.local, count=spec.local_latents, extent=extent
    )
    parts = [np.log(leaf).reshape(-1) for leaf in jax.tree.leaves(kernels)]
    if spec.tied:
        parts.append(np.zeros(spec.latents if spec.deviation else 0))
        parts.append(np.full(spec.local_latents, np.log(start.local_variance + TINY)))
    count = 1 if spec.noise == "scalar" else spec.outputs
    return np.concatenate([*parts, np.full(count, np.log(USUAL_NOISE))])


def sites(
    expected: Expected,
    at: Float[Array, "*c t"],
    slope: Float[Array, "*c t"],
    hessian: Float[Array, "*c t t"],
    free: Float[Array, " t"],
) -> Float[Array, "*c 5 t"]:
    """The five numbers of each client's sites, from gradient and Hessian of log p(ψ | y) in its traits.

    A site is Laplace's marginal over the prior: precision 1/v − D, with D the prior's and v from
    (−Hessian)⁻¹. Nothing that the rows say may be worth less than nothing: in the prior's units, no
    eigenvalue of −Hessian is below 1. Of traits that were not `free` to move nothing is said.
    """
    xp, asked = namespace(at, hessian), expected.asked
    assert asked is not None
    D = expected.precision
    half = xp.sqrt(D)
    both = free[:, None] * free[None, :]
    slope, eye = slope * free, xp.eye(at.shape[-1], dtype=at.dtype)
    scaled = (
        -both * hessian / (half[..., :, None] * half[..., None, :]) + (1.0 - free)[None, :] * eye
    )
    values, vectors = xp.linalg.eigh(0.5 * (scaled + xp.swapaxes(scaled, -1, -2)))
    inverse = (vectors / xp.maximum(values, 1.0)[..., None, :]) @ xp.swapaxes(vectors, -1, -2)
    shift = (inverse @ (slope / half)[..., None])[..., 0] / half
    mean = at + xp.clip(shift, -1.0, 1.0)
    v = xp.diagonal(inverse, axis1=-2, axis2=-1) / D
    r = xp.maximum(1.0 / v - D, 0.0) * free
    ru = free * (mean - expected.mean) / v + r * (expected.mean - asked.mean)
    weight = 1.0 / (1.0 + r * asked.variance)
    w, wu = r * weight, ru * weight
    return xp.stack([w, wu, w**2, w * wu, wu**2], axis=-2)


def sites_by_slopes(
    structure: Structure,
    density: Callable[[ClientBlock], Array],
    free: ClientBlock,
    expected: Expected,
    moves: Float[Array, " t"],
) -> Float[Array, "5 t"]:
    """`sites` of one client, from slopes of log p(ψ | y) at a block and at a small step in each trait."""
    at = traits_of(structure, free)
    nodes = jnp.concatenate([jnp.zeros((1, at.size)), TRAIT_STEP * jnp.eye(at.size)])
    slope = jax.grad(lambda by: density(with_traits(structure, free, by)))
    slopes = jax.lax.map(slope, nodes)
    hessian = (slopes[1:] - slopes[:1]) / TRAIT_STEP
    return sites(expected, at, slopes[0], hessian, moves)


def wide_of(spec: Spec, *, own_phi: bool = True) -> Float[np.ndarray, " t"]:
    """How far μ of each trait may be from its start; clients of older models have no φ_i of their own."""
    wide = np.full(count_traits(spec), WIDE)
    if not (spec.tied and spec.deviation):
        return wide
    end = len(wide) - spec.local_latents - (1 if spec.noise == "scalar" else spec.outputs)
    of_phi = slice(end - spec.latents, end)
    wide[of_phi] = NARROW
    return wide if own_phi else np.delete(wide, of_phi)


Wide = Float[np.ndarray, " t"] | float


def updated(
    sums: Float[np.ndarray, "*c 5 t"], reference: Population, wide: Wide = WIDE
) -> Population:
    """The best μ, and τ² after one Newton step, from the five sums at `reference`."""
    S, delta, _ = _moments(sums, reference, wide)
    tau2 = reference.variance
    pull = WORTH * SPREAD**2 / tau2
    step = (tau2 * S - WORTH + pull) / (tau2**2 * sums[..., 2, :] + pull)
    tau2 = tau2 * np.exp(np.clip(step, -LONGEST, LONGEST))
    return Population(reference.mean + delta, np.clip(tau2, LEAST**2, MOST**2))


def predicted(
    sums: Float[np.ndarray, "*c 5 t"], reference: Population, wide: Wide = WIDE
) -> Population:
    """Mean and variance of a new client's traits: τ² and the uncertainty of μ and of τ² itself."""
    _, _, of_mean = _moments(sums, reference, wide)
    found = updated(sums, reference, wide)
    freedom = WORTH + reference.variance**2 * sums[..., 2, :]
    return Population(found.mean, found.variance * freedom / (freedom - 2.0) + of_mean)


def traits_of_nobody(spec: Spec) -> Float[np.ndarray, "2 t"]:
    """What is expected of a client before anyone has replied, counted from the agreed start."""
    wide = wide_of(spec)
    nothing = np.zeros((SUMS, len(wide)))
    return np.stack(predicted(nothing, Population.unknown(len(wide)), wide))


def _moments(
    sums: Float[np.ndarray, "*c 5 t"], reference: Population, wide: Wide
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """2 ∂ log p/∂τ² with μ integrated out, μ − μ_reference, and μ's variance."""
    w, wu, w2, w2u, w2u2 = np.moveaxis(sums, -2, 0)
    of_mean = 1.0 / (w + 1.0 / np.square(wide))
    delta = of_mean * (wu - reference.mean / np.square(wide))
    S = w2u2 - 2.0 * delta * w2u + (delta**2 + of_mean) * w2 - w
    return S, delta, of_mean
