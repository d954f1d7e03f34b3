"""Blocks and statistics as named arrays, which is how they travel."""

from __future__ import annotations

from dataclasses import fields
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from pfedhgp.gp.kernels import Kernel
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
SYMMETRIC = ("U", "d_J")
DERIVATIVES = ("d_evidence", "d_h", "d_J", "curvature")


def statistics_to_arrays(
    sums: Statistics, *, derivatives: bool = True
) -> list[dict[str, np.ndarray]]:
    """One dictionary a client, from statistics with a leading client axis; of U and ∂J one triangle."""
    named = {field.name: getattr(sums, field.name) for field in fields(sums)}
    whole = {
        name: np.asarray(value)
        for name, value in named.items()
        if value is not None and (derivatives or name not in DERIVATIVES)
    }
    for name in SYMMETRIC:
        if name in whole:
            rows, columns = np.triu_indices(whole[name].shape[-1])
            whole[name] = whole[name][..., rows, columns]
    count = len(whole["clients"])
    return [{name: np.asarray(a[i]) for name, a in whole.items()} for i in range(count)]


def statistics_from_arrays(arrays: Arrays, parameters: int) -> Statistics:
    """The inverse, for one client's or summed statistics; derivatives are 0 where left out."""
    found = dict(arrays)
    outputs = found["noise"].shape[0]
    size = found["y"].shape[0] // max(outputs, 1)
    found.setdefault("d_evidence", np.zeros(parameters))
    found.setdefault("d_h", np.zeros((parameters, size)))
    found.setdefault("d_J", np.zeros((parameters, size * (size + 1) // 2)))
    found.setdefault("curvature", np.zeros((parameters, parameters)))
    found["U"] = _unpack(found["U"], found["y"].shape[0])
    found["d_J"] = _unpack(found["d_J"], size)
    return Statistics(**{name: jnp.asarray(array) for name, array in found.items()})


def _unpack(packed: np.ndarray, size: int) -> np.ndarray:
    full = np.zeros((*packed.shape[:-1], size, size))
    rows, columns = np.triu_indices(size)
    full[..., rows, columns] = packed
    full[..., columns, rows] = packed
    return full


def stack_trees(trees: list[Tree]) -> Tree:
    """One tree with a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
