"""Equal shapes for clients that compute together, by inducing inputs that do not count."""

from __future__ import annotations

from dataclasses import replace

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
    mode = "edge" if len(block.inputs) else "constant"
    return replace(
        block,
        inputs=jnp.pad(block.inputs, ((0, extra), (0, 0)), mode=mode),
        active=jnp.pad(block.active, (0, extra)),
    )
