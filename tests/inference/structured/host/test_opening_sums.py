"""Sums at the start by the covariance of cells, against those by the weights."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np

from pfedhgp.inference.structured.host import step as host
from pfedhgp.inference.structured.host.few_cells import FewCells
from pfedhgp.inference.structured.host.opening_sums import opening_sums
from pfedhgp.inference.structured.host.statistics import statistics
from pfedhgp.model.blocks import Structure
from support.client_batches import batch
from support.host_batches import CASES, compared, host_batch, some_cases

SUMS = ("evidence", "U", "y", "shared_residual", "deviation_power", "deviation_square", "local_square",
        "noise", "clients", "residual")  # fmt: skip
ALIKE = [
    name
    for name, case in CASES.items()
    if not case.get("structure", Structure()).client_loadings  # those have B_g,i to send
]


def at_the_start(**case) -> host.HostBatch:
    """A batch of clients to whom the others have said nothing."""
    given = batch(**case)
    return host_batch(replace(given, others=jax.tree.map(np.zeros_like, given.others)))


@some_cases(*ALIKE, slow=())
def test_sums_by_cells_are_those_by_weights(case):
    made = at_the_start(**case)
    few = FewCells.of(made.objective)
    sums, small = opening_sums(few, made.start, made.shared)
    expected = statistics(made.objective, made.start, made.shared, derivatives=False)
    for name in SUMS:
        compared(getattr(sums, name), getattr(expected, name), rel=1e-8)
    np.testing.assert_array_equal(small.U(), sums.U)
    np.testing.assert_array_equal(small.y(), sums.y)
    assert sums.d_J.size == expected.d_J.size == 0


def test_few_cells_at_the_start_know_nothing_of_the_others():
    """The same density as with the general form, at J = 1e-300: S₀ = I to the last bit."""
    made = at_the_start()
    nearly = replace(made.objective, J=np.full_like(made.objective.J, 1e-300))
    assert made.objective.nothing_known()
    assert not nearly.nothing_known()
    rows = made.start.rows()
    for found, expected in zip(
        FewCells.of(made.objective).value_and_gradient(rows),
        FewCells.of(nearly).value_and_gradient(rows),
        strict=True,
    ):
        compared(found, expected, rel=1e-12)


def test_small_clients_open_by_cells_and_keep_what_they_sent():
    """Many shared inputs and few rows; with many rows the weights are fewer."""
    small = host.opening(at_the_start(rows=3, size=12))
    assert small.cell_sums is not None
    np.testing.assert_array_equal(small.cell_sums.U(), small.sums.U)
    assert host.opening(at_the_start(rows=40, size=4, local_size=4)).cell_sums is None
