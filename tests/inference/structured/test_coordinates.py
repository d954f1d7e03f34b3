"""θ_g as a vector, there and back."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfedhgp.gp import kernels as pk
from pfedhgp.inference.structured.coordinates import theta_of, with_theta
from pfedhgp.model.blocks import GlobalBlock, Structure
from support import twins

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
def test_round_trip(name, tied):
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
