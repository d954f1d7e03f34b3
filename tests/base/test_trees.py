"""Trees as vectors: the same order as JAX's, in the library of their arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from pfedhgp.base.trees import map_arrays, ravel, stack_trees


def a_tree(asarray=np.asarray):
    rng = np.random.default_rng(0)
    return {
        "b": asarray(rng.random((2, 3))),
        "a": (asarray(rng.random(())), asarray(rng.random(4))),
    }


@pytest.mark.parametrize("asarray", [np.asarray, jnp.asarray])
def test_a_tree_is_raveled_as_by_jax_and_in_its_own_library(asarray):
    tree = a_tree(asarray)
    flat, unravel = ravel(tree)
    np.testing.assert_array_equal(flat, ravel_pytree(tree)[0])
    again = unravel(flat)
    assert jax.tree.structure(again) == jax.tree.structure(tree)
    for one, two in zip(jax.tree.leaves(again), jax.tree.leaves(tree), strict=True):
        assert isinstance(one, jax.Array) == (asarray is jnp.asarray)
        np.testing.assert_array_equal(one, two)


def test_vectors_with_leading_axes_give_leaves_with_them():
    flat, unravel = ravel(a_tree())
    several = unravel(flat * np.arange(1.0, 7.0).reshape(2, 3, 1))
    assert several["b"].shape == (2, 3, 2, 3)
    np.testing.assert_array_equal(several["a"][0][1, 0], 4.0 * a_tree()["a"][0])
    assert ravel({})[0].shape == (0,)


def test_trees_are_stacked_and_mapped_in_their_own_library():
    one, two = a_tree(), a_tree(jnp.asarray)
    both = stack_trees([one, one])
    assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(both))
    np.testing.assert_array_equal(both["b"][1], one["b"])
    assert isinstance(stack_trees([one, two])["b"], jax.Array)
    np.testing.assert_array_equal(map_arrays("log", one)["b"], np.log(one["b"]))
    assert isinstance(map_arrays("exp", two)["b"], jax.Array)
