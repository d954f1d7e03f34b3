"""Blocks, statistics and any tree as named arrays: how they travel, and how checkpoints keep them.

A party's `state()` holds everything that its next step depends on, except its rows and its settings.
`restore` puts it back, exactly, into a new party with the same rows and settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import jax
import numpy as np

from pfedhgp.base.batching import on_numpy
from pfedhgp.base.trees import ravel
from pfedhgp.errors import ModelFileError
from pfedhgp.gp.kernels import Kernel
from pfedhgp.inference.messages import DERIVATIVES, STATISTICS, pack, unpack
from pfedhgp.inference.protocols import Arrays
from pfedhgp.inference.structured.bound import Statistics
from pfedhgp.model.blocks import GlobalBlock

Tree = TypeVar("Tree")
OPTIONAL = ("loadings_covariance", "noise_levels")
"""What only some global blocks have."""


@dataclass(frozen=True)
class State:
    """Arrays by name, and what JSON can hold."""

    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    plain: Mapping[str, Any] = field(default_factory=dict)

    def array(self, name: str) -> np.ndarray:
        if name not in self.arrays:
            raise ModelFileError(f"the checkpoint lacks {name!r}: start the run again")
        return self.arrays[name]

    def has(self, prefix: str) -> bool:
        return any(name.startswith(f"{prefix}.") for name in self.arrays)

    def part(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays below `prefix`, without it."""
        return {
            name.removeprefix(f"{prefix}."): array
            for name, array in self.arrays.items()
            if name.startswith(f"{prefix}.")
        }


def block_to_arrays(block: GlobalBlock) -> dict[str, np.ndarray]:
    """Kernel parameters as one vector, inducing inputs, loadings and φ."""
    arrays = {
        "kernel": np.asarray(ravel(block.kernels)[0]),
        "inputs": np.asarray(block.inputs),
        "loadings": np.asarray(block.loadings),
        "phi": np.asarray(block.phi),
    }
    for name in OPTIONAL:
        if (array := getattr(block, name)) is not None:
            arrays[name] = np.asarray(array)
    return arrays


def block_from_arrays(arrays: Arrays, like: Kernel) -> GlobalBlock:
    """The inverse, for stacked kernels of the same form as `like`."""
    _, unravel = ravel(like)
    optional = {name: np.asarray(arrays[name]) for name in OPTIONAL if name in arrays}
    return GlobalBlock(
        kernels=unravel(np.asarray(arrays["kernel"])),
        inputs=np.asarray(arrays["inputs"]),
        loadings=np.asarray(arrays["loadings"]),
        phi=np.asarray(arrays["phi"]),
        **optional,
    )


def statistics_to_arrays(
    sums: Statistics, *, derivatives: bool = True
) -> list[dict[str, np.ndarray]]:
    """One dictionary a client, from statistics with a leading client axis."""
    left_out = () if derivatives else {each.name for each in DERIVATIVES}
    named = {name: a for name, a in _named(on_numpy(sums)).items() if name not in left_out}
    whole = pack(STATISTICS, named)
    count = len(whole["clients"])
    return [{name: np.asarray(a[i]) for name, a in whole.items()} for i in range(count)]


def statistics_from_arrays(arrays: Arrays, parameters: int) -> Statistics:
    """The inverse, for one client's or summed statistics; derivatives are 0 where left out."""
    found = unpack(STATISTICS, arrays)
    R, Q, _ = found["shared_residual"].shape
    each = R if "client_loadings" in found else R * Q
    sizes = {"P": parameters, "R": R, "M": len(found["y"]) // max(each, 1)}
    zeros = {each.name: np.zeros(each.whole_shape(sizes)) for each in DERIVATIVES}
    whole: dict[str, Any] = zeros | found
    return Statistics(**whole)


def for_some(sums: np.ndarray, stays: np.ndarray) -> np.ndarray:
    """Sums with a leading axis of clients, 0 for those that do not stay."""
    return sums * stays.reshape(-1, *[1] * (sums.ndim - 1))


def below(prefix: str, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays with `prefix` before their names."""
    return {f"{prefix}.{name}": np.asarray(array) for name, array in arrays.items()}


def tree_to_arrays(tree: Any) -> dict[str, np.ndarray]:
    """Every leaf of a tree under its path."""
    return {
        leaf_name(path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def tree_from_arrays(arrays: Mapping[str, np.ndarray], like: Tree) -> Tree:
    """The inverse for a tree of the form of `like`, whose leaves may have other shapes."""
    leaves, form = jax.tree_util.tree_flatten_with_path(like)
    names = [leaf_name(path) for path, _ in leaves]
    if set(names) != set(arrays):
        odd = sorted(set(names) ^ set(arrays))[0]
        raise ModelFileError(f"the checkpoint does not fit the model at {odd!r}: start again")
    return jax.tree.unflatten(form, [np.asarray(arrays[name]) for name in names])


def block_of(state: State, name: str, like: Kernel) -> GlobalBlock | None:
    """A global block that was kept with `block_to_arrays`; None if there was none."""
    return block_from_arrays(state.part(name), like) if state.has(name) else None


def block_arrays(name: str, block: GlobalBlock | None) -> dict[str, np.ndarray]:
    return {} if block is None else below(name, block_to_arrays(block))


def statistics_arrays(name: str, sums: Statistics | None) -> dict[str, np.ndarray]:
    """Whole, not packed: the client needs exactly what it sent."""
    return {} if sums is None else below(name, _named(sums))


def _named(sums: Statistics) -> dict[str, Any]:
    named = {each.name: getattr(sums, each.name) for each in fields(sums)}
    return {name: array for name, array in named.items() if array is not None}


def statistics_of(state: State, name: str) -> Statistics | None:
    if not state.has(name):
        return None
    kept: dict[str, Any] = state.part(name)
    return Statistics(**kept)


def leaf_name(path: Any) -> str:
    """A leaf of a tree by its path: "q.mean"."""
    return jax.tree_util.keystr(path, simple=True, separator=".")
