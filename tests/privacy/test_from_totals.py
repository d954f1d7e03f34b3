"""The posterior from totals, against dense joint Gaussians, the plain posterior and draws."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import stats

from pfedhgp.privacy.accounting import mu_for
from pfedhgp.privacy.denoising import cells_of
from pfedhgp.privacy.from_totals import (
    OneOutput,
    Spread,
    centre_of,
    missing_rows,
    moments_of,
    posterior,
    residual_scales,
)
from pfedhgp.privacy.kernel_family import KernelFamily
from pfedhgp.privacy.noise_shares import in_total, share_of
from pfedhgp.privacy.release import JITTER, PublicBasis, exact_sums, noisy_gram, release
from pfedhgp.privacy.totals import (
    SATURATION,
    OwnGram,
    Scales,
    kappa_of,
    modes,
    part_of_totals,
    total_scales,
)
from pfedhgp.privacy.twin import Parameters, Twins, prior
from pfedhgp.privacy.twin import posterior as posterior_of_releases
from support.private_sites import GRID, made_up
from support.reference_privacy import rows_given_total, weights_given_totals

PUBLIC = PublicBasis.over(np.array([0.2]))
CELLS, FAMILY, U = cells_of(PUBLIC), KernelFamily.of(PUBLIC), modes(PUBLIC)
M = len(PUBLIC.inputs)
TRUE = Parameters(np.array([0.25]), 0.8, 0.2, 0.09, 0.01)
F = PUBLIC.features(GRID[:, None])


class Clients:
    """Clients' own gram matrices, exact sums and parts of totals, of one output."""

    def __init__(self, clients: int, rows: int, seed: int, epsilon: float) -> None:
        made, below = made_up(clients, rows, seed), random.Random(seed).randrange
        mu = mu_for(epsilon, 1e-6)
        tau = total_scales(mu, 3.0, 1, M)
        shares = Scales(tau.own, *(share_of(each, clients, clients // 3) for each in tau[1:]))
        self.noise = Scales(*(in_total(each, clients) for each in shares))
        self.rows = list(zip(made.X, made.Y, strict=True))
        self.sums = [exact_sums(PUBLIC, X, Y, 3.0) for X, Y in self.rows]
        self.own, self.parts = [], []
        for gram, linear in self.sums:
            noisy = gram if mu == math.inf else noisy_gram(gram, tau.own, below)
            own = OwnGram.of(noisy[0], tau.own, kappa_of(tau.own), CELLS)
            part = part_of_totals([own], (gram, linear), shares, below)
            moments = moments_of(own, FAMILY, CELLS)
            self.own.append(own)
            self.parts.append({**{name: each[0] for name, each in part.items()}, **moments})

    def total(self, which: slice = slice(None)) -> OneOutput:
        parts = self.parts[which]
        totals = {name: sum(part[name] for part in parts) for name in parts[0]}
        return OneOutput.of(FAMILY, CELLS, totals, self.noise, len(parts))


def test_posterior_and_evidence_are_those_of_the_dense_joint_gaussian():
    made = Clients(5, 200, 0, 1.0)
    one, P = made.total(), prior(PUBLIC, TRUE)
    A = CELLS.features
    C = np.zeros((M, M))
    for own in made.own:  # client by client instead of by totals
        W, S, A_seen = own.weight, own.gram, A[:, own.seen]
        apart = TRUE.departure * P + TRUE.local * np.eye(M)
        bias = A_seen @ (own.counts * (A_seen.T @ apart @ A_seen)) @ A_seen.T
        C += W @ (S @ apart @ S - bias + TRUE.noise * S) @ W
    values, vectors = np.linalg.eigh(C)
    assert values.min() < 0  # less what noise adds on average, a sum of few clients is not positive
    C = (vectors * np.maximum(values, 0)) @ vectors.T + made.noise.linear**2 * np.eye(M)
    B = sum(own.weight for own in made.own) @ A / 5
    C += B @ (one.unknown * (A.T @ P @ A)) @ B.T
    mean, covariance, evidence = weights_given_totals(one.gram, one.linear, P, C)
    found = posterior(one, TRUE)
    np.testing.assert_allclose(found.mean, mean, atol=2e-6)
    np.testing.assert_allclose(found.covariance, covariance, atol=2e-6)
    assert found.evidence == pytest.approx(evidence, rel=1e-6)


def test_the_missing_rows_are_those_of_a_regression_that_is_written_out():
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(4, 7)), rng.normal(size=(4, 7))
    root = rng.normal(size=(7, 7))
    released, before = rng.normal(size=(4, 4)), root @ root.T
    found = missing_rows(B, A, released, before, 0.7)
    for each, dense in zip(found, rows_given_total(B, A, released, before, 0.7), strict=True):
        np.testing.assert_allclose(each, dense, atol=1e-9)


def test_without_noise_the_gram_total_is_exact_and_totals_are_all_that_is_needed():
    """ε = ∞ and κ = σ²/φs: the posterior of all clients' exact sums, to 1e-8."""
    made = Clients(4, 60, 6, math.inf)
    parameters = Parameters(PUBLIC.lengthscales, 0.8, 0.2, SATURATION * 0.2 * 0.8, 1e-12)
    one = made.total()
    exact = sum(own.weight @ gram[0] for own, (gram, _) in zip(made.own, made.sums, strict=True))
    np.testing.assert_allclose(one.gram, exact, atol=1e-10)
    seen = [release(PUBLIC, X, Y, bound=3.0, mu=math.inf) for X, Y in made.rows]
    plain = posterior_of_releases(PUBLIC, Twins.of(seen, 0, CELLS), parameters)
    found = posterior(one, parameters)
    np.testing.assert_allclose(F.T @ found.mean, F.T @ plain.mean, atol=1e-8)
    a, b = (F.T @ each.covariance @ F for each in (found, plain))
    np.testing.assert_allclose(a, b, atol=1e-8)


def test_without_noise_it_is_the_exact_process_of_the_totals():
    """ε = ∞ at other parameters: Gaussian conditioning of rows on the exact totals Σ W_i A_i y_i, to 1e-8."""
    made = Clients(3, 40, 7, math.inf)
    parameters = Parameters(np.array([0.25]), 0.8, 0.2, 0.09, 1e-12)
    P = prior(PUBLIC, parameters)
    whole = P + JITTER * np.trace(P) / M * np.eye(M)
    maps = [
        own.weight @ PUBLIC.features(X) for own, (X, _) in zip(made.own, made.rows, strict=True)
    ]
    inputs = [PUBLIC.features(X) for X, _ in made.rows]
    G = sum(m @ a.T for m, a in zip(maps, inputs, strict=True))
    g = sum(m @ np.clip(Y[:, 0], -3, 3) for m, (_, Y) in zip(maps, made.rows, strict=True))
    C = sum(
        m @ (0.2 * a.T @ P @ a + 0.09 * np.eye(a.shape[1])) @ m.T
        for m, a in zip(maps, inputs, strict=True)
    )
    mean, covariance, _ = weights_given_totals(G, g, whole, C)
    found = posterior(made.total(), parameters)
    np.testing.assert_allclose(F.T @ found.mean, F.T @ mean, atol=1e-8)
    np.testing.assert_allclose(F.T @ found.covariance @ F, F.T @ covariance @ F, atol=1e-8)


def test_without_a_client_it_is_the_total_of_the_others():
    made = Clients(4, 80, 2, math.inf)
    own, (gram, linear) = made.own[0], made.sums[0]
    taken = made.total().without(
        own.weight @ gram[0], own.weight @ linear[0], moments_of(own, FAMILY, CELLS)
    )
    a, b = (posterior(each, TRUE) for each in (taken, made.total(slice(1, None))))
    np.testing.assert_allclose(F.T @ a.mean, F.T @ b.mean, atol=1e-8)
    assert a.evidence == pytest.approx(b.evidence, rel=1e-8)


def test_sizes_of_residuals_are_those_of_draws():
    """sd(UᵀW_ir_i) for one client, from 4,000 draws of shared function, deviations, rows' noise and noise."""
    made = Clients(3, 150, 4, math.inf)
    noisy = [OwnGram(o.gram, o.weight, o.seen, o.counts) for o in made.own]
    one = made.total()
    P, p = prior(PUBLIC, TRUE), TRUE
    centre = centre_of(one, Parameters(np.array([0.3]), 0.5, 0.3, 0.1, 1e-3))
    centre = centre_of(one, TRUE, centre.gain)
    rng, draws = np.random.default_rng(0), 4000
    root = np.linalg.cholesky(P + 1e-10 * np.eye(M))
    v = root @ rng.normal(size=(M, draws))
    sums = []
    for own in noisy:
        values, vectors = np.linalg.eigh(own.gram)
        S_root = vectors * np.sqrt(np.maximum(values, 0))
        deviation = math.sqrt(p.departure) * root @ rng.normal(size=(M, draws))
        local = math.sqrt(p.local) * rng.normal(size=(M, draws))
        rows = math.sqrt(p.noise) * S_root @ rng.normal(size=(M, draws))
        sums.append(own.gram @ (v + deviation + local) + rows)
    g = sum(own.weight @ b for own, b in zip(noisy, sums, strict=True))
    residual = sums[0] - noisy[0].gram @ (centre.gain @ g)
    drawn = np.std(U.T @ noisy[0].weight @ residual, axis=1)
    found = residual_scales(noisy[0], FAMILY, CELLS, U, centre)
    large = drawn > 0.01 * drawn.max()
    assert large.sum() >= 4
    np.testing.assert_allclose(found[large], drawn[large], rtol=0.06)


def test_the_spread_has_the_mean_and_covariance_of_absolute_normal_numbers():
    """At the parameters about which clients expect it; against draws of |x| with Σ = Cov(ΣW_iη_i)/T."""
    made = Clients(6, 100, 5, math.inf)
    one = made.total()
    V = U.T @ one.own(TRUE, prior(PUBLIC, TRUE)) @ U / one.clients
    sd = np.sqrt(np.diagonal(V))
    rng = np.random.default_rng(1)
    x = np.abs(
        np.linalg.cholesky(V + 1e-12 * np.trace(V) * np.eye(M)) @ rng.normal(size=(M, 200_000))
    )
    spread = Spread(np.zeros(M), 0.5, U, one.clients * sd, TRUE)
    mean, cov = one.clients * x.mean(axis=1), one.clients * np.cov(x)
    floor = 0.25 + 1e-6 * np.max((one.clients * sd) ** 2)
    for total in (mean, mean + 3 * sd):
        normal = stats.multivariate_normal(mean, cov + floor * np.eye(M))
        found = Spread(total, 0.5, U, spread.expected, TRUE).log_density(one, TRUE)
        assert found == pytest.approx(normal.logpdf(total), abs=0.1)


def test_totals_tell_how_far_clients_depart_better_than_nothing():
    """The evidence with residuals prefers the departure that made the data to half and to double of it."""
    votes = []
    for seed in range(4):
        made = Clients(12, 300, seed, 4.0)
        one = made.total()
        about = Parameters(np.array([0.2]), 1.0, 0.2, 0.09, 1e-4)
        gain = centre_of(one, about).gain
        centre = gain @ one.linear
        sizes = [
            np.abs(U.T @ own.weight @ (linear[0] - gram[0] @ centre))
            for own, (gram, linear) in zip(made.own, made.sums, strict=True)
        ]
        expected = sum(
            residual_scales(own, FAMILY, CELLS, U, centre_of(one, about, gain)) for own in made.own
        )
        spread = Spread(sum(sizes), made.noise.spread, U, expected, about)
        at = [
            spread.log_density(one, Parameters(np.array([0.2]), 1.0, phi, 0.09, 1e-4))
            for phi in (0.05, 0.2, 0.8)
        ]
        votes.append(int(np.argmax(at)))
    assert votes == [1, 1, 1, 1]
