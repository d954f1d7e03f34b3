"""What a population says of its clients' traits, against plain likelihoods and against JAX."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from pfedhgp.inference.structured import client_step, traits
from pfedhgp.inference.structured.bound import cavity_bound
from pfedhgp.inference.structured.host.trait_sites import trait_sites
from pfedhgp.inference.structured.traits import Expected, Population, Reference
from support.client_batches import batch, on_jax
from support.host_batches import compared, each_client, host_batch, some_cases


def sums_at(at: Population, means: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Σw, Σwu, Σw², Σw²u, Σw²u² of sites N(m, s²), one trait."""
    w, u = 1.0 / (at.variance + variances), means - at.mean
    return np.array([w, w * u, w**2, w**2 * u, (w * u) ** 2]).sum(axis=1)[:, None]


def settled(means: np.ndarray, variances: np.ndarray) -> Population:
    at = Population.unknown(1)
    for _ in range(60):
        at = traits.updated(sums_at(at, means, variances), at)
    return at


@pytest.mark.parametrize("clients", [1, 3, 40])
def test_mean_and_spread_are_the_best_by_the_plain_likelihood(clients):
    """log p(τ²) with μ integrated out by brute force: y ~ N(0, diag(τ² + s²) + 4·11ᵀ)."""
    rng = np.random.default_rng(clients)
    variances = rng.uniform(0.05, 1.5, clients)
    means = 0.8 + rng.normal(size=clients) * np.sqrt(0.5 + variances)

    def loss(log_tau2: float) -> float:
        tau2 = np.exp(log_tau2)
        C = np.diag(tau2 + variances) + traits.WIDE**2
        log_likelihood = -0.5 * (np.linalg.slogdet(C)[1] + means @ np.linalg.solve(C, means))
        prior = -0.5 * traits.WORTH * (log_tau2 + traits.SPREAD**2 / tau2)
        return -log_likelihood - prior

    best = minimize_scalar(loss, bounds=(-6.0, 3.0), method="bounded", options={"xatol": 1e-9})
    found = settled(means, variances)
    assert np.log(found.variance[0]) == pytest.approx(best.x, abs=1e-4)
    w = 1.0 / (found.variance + variances)
    assert found.mean[0] == pytest.approx(np.sum(w * means) / (np.sum(w) + 0.25), rel=1e-4)


def test_few_clients_leave_the_spread_to_the_hyperprior_and_none_make_it_a_point():
    nothing = np.zeros((5, 1))
    start = Population.unknown(1)
    assert traits.updated(nothing, start).variance == pytest.approx(traits.SPREAD**2)
    far = traits.predicted(nothing, start)
    assert far.variance[0] == pytest.approx(traits.WIDE**2 + 2.0 * traits.SPREAD**2)
    same = settled(np.zeros(2), np.full(2, 0.01))
    assert 0.5 * traits.SPREAD < np.sqrt(same.variance[0]) < traits.SPREAD
    many = settled(np.zeros(10_000), np.full(10_000, 1e-4))
    assert np.sqrt(many.variance[0]) == pytest.approx(traits.LEAST)


def test_a_new_client_is_covered_by_what_is_predicted():
    """Over populations of five clients with unlike rows: 95% intervals of a sixth hold it."""
    rng, inside = np.random.default_rng(0), []
    for _ in range(400):
        tau = traits.SPREAD * np.sqrt(traits.WORTH / rng.chisquare(traits.WORTH))
        mu, s2 = rng.normal() * traits.WIDE, rng.uniform(0.01, 1.0, 5)
        at, m = (
            Population.unknown(1),
            mu + tau * rng.normal(size=5) + np.sqrt(s2) * rng.normal(size=5),
        )
        for _ in range(8):
            sums, before = sums_at(at, m, s2), at
            at = traits.updated(sums, at)
        found = traits.predicted(sums, before)
        z = (mu + tau * rng.normal() - found.mean[0]) / np.sqrt(found.variance[0])
        inside.append(abs(z) < 1.96)
    assert 0.92 <= np.mean(inside) <= 0.985


def test_a_site_is_what_rows_say_without_the_prior():
    """A Gaussian likelihood with correlated traits: posterior marginals over the prior, by hand."""
    rng = np.random.default_rng(2)
    half = rng.normal(size=(3, 3))
    precision, best = half @ half.T + np.eye(3), rng.normal(size=3)
    D, prior_mean, at = np.array([0.3, 2.0, 0.7]), rng.normal(size=3), rng.normal(size=3) * 0.1
    hessian = -precision - np.diag(D)
    slope = precision @ (best - at) + D * (prior_mean - at)
    covariance = np.linalg.inv(-hessian)
    mean = at + np.clip(covariance @ slope, -1, 1)
    v = np.diagonal(covariance)
    r = 1.0 / v - D
    m = (mean / v - D * prior_mean) / r
    asked = Reference(np.array([0.2, -0.1, 0.4]), np.array([0.5, 0.1, 0.9]))
    expected = Expected(prior_mean, D, asked)
    w, u = 1.0 / (asked.variance + 1.0 / r), m - asked.mean
    found = traits.sites(expected, at, slope, hessian, np.ones(3))
    np.testing.assert_allclose(found, [w, w * u, w**2, w**2 * u, w**2 * u**2], rtol=1e-9)
    held = traits.sites(expected, at, slope, hessian, np.array([0.0, 1.0, 1.0]))
    assert not held[:, 0].any()
    assert held[0, 1:].all()


@partial(jax.jit, static_argnums=0)
def compiled_sites(options, broadcast, others, block, expected, rows, jitter, floor):
    model = client_step.model_of(options, broadcast, block, rows, jitter)

    def bound(client):
        return cavity_bound(replace(model, client=client).grams(), *others)

    return client_step.trait_sites(options, broadcast, bound, block, expected, rows, floor)


@some_cases("plain", "full noise", "tied", "no local layer", slow=("no local layer", "tied"))
def test_sites_on_the_host_are_those_of_the_compiled_solver(case):
    given = batch(**case)
    rng = np.random.default_rng(1)
    shape = given.expected.mean.shape
    asked = Reference(given.expected.mean + rng.normal(size=shape), rng.uniform(0.1, 2.0, shape))
    given = replace(given, expected=replace(given.expected, asked=asked))
    made = host_batch(given)
    slope = made.objective.value_and_gradient(made.start.rows())[1]
    found = trait_sites(made.objective, made.start, slope, None, kernels_free=True).sites
    broadcast = on_jax(given.broadcast)
    names = ("others", "blocks", "expected", "rows", "jitter", "floor")
    for i, own in each_client(given, *names):
        compared(found[i], compiled_sites(given.options, broadcast, *own), rel=1e-4)
