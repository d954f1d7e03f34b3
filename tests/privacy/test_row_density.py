"""Where rows lie: draws against integrals, what is learned, and errors that average out over clients."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest

from pfedhgp.privacy.accounting import mu_for
from pfedhgp.privacy.denoising import cells_of, denoised
from pfedhgp.privacy.release import PublicBasis, exact_sums, release
from pfedhgp.privacy.row_density import (
    NUGGET,
    PER_INPUT,
    RowDensity,
    denoised_together,
    drawn,
    learned_density,
    rectified_moments,
)
from support.private_sites import made_up

PUBLIC = PublicBasis.over(np.array([0.25]))
CELLS = cells_of(PUBLIC, PER_INPUT)


def released(clients: int, rows: int, seed: int, epsilon: float = 1.0):
    """Exact and noisy gram matrices, and the noise."""
    made, below = made_up(clients, rows, seed), random.Random(seed).randrange
    mu, exact, noisy = mu_for(epsilon, 1e-6), [], []
    for X, Y in zip(made.X, made.Y, strict=True):
        exact.append(exact_sums(PUBLIC, X, Y, 2.0)[0][0])
        noisy.append(release(PUBLIC, X, Y, bound=2.0, mu=mu, below=below))
    return np.stack(exact), [r.gram[0] for r in noisy], [r.scales.gram for r in noisy]


@pytest.mark.parametrize("shift", [-2.5, -0.3, 0.0, 1.2, 5.0])
def test_moments_of_a_normal_number_that_is_cut_at_zero(shift):
    z = np.linspace(-9, 9, 200_001)
    weight = np.exp(-0.5 * z**2)
    value = np.maximum(shift + z, 0.0)
    mean = np.average(value, weights=weight)
    sd = np.sqrt(np.average((value - mean) ** 2, weights=weight))
    np.testing.assert_allclose(rectified_moments(np.array(shift)), (mean, sd), rtol=1e-6)


def test_cells_have_the_means_and_spreads_that_were_asked_for():
    density = RowDensity(np.array([100.0, 700.0]), np.array([0.3, 0.1, 0.6]), 0.2, np.eye(3))
    m, sigma = density.latent()
    mean, sd = rectified_moments(m / sigma)
    np.testing.assert_allclose(sigma * mean, density.rows[:, None] * density.mean, rtol=1e-3)
    np.testing.assert_allclose(sigma * sd, density.rows[:, None] * [[0.2, 0.2, 0.2]], rtol=1e-3)


def test_draws_have_the_moments_of_the_exact_posterior():
    """Two cells: their joint density, integrated on a grid."""
    correlation = np.array([[1.0, 0.6], [0.6, 1.0]])
    density = RowDensity(np.array([20.0, 20.0]), np.array([0.5, 0.5]), 0.5, correlation)
    overlap = np.array([[1.0, 0.4], [0.4, 0.8]])
    told, noise = np.array([[9.0, 1.0], [30.0, 12.0]]), np.array([5.0, 9.0])
    seeds = [hashlib.sha256(bytes([i])).digest() for i in range(2)]
    means, covariances = drawn(told, noise, overlap, density, seeds, sweeps=40_000)
    m, sigma = density.latent()
    inverse = np.linalg.inv(correlation + NUGGET * np.eye(2))
    for t in range(2):
        g = np.stack(np.meshgrid(*(np.linspace(-70, 110, 1201),) * 2, indexing="ij"), -1)
        u, p = (g - m[t]) / sigma[t], np.maximum(g, 0.0)
        log = -0.5 * np.einsum("xyi,ij,xyj->xy", u, inverse, u)
        square = np.einsum("xyi,ij,xyj->xy", p, overlap, p)
        log = log - 0.5 * (square - 2 * p @ told[t]) / noise[t] ** 2
        weight = np.exp(log - log.max())
        weight /= weight.sum()
        mean = np.einsum("xy,xyi->i", weight, p)
        covariance = np.einsum("xy,xyi,xyj->ij", weight, p - mean, p - mean)
        np.testing.assert_allclose(means[t], mean, atol=0.15)
        np.testing.assert_allclose(covariances[t], covariance, rtol=0.06, atol=0.5)


def test_the_mean_over_clients_is_found():
    """Windows of half the domain: few clients have rows at its ends."""
    _, noisy, noise = released(60, 400, 1)
    A = CELLS.features
    told = np.einsum("mg,tmk,kg->tg", A, np.stack(noisy), A)
    traces = np.trace(np.stack(noisy), axis1=1, axis2=2)
    density = learned_density(told, traces, np.asarray(noise), CELLS)
    places = CELLS.places[:, 0]
    ends = density.mean[(places < 0.1) | (places > 0.9)].mean()
    middle = density.mean[(places > 0.4) & (places < 0.6)].mean()
    assert ends < 0.4 * middle
    np.testing.assert_allclose(density.rows, 400, rtol=0.15)
    assert 0.9 < density.mean.sum() < 1.1


def test_errors_are_as_large_as_said_smaller_than_the_nearest_matrix_s_and_do_not_go_with_size():
    """E[S − Ŝ | Ŝ] = 0, so ⟨Ŝ, S − Ŝ⟩ is nothing on average. That of the nearest matrix is not."""
    fine = cells_of(PUBLIC)
    ours, nearest, said, leaning, leant = [], [], [], [], []
    for seed in range(3):
        exact, noisy, noise = released(30, 300, seed)
        for S, S_noisy, tau, it in zip(
            exact, noisy, noise, denoised_together(noisy, noise, CELLS), strict=True
        ):
            other = denoised(S_noisy, tau, fine).gram
            ours.append(np.sum((it.gram - S) ** 2))
            nearest.append(np.sum((other - S) ** 2))
            said.append(np.trace(it.counts @ CELLS.overlap))
            size = np.linalg.norm(S)
            leaning.append(np.sum(it.gram * (S - it.gram)) / size)
            leant.append(np.sum(other * (S - other)) / size)
    assert np.mean(ours) < 0.8 * np.mean(nearest)
    assert 0.8 < np.mean(said) / np.mean(ours) < 1.25
    assert abs(np.mean(leaning)) < 0.5 * abs(np.mean(leant))


def test_neither_the_order_of_clients_nor_the_call_matters():
    _, noisy, noise = released(5, 300, 4)
    order = [3, 0, 4, 1, 2]
    once = denoised_together(noisy, noise, CELLS)
    again = denoised_together(noisy, noise, CELLS)
    turned = denoised_together([noisy[i] for i in order], [noise[i] for i in order], CELLS)
    for place, i in enumerate(order):
        assert once[i].gram.tobytes() == again[i].gram.tobytes()
        np.testing.assert_allclose(turned[place].gram, once[i].gram, rtol=1e-3, atol=1e-2)


def test_matrices_without_rows_give_next_to_none():
    """Noise alone: what is left is below the noise."""
    rng, M = np.random.default_rng(0), len(PUBLIC.inputs)
    noisy = rng.normal(size=(4, M, M)) * 6 * np.sqrt(0.5)
    noisy = (noisy + np.swapaxes(noisy, 1, 2)) / np.sqrt(2)
    for it in denoised_together(list(noisy), [6.0] * 4, CELLS):
        assert np.isfinite(it.gram).all()
        assert np.isfinite(it.counts).all()
        assert 0 <= np.trace(it.gram) < 6.0 * M
