"""Blocks and statistics as named arrays, which is how they travel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from pfedhgp.inference.structured import Statistics
from pfedhgp.kernels import Kernel
from pfedhgp.model.blocks import GlobalBlock

Arrays = Mapping[str, np.ndarray]


def block_to_arrays(block: GlobalBlock) -> dict[str, np.ndarray]:
    """Kernel parameters as one vector, inducing inputs, loadings and φ."""
    return {
        "kernel": np.asarray(ravel_pytree(block.kernels)[0]),
        "inputs": np.asarray(block.inputs),
        "loadings": np.asarray(block.loadings),
        "phi": np.asarray(block.phi),
    }


def block_from_arrays(arrays: Arrays, like: Kernel) -> GlobalBlock:
    """The inverse, for stacked kernels of the same form as `like`."""
    _, unravel = ravel_pytree(like)
    return GlobalBlock(
        kernels=unravel(jnp.asarray(arrays["kernel"])),
        inputs=jnp.asarray(arrays["inputs"]),
        loadings=jnp.asarray(arrays["loadings"]),
        phi=jnp.asarray(arrays["phi"]),
    )


def statistics_to_arrays(sums: Statistics) -> list[dict[str, np.ndarray]]:
    """One dictionary a client, from statistics with a leading client axis."""
    whole = {field.name: np.asarray(getattr(sums, field.name)) for field in fields(sums)}
    count = len(whole["clients"])
    return [{name: np.asarray(a[i]) for name, a in whole.items()} for i in range(count)]


def statistics_from_arrays(arrays: Arrays) -> Statistics:
    return Statistics(**{name: jnp.asarray(array) for name, array in arrays.items()})


def stack_trees(trees: list) -> object:
    """One tree with a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def take(tree: object, index: int) -> object:
    """Item `index` of a stacked tree."""
    return jax.tree.map(lambda leaf: leaf[index], tree)
