"""Class, run, cycle: sums, layers, covariances and distances, against loops and dense likelihoods."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from pfedhgp.diagnosis.beside import lda_densities, shrunken_correlation
from pfedhgp.diagnosis.candidates import (
    PAIRS,
    TEMPERATURES,
    Candidate,
    Judged,
    distances,
    grown,
    judged,
    log_posterior,
    losses,
    metrics,
    probabilities,
)
from pfedhgp.diagnosis.cycle_metric import CycleMetric
from pfedhgp.diagnosis.held_out_runs import Cycles, folds_of_runs, held_out
from pfedhgp.diagnosis.run_layers import TARGETS, Layers
from pfedhgp.diagnosis.run_sums import RunSums, sums_of_runs
from support import reference_diagnosis as naive
from support.variance_components import variance_components

Q, R = 3, 4
SLICES = [slice(q * R, (q + 1) * R) for q in range(Q)]


def cycles(seed: int = 0, *, classes: int = 3, counts=(3, 5, 2, 4)):
    """(F, labels, runs): runs of different lengths whose means differ."""
    rng = np.random.default_rng(seed)
    F, labels, runs = [], [], []
    for k in range(classes):
        for b, n in enumerate(counts):
            run = 10.0 + k + rng.normal(size=Q * R)
            F.append(run + 0.5 * rng.normal(size=(n, Q * R)))
            labels += [k] * n
            runs += [f"run {b}"] * n
    return np.concatenate(F), np.asarray(labels), runs


def sums(F, labels, runs, *, own: bool = False) -> RunSums:
    return sums_of_runs(F, np.ones((len(F), Q)), labels, runs, classes=3, own=own)


def same(one: RunSums, two: RunSums) -> None:
    for name, array in one.as_arrays().items():
        np.testing.assert_allclose(array, two.as_arrays()[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("own", [False, True])
def test_layers_of_sums_are_those_of_pooled_cycles(own):
    F, labels, runs = cycles()
    found = Layers.of(sums(F, labels, runs, own=own), Q)
    f, S, W, share = naive.run_layers(F, labels, runs)
    np.testing.assert_allclose(found.means, f, rtol=1e-9)
    np.testing.assert_allclose(found.S, S, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.W, W, rtol=1e-9, atol=1e-9)
    assert found.share == pytest.approx(share, rel=1e-12)


def test_sums_add_over_sites_and_do_not_depend_on_the_order_of_cycles():
    F, labels, runs = cycles()
    whole = sums(F, labels, runs)
    order = np.random.default_rng(1).permutation(len(F))
    same(whole, sums(F[order], labels[order], [runs[c] for c in order]))
    here = np.asarray([run in ("run 0", "run 2") for run in runs])
    parts = [
        sums(F[w], labels[w], [r for r, one in zip(runs, w, strict=True) if one])
        for w in (here, ~here)
    ]
    same(whole, parts[0] + parts[1])
    same(parts[1], whole - parts[0])
    same(whole, RunSums.from_arrays(whole.as_arrays("x."), "x."))


def test_classes_in_another_order_are_the_same_layers():
    F, labels, runs = cycles()
    one, two = (Layers.of(sums(F, each, runs), Q) for each in (labels, 2 - labels))
    np.testing.assert_allclose(one.means, two.means[::-1], rtol=1e-12)
    np.testing.assert_allclose(one.S, two.S, atol=1e-9)


def test_a_classs_own_layers_are_those_of_its_cycles_alone():
    F, labels, runs = cycles()
    found = sums(F, labels, runs, own=True)
    own = Layers.of(found, Q).of_class(found, 1)
    mine = labels == 1
    _, S, W, _ = naive.run_layers(
        F[mine], labels[mine], [r for r, m in zip(runs, mine, strict=True) if m]
    )
    np.testing.assert_allclose(own.S, S, atol=1e-9)
    np.testing.assert_allclose(own.W, W, atol=1e-9)


@pytest.mark.parametrize("effect", [1.0, 0.0])
def test_variance_components_have_the_highest_restricted_likelihood(effect):
    """Two coordinates, runs of equal length; without run effects some directions are at the bound."""
    rng = np.random.default_rng(3)
    labels, runs = np.repeat([0, 1], 12), [str(b) for b in np.repeat(np.arange(8), 3)]
    F = rng.normal(size=(24, 2)) @ np.array([[1.0, 0.4], [0.0, 0.7]])
    F += effect * np.repeat(rng.normal(size=(8, 2)), 3, axis=0)
    _, S, W, _ = naive.run_layers(F, labels, runs)
    run, cycle = variance_components(S, W, 3.0, (6.0, 16.0))

    def loss(x):
        roots = [np.array([[p[0], 0.0], [p[1], p[2]]]) for p in (x[:3], x[3:])]
        return -naive.restricted_likelihood(F, labels, runs, *(L @ L.T for L in roots))

    best = naive.restricted_likelihood(F, labels, runs, run, cycle)
    for start in ([0.5, 0.1, 0.5, 1.0, 0.3, 0.7], [0.01, 0.0, 0.01, 1.0, 0.0, 1.0]):
        found = minimize(
            loss, start, method="Nelder-Mead", options={"maxiter": 4000, "xatol": 1e-7}
        )
        assert -found.fun <= best + 1e-6
    assert -found.fun == pytest.approx(best, abs=1e-4)
    if effect:  # no bound is met: S and W of training say the same
        layers = Layers.of(
            sums_of_runs(F, np.zeros((24, 1)), labels, runs, classes=2, own=False), 1
        )
        new_cycle = layers.S + layers.share * layers.W
        np.testing.assert_allclose(new_cycle, run + cycle, atol=1e-9)


def test_a_new_cycle_of_a_new_run_has_both_variances():
    """Without shrinkage S + (1 − 1/n_h) W is Ψ_b + Ψ_e on average: many runs say so."""
    rng = np.random.default_rng(0)
    B, n = 2000, 4
    F = np.repeat(2.0 * rng.normal(size=(B, 3)), n, axis=0) + rng.normal(size=(B * n, 3))
    runs = [str(b) for b in np.repeat(np.arange(B), n)]
    found = Layers.of(
        sums_of_runs(F, np.ones((B * n, 3)), np.zeros(B * n, int), runs, classes=1, own=False), 3
    )
    np.testing.assert_allclose(found.covariance("cell", 1e-9), 5.0 * np.eye(3), atol=0.5)


@pytest.mark.parametrize("target", TARGETS)
def test_every_covariance_is_positive_definite_and_keeps_variances(target):
    F, labels, runs = cycles()
    found = Layers.of(sums(F, labels, runs), Q)
    for delta in (1e-3, 0.3, 1.0):
        sigma = found.covariance(target, delta)
        assert np.linalg.eigvalsh(sigma)[0] > 0.0
        np.testing.assert_allclose(sigma, sigma.T, atol=1e-12)
        expected = np.diagonal(found.S) + found.share * np.diagonal(found.W) + found.floor
        if target in ("cell", "smooth"):
            np.testing.assert_allclose(np.diagonal(sigma), expected, rtol=1e-9)
        if target in ("channel", "stationary"):
            by_channel = [
                each.reshape(Q, R).mean(axis=1) for each in (np.diagonal(sigma), expected)
            ]
            np.testing.assert_allclose(*by_channel, rtol=1e-9)


def test_distances_set_the_wildest_channel_aside():
    F, labels, runs = cycles()
    layers = Layers.of(sums(F, labels, runs), Q)
    sigma = layers.covariance("smooth", 0.3)
    metric = CycleMetric.of(sigma, SLICES)
    new = F[:4].copy()
    new[0, SLICES[1]] += 50.0
    found = metric.robust(new, layers.means)
    for c in range(4):
        for k in range(3):
            expected = naive.robust_distance(new[c], layers.means[k], sigma, SLICES)
            assert found[c, k] == pytest.approx(expected, rel=1e-8)
    assert metric.log_det == pytest.approx(np.linalg.slogdet(sigma)[1])
    towards, count = metric.towards(new, layers.means)
    M = [layers.means[j] for j in (0, 1)]
    expected = naive.distance_towards(new[1], layers.means[2], M, sigma)
    assert (towards[1, 2], count[1, 2]) == (pytest.approx(expected[0]), expected[1])


def test_one_wild_channel_does_not_decide():
    """Far from both classes in one channel, nearer to the wrong one: the other channels win."""
    means = np.zeros((2, Q * R))
    means[1] = 1.0
    sigma = 0.1 * np.eye(Q * R)
    metric = CycleMetric.of(sigma, SLICES)
    y = np.zeros((1, Q * R))
    y[0, SLICES[2]] = 30.0
    plain, _ = metric.distances(y, means)
    assert plain[0, 1] < plain[0, 0]
    robust = metric.robust(y, means)
    assert robust[0, 0] < robust[0, 1]


def test_a_mean_of_few_runs_widens_its_class():
    """y − f̂ of a new cycle has covariance (1 + 1/B) Σ: by dense Gaussians, and by held-out runs alike."""
    F, labels, runs = cycles(counts=(3, 3, 3, 3))
    few = np.asarray(
        [k < 2 or run in ("run 0", "run 1") for k, run in zip(labels, runs, strict=True)]
    )
    F, labels, runs = F[few], labels[few], [r for r, one in zip(runs, few, strict=True) if one]
    total = sums(F, labels, runs)
    layers = Layers.of(total, Q)
    shape = Candidate("cell", 0.1)
    wider = grown(shape, total.runs)
    np.testing.assert_allclose(wider, [1.25, 1.25, 1.5])
    metric = list(metrics(shape, layers, total))
    np.testing.assert_array_equal(metric[0].grown, wider)
    new = F[:4] + 0.1
    square, log_det = distances(metric, new, layers.means, wider)
    sigma = layers.covariance("cell", 0.1)
    for k, factor in enumerate(wider):
        for c in range(4):
            expected = naive.robust_distance(new[c], layers.means[k], factor * sigma, SLICES)
            assert square[c, k] == pytest.approx(expected, rel=1e-8)
        assert log_det[k] == pytest.approx(np.linalg.slogdet(factor * sigma)[1])
    folds = folds_of_runs([str(k) for k in labels], runs, folds=4)
    data = Cycles(F, np.ones((len(F), Q)), labels, tuple(runs), folds, 3, Q, own=False)
    held = held_out(data, [shape])[shape]
    for c in (0, len(F) - 1):
        left = [
            len(
                {r for r, k, f in zip(runs, labels, folds, strict=True) if k == j and f != folds[c]}
            )
            for j in range(3)
        ]
        np.testing.assert_allclose(held.grown[c], 1.0 + 1.0 / np.asarray(left))
    assert np.all(grown(Candidate("cell", 0.1, own=True), total.runs) == 1.0)


def test_folds_deal_out_whole_runs_and_never_all_of_a_class():
    _, labels, runs = cycles()
    labels = [*labels.tolist(), 3, 3]
    runs = [*runs, "only", "only"]
    found = folds_of_runs(labels, runs, folds=3)
    keys = [f"{k}/{run}" for k, run in zip(labels, runs, strict=True)]
    assert all(len(set(found[np.asarray(keys) == key])) == 1 for key in keys)
    assert set(found[-2:].tolist()) == {-1}
    for k in range(3):
        mine = np.asarray(labels) == k
        for fold in range(3):
            assert np.any(found[mine] != fold)
    order = np.random.default_rng(0).permutation(len(labels))
    again = folds_of_runs([labels[c] for c in order], [runs[c] for c in order], folds=3)
    np.testing.assert_array_equal(again, found[order])


def test_two_runs_a_class_are_not_all_held_out_at_once():
    labels = np.repeat(np.arange(6), 2)
    found = folds_of_runs(labels, [str(b) for b in np.arange(12)], folds=7)
    assert max(np.bincount(found)) <= 2


def test_losses_are_sums_and_weights_follow_the_loss():
    rng = np.random.default_rng(0)
    density, truth, weights = (
        30.0 * rng.normal(size=(9, 3)),
        rng.integers(3, size=9),
        rng.uniform(size=9),
    )
    whole = losses(density, truth, weights)
    parts = [losses(density[w], truth[w], weights[w]) for w in (slice(4), slice(4, 9))]
    np.testing.assert_allclose(whole, parts[0] + parts[1])
    flat = -np.sum(weights * log_posterior(density, 1e300)[np.arange(9), truth])
    assert whole[len(TEMPERATURES) - 1] == pytest.approx(flat)
    one, two = Candidate("cell", 0.1), Candidate("cell", 0.3)
    better = whole.copy()
    better[:-1] -= 0.5
    found = judged({one: whole, two: better}, runs=10.0)
    assert [each.candidate for each in found] == [two, one]
    assert found[0].weight / found[1].weight == pytest.approx(np.exp(2.0 * 0.5))


def test_losses_at_pairs_are_those_of_loops():
    rng = np.random.default_rng(1)
    density, truth, weights = 20.0 * rng.normal(size=(7, 3)), rng.integers(3, size=7), np.ones(7)
    found = losses(density, truth, weights)
    assert len(found) == len(PAIRS) + 1
    for at in (0, 40, len(TEMPERATURES) + 5, len(PAIRS) - 1):
        t, share = PAIRS[at]
        expected = 0.0
        for row, k in zip(density, truth, strict=True):
            warm = np.exp((row - row.max()) / t)
            expected -= np.log((1.0 - share) * warm[k] / warm.sum() + share / 3.0)
        assert found[at] == pytest.approx(expected, rel=1e-9)
    mixed = probabilities(density, 5.0, 0.3)
    np.testing.assert_allclose(mixed, 0.7 * np.exp(log_posterior(density, 5.0)) + 0.1)


def test_a_few_runs_that_look_like_another_class_cost_a_share_and_not_clearness():
    """Of 100 runs 90 are clear, six say 3 nats and are right, four are clear and wrong."""
    density = np.zeros((100, 2))
    density[:, 0] = np.r_[np.full(90, 300.0), np.full(6, 3.0), np.full(4, 300.0)]
    truth, one = np.zeros(100, np.int64), np.ones(100)
    candidate = Candidate("cell", 0.1)
    (calm,) = judged({candidate: losses(density, truth, one)}, runs=100.0)
    assert (calm.temperature, calm.even) == (1.0, 0.0)
    truth[96:] = 1
    (found,) = judged({candidate: losses(density, truth, one)}, runs=100.0)
    assert (found.temperature, found.even) == (1.0, 0.1)  # a share of .08 would be best
    sure = 0.9 / (1.0 + np.exp(-3.0)) + 0.05
    expected = -(90 * np.log(0.95) + 6 * np.log(sure) + 4 * np.log(0.05)) / 100
    assert found.loss == pytest.approx(expected, abs=1e-9)
    # with less to gain than `COST` it is not used: two runs that are unsure
    unsure = np.array([[1.0, 0.0], [0.0, 1.0]] + [[3.0, 0.0]] * 8)
    (found,) = judged({candidate: losses(unsure, np.zeros(10, np.int64), np.ones(10))}, runs=10.0)
    assert found.even == 0.0
    tree = found.to_json()
    del tree["even"]  # as older versions wrote it
    assert Judged.from_json(tree) == found


def test_lda_beside_shrinks_as_sklearns_oas():
    from sklearn.covariance import OAS

    F, labels, _ = cycles(counts=(4, 4))
    runs = [str(c) for c in range(len(F))]
    layers = Layers.of(sums(F, labels, runs), Q)
    sd = np.sqrt(np.diagonal(layers.over_cycles) + layers.floor)
    gaps = (F - layers.means[labels]) / sd
    freedom = len(F) - 3
    C = gaps.T @ gaps / freedom
    own = OAS(assume_centered=True).fit(gaps).covariance_ * len(F) / freedom
    np.testing.assert_allclose(shrunken_correlation(C, len(F)), own, rtol=1e-6, atol=1e-9)
    found = log_posterior(lda_densities(layers, F), 1.0)
    sigma = shrunken_correlation(layers.over_cycles / np.outer(sd, sd), freedom)
    inverse = np.linalg.inv(sigma * np.outer(sd, sd))
    d = [np.einsum("cd,de,ce->c", F - m, inverse, F - m) for m in layers.means]
    np.testing.assert_allclose(found, log_posterior(-0.5 * np.stack(d, axis=1), 1.0), atol=1e-6)


def test_metrics_of_a_classs_own_come_one_after_another():
    F, labels, runs = cycles()
    total = sums(F, labels, runs, own=True)
    layers = Layers.of(total, Q)
    found = list(metrics(Candidate("cell", 0.3, own=True), layers, total))
    assert len(found) == 3
    expected = layers.of_class(total, 2).covariance("cell", 0.3)
    np.testing.assert_allclose(np.linalg.inv(found[2].precision), expected, rtol=1e-6)


@pytest.mark.parametrize("own", [False, True])
def test_held_out_cycles_are_judged_by_sums_without_their_run(own):
    F, labels, runs = cycles()
    folds = folds_of_runs(labels, runs, folds=3)
    data = Cycles(F, np.ones((len(F), Q)), labels, tuple(runs), folds, 3, Q, own=own)
    shape = Candidate("cell", 0.3, own=own)
    found = held_out(data, [shape])[shape]
    for c in (0, 17, 30):
        rest = folds != folds[c]
        left = sums(
            F[rest], labels[rest], [r for r, k in zip(runs, rest, strict=True) if k], own=own
        )
        layers = Layers.of(left, Q)
        for k in range(3):
            used = layers.of_class(left, k) if own else layers
            sigma = used.covariance("cell", 0.3)
            d = F[c] - layers.means[k]
            assert found.square[c, k] == pytest.approx(d @ np.linalg.solve(sigma, d), rel=1e-7)
            assert found.log_det[c, k] == pytest.approx(np.linalg.slogdet(sigma)[1])
            for stranger in (-1, *(j for j in range(3) if j != k)):
                others = [layers.means[j] for j in range(3) if j not in (k, stranger)]
                expected = naive.distance_towards(F[c], layers.means[k], others, sigma)
                assert found.towards[c, k, 1 + stranger] == pytest.approx(expected[0], rel=1e-6)
    np.testing.assert_array_equal(found.directions, [2, 1, 1, 1])
