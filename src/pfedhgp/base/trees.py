"""Trees of arrays, NumPy's or JAX's: as one vector, and several as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from pfedhgp.base.arrays_of import namespace

Tree = TypeVar("Tree")


def ravel(tree: Tree) -> tuple[Any, Callable[[Any], Tree]]:
    """All numbers of a tree as one vector, leaf after leaf, and the way back.

    The way back also takes vectors with leading axes, which its leaves then have.
    """
    leaves, form = jax.tree.flatten(tree)
    shapes = [np.shape(leaf) for leaf in leaves]
    ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])

    def unravel(vector: Any) -> Tree:
        lead = vector.shape[:-1]
        parts = [
            vector[..., first:last].reshape((*lead, *shape))
            for shape, first, last in zip(shapes, ends[:-1], ends[1:], strict=True)
        ]
        found: Tree = jax.tree.unflatten(form, parts)
        return found

    if not leaves:
        return np.zeros(0), unravel
    xp = namespace(*leaves)
    return xp.concatenate([xp.reshape(leaf, -1) for leaf in leaves]), unravel


def stack_trees(trees: Sequence[Tree]) -> Tree:
    """One tree with a leading axis."""
    found: Tree = jax.tree.map(lambda *leaves: namespace(*leaves).stack(leaves), *trees)
    return found


def map_arrays(function: str, tree: Tree) -> Tree:
    """The tree with NumPy's or JAX's `function` ("log", "exp") of each array."""
    found: Tree = jax.tree.map(lambda leaf: getattr(namespace(leaf), function)(leaf), tree)
    return found
