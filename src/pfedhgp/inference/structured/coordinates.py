"""ψ: what a client learns, as a tree and as coordinates that a search may move."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from pfedhgp.base.arrays_of import Array
from pfedhgp.model.blocks import ClientBlock


def parameters(block: ClientBlock, *, noise: bool = True, inputs: bool = False) -> tuple:
    """ψ as a tree: kernels, B̃, B_l, `noise` (a cycle layer's is fixed before), B_g,i, `inputs` if they move.

    What is not learned is None, which has no coordinates.
    """
    learned = (block.kernels, block.deviation, block.loadings, block.noise if noise else None)
    return (*learned, block.global_loadings, block.inputs if inputs else None)


def with_parameters(block: ClientBlock, values: tuple) -> ClientBlock:
    """The block with other parameters."""
    kernels, deviation, loadings, noise, own, inputs = values
    noise = block.noise if noise is None else noise
    inputs = block.inputs if inputs is None else inputs
    return ClientBlock(kernels, inputs, block.active, deviation, loadings, noise, own)


def movable(
    free: ClientBlock, *, kernels_free: Array, inputs: bool, noise: bool = True, mixed: bool = True
) -> Array:
    """1 for coordinates that the search may move; local functions of one output each are not `mixed`."""
    ones = jax.tree.map(jnp.ones_like, free)
    mask = replace(
        ones,
        kernels=jax.tree.map(lambda v: v * kernels_free, ones.kernels),
        inputs=free.active[:, None] * ones.inputs,
        noise=jax.tree.map(lambda v: v * float(noise), ones.noise),
        loadings=ones.loadings if mixed else jnp.eye(*ones.loadings.shape),
    )
    return ravel_pytree(parameters(mask, inputs=inputs))[0]
