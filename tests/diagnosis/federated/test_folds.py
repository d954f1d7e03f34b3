"""Folds by a hash of a run's values: of the run itself alone, and never all runs of a class at once."""

from __future__ import annotations

import numpy as np

from pfedhgp.diagnosis.federated.folds import BINS, bin_of_run, bins_of_runs, folds_of_bins


def test_a_runs_bin_is_that_of_its_values():
    rng = np.random.default_rng(0)
    cycles = rng.normal(size=(4, 2, 5))
    cycles[1, 0, 2] = np.nan
    found = bin_of_run(cycles, 0)
    assert found == bin_of_run(cycles[::-1], 0)
    zero, negative = np.zeros((1, 1, 3)), -np.zeros((1, 1, 3))
    assert bin_of_run(zero, 0) == bin_of_run(negative, 0)
    assert found != bin_of_run(cycles, 1)
    assert found != bin_of_run(cycles + 1e-12, 0)


def test_cycles_of_a_run_share_its_bin_and_names_are_local_to_a_class():
    rng = np.random.default_rng(1)
    cycles, labels = rng.normal(size=(6, 1, 3)), np.array([0, 0, 0, 1, 1, 1])
    found = bins_of_runs(cycles, list("aabaab"), labels, 0)
    assert found[0] == found[1] == bin_of_run(cycles[:2], 0)
    assert found[3] == found[4] == bin_of_run(cycles[3:5], 0)
    assert len(set(found.tolist())) == 4


def test_folds_are_even_and_no_class_loses_all_its_runs_at_once():
    rng = np.random.default_rng(2)
    counts = np.zeros((4, BINS))
    for k, runs in enumerate((1, 2, 7, 30)):
        np.add.at(counts[k], rng.choice(BINS, runs, replace=False), 1.0)
    counts[0, np.flatnonzero(counts[0])] = 2.0  # two runs in one bin cannot be told apart
    found = folds_of_bins(counts, list("dcba"), 7)
    assert np.all(found[counts == 0] == -1)
    assert np.all(found[0] == -1)
    for k, runs in ((1, 2), (2, 7), (3, 30)):
        sizes = np.bincount(found[k, counts[k] > 0].astype(int), minlength=7)
        assert sizes.sum() == runs
        assert np.ptp(sizes) <= 1
    turned = folds_of_bins(counts[::-1], list("abcd"), 7)
    np.testing.assert_array_equal(turned[::-1], found)
