"""What one row can change in a release, and that a release with too little noise is found out."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfedhgp.errors import InputError
from pfedhgp.privacy import release as releases
from pfedhgp.privacy.accounting import mu_for
from pfedhgp.privacy.release import PublicBasis, exact_sums, noise_scales, release, spent

BOUND = 2.0


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([(0.15,), (0.5,), (0.4, 0.6)]),
    st.integers(0, 10**6),
    st.sampled_from([1, 3]),
    st.floats(0.05, 5.0),
)
def test_one_row_moves_a_release_by_at_most_mu_standard_deviations(scales, seed, outputs, mu):
    public = PublicBasis.over(np.array(scales))
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 2.0, (6, len(scales)))  # inputs outside of the box too
    Y = rng.normal(size=(6, outputs)) * 10
    Y[0, 0] = math.nan
    tau = noise_scales(mu, BOUND, outputs, len(public.inputs))
    gram, linear = exact_sums(public, X, Y, BOUND)
    fewer_gram, fewer_linear = exact_sums(public, X[:-1], Y[:-1], BOUND)
    beside = np.where(np.eye(len(public.inputs)) > 0, 1.0, math.sqrt(0.5)) * tau.gram
    lower = np.tril(np.ones_like(beside)) > 0
    moved = np.sum(((gram - fewer_gram) / beside)[:, lower] ** 2)
    moved += np.sum(((linear - fewer_linear) / tau.linear) ** 2)
    assert math.sqrt(moved) <= mu
    assert spent(tau, BOUND, outputs, len(public.inputs)) == pytest.approx(mu, rel=1e-12)


def test_features_are_never_longer_than_one_and_nearly_so_inside_the_box():
    public = PublicBasis.over(np.array([0.15]))
    inside = public.features(np.linspace(0, 1, 400)[:, None])
    lengths = np.linalg.norm(inside, axis=0)
    assert lengths.max() <= 1.0
    assert lengths.min() > 0.97
    assert np.linalg.norm(public.features(np.array([[9.0]])), axis=0) < 1e-6


def test_sums_are_those_of_a_loop_over_rows():
    public = PublicBasis.over(np.array([0.3]))
    rng = np.random.default_rng(0)
    X, Y = rng.uniform(size=(9, 1)), rng.normal(size=(9, 2)) * 3
    Y[2, 1] = math.nan
    gram, linear = exact_sums(public, X, Y, BOUND)
    for q in range(2):
        S, b = np.zeros_like(gram[q]), np.zeros_like(linear[q])
        for x, y in zip(X, Y[:, q], strict=True):
            if math.isfinite(y):
                a = public.features(x[None])[:, 0]
                S += np.outer(a, a)
                b += a * min(max(y, -BOUND), BOUND)
        np.testing.assert_allclose(gram[q], S, atol=1e-12)
        np.testing.assert_allclose(linear[q], b, atol=1e-12)


def audited_mu(mu: float, seed: int, draws: int = 1500) -> float:
    """μ as an attacker measures it who knows all rows but one: the distance of the likelihood ratio's means
    with and without that row, in its standard deviations."""
    public = PublicBasis.over(np.array([0.9]))
    X, Y = np.array([[0.5]]), np.array([[BOUND]])
    gram, linear = exact_sums(public, X, Y, BOUND)
    tau = noise_scales(mu, BOUND, 1, len(public.inputs))
    rows, columns = np.tril_indices(len(public.inputs))
    weights = np.where(rows == columns, 1.0, 2.0) / tau.gram**2
    below = random.Random(seed).randrange

    def statistic(X: np.ndarray, Y: np.ndarray) -> float:
        seen = release(public, X, Y, bound=BOUND, mu=mu, below=below)
        of_gram = np.sum(weights * (seen.gram * gram)[0, rows, columns])
        return float(of_gram + np.sum(seen.linear * linear) / tau.linear**2)

    there = [statistic(X, Y) for _ in range(draws)]
    absent = [statistic(X[:0], Y[:0]) for _ in range(draws)]
    spread = math.sqrt(0.5 * (np.var(there) + np.var(absent)))
    return float(np.mean(there) - np.mean(absent)) / spread


def test_an_attacker_finds_the_mu_that_is_promised_and_catches_halved_noise(monkeypatch):
    mu = mu_for(1.0, 1e-6)
    limit = mu + 4 * math.sqrt(2 / 1500)  # four standard errors of the measured distance
    assert audited_mu(mu, 1) < limit
    honest = releases.noise
    monkeypatch.setattr(releases, "noise", lambda tau, below: honest(tau / 2, below))
    assert audited_mu(mu, 1) > limit


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan])
def test_a_budget_that_is_not_positive_is_refused(wrong):
    with pytest.raises(InputError, match="budget"):
        noise_scales(wrong, BOUND, 1, 5)


def test_a_basis_too_large_is_refused():
    with pytest.raises(InputError, match="basis functions"):
        PublicBasis.over(np.array([0.05, 0.05]))


def test_without_noise_the_release_is_the_sums():
    public = PublicBasis.over(np.array([0.3]))
    X, Y = np.array([[0.2], [0.7]]), np.array([[0.5], [-1.0]])
    found = release(public, X, Y, bound=BOUND, mu=math.inf)
    gram, linear = exact_sums(public, X, Y, BOUND)
    assert np.array_equal(found.gram, gram)
    assert np.array_equal(found.linear, linear)
