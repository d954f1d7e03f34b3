"""The model's own test, against its definition, and on sites that were drawn from the model."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2, kstest

from pfedhgp.federation.robust import census_test, clipping, magnitudes, model_test
from pfedhgp.federation.robust.model_test import Evidence, Whitened
from pfedhgp.inference.starts import census

K = 6


def site(rng, v, n=30, phi=0.2, sigma=0.3):
    """(J, h) of n rows of N(A(v + deviation), σ²), some directions of v unseen."""
    A = rng.normal(size=(n, K)) * np.array([1, 1, 1, 1, 1, 0])
    y = A @ (v + np.sqrt(phi) * rng.normal(size=K)) + sigma * rng.normal(size=n)
    C = phi * A @ A.T + sigma**2 * np.eye(n)
    return Evidence(A.T @ np.linalg.solve(C, A), A.T @ np.linalg.solve(C, y))


def test_the_distance_is_that_of_its_definition():
    rng = np.random.default_rng(0)
    v = rng.normal(size=K)
    own, other = site(rng, v), site(rng, v)
    S = np.linalg.inv(np.eye(K) + other.J)
    m = S @ other.h
    gap, covariance = own.h - own.J @ m, own.J + own.J @ S @ own.J
    expected = gap @ np.linalg.pinv(covariance, rcond=1e-10) @ gap
    found = Whitened.of(own).distance(m, S)
    assert found.freedom == np.linalg.matrix_rank(own.J) == 5
    np.testing.assert_allclose(found.square, expected, rtol=1e-8)
    assert found.p_value() == pytest.approx(chi2.sf(expected, 5))


def test_p_values_of_honest_sites_are_uniform():
    """Of one site against all others; sites of an exchange share m, so one of each is taken."""
    p = []
    for seed in range(300):
        rng = np.random.default_rng([1, seed])
        v = rng.normal(size=K)
        sites = [site(rng, v) for _ in range(5)]
        J, h = (sum(part) for part in zip(*sites[1:], strict=True))
        p.append(Whitened.of(sites[0]).distance(*model_test.posterior(J, h)).p_value())
    assert kstest(p, "uniform").pvalue > 0.01


@pytest.mark.parametrize("sites", [4, 20, 30])
def test_liars_are_found_and_honest_sites_stay(sites):
    liars = sites // 4
    caught = excluded = 0
    for seed in range(12):
        rng = np.random.default_rng([2, sites, seed])
        v = rng.normal(size=K)
        replies = [site(rng, -2.0 * v if i < liars else v) for i in range(sites)]
        found = model_test.verdicts(replies)
        caught += int((~found.passes[:liars]).sum())
        excluded += int((~found.passes[liars:]).sum())
    assert caught >= (0.7 if sites == 4 else 0.9) * 12 * liars  # three say less than nineteen
    assert excluded <= 0.01 * 12 * (sites - liars)


def test_half_of_the_sites_always_pass():
    rng = np.random.default_rng(3)
    replies = [site(rng, 100.0 * rng.normal(size=K)) for _ in range(7)]
    assert model_test.verdicts(replies).passes.sum() >= 4


def moments(rng, mean=0.0, sd=1.0, n=40, at=0.5):
    x, y = at + rng.uniform(-0.5, 0.5, (n, 1)), mean + sd * rng.normal(size=(n, 1))
    return census.moments(x, y)


def test_a_census_of_sites_that_differ_is_left_alone():
    rng = np.random.default_rng(4)
    replies = [moments(rng, mean=i, sd=1.0 + i, at=float(i), n=20 * (1 + i)) for i in range(6)]
    assert census_test.left_out(replies) == []


@pytest.mark.parametrize(
    "lie",
    [
        lambda a: {"y_mean": np.full((1, 1), 1e6)},
        lambda a: {"y_cross": 1e9 * a["y_cross"]},
        lambda a: {"y_pairs": 1e12 + 0 * a["y_pairs"], "y_cross": 1e-9 * a["y_cross"]},
        lambda a: {"x_sum": 1e6 * a["rows"]},
    ],
    ids=["mean", "variance", "nearly all rows, and constant", "inputs"],
)
def test_a_census_far_from_the_medians_is_left_out(lie):
    rng = np.random.default_rng(5)
    replies = [moments(rng) for _ in range(4)]
    replies[2] = {**replies[2], **lie(replies[2])}
    assert census_test.left_out(replies) == [2]


def test_clipping_is_the_plain_sum_of_gradients_that_agree():
    rng = np.random.default_rng(6)
    replies = [
        {"a": 1.0 + 0.1 * rng.normal(size=(3, 2)), "b": rng.normal(size=4)} for _ in range(8)
    ]
    found, share = clipping.clip_to_centre(replies)
    assert np.all(share == 1.0)
    assert all(found[i]["a"] is replies[i]["a"] for i in range(8))
    usual = sum(reply["a"] for reply in replies[1:])
    replies[0] = {"a": np.full((3, 2), -1e4), "b": np.zeros(4)}
    found, share = clipping.clip_to_centre(replies)
    assert share[0] < 0.01
    assert np.all(share[1:] == 1.0)
    clipped = sum(each["a"] for each in found)
    assert np.abs(clipped - usual).max() < 8.0  # and not 1e4


def test_numbers_out_of_all_proportion_are_found():
    replies = [{"d_J": np.full(3, 1.0)} for _ in range(4)]
    replies[1] = {"d_J": np.full(3, 1e9)}
    assert magnitudes.too_large(replies, [10.0] * 4, ["d_J", "d_h"]) == {1: "d_J"}
    replies[1] = {"d_J": np.full(3, 1e5)}
    assert magnitudes.too_large(replies, [10.0, 1000.0, 10.0, 10.0], ["d_J"]) == {}
