"""A site's own φ_i taken out and another put in gives what its rows would give with that other φ."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp.federation.robust import model_test
from pfedhgp.federation.robust.model_test import Evidence
from pfedhgp.federation.robust.usual_deviation import most_usual, with_usual_deviations

K = 6


def site(seed, v, phi, claimed=None, n=30, sigma=0.3):
    """(J, h) of n rows of N(A(v + √φ deviation), σ²), computed with the φ that the site claims."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(n, K)) * np.array([1, 1, 1, 1, 1, 0])  # one direction unseen
    y = A @ (v + np.sqrt(phi) * rng.normal(size=K)) + sigma * rng.normal(size=n)
    C = (phi if claimed is None else claimed) * A @ A.T + sigma**2 * np.eye(n)
    return Evidence(A.T @ np.linalg.solve(C, A), A.T @ np.linalg.solve(C, y))


def test_the_evidence_is_that_of_the_same_rows_with_the_usual_deviation():
    v = np.random.default_rng(0).normal(size=K)
    phis = np.array([0.2, 0.2, 0.2, 5.0])
    sites = [site([1, i], v, phi=0.2, claimed=phi) for i, phi in enumerate(phis)]
    most = most_usual(phis)
    assert most == pytest.approx(1.5 * 0.2)
    found = with_usual_deviations(sites, phis)
    assert all(found[i] is sites[i] for i in range(3))
    expected = site([1, 3], v, phi=0.2, claimed=most)
    np.testing.assert_allclose(found[3].J, expected.J, atol=1e-8)
    np.testing.assert_allclose(found[3].h, expected.h, atol=1e-8)


def test_a_large_deviation_of_its_own_hides_no_liar():
    """Four liars say −2 f. With φ_i = 9 of their own their sums fit; with the usual one they do not."""
    hidden = caught = excluded = 0
    for seed in range(10):
        v = np.random.default_rng([3, seed]).normal(size=K)
        lies = [site([4, seed, i], -2.0 * v, phi=0.2, claimed=9.0) for i in range(4)]
        honest = [site([5, seed, i], v, phi=0.2) for i in range(16)]
        phis = np.array([9.0] * 4 + [0.2] * 16)
        hidden += int(model_test.verdicts([*lies, *honest]).passes[:4].sum())
        passes = model_test.verdicts(with_usual_deviations([*lies, *honest], phis)).passes
        caught += int((~passes[:4]).sum())
        excluded += int((~passes[4:]).sum())
    assert hidden >= 36
    assert caught >= 36
    assert excluded == 0


def test_honest_sites_whose_deviations_differ_stay():
    """log φ_i ~ N(log 0.2, 1): some deviate eight times as much as the median."""
    excluded = 0
    for seed in range(20):
        rng = np.random.default_rng([6, seed])
        v, phis = rng.normal(size=K), 0.2 * np.exp(rng.normal(size=20))
        sites = [site([7, seed, i], v, phi) for i, phi in enumerate(phis)]
        passes = model_test.verdicts(with_usual_deviations(sites, phis)).passes
        excluded += int((~passes).sum())
    assert excluded <= 0.02 * 20 * 20


def test_without_deviations_nothing_is_unusual():
    assert most_usual(np.zeros(5)) == np.inf
