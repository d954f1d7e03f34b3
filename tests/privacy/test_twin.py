"""The posterior that knows the noise of releases, against dense joint Gaussians."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scipy.linalg import block_diag

from pfedhgp.base.numerics import numerics
from pfedhgp.gp.kernels import RBF, stack
from pfedhgp.gp.noise import DiagonalNoise
from pfedhgp.inference.structured.bound import ClientModel
from pfedhgp.model.blocks import ClientBlock, Rows, Structure
from pfedhgp.privacy.accounting import mu_for
from pfedhgp.privacy.denoising import cells_of
from pfedhgp.privacy.release import JITTER, PublicBasis, exact_sums, release
from pfedhgp.privacy.shared_function import SharedFunction
from pfedhgp.privacy.twin import Parameters, Twins, averaged, learned, posterior, prior
from support.private_sites import GRID, made_up
from support.reference_privacy import (
    expected_square,
    releases_log_density,
    weights_given_releases,
)

PUBLIC = PublicBasis.over(np.array([0.2]))
CELLS = cells_of(PUBLIC)
TRUE = Parameters(np.array([0.25]), 0.8, 0.2, 0.09, 0.01)


def twins_of(clients: int, rows: int, seed: int, epsilon: float) -> Twins:
    made, below = made_up(clients, rows, seed), random.Random(seed).randrange
    mu = mu_for(epsilon, 1e-6)
    seen = [
        release(PUBLIC, X, Y, bound=3.0, mu=mu, below=below)
        for X, Y in zip(made.X, made.Y, strict=True)
    ]
    return Twins.of(seen, 0, CELLS)


def own_variance(twins: Twins, P: np.ndarray) -> np.ndarray:
    """What each client's b̃ has beside the shared function and its deviation."""
    found = []
    for S, tau, A, counts in zip(
        twins.gram, twins.linear_noise, twins.features, twins.counts, strict=True
    ):
        error = (1 + TRUE.departure) * expected_square(A, counts, P)
        own = TRUE.local * S @ S + TRUE.noise * S + error + tau**2 * np.eye(len(P))
        found.append(own)
    return np.stack(found)


def test_posterior_and_evidence_are_those_of_the_dense_joint_gaussian():
    twins = twins_of(3, 200, 0, 1.0)
    P = prior(PUBLIC, TRUE)
    found = posterior(PUBLIC, twins, TRUE)
    own = own_variance(twins, P)
    mean, covariance = weights_given_releases(twins.gram, twins.linear, P, TRUE.departure, own)
    np.testing.assert_allclose(found.mean, mean, atol=1e-6)
    np.testing.assert_allclose(found.covariance, covariance, atol=1e-6)
    dense = releases_log_density(twins.gram, twins.linear, P, TRUE.departure, own)
    assert found.evidence == pytest.approx(dense, rel=1e-8)


def test_the_prior_is_that_of_the_function_at_the_inducing_inputs():
    """a(z)ᵀP a(z') = s k(z, z') at the inducing inputs, for a kernel other than the basis's."""
    A = PUBLIC.features(PUBLIC.inputs)
    K = 0.8 * np.exp(-0.5 * (PUBLIC.inputs - PUBLIC.inputs.T) ** 2 / 0.25**2)
    np.testing.assert_allclose(A.T @ prior(PUBLIC, TRUE) @ A, K, atol=2e-6)


def test_without_noise_it_is_the_exact_process_of_all_rows():
    """ε = ∞: mean and covariance of the shared function by Gaussian conditioning on every row, to 1e-8."""
    made = made_up(3, 40, 6)
    seen = [
        release(PUBLIC, X, Y, bound=9.0, mu=float("inf"))
        for X, Y in zip(made.X, made.Y, strict=True)
    ]
    parameters = Parameters(np.array([0.25]), 0.8, 0.2, 0.09, 1e-12)
    found = posterior(PUBLIC, Twins.of(seen, 0, CELLS), parameters)
    P = prior(PUBLIC, parameters)
    whole = P + JITTER * np.trace(P) / len(P) * np.eye(len(P))
    A = np.concatenate([PUBLIC.features(X) for X in made.X], axis=1)
    own = [PUBLIC.features(X) for X in made.X]
    K = A.T @ whole @ A + block_diag(*(parameters.departure * a.T @ P @ a for a in own))
    K = K + parameters.noise * np.eye(len(K))
    F = PUBLIC.features(GRID[:, None])
    cross, y = F.T @ whole @ A, np.concatenate(made.Y)[:, 0]
    np.testing.assert_allclose(F.T @ found.mean, cross @ np.linalg.solve(K, y), atol=1e-8)
    covariance = F.T @ whole @ F - cross @ np.linalg.solve(K, cross.T)
    np.testing.assert_allclose(F.T @ found.covariance @ F, covariance, atol=1e-8)


def test_without_noise_it_is_what_the_plain_solver_finds_on_the_same_basis():
    """ε = ∞, given parameters: S = (I + ΣJ_i)⁻¹ and SΣh_i by the structured solver's own sums, to 1e-8.

    At the basis's own lengthscale. At another one both have the same prior at the inducing inputs, but the
    twin goes between them by the kernel of the basis, and the plain solver by its own.
    """
    made = made_up(3, 40, 6)
    seen = [
        release(PUBLIC, X, Y, bound=9.0, mu=float("inf"))
        for X, Y in zip(made.X, made.Y, strict=True)
    ]
    gaps = {}
    for scale in (float(PUBLIC.lengthscales[0]), 0.25):
        parameters = Parameters(np.array([scale]), 0.8, 0.2, 0.09, 1e-12)
        found = posterior(PUBLIC, Twins.of(seen, 0, CELLS), parameters)
        shared = SharedFunction(PUBLIC, (parameters,), (found,)).posterior()
        with numerics():
            parts = [plain_sums(shared.block, X, Y) for X, Y in zip(made.X, made.Y, strict=True)]
        J, h = (np.sum([np.asarray(part[i]) for part in parts], axis=0) for i in (2, 1))
        S = np.linalg.inv(np.eye(len(J)) + J)
        F = np.asarray(shared.block.basis(JITTER).features(GRID[:, None]))[0]
        pairs = ((F.T @ shared.mean, F.T @ S @ h), (F.T @ shared.covariance @ F, F.T @ S @ F))
        gaps[scale] = max(float(np.max(np.abs(a - b))) for a, b in pairs)
        assert np.max(np.abs(pairs[0][1])) > 0.5
    same, other = gaps.values()
    assert same < 1e-8
    assert 1e-4 < other < 0.1


def plain_sums(block, X, Y):
    """(c, h, J) of a client without a local function, with noise .09."""
    client = ClientBlock(
        stack([RBF(lengthscale=np.ones(1))]),
        np.zeros((1, 1)),
        np.ones(1),
        np.ones((1, 1)),
        np.zeros((1, 1)),
        DiagonalNoise(np.log(np.array([0.09])), floor=0.0),
    )
    rows = Rows(X, Y, np.ones(Y.shape))
    model = ClientModel(
        Structure(tied=True), block, block.basis(JITTER), client, rows, JITTER, JITTER, 4096
    )
    return model.summary()


def test_the_order_of_clients_does_not_matter():
    twins = twins_of(4, 100, 2, 2.0)
    order = [2, 0, 3, 1]
    turned = Twins(
        twins.gram[order],
        twins.linear[order],
        twins.linear_noise[order],
        tuple(twins.features[i] for i in order),
        tuple(twins.counts[i] for i in order),
    )
    a, b = (posterior(PUBLIC, each, TRUE) for each in (twins, turned))
    np.testing.assert_allclose(a.mean, b.mean, atol=1e-9)
    assert a.evidence == pytest.approx(b.evidence, rel=1e-12)


def test_learning_raises_the_evidence_and_averaging_widens():
    twins = twins_of(8, 400, 5, 2.0)
    start = Parameters(np.array([0.3]), 0.25, 0.3, 0.1, 1e-3)
    search = learned(PUBLIC, twins, start)
    best = posterior(PUBLIC, twins, search.parameters)
    assert best.evidence > posterior(PUBLIC, twins, start).evidence
    wider = averaged(PUBLIC, twins, search)
    assert np.array_equal(wider.mean, best.mean)
    assert np.linalg.eigvalsh(wider.covariance - best.covariance).min() > -1e-9
    assert np.trace(wider.covariance) > np.trace(best.covariance)


def test_knowing_the_noise_beats_not_knowing_it():
    """Over five draws, against the posterior that takes the release for exact sums."""
    F, errors, unaware, inside = PUBLIC.features(GRID[:, None]), [], [], []
    for seed in range(5):
        made = made_up(10, 300, seed)
        twins = twins_of(10, 300, seed, 1.0)
        parameters = Parameters(np.array([0.2]), 1.0, 0.2, 0.09, 1e-9)
        found = posterior(PUBLIC, twins, parameters)
        exact = Twins(
            twins.gram,
            twins.linear,
            0 * twins.linear_noise,
            *([(F[:, :0],) * 10, (np.zeros((0, 0)),) * 10]),
        )
        blind = posterior(PUBLIC, exact, parameters)
        gap = F.T @ found.mean - made.shared
        errors.append(np.mean(gap**2))
        unaware.append(np.mean((F.T @ blind.mean - made.shared) ** 2))
        inside.append(
            np.mean(np.abs(gap) < 1.96 * np.sqrt(np.einsum("mn,mk,kn->n", F, found.covariance, F)))
        )
    assert np.mean(errors) < 0.5 * np.mean(unaware)
    assert np.mean(inside) > 0.8


def test_sums_of_a_release_do_not_depend_on_the_order_of_rows():
    made = made_up(1, 50, 1)
    turned = np.random.default_rng(0).permutation(50)
    a, b = (
        exact_sums(PUBLIC, X, Y, 2.0)
        for X, Y in ((made.X[0], made.Y[0]), (made.X[0][turned], made.Y[0][turned]))
    )
    np.testing.assert_allclose(a[0], b[0], atol=1e-12)
    np.testing.assert_allclose(a[1], b[1], atol=1e-12)
