"""Rows that count for nothing change nothing: any sizes, padded to any length, on the host and compiled."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfedhgp.inference.structured import client_step
from pfedhgp.inference.structured.bound import cavity_bound
from pfedhgp.inference.structured.host import step as host
from pfedhgp.inference.structured.host.few_cells import FewCells
from pfedhgp.model.blocks import Rows, Structure
from support import twins
from support.client_batches import Batch, batch, on_jax
from support.host_batches import host_batch

CLIENTS = 3
UNTIED, TIED = Structure(), Structure(tied=True)


def of_sizes(sizes: list[int], seed: int, structure: Structure, *, unseen: bool) -> Batch:
    """Clients of these sizes, padded to the longest, with missing cells; one may lack a whole output."""
    made = batch(seed, structure=structure, clients=CLIENTS, rows=max(sizes))
    rng = np.random.default_rng(seed)
    mask = (rng.uniform(size=made.rows.mask.shape) > 0.2).astype(float)
    mask[:, 0] = 1.0
    if unseen and mask.shape[2] > 1:
        mask[1, :, 0] = 0.0
    for own, size in zip(mask, sizes, strict=True):
        own[size:] = 0.0
    return replace(
        made, rows=Rows(made.rows.X, np.where(mask > 0, made.rows.Y, 0.0), mask, None, None, None)
    )


def padded(made: Batch, length: int) -> Batch:
    """With as many rows, the last one's inputs repeated."""

    def longer(array: np.ndarray, mode: str) -> np.ndarray:
        return np.pad(array, ((0, 0), (0, length - array.shape[1]), (0, 0)), mode=mode)

    X, Y, mask = made.rows.X, made.rows.Y, made.rows.mask
    zeros = (longer(values, "constant") for values in (Y, mask))
    return replace(made, rows=Rows(longer(X, "edge"), *zeros, None, None, None))


def alone(made: Batch, i: int, size: int) -> Batch:
    """Client `i` by itself, without padding."""
    part = slice(i, i + 1)
    others, blocks, expected = jax.tree.map(
        lambda leaf: leaf[part], (made.others, made.blocks, made.expected)
    )
    rows = Rows(*(v[part, :size] for v in (made.rows.X, made.rows.Y, made.rows.mask)), None, None)
    own = {"jitter": made.jitter[part], "floor": made.floor[part]}
    return replace(made, others=others, blocks=blocks, expected=expected, rows=rows, **own)


def close(found, expected) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    size = np.max(np.abs(expected), initial=0.0)
    # Residuals are differences of numbers of size 1/σ², whose rounding they keep.
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * size + 1e-13)


def on_host(made: Batch) -> tuple:
    """Everything that a client's rows go into: bound and gradient, sums, opening, posterior."""
    found = host_batch(made)
    psi = found.start.rows()
    sums, nats = host.send(found, found.start, derivatives=False)
    return (
        found.objective.value_and_gradient(psi),
        FewCells.of(found.objective).value_and_gradient(psi),
        (sums, nats, host.opening(found)),
        host.posteriors(found, found.start),
    )


some_clients = st.tuples(
    st.lists(st.integers(1, 12), min_size=CLIENTS, max_size=CLIENTS),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)


@settings(max_examples=25, deadline=None)
@given(some_clients, st.integers(0, 9), st.sampled_from([None, 0, 2]), st.booleans())
def test_padding_changes_nothing_on_the_host(clients, extra, long, tied):
    """Against each client alone; one of them may have one row, or many times as many as the others."""
    sizes, seed, unseen = clients
    sizes = [60 if i == long else size for i, size in enumerate(sizes)]
    made = of_sizes(sizes, seed, TIED if tied else UNTIED, unseen=unseen)
    together = on_host(padded(made, max(sizes) + extra))
    for i, size in enumerate(sizes):
        expected = on_host(alone(made, i, size))
        jax.tree.map(lambda a, b, i=i: close(a[i], b[0]), together, expected)


def compiled(structure: Structure):
    """The compiled path's bound and gradient and sums, for a batch; compiled once a length."""

    def one(broadcast, others, client, rows, jitter):
        options = client_step.StepOptions(structure)
        model = client_step.model_of(options, broadcast, client, rows, jitter)

        def bound(block):
            return cavity_bound(replace(model, client=block).grams(), *others)

        value = jax.value_and_grad(bound)(client)
        return value, client_step.send(options, model, others, broadcast.derivatives)

    def each(broadcast, *own):
        return jax.vmap(partial(one, broadcast))(*own)

    return twins.compiled(each)


SOLVERS = {UNTIED: compiled(UNTIED), TIED: compiled(TIED)}


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(some_clients, st.booleans())
def test_padding_changes_nothing_in_the_compiled_solver(clients, tied):
    """The lengths of a ladder against each other, and sums against the host's without padding."""
    sizes, seed, unseen = clients
    structure = TIED if tied else UNTIED
    made = of_sizes(sizes, seed, structure, unseen=unseen)
    short, long = (
        SOLVERS[structure](
            *on_jax((made.broadcast, made.others, made.blocks, own.rows, made.jitter))
        )
        for own in (padded(made, 12), padded(made, 24))
    )
    jax.tree.map(close, long, short)
    for i, size in enumerate(sizes):
        sums = on_host(alone(made, i, size))[2][0]
        for name in ("evidence", "U", "y", "noise", "clients"):
            close(getattr(long[1][0], name)[i], getattr(sums, name)[0])
