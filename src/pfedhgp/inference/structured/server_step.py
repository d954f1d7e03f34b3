"""The server's step: the exact maximum over B_g, a Newton step in θ_g inside a trust region, and φ."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from pfedhgp.base.batching import batchable
from pfedhgp.inference import lbfgs
from pfedhgp.inference.structured.coordinates import theta_of, with_theta
from pfedhgp.inference.structured.surrogate import Surrogate
from pfedhgp.model.blocks import GlobalBlock, Structure


class ServerOptions(NamedTuple):
    structure: Structure
    evaluations: int = 60
    learn_shared: bool = True


@batchable(static=1, effort="low")
def improve(
    options: ServerOptions, surrogate: Surrogate, anchor: Array, radius: Array, jitter: Array
) -> tuple[GlobalBlock, Array]:
    """The next block and the gain that the model of the bound promises; radius 0 freezes θ_g."""
    structure, block = options.structure, surrogate.block
    new, gain = block, jnp.zeros(())
    if options.learn_shared:
        new, gain = _moved(structure, surrogate, anchor, radius, jitter)
    if structure.tied:
        return new, gain

    def objective(z: Array) -> Array:
        return 0.5 * jnp.sum(z**2) - surrogate.elbo(structure, z.reshape(block.loadings.shape))

    start = block.loadings.reshape(-1)
    found = lbfgs.minimize(
        objective, start, evaluations=options.evaluations, movable=jnp.ones_like(start)
    )
    new = eqx.tree_at(lambda b: b.loadings, new, found.x.reshape(block.loadings.shape))
    return new, gain + found.first_value - found.value


def _moved(
    structure: Structure, surrogate: Surrogate, anchor: Array, radius: Array, jitter: Array
) -> tuple[GlobalBlock, Array]:
    """A Newton step in θ_g."""
    block = surrogate.block
    gradient, hessian = surrogate.derivatives(structure, jitter)
    theta = theta_of(structure, block)
    gradient = gradient - 0.25 * (theta - anchor)
    hessian = hessian - 0.25 * jnp.eye(theta.shape[0], dtype=theta.dtype)
    delta, gain = newton_in_box(gradient, hessian, radius)
    return with_theta(structure, block, theta + delta), gain


def newton_in_box(gradient: Array, hessian: Array, radius: Array) -> tuple[Array, Array]:
    """argmax of gᵀΔ + ½ΔᵀHΔ with H made negative definite, and the whole step shortened into |Δ| ≤ radius."""
    values, vectors = jnp.linalg.eigh(0.5 * (hessian + hessian.T))
    concave = -jnp.maximum(jnp.abs(values), 1e-6)
    delta = -vectors @ ((vectors.T @ gradient) / concave)
    largest = jnp.max(jnp.abs(delta), initial=0.0)
    delta = delta * jnp.minimum(1.0, radius / jnp.maximum(largest, 1e-300))
    return delta, jnp.dot(gradient, delta) + 0.5 * jnp.dot(delta, hessian @ delta)


def scale_of_deviations(power: Array, count: Array) -> Array:
    """argmax over φ of Π N(B̃; 0, φ) and a weak inverse-gamma prior, in log φ: (½Σ|B̃|² + b)/(½ entries + a).

    A prior is needed: without one, B̃ = 0 and φ = 0 together have an infinite density.
    """
    shape, scale = 0.5, 0.05
    return (0.5 * power + scale) / (0.5 * count + shape)
