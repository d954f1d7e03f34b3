"""Groups of points: evidence against dense Gaussians, one group, each alone, and what lies between."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp.diagnosis.grouping import RATIOS, by_size, evidence, grouped
from support import reference_diagnosis as naive


def points(centres, count: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    centres = np.asarray(centres, float)
    truth = np.repeat(np.arange(len(centres)), count)
    return centres[truth] + rng.normal(size=(len(truth), centres.shape[1])), truth


@pytest.mark.parametrize("labels", [[0, 0, 0, 0, 0], [0, 1, 0, 2, 1], [0, 1, 2, 3, 4]])
def test_evidence_is_that_of_dense_gaussians(labels):
    x = np.random.default_rng(1).normal(size=(5, 3))
    found = evidence(x, np.asarray(labels))
    for at in (0, 20, 40):
        expected = naive.partition_evidence(x, np.asarray(labels), RATIOS[at])
        constant = -0.5 * x.size * np.log(2 * np.pi)
        assert found[at] + constant == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_as_many_groups_as_there_are(groups):
    x, truth = points(12.0 * np.eye(4)[:groups], 9)
    order = np.random.default_rng(2).permutation(len(x))
    found = grouped(x[order], 1.0)
    assert len(set(found.tolist())) == groups
    for k in range(groups):
        assert len(set(found[truth[order] == k].tolist())) == 1
    together = grouped(x, 1.0)[order]
    assert np.array_equal(found[:, None] == found, together[:, None] == together)


def test_points_far_from_each_other_are_each_alone():
    x, _ = points(1e3 * np.random.default_rng(3).normal(size=(7, 3)), 1)
    assert sorted(grouped(x, 1.0).tolist()) == list(range(7))


def test_one_point_is_one_group_and_more_noise_joins():
    assert grouped(np.ones((1, 2)), 1.0).tolist() == [0]
    x, _ = points([[0.0, 0.0], [12.0, 0.0]], 6)
    assert len(set(grouped(x, 1.0).tolist())) == 2
    assert set(grouped(x, 200.0).tolist()) == {0}


def test_numbers_go_by_size_and_then_by_place():
    assert by_size(np.array([7, 3, 3, 9, 3, 7, 1])).tolist() == [1, 0, 0, 2, 0, 1, 3]
