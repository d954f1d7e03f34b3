"""The client block's free coordinates, and where the deviation's loadings come from."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from pfedhgp.model.blocks import Structure, deviation_loadings, from_free, to_free
from support import twins


@pytest.mark.parametrize("make", [twins.rbf, twins.wave])
def test_free_coordinates_and_back(make):
    client = twins.make_problem(k_l=make, noise="full", sizes=(3,)).clients[0]
    again = from_free(to_free(client))
    assert jax.tree.structure(again) == jax.tree.structure(client)
    for one, two in zip(jax.tree.leaves(again), jax.tree.leaves(client), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-15)


def test_any_free_vector_is_a_valid_block():
    """However far an optimiser runs, kernels stay positive and the noise stays a covariance."""
    client = twins.make_problem(k_l=twins.wave, noise="full", sizes=(3,)).clients[0]
    start, unravel = ravel_pytree(to_free(client))
    for seed in range(3):
        moved = from_free(unravel(5.0 * np.random.default_rng(seed).normal(size=start.shape)))
        assert all(np.all(np.asarray(leaf) > 0.0) for leaf in jax.tree.leaves(moved.kernels))
        assert np.linalg.eigvalsh(moved.noise.covariance(3)).min() > 0.0


def test_deviation_loadings_are_the_clients_or_follow_from_phi_or_are_none():
    problem = twins.make_problem(sizes=(3,))
    shared, client = problem.shared, problem.clients[0]
    np.testing.assert_array_equal(deviation_loadings(Structure(), shared, client), client.deviation)
    tied = deviation_loadings(Structure(tied=True), shared, client)
    np.testing.assert_allclose(tied, np.sqrt(shared.phi) * shared.loadings, rtol=1e-15)
    assert deviation_loadings(Structure(deviation=False), shared, client).shape == (3, 0)
    assert deviation_loadings(Structure(False, True), shared, client).shape == (3, 0)
