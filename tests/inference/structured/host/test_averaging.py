"""Averages over parameters against the compiled ones."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import numpy as np

from pfedhgp.inference.structured import averaging
from pfedhgp.inference.structured.host import step as host
from support.client_batches import batch, on_jax
from support.host_batches import compared, host_batch, some_cases


@some_cases(
    "plain",
    "no deviations",
    "tied",
    "no local layer",
    slow=("no deviations", "tied", "no local layer"),
)
def test_averages(case):
    given = batch(**case)
    made = host_batch(given)
    found = host.average(made, averaging.Averaging())
    expected = averaging.batched_average(
        given.options, averaging.Averaging(), *on_jax((given.broadcast.block, given.broadcast.jitter,
        given.others, given.blocks, given.expected, given.rows, given.jitter, given.floor)),
    )  # fmt: skip
    assert found.tangents is not None
    compared(found.tangents.reach, expected.tangents.reach)
    # A direction and its opposite are the same: each is turned to where its first weight is positive.
    weights = np.asarray(expected.tangents.weights)
    largest = np.argmax(np.abs(weights), axis=2)[..., None]
    sign = np.sign(np.take_along_axis(np.asarray(found.tangents.weights) * weights, largest, 2))
    halves = [a * sign.reshape(*sign.shape[:2], *[1] * (a.ndim - 2)) for a in found.tangents.moved]
    for mine, theirs in zip(halves, expected.tangents.moved, strict=True):
        compared(mine, theirs, rel=1e-5)
    jax.tree.map(partial(compared, rel=1e-5), found.tangents.middle, expected.tangents.middle)
    without = [replace(each, tangents=None) for each in (found, expected)]
    jax.tree.map(partial(compared, rel=1e-5), *without)
