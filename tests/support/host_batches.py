"""Clients for tests of the host's solver: cases, and the comparison with the compiled twin."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from pfedhgp.inference.lbfgs import Pairs
from pfedhgp.inference.structured.coordinates import parameters
from pfedhgp.inference.structured.host import step as host
from pfedhgp.model.blocks import Structure
from support.client_batches import Batch, on_jax, two_layers, wavy

# The first three are one program of JAX's, the twin's compilation being what takes time here.
CASES = {
    "plain": {},
    "missing cells": {"missing": True},
    "padding": {"padding": True, "missing": True},
    "two inputs, replicates, one noise": {"kernel": wavy, "inputs": 2, "replicates": True, "noise": "scalar"},
    "full noise": {"noise": "full", "missing": True},
    "full noise, replicates": {"noise": "full", "missing": True, "replicates": True},
    "no deviations": {"structure": Structure(deviation=False), "replicates": True},
    "no local layer": {"local": 0, "local_size": 0},
    "no global layer": {"latents": 0},
    "client loadings": {"structure": Structure(client_loadings=True), "missing": True},
    "deviation kernel": {"kernel": two_layers},
    "tied": {"structure": Structure(tied=True)},
    "tied, no deviations": {"structure": Structure(tied=True, deviation=False), "kernel": wavy},
    "tied, no global layer": {"structure": Structure(tied=True, deviation=False), "latents": 0, "size": 0},
}  # fmt: skip
RARER = (
    "deviation kernel",
    "full noise",
    "no deviations",
    "no local layer",
    "no global layer",
    "tied, no deviations",
)
"""Left to the slow suite: their parts are those of the others."""


def some_cases(*names, slow=RARER):
    cases = [
        pytest.param(CASES[name], marks=[pytest.mark.slow] if name in slow else [], id=name)
        for name in names
    ]
    return pytest.mark.parametrize("case", cases)


every_case = some_cases(*CASES)


def host_batch(given: Batch) -> host.HostBatch:
    """The batch as the host holds it in a round."""
    block, jitter = given.broadcast.block, float(given.broadcast.jitter)
    cells = host.host_cells(given.options, given.rows, given.blocks, block.kernels)
    assert cells is not None
    own = host.HostClients(
        given.options,
        given.rows,
        cells,
        given.blocks,
        given.expected,
        given.jitter,
        given.floor,
        no_pairs(given),
    )
    return host.batch_of(own, block, jitter, given.others)


def no_pairs(given: Batch) -> Pairs:
    """For searches without earlier ones."""
    leaves = jax.tree.leaves(parameters(given.blocks))
    return Pairs.none(len(given.jitter), sum(leaf[0].size for leaf in leaves))


def each_client(given: Batch, *names: str):
    """Each client's part of the batch's fields `names`, in JAX's arrays."""
    for i in range(len(given.jitter)):
        yield i, on_jax([jax.tree.map(lambda v, i=i: v[i], getattr(given, name)) for name in names])


def compared(found, expected, rel=1e-9, scale=None):
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    size = np.max(np.abs(expected), initial=0.0) if scale is None else scale
    np.testing.assert_allclose(found, expected, rtol=rel, atol=rel * max(size, 1e-6))
