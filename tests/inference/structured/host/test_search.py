"""Searches in NumPy against the compiled ones."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np

from pfedhgp.inference.structured import client_step
from pfedhgp.inference.structured.host import few_cells, objective, search
from pfedhgp.inference.structured.host import step as host
from support.client_batches import batch, on_jax
from support.host_batches import compared, host_batch, no_pairs, some_cases


@some_cases("plain", "padding", "full noise", "tied", slow=("full noise", "tied"))
def test_search_finds_what_the_compiled_one_finds(case):
    given = batch(**case, evaluations=25)
    given = replace(given, broadcast=replace(given.broadcast, derivatives=None))
    _, sums, info = host.step(host_batch(given), given.broadcast)
    expected = client_step.batched_step(
        given.options, *on_jax((given.broadcast, given.others, given.blocks, given.expected, given.rows,
                                given.jitter, given.floor, no_pairs(given)))
    )  # fmt: skip
    compared(info.before, expected[2].before)
    compared(info.after, expected[2].after, rel=1e-6)
    compared(sums.evidence, expected[1].evidence, rel=1e-3)


def test_threads_change_nothing(monkeypatch):
    """Each turn waits for the others, so that three threads compute at once."""
    made = host_batch(batch())
    for module in (objective, few_cells):
        monkeypatch.setattr(module, "AT_ONCE", 1)
    rows, barrier = made.start.rows(), threading.Barrier(3)

    def alone(part, turn):
        return part.value_and_gradient(rows[turn])

    def together(part, turn):
        barrier.wait(timeout=60.0)
        return alone(part, turn)

    for density in (made.objective, few_cells.FewCells.of(made.objective)):
        monkeypatch.setattr(search, "cores", lambda: 1)
        expected = search.in_turns(density, alone)
        monkeypatch.setattr(search, "cores", lambda: 3)
        found = search.in_turns(density, together)
        assert len(found) == 3
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(mine[0], theirs[0])
            np.testing.assert_array_equal(mine[1], theirs[1])
