"""Few runs a class: folds that hold out a run of each, covariances of a class's own, and false alarms."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from pfedhgp.diagnosis import training
from pfedhgp.diagnosis.candidates import candidates_for
from pfedhgp.diagnosis.decision import diagnose
from pfedhgp.diagnosis.federated.folds import BINS, folds_of_bins
from pfedhgp.diagnosis.held_out_runs import even_folds, folds_of_runs
from pfedhgp.diagnosis.training import How, train

GRID = np.linspace(0.0, 1.0, 12)[:, None]
CHANNELS = tuple("pqrs")


def bumps(counts, seed, *, size, level, gain=0.0, length=8):
    """({class: cycles}, {class: runs}): each class has a bump in a channel; runs differ by level and gain."""
    rng = np.random.default_rng(seed)
    x, Q = GRID[:, 0], len(CHANNELS)
    bump = np.exp(-0.5 * ((x - 0.5) / 0.1) ** 2)
    cycles, block = {}, {}
    for k, count in enumerate(counts):
        shape = np.stack([np.sin(3.0 * x + q) for q in range(Q)])
        each = (
            level * rng.normal(size=(count, Q, 1)) + gain * rng.normal(size=(count, Q, 1)) * shape
        )
        shape[k % Q] += (1.0 if k < Q else -1.0) * size * bump
        noise = 0.1 * rng.normal(size=(count * length, Q, len(x)))
        cycles[f"class {k}"] = shape + np.repeat(each, length, axis=0) + noise
        block[f"class {k}"] = np.repeat(np.arange(count), length).tolist()
    return cycles, block


def quietly(cycles, block, how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(GRID, cycles, block, channels=CHANNELS, how=how)


def found_by(classifier, cycles):
    evidence = classifier.evidence(GRID, np.moveaxis(cycles, 1, 2), novelty=True)
    return diagnose(evidence, calibration=classifier.calibration)


def accuracy(classifier, new):
    return np.mean([np.mean(found_by(classifier, Y).best == k) for k, Y in enumerate(new.values())])


@pytest.mark.parametrize(("counts", "folds"), [((3, 3, 3), 3), ((4, 4, 12), 4), ((20, 8), 7)])
def test_every_fold_holds_out_a_run_of_every_class(counts, folds):
    labels = np.repeat(np.arange(len(counts)), counts)
    owners = [str(b) for b in range(len(labels))]
    bins = np.zeros((len(counts), BINS))
    for k, count in enumerate(counts):
        bins[k, np.random.default_rng(k).choice(BINS, count, replace=False)] = 1.0
    by_bin = folds_of_bins(bins, [str(k) for k in range(len(counts))], 7)
    found = folds_of_runs(labels, owners)
    for k in range(len(counts)):
        assert set(found[labels == k].tolist()) == set(range(folds))
        assert set(by_bin[k][bins[k] > 0].tolist()) == set(range(folds))


def test_one_class_with_few_runs_among_others_with_many_does_not_decide():
    assert even_folds([3, 10, 10, 10]) == 7
    assert even_folds([3, 5, 7, 10]) == 5
    assert even_folds([3, 30]) == 3


def test_a_class_with_two_runs_does_not_make_folds_of_half_of_all_runs():
    assert even_folds([2, 12, 12]) == 7
    assert even_folds([2, 3]) == 3
    assert even_folds([1, 1]) == 7
    assert even_folds([9, 9], most=4) == 4


@pytest.mark.parametrize("count", [3, 4])
def test_a_classs_own_covariance_does_not_win_by_what_folds_give_away(count, monkeypatch):
    """48 coordinates and runs that hardly differ: a covariance a class, of 3 or 4 runs, is mostly noise."""
    right: dict[str, list[float]] = {"all": [], "shared": []}
    for seed in range(3):
        cycles, block = bumps((count,) * 5, seed, size=0.12, level=0.02)
        new, _ = bumps((12,) * 5, 50 + seed, size=0.12, level=0.02)
        for which in right:
            with monkeypatch.context() as patch:
                if which == "shared":
                    patch.setattr(training, "candidates_for", shared_alone)
                trained = quietly(cycles, block, How(thresholds=False))
            right[which].append(accuracy(trained.classifier, new))
    assert np.mean(right["all"]) >= np.mean(right["shared"]) - 0.01


def shared_alone(sums, size):
    return tuple(each for each in candidates_for(sums, size) if not each.own)


def test_if_runs_hardly_differ_it_is_as_good_as_lda():
    ours, other = [], []
    for seed in range(3):
        cycles, block = bumps((5,) * 4, seed, size=0.15, level=0.02)
        new, _ = bumps((12,) * 4, 50 + seed, size=0.15, level=0.02)
        lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
        flat, truth = (
            [Y.reshape(len(Y), -1) for Y in cycles.values()],
            np.repeat(np.arange(4), [len(Y) for Y in cycles.values()]),
        )
        lda.fit(np.concatenate(flat), truth)
        guess = [lda.predict(Y.reshape(len(Y), -1)) == k for k, Y in enumerate(new.values())]
        other.append(np.mean(guess))
        ours.append(accuracy(quietly(cycles, block, How(thresholds=False)).classifier, new))
    assert np.mean(ours) >= np.mean(other) - 0.01


def test_new_runs_of_a_class_with_one_run_are_hardly_flagged():
    """1% is asked. Its mean is one run, so new runs are √2 times as far from it as from a known mean."""
    shares = []
    for seed in range(4):
        cycles, block = bumps((8, 8, 1), seed, size=0.6, level=0.3, gain=0.1, length=5)
        new, owners = bumps((25, 25, 25), 50 + seed, size=0.6, level=0.3, gain=0.1, length=5)
        classifier = quietly(cycles, block, How()).classifier
        none = found_by(classifier, new["class 2"]).none
        shares.append(len(set(np.asarray(owners["class 2"])[none].tolist())) / 25)
        plain = replace(classifier, wider_limits=False)
        assert found_by(plain, new["class 2"]).none.sum() >= none.sum()
    assert np.mean(shares) <= 0.05
