"""Where training starts: what is compared, what is taken, and that restarts cover decades."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp.gp.kernels import RBF, Periodic
from pfedhgp.inference.starts import candidates
from pfedhgp.inference.starts.census import Scales
from pfedhgp.model.spec import build_spec, like_shared, open_periods, with_periods

SCALES = Scales(short=0.02, long=0.25, short_variance=0.3, long_variance=0.6, noise_variance=0.01)


def spec(kernel=None, outputs=1):
    kernel = RBF() if kernel is None else kernel
    return build_spec(
        inputs=1,
        outputs=outputs,
        kernel=kernel,
        local_kernel=like_shared(kernel),
        layers=("global", "deviation", "local"),
        latents=None,
        local_latents=None,
        noise="auto",
    )


def test_both_scales_are_tried_as_the_shared_one():
    found = candidates.starts_to_compare(spec(), SCALES, compare=True)
    assert [(s.shared, s.local) for s in found] == [(0.25, 0.02), (0.02, 0.25), (0.04, 0.25)]
    assert [s.shared_variance for s in found] == [0.6, 0.3, 0.3]
    assert len(candidates.starts_to_compare(spec(), SCALES, compare=False)) == 1
    assert len(candidates.starts_to_compare(spec(outputs=2), SCALES, compare=True)) == 1


@pytest.mark.parametrize("kernel", [RBF(3.0), Periodic(period=2.0)])
def test_scales_that_were_given_leave_nothing_to_compare(kernel):
    assert candidates.starts_to_compare(spec(kernel), SCALES, compare=True) == [
        candidates.with_long_shared(SCALES)
    ]


def test_another_start_must_be_clearly_better():
    assert candidates.best_of([-100.0, -99.0, -120.0], cells=100.0) == 0
    assert candidates.best_of([-100.0, -94.0, -90.0], cells=100.0) == 2
    assert candidates.best_of([None], cells=100.0) == 0


def test_restarts_take_the_other_scale_and_then_decades():
    first = candidates.with_long_shared(SCALES)
    draw = [
        candidates.restart(SCALES, first, compared=True, attempt=a, seed=3) for a in range(1, 17)
    ]
    assert (draw[0].shared, draw[0].local) == (0.02, 0.25)
    scales = np.log10([[s.shared, s.local] for s in draw[1:]])
    assert np.ptp(scales, axis=0).min() > 1.5
    for corner in (
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ):  # each quarter of the square of decades is visited
        middle = 0.5 * np.log10(candidates.SHORTEST * candidates.LONGEST)
        assert np.any(np.all((scales > middle) == np.array(corner, bool), axis=1))


@pytest.mark.parametrize("seed", [None, 5])
def test_an_output_that_was_never_observed_starts_without_loadings(seed):
    Y = np.random.default_rng(0).normal(size=(9, 3))
    Y[:, 1] = np.nan
    start = candidates.with_long_shared(SCALES)
    block = candidates.client_block(spec(outputs=3), start, Y, np.zeros((2, 1)), RBF(), seed)
    for B in (block.deviation, block.loadings):
        assert not B[1].any()
        assert np.abs(B[[0, 2]]).max(axis=1).min() > 0.0


def test_a_start_is_read_back_from_arrays_and_from_older_files():
    start = candidates.with_short_shared(SCALES)
    assert candidates.Start.from_array(start.as_array()) == start
    assert candidates.Start.from_json(start.as_dict()) == start
    assert candidates.Start.from_json(SCALES.as_dict()) == candidates.with_long_shared(SCALES)


def test_open_periods_are_filled_in_and_given_ones_stay():
    open_, given = Periodic(dims=(0,)), Periodic(period=5.0)
    assert open_periods(spec(RBF() * open_))
    assert not open_periods(spec(given))
    filled = with_periods(spec(open_), np.array([7.0]))
    assert np.asarray(filled.kernel.period).tolist() == [7.0]
    assert with_periods(spec(given), np.array([7.0])).kernel.period == 5.0


def test_a_local_kernel_follows_the_shared_ones_form_and_not_its_lengthscale():
    local = like_shared(2.0 * (RBF(4.0) * Periodic(0.5, period=3.0)))
    rbf, periodic = local.kernels
    assert rbf.lengthscale is None
    assert (periodic.lengthscale, periodic.period) == (0.5, 3.0)
