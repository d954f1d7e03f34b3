"""What one row can change in totals, given what was released before; too little noise is found out."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfedhgp.errors import InputError
from pfedhgp.privacy import noise_shares
from pfedhgp.privacy import release as releases
from pfedhgp.privacy.accounting import mu_for
from pfedhgp.privacy.denoising import cells_of
from pfedhgp.privacy.noise_shares import share_of
from pfedhgp.privacy.release import PublicBasis, exact_sums, noisy_gram
from pfedhgp.privacy.totals import (
    OwnGram,
    Scales,
    kappa_of,
    modes,
    part_of_spread,
    part_of_totals,
    residuals,
    spent,
    total_scales,
)
from pfedhgp.privacy.twin import Parameters, prior

BOUND = 2.0
NO_NOISE = Scales(0.0, 0.0, 0.0, 0.0)


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([(0.15,), (0.5,), (0.4, 0.6)]),
    st.integers(0, 10**6),
    st.sampled_from([1, 3]),
    st.floats(0.05, 5.0),
)
def test_one_row_moves_all_three_steps_together_by_at_most_mu(scales, seed, outputs, mu):
    """Neighbouring rows, any S̃ and any centre: both are given to the later steps."""
    public = PublicBasis.over(np.array(scales))
    cells, M = cells_of(public), len(public.inputs)
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 60))
    X = rng.uniform(-0.5, 1.5, (n, len(scales)))  # inputs outside of the box too
    Y = rng.normal(size=(n, outputs)) * 10
    Y[0, 0] = math.nan
    tau = total_scales(mu, BOUND, outputs, M)
    both = [exact_sums(public, *rows, BOUND) for rows in ((X, Y), (X[:-1], Y[:-1]))]
    E = rng.normal(size=(outputs, M, M)) * tau.own
    noisy = both[0][0] + 0.5 * (E + np.swapaxes(E, 1, 2))
    grams = [OwnGram.of(each, tau.own, kappa_of(tau.own), cells) for each in noisy]
    beside = np.where(np.eye(M) > 0, 1.0, math.sqrt(0.5)) * tau.own
    lower = np.tril(np.ones((M, M))) > 0
    moved = np.sum(((both[0][0] - both[1][0]) / beside)[:, lower] ** 2)
    totals = [part_of_totals(grams, sums, NO_NOISE) for sums in both]
    for name, sd in (("missing", tau.gram), ("linear", tau.linear)):
        moved += np.sum(((totals[0][name] - totals[1][name]) / sd) ** 2)
    centre = rng.normal(size=(outputs, M)) * rng.choice([0.0, 1.0, 30.0])
    left = [residuals(public, *rows, BOUND, centre) for rows in ((X, Y), (X[:-1], Y[:-1]))]
    spread = [part_of_spread(grams, r, modes(public), NO_NOISE)["spread"] for r in left]
    moved += np.sum(((spread[0] - spread[1]) / tau.spread) ** 2)
    assert math.sqrt(moved) <= mu
    assert spent(tau, BOUND, outputs, M) == pytest.approx(mu, rel=1e-12)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.floats(0.1, 1e3))
def test_weights_never_enlarge_whatever_the_noise(seed, noise):
    public = PublicBasis.over(np.array([0.3]))
    E = np.random.default_rng(seed).normal(size=(len(public.inputs),) * 2) * 5 * noise
    own = OwnGram.of(E + E.T, noise, kappa_of(noise), cells_of(public))
    values = np.linalg.eigvalsh(own.weight)
    assert values.min() > 0.0
    assert values.max() <= 1.0 + 1e-12
    assert np.linalg.eigvalsh(own.gram).min() > -1e-9 * noise


def test_parts_and_residuals_are_those_of_a_loop_over_rows():
    public = PublicBasis.over(np.array([0.3]))
    rng = np.random.default_rng(0)
    X, Y = rng.uniform(size=(9, 1)), rng.normal(size=(9, 2)) * 3
    Y[2, 1] = math.nan
    M = len(public.inputs)
    centre = rng.normal(size=(2, M))
    noisy = rng.normal(size=(2, M, M))
    grams = [OwnGram.of(a @ a.T, 1.0, 5.0, cells_of(public)) for a in noisy]
    found = part_of_totals(grams, exact_sums(public, X, Y, BOUND), NO_NOISE)
    left = residuals(public, X, Y, BOUND, centre)
    for q in range(2):
        W, S, b, r = grams[q].weight, np.zeros((M, M)), np.zeros(M), np.zeros(M)
        np.testing.assert_allclose(W, 5 * np.linalg.inv(grams[q].gram + 5 * np.eye(M)), atol=1e-10)
        for x, y in zip(X, Y[:, q], strict=True):
            if math.isfinite(y):
                a = public.features(x[None])[:, 0]
                S += np.outer(a, a)
                b += a * min(max(y, -BOUND), BOUND)
                r += a * min(max(y - a @ centre[q], -BOUND), BOUND)
        np.testing.assert_allclose(found["missing"][q], W @ (S - grams[q].gram), atol=1e-10)
        np.testing.assert_allclose(found["linear"][q], W @ b, atol=1e-10)
        np.testing.assert_allclose(left[q], r, atol=1e-10)


def test_modes_are_the_kernels_eigenvectors_from_rough_to_smooth():
    """U = LᵀEΛ^−½ is L⁻¹EΛ^½ as well, is orthogonal, and a longer lengthscale has more in each next one."""
    public = PublicBasis.over(np.array([0.15]))
    U, L = modes(public), np.asarray(public.basis().factor)[0]
    np.testing.assert_allclose(U.T @ U, np.eye(len(U)), atol=1e-12)
    values, vectors = np.linalg.eigh(L @ L.T)
    other = np.linalg.solve(L, vectors * np.sqrt(values))
    np.testing.assert_allclose(np.abs(np.sum(U * other, axis=0)), 1.0, atol=1e-6)
    P = prior(public, Parameters(np.array([0.3]), 1.0, 0.2, 0.1, 1e-3))
    assert np.all(np.diff(np.einsum("mk,ml,lk->k", U, P, U)) > 0)


def audited_mu(mu: float, seed: int, draws: int = 500) -> float:
    """μ as an attacker measures it who knows all rows but one, S̃ of its client, and the shares of f others.

    The log likelihood ratio of all that was released is N(±μ²/2, μ²) with and without the row.
    """
    public = PublicBasis.over(np.array([0.9]))
    cells, U, M = cells_of(public), modes(public), len(public.inputs)
    X, Y, centre = np.array([[0.5]]), np.array([[BOUND]]), np.zeros((1, M))
    tau = total_scales(mu, BOUND, 1, M)
    honest, missing = 2, 1
    shares = Scales(tau.own, *(share_of(each, honest + missing, missing) for each in tau[1:]))
    below = random.Random(seed).randrange
    rows, columns = np.tril_indices(M)
    own_weights = np.where(rows == columns, 1.0, 2.0) / tau.own**2
    sums = exact_sums(public, X, Y, BOUND)
    nothing = exact_sums(public, X[:0], Y[:0], BOUND)
    residual = residuals(public, X, Y, BOUND, centre)

    def statistic(there: bool) -> float:
        gram = noisy_gram((sums if there else nothing)[0], tau.own, below)
        moved = sums[0][0][rows, columns]
        found = float(np.sum(own_weights * (gram[0][rows, columns] - 0.5 * moved) * moved))
        grams = [OwnGram.of(gram[0], tau.own, kappa_of(tau.own), cells)]
        known = [OwnGram.of(np.zeros((M, M)), tau.own, 1.0, cells)]
        parts = [(grams, sums if there else nothing, residual if there else 0 * residual)]
        parts += [(known, nothing, 0 * residual)] * (honest - 1)
        clean = part_of_totals(grams, sums, NO_NOISE), part_of_totals(grams, nothing, NO_NOISE)
        totals = [part_of_totals(*part[:2], shares, below) for part in parts]
        for name, sd in (("missing", tau.gram), ("linear", tau.linear)):
            moved = clean[0][name] - clean[1][name]
            seen = sum(each[name] for each in totals) - clean[1][name]
            found += float(np.sum((seen - 0.5 * moved) * moved)) / sd**2
        moved = part_of_spread(grams, residual, U, NO_NOISE)["spread"]
        seen = sum(part_of_spread(g, r, U, shares, below)["spread"] for g, _, r in parts)
        return found + float(np.sum((seen - 0.5 * moved) * moved)) / tau.spread**2

    there, absent = ([statistic(each) for _ in range(draws)] for each in (True, False))
    spread = math.sqrt(0.5 * (np.var(there) + np.var(absent)))
    return float(np.mean(there) - np.mean(absent)) / spread


def test_an_attacker_finds_at_most_the_mu_that_is_promised_and_catches_halved_noise(monkeypatch):
    mu, draws = mu_for(4.0, 1e-6), 500
    limit = mu + 4 * math.sqrt(2 / draws)  # four standard errors of the measured distance
    measured = audited_mu(mu, 1, draws)
    assert measured < limit
    assert measured > 0.6 * mu  # the attack is a real one
    honest = noise_shares.noise
    monkeypatch.setattr(noise_shares, "noise", lambda tau, *more: honest(tau / 2, *more))
    monkeypatch.setattr(releases, "noise", lambda tau, *more: honest(tau / 2, *more))
    assert audited_mu(mu, 1, draws) > limit


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan])
def test_a_budget_that_is_not_positive_is_refused(wrong):
    with pytest.raises(InputError, match="budget"):
        total_scales(wrong, BOUND, 1, 5)
    with pytest.raises(InputError, match="noise"):
        spent(Scales(1.0, 1.0, wrong, 1.0), BOUND, 1, 5)
