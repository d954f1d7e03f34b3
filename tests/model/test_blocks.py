"""A block as a vector, the client's and θ_g, there and back; and where the deviation's loadings come from."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from pfedhgp.gp import kernels as pk
from pfedhgp.model.blocks import (
    GlobalBlock,
    Structure,
    deviation_loadings,
    from_free,
    theta_of,
    to_free,
    with_theta,
)
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
    everybodys = np.sqrt(shared.phi) * shared.loadings
    tied = deviation_loadings(Structure(tied=True), shared, client)
    np.testing.assert_allclose(tied, everybodys * client.deviation, rtol=1e-15)
    older = replace(client, deviation=client.deviation[:, :0])  # before clients had their own φ_i
    tied = deviation_loadings(Structure(tied=True), shared, older)
    np.testing.assert_allclose(tied, everybodys, rtol=1e-15)
    assert deviation_loadings(Structure(deviation=False), shared, client).shape == (3, 0)
    assert deviation_loadings(Structure(False, True), shared, client).shape == (3, 0)


BASES = {
    "rbf": (lambda: pk.RBF([0.5, 2.0]), 2),
    "matern12": (lambda: pk.Matern12(0.7), 1),
    "matern32": (lambda: pk.Matern32([0.5, 2.0]), 2),
    "matern52": (lambda: pk.Matern52([0.5, 2.0]), 2),
    "rational quadratic": (lambda: pk.RationalQuadratic([0.5, 2.0], 1.3), 3),
    "periodic": (lambda: pk.Periodic([0.5, 2.0], period=[1.0, 3.0]), 4),
    "dims": (lambda: pk.RBF(0.5, dims=(1,)) * pk.Periodic(0.9, period=2.0, dims=(0,)), 3),
    "sum": (lambda: pk.split_scale(0.2 * pk.RBF(0.5) + 0.8 * pk.Matern12(2.0))[1], 3),
    "tree": (lambda: twins.wave(np.random.default_rng(0), 2), 10),
}


def block_of(make, latents: int, tied: bool) -> tuple[Structure, GlobalBlock]:
    kernels = pk.stack([make() for _ in range(latents)])
    factors = jnp.arange(1.0, latents + 1.0)
    kernels = jax.tree.map(
        jax.vmap(jnp.multiply), kernels, jax.tree.map(lambda _: factors, kernels)
    )
    loadings = jnp.full((1, 1), 1.7) if tied else -jnp.ones((2, latents))
    return Structure(tied=tied), GlobalBlock(kernels, jnp.zeros((3, 2)), loadings, jnp.asarray(0.3))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", BASES)
def test_theta_and_back(name, tied):
    make, count = BASES[name]
    latents = 1 if tied else 3
    structure, block = block_of(make, latents, tied)
    theta = theta_of(structure, block)
    assert theta.shape == (latents * count + (2 if tied else 0),)
    again = with_theta(structure, block, theta)
    assert jax.tree.structure(again) == jax.tree.structure(block)
    for one, two in zip(jax.tree.leaves(again), jax.tree.leaves(block), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-15)
    other = theta + jnp.arange(theta.shape[0], dtype=theta.dtype) / 7.0
    np.testing.assert_allclose(
        theta_of(structure, with_theta(structure, block, other)), other, rtol=1e-14
    )


def test_theta_is_the_logarithm_of_every_kernel_parameter():
    structure, block = block_of(BASES["rational quadratic"][0], 2, False)
    shifted = with_theta(structure, block, theta_of(structure, block) + np.log(2.0))
    for one, two in zip(
        jax.tree.leaves(shifted.kernels), jax.tree.leaves(block.kernels), strict=True
    ):
        np.testing.assert_allclose(one, 2.0 * two, rtol=1e-14)
    # What is not in θ_g stays.
    for name in ("inputs", "loadings", "phi"):
        np.testing.assert_array_equal(getattr(shifted, name), getattr(block, name))


def test_a_tied_models_theta_ends_with_tau_and_phi():
    structure, block = block_of(BASES["rbf"][0], 1, True)
    theta = theta_of(structure, block)
    np.testing.assert_allclose(np.exp(theta), [0.5, 2.0, 1.7, 0.3], rtol=1e-14)
    moved = with_theta(structure, block, jnp.log(jnp.asarray([1.0, 3.0, 0.4, 0.9])))
    np.testing.assert_allclose(moved.kernels.lengthscale, [[1.0, 3.0]], rtol=1e-14)
    np.testing.assert_allclose(moved.loadings, [[0.4]], rtol=1e-14)
    assert float(moved.phi) == pytest.approx(0.9, rel=1e-14)


def test_a_model_without_a_global_layer_has_no_theta():
    structure, block = block_of(BASES["tree"][0], 2, False)
    none = eqx.tree_at(
        lambda b: (b.kernels, b.loadings),
        block,
        (jax.tree.map(lambda v: v[:0], block.kernels), block.loadings[:, :0]),
    )
    theta = theta_of(structure, none)
    assert theta.shape == (0,)
    assert with_theta(structure, none, theta).loadings.shape == (2, 0)
