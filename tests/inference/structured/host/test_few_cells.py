"""The objective by the covariance of cells against that by the weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pfedhgp.inference.structured.host import search
from pfedhgp.inference.structured.host.few_cells import FewCells
from support.client_batches import batch, rbf, wavy
from support.host_batches import CASES, compared, host_batch, some_cases


@some_cases(*CASES, slow=())
def test_few_cells_have_the_same_objective(case):
    """By the covariance of cells instead of that of weights; also the weights' means."""
    made = host_batch(batch(**case))
    rows = made.start.rows()
    few = FewCells.of(made.objective)
    value, gradient = few.value_and_gradient(rows)
    expected, slope = made.objective.value_and_gradient(rows)
    compared(value, expected)
    compared(gradient, slope, rel=1e-7)
    heights = made.objective.heights(rows)
    compared(few.heights(rows).value, heights.value)
    compared(few.heights(rows).mean, heights.mean, rel=1e-7)
    kernels = search.kernel_count(made.start)
    for density, whole in ((few, gradient), (made.objective, slope)):
        held = density.with_held_kernels(made.start).value_and_gradient(rows)[1]
        compared(held[:, kernels:], whole[:, kernels:], rel=1e-12)


@pytest.mark.parametrize("missing", [False, True])
def test_inducing_inputs_that_nobody_has_are_left_out(missing):
    """For all clients, and for those with fewest inputs; kernels may be held before or after."""
    made = host_batch(batch(padding=True, missing=missing, local_size=6))
    active = made.objective.local_inputs.active
    assert active is not None
    fewest = np.flatnonzero(active.sum((1, 2)) == active.sum((1, 2)).min())
    for which in (np.arange(3), fewest):
        rows = made.start.rows()[which]
        for density in (made.objective, FewCells.of(made.objective)):
            some = density.of_some(which)
            value, gradient = some.without_padding().value_and_gradient(rows)
            compared(value, some.value_and_gradient(rows)[0], rel=1e-12)
            compared(gradient, some.value_and_gradient(rows)[1])
            held = some.with_held_kernels(made.start.of_some(which))
            compared(held.without_padding().value_and_gradient(rows)[0], value, rel=1e-12)
    few = made.objective.of_some(fewest).without_padding()
    assert few.layout.local_size == active.sum((1, 2)).min()


@pytest.mark.parametrize("kernel", [rbf, wavy])
def test_a_local_layer_with_an_input_at_each_row_is_the_exact_one(kernel):
    """Then no features are taken, and only the jitter (1e-8 of k(x, x)) makes a difference."""
    given = batch(kernel=kernel, rows=9, local_size=9, missing=True)
    given = replace(
        given,
        blocks=replace(given.blocks, inputs=given.rows.X[:, ::-1].copy()),
        jitter=np.full(3, 1e-8),
    )
    made = host_batch(given)
    few = FewCells.of(made.objective)
    assert few.rows is not None
    rows = made.start.rows()
    expected, slope = made.objective.value_and_gradient(rows)
    value, gradient = few.value_and_gradient(rows)
    compared(value, expected, rel=1e-6)
    compared(gradient, slope, rel=1e-5)
    compared(few.heights(rows).mean, made.objective.heights(rows).mean, rel=1e-4)
    elsewhere = replace(given, blocks=replace(given.blocks, inputs=given.rows.X + 1e-3))
    assert FewCells.of(host_batch(elsewhere).objective).rows is None
