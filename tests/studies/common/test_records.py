"""A metric's mean over runs and its interval."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pfedhgp.studies.common.records import interval


def test_intervals_are_students():
    values = [0.3, -1.2, 0.8, 2.5]
    mean, (low, high) = interval(values)
    want = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    np.testing.assert_allclose((low, high), want)
    assert mean == pytest.approx(0.6)
    assert interval([1.5]) == (1.5, [None, None])
