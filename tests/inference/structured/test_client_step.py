"""The priors of a client's parameters, against what they say in plain NumPy."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfedhgp.gp import kernels
from pfedhgp.gp.noise import DiagonalNoise
from pfedhgp.inference.structured.client_step import log_prior
from pfedhgp.inference.structured.traits import Expected, below_floor, traits_of
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Structure, to_free


def block(seed: int, *, outputs: int, noise) -> ClientBlock:
    rng = np.random.default_rng(seed)
    return ClientBlock(
        kernels.RBF(jnp.asarray(rng.uniform(0.1, 1.0, (2, 1)))),
        jnp.zeros((3, 1)),
        jnp.ones(3),
        jnp.asarray(rng.normal(size=(outputs, 2))),
        jnp.asarray(rng.normal(size=(outputs, 2))),
        noise,
    )


def shared(phi: float, **own) -> GlobalBlock:
    kernels_of_two = kernels.RBF(jnp.ones((2, 1)))
    return GlobalBlock(
        kernels_of_two, jnp.zeros((3, 1)), jnp.zeros((3, 2)), jnp.asarray(phi), **own
    )


def traits(structure: Structure, free: ClientBlock) -> jax.Array:
    return traits_of(structure, free)


def test_log_prior_of_a_clients_own_loadings_is_the_populations():
    """B_g,i ~ N(B_g, Σ_B), raveled output by output."""
    rng = np.random.default_rng(2)
    one = block(0, outputs=3, noise=DiagonalNoise(jnp.array([-3.0, -4.0, -5.0])))
    own, half = rng.normal(size=(3, 2)), rng.normal(size=(6, 6))
    spread = half @ half.T + np.eye(6)
    population = shared(0.3, loadings_covariance=jnp.asarray(spread))
    with_own = to_free(replace(one, global_loadings=jnp.asarray(own)))
    mean = traits(Structure(), to_free(one))
    around = Expected(mean, jnp.ones(mean.shape))
    without = log_prior(Structure(), to_free(one), around, population)
    found = log_prior(Structure(client_loadings=True), with_own, around, population)
    expected = -0.5 * own.reshape(-1) @ np.linalg.solve(spread, own.reshape(-1))
    assert found - without == pytest.approx(expected, rel=1e-10)


def test_log_prior_with_loadings():
    one = block(0, outputs=3, noise=DiagonalNoise(jnp.array([-3.0, -4.0, -5.0])))
    two = block(1, outputs=3, noise=DiagonalNoise(jnp.array([-2.0, -4.0, -1.0])))
    phi = 0.3
    expected_of = Expected(traits(Structure(), to_free(two)), jnp.array([0.25, 1.0, 0.5, 2.0, 4.0]))
    found = log_prior(Structure(), to_free(one), expected_of, shared(phi))
    gaps = np.log(one.kernels.lengthscale / two.kernels.lengthscale)
    expected = -0.5 * np.sum(np.square(one.loadings))
    expected -= 0.5 * np.sum(np.square(one.deviation)) / phi + 0.5 * 6 * np.log(phi)
    expected -= 0.5 * (0.25 * gaps[0, 0] ** 2 + gaps[1, 0] ** 2 + 0.5 * 1.0 + 4.0 * 16.0)
    assert found == pytest.approx(expected, rel=1e-12)


def test_log_prior_of_a_layers_size_where_there_are_no_loadings():
    """log B_l² and log φ_i ~ N(anchor, 2²): zero is as far away as infinity."""
    quiet = DiagonalNoise(jnp.array([-3.0]))
    anchor = to_free(block(1, outputs=1, noise=quiet))

    mean = traits(Structure(tied=True), anchor)
    around = Expected(mean, jnp.full(mean.shape, 0.25))

    def at(size: float, own: float = 1.0) -> float:
        free = ClientBlock(
            anchor.kernels, anchor.inputs, anchor.active, own * anchor.deviation,
            size * anchor.loadings, quiet,
        )  # fmt: skip
        return float(log_prior(Structure(tied=True), free, around, shared(1.0)))

    assert at(1.0) == pytest.approx(0.0, abs=1e-9)
    assert at(np.e) == pytest.approx(-0.125 * 2 * 4.0, rel=1e-6)
    assert at(1 / np.e) == pytest.approx(at(np.e), rel=1e-6)
    assert at(1.0, np.e) == pytest.approx(-0.125 * anchor.deviation.size * 4.0, rel=1e-6)
    assert at(1.0, 1 / np.e) == pytest.approx(at(1.0, np.e), rel=1e-6)


def test_lengthscales_below_the_floor_cost_and_others_do_not():
    given = kernels.RBF(jnp.array([[0.05, 2.0], [0.2, 0.01]]))
    log_kernels = jax.tree.map(jnp.log, given)
    floor = jnp.array([0.1, 0.02])
    cost = 8.0 * 2 * np.log(2.0) ** 2
    assert below_floor(log_kernels, floor) == pytest.approx(cost, rel=1e-12)
    periodic = kernels.Periodic(jnp.full((1, 2), 1e-4), period=jnp.ones((1, 2)))
    periodic = jax.tree.map(jnp.log, periodic)
    assert below_floor(periodic, floor) == 0.0
