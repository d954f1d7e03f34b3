"""Openings and posteriors in NumPy against the compiled solver."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import numpy as np

from pfedhgp.inference.structured import client_step
from pfedhgp.inference.structured.host import step as host
from pfedhgp.inference.structured.posterior import batched_posteriors
from support.client_batches import batch, on_jax
from support.host_batches import CASES, compared, host_batch, some_cases


@some_cases("plain", "missing cells", "padding", "full noise", "tied", slow=("full noise", "tied"))
def test_opening(case):
    """Its bound and its sums are those above; its own is the choice of the noise."""
    given = batch(**case)
    nothing = jax.tree.map(np.zeros_like, given.others)
    noise, sums, nats, _ = host.opening(host_batch(replace(given, others=nothing)))
    expected = client_step.batched_opening(
        given.options, *on_jax((given.broadcast, given.blocks, given.rows, given.jitter))
    )
    jax.tree.map(compared, noise, expected[0])
    compared(sums.U, expected[1].U, rel=1e-8)
    compared(sums.evidence, expected[1].evidence, rel=1e-8)
    compared(nats, expected[2], rel=1e-6)


def test_opening_of_a_client_whose_matrix_fails_is_not_a_number():
    given = batch()
    inputs = given.blocks.inputs.copy()
    inputs[1] = np.nan
    made = host_batch(replace(given, blocks=replace(given.blocks, inputs=inputs)))
    sums = host.opening(made).sums
    assert list(np.isnan(sums.evidence)) == [False, True, False]


@some_cases(*CASES, slow=())
def test_posteriors(case):
    given = batch(**case)
    made = host_batch(given)
    found = host.posteriors(made, made.start)
    expected = batched_posteriors(
        given.options, *on_jax((given.broadcast.block, given.blocks, given.rows,
                                given.broadcast.jitter, given.jitter))
    )  # fmt: skip
    jax.tree.map(partial(compared, rel=1e-8), found, expected)
