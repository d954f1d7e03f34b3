"""Blocks and statistics as named arrays, which is how they travel."""

from __future__ import annotations

from dataclasses import fields
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from pfedhgp.gp.kernels import Kernel
from pfedhgp.inference.fields import pack, unpack
from pfedhgp.inference.messages import DERIVATIVES, STATISTICS
from pfedhgp.inference.protocols import Arrays
from pfedhgp.inference.structured.bound import Statistics
from pfedhgp.model.blocks import GlobalBlock


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


Tree = TypeVar("Tree")


def statistics_to_arrays(
    sums: Statistics, *, derivatives: bool = True
) -> list[dict[str, np.ndarray]]:
    """One dictionary a client, from statistics with a leading client axis."""
    left_out = () if derivatives else {field.name for field in DERIVATIVES}
    names = [each.name for each in fields(sums) if each.name not in left_out]
    named = {name: getattr(sums, name) for name in names}
    whole = pack(STATISTICS, {name: a for name, a in named.items() if a is not None})
    count = len(whole["clients"])
    return [{name: np.asarray(a[i]) for name, a in whole.items()} for i in range(count)]


def statistics_from_arrays(arrays: Arrays, parameters: int) -> Statistics:
    """The inverse, for one client's or summed statistics; derivatives are 0 where left out."""
    found = unpack(STATISTICS, arrays)
    R, Q, _ = found["shared_residual"].shape
    sizes = {"P": parameters, "R": R, "M": len(found["y"]) // max(R * Q, 1)}
    zeros = {field.name: np.zeros(field.whole_shape(sizes)) for field in DERIVATIVES}
    return Statistics(**{name: jnp.asarray(array) for name, array in (zeros | found).items()})


def stack_trees(trees: list[Tree]) -> Tree:
    """One tree with a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
