"""Equal shapes for clients that compute together: inducing inputs that are there and do not count."""

from __future__ import annotations

import jax.numpy as jnp

from pfedhgp.inference.starts import budget
from pfedhgp.model.blocks import ClientBlock


def pad_inputs(blocks: list[ClientBlock]) -> list[ClientBlock]:
    """The same number of inducing inputs for all, the extra ones inactive."""
    largest = max(len(block.active) for block in blocks)
    size = largest if all(len(b.active) == largest for b in blocks) else budget.round_up(largest)
    return [pad_block(block, size) for block in blocks]


def pad_block(block: ClientBlock, size: int) -> ClientBlock:
    """Adds inactive inducing inputs up to `size`."""
    extra = size - len(block.active)
    return ClientBlock(
        block.kernels,
        jnp.pad(block.inputs, ((0, extra), (0, 0)), mode="edge")
        if len(block.inputs)
        else jnp.pad(block.inputs, ((0, extra), (0, 0))),
        jnp.pad(block.active, (0, extra)),
        block.deviation,
        block.loadings,
        block.noise,
    )
