"""θ_g as a vector: the logarithms of the shared kernels' parameters, and of τ and φ without loadings."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from pfedhgp.model.blocks import GlobalBlock, Structure

Theta = Float[Array, " P"]


def theta_of(structure: Structure, block: GlobalBlock) -> Theta:
    """log of each kernel parameter [, log τ, log φ]"""
    kernels, _ = ravel_pytree(jax.tree.map(jnp.log, block.kernels))
    if not structure.tied:
        return kernels
    return jnp.concatenate([kernels, jnp.log(block.loadings.reshape(-1)), jnp.log(block.phi)[None]])


def with_theta(structure: Structure, block: GlobalBlock, theta: Theta) -> GlobalBlock:
    """The block with `theta` in place of its own."""
    flat, unravel = ravel_pytree(jax.tree.map(jnp.log, block.kernels))
    kernels = jax.tree.map(jnp.exp, unravel(theta[: flat.shape[0]]))
    block = eqx.tree_at(lambda b: b.kernels, block, kernels)
    if not structure.tied:
        return block
    tau = jnp.exp(theta[flat.shape[0] : -1]).reshape(block.loadings.shape)
    return eqx.tree_at(lambda b: (b.loadings, b.phi), block, (tau, jnp.exp(theta[-1])))
