"""What rows do not determine: the division between global and deviation, at every kind of prediction."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from pfedhgp.data.scaling import Scaling
from pfedhgp.federation.training import over_observing_clients
from pfedhgp.inference.own_weights import population_of
from pfedhgp.model.blocks import Structure
from pfedhgp.model.files import load, save
from pfedhgp.model.prediction import predict
from support.posteriors import make

Q = 3
DIVISION = np.array([[0.5, 0.1, 0.0], [0.1, 0.3, -0.1], [0.0, -0.1, 0.2]])
SPREAD = np.array([2.0, 0.5, 1.0])


@pytest.fixture(scope="module")
def case():
    scaling = Scaling(np.zeros(1), np.ones(1), np.zeros(Q), SPREAD)
    found = make(seed=2, outputs=Q, scaling=scaling)
    population = eqx.tree_at(lambda p: p.division, found.model.population, DIVISION)
    return found, replace(found.model, population=population)


def both(case, client, X):
    found, divided = case
    return predict(found.model, client, X), predict(divided, client, X)


def added(case, X, kind):
    """K̄ ⊗ (P/T) in the data's units, K̄ the mean of the shared kernels; P/T itself at one input."""
    units = DIVISION * np.outer(SPREAD, SPREAD)
    if kind == "outputs":
        return np.broadcast_to(units, (len(X), Q, Q))
    return np.kron(np.mean([k(X, X) for k in case[0].twin.k_g], axis=0), units)


X = np.linspace(0.05, 0.9, 6)[:, None]


@pytest.mark.parametrize("kind", ["outputs", "joint"])
def test_what_the_global_layer_may_owe_the_deviation_cancels_in_the_sum(case, kind):
    before, after = both(case, "client 0", X)
    more = added(case, X, kind)
    signs = {"global": 1.0, "deviation": -1.0, "local": 0.0}
    for a, sign in signs.items():
        was, now = before.layers[a], after.layers[a]
        np.testing.assert_array_equal(now.mean, was.mean)
        np.testing.assert_allclose(
            now.covariance(kind), was.covariance(kind) + sign**2 * more, atol=1e-9
        )
        for b, other in signs.items():
            now_ab, was_ab = (p.cross_covariance(a, b, kind) for p in (after, before))
            np.testing.assert_allclose(now_ab, was_ab + sign * other * more, atol=1e-9)
    np.testing.assert_array_equal(after.covariance(kind), before.covariance(kind))
    np.testing.assert_array_equal(after.sd, before.sd)
    variance = np.einsum("nqq->nq", after.layers["global"].covariance())
    np.testing.assert_allclose(after.layers["global"].sd ** 2, variance, atol=1e-9)


@pytest.mark.parametrize("kind", ["outputs", "joint"])
def test_an_unseen_client_has_it_in_the_sum(case, kind):
    before, after = both(case, "new", X)
    more = added(case, X, kind)
    np.testing.assert_allclose(after.covariance(kind), before.covariance(kind) + more, atol=1e-9)
    was, now = (p.layers["deviation"].covariance(kind) for p in (before, after))
    np.testing.assert_array_equal(now, was)


def test_draws_of_an_unseen_client_have_it_too(case):
    _, after = both(case, "new", X[:2])
    draws = after.sample(40_000, seed=0, noise=False).reshape(40_000, -1)
    expected = after.covariance("joint", noise=False)
    np.testing.assert_allclose(np.cov(draws.T), expected, atol=0.04 * np.max(np.diag(expected)))


def test_an_output_that_a_client_never_observed_has_it_in_the_sum(case):
    found, divided = case
    client = divided.clients["client 0"]
    seen = jnp.array([1.0, 1.0, 0.0])[:, None]
    blind = eqx.tree_at(
        lambda c: (c.block.deviation, c.block.loadings),
        client,
        (client.block.deviation * seen, client.block.loadings * seen),
    )
    clients = {**divided.clients, "client 0": blind}
    was, now = (predict(replace(m, clients=clients), "client 0", X) for m in (found.model, divided))
    more = np.zeros((Q, Q))
    more[2, 2] = DIVISION[2, 2] * SPREAD[2] ** 2
    np.testing.assert_allclose(now.covariance(), was.covariance() + more, atol=1e-9)


def test_it_is_kept_in_files(case, tmp_path):
    _, divided = case
    save(divided, tmp_path / "run")
    np.testing.assert_array_equal(load(tmp_path / "run").population.division, DIVISION)


def test_outputs_that_few_observed_have_the_sizes_of_those_who_did():
    """Three clients of five see the second output; sums over them alone are what its sizes come from."""
    spec = SimpleNamespace(structure=Structure())
    counted = SimpleNamespace(clients=5, sums={"y_clients": np.array([5.0, 3.0])})
    sums = np.array([[8.0, 0.0], [0.0, 6.0]])
    made = population_of(Structure(), *(jnp.asarray(v) for v in (sums, sums, sums, 5.0)))
    found = over_observing_clients(made, SimpleNamespace(spec=spec, counted=counted))
    np.testing.assert_allclose(np.diag(found.deviation_power), [8.0 / 4.0, 6.0 / 2.0])
    np.testing.assert_allclose(np.diag(found.local_power), [8.0 / 5.0, 6.0 / 3.0])
    np.testing.assert_allclose(np.diag(found.division), [2.0 / 5.0, 3.0 / 3.0])


def test_population_of_sums():
    """The fitted global layer takes the mean of T deviations with it: (T − 1)/T of P is left, P/T is lost."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(2, 2))
    left = np.zeros((2, 2))
    for _ in range(4000):  # five deviations, and what is left of them after their mean
        f = rng.normal(size=(5, 2)) @ root.T
        left += (f - f.mean(0)).T @ (f - f.mean(0)) / 4000
    found = population_of(Structure(), *(jnp.asarray(v) for v in (left, left, left, 5.0)))
    np.testing.assert_allclose(found.deviation_power, root @ root.T, atol=0.1)
    np.testing.assert_allclose(found.division, np.asarray(found.deviation_power) / 5.0, atol=1e-12)
    np.testing.assert_allclose(found.local_power, left / 5.0, atol=1e-12)
    alone = population_of(Structure(), *(jnp.asarray(v) for v in (left, left, left, 1.0)))
    np.testing.assert_allclose(alone.deviation_power, left)
    tied = population_of(Structure(tied=True), *(jnp.asarray(v) for v in (left, left, left, 5.0)))
    np.testing.assert_allclose(tied.deviation_power, left / 5.0)
    assert not np.any(tied.division)
