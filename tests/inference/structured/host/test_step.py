"""The client's step in NumPy against the compiled solver, whose gradients are JAX's own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from pfedhgp.inference.structured import averaging, client_step
from pfedhgp.inference.structured.bound import cavity_bound
from pfedhgp.inference.structured.host import search
from pfedhgp.inference.structured.host import step as host
from pfedhgp.inference.structured.host.few_cells import FewCells
from pfedhgp.inference.structured.posterior import batched_posteriors
from pfedhgp.model.blocks import Structure, from_free, to_free
from support.client_batches import Batch, batch, on_jax, rbf, wavy

CASES = {
    "plain": {},
    "kernels": {"kernel": wavy},
    "two inputs": {"kernel": wavy, "inputs": 2},
    "missing cells": {"missing": True},
    "replicates": {"replicates": True},
    "padding": {"padding": True, "missing": True},
    "one noise": {"noise": "scalar"},
    "full noise": {"noise": "full", "missing": True},
    "full noise, replicates": {"noise": "full", "replicates": True},
    "no deviations": {"structure": Structure(deviation=False)},
    "no local layer": {"local": 0, "local_size": 0},
    "no global layer": {"latents": 0},
    "tied": {"structure": Structure(tied=True)},
    "tied, no deviations": {"structure": Structure(tied=True, deviation=False), "kernel": wavy},
    "tied, no global layer": {"structure": Structure(tied=True, deviation=False), "latents": 0},
}  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def host_batch(given: Batch) -> host.HostBatch:
    cells = host.serves(given.options, given.rows, given.blocks, given.broadcast.block.kernels)
    assert cells is not None
    return host.batch_of(
        given.options, cells, given.rows, given.broadcast.block, float(given.broadcast.jitter),
        given.blocks, given.anchors, given.others, given.jitter, given.floor,
    )  # fmt: skip


def models(given: Batch):
    """Each client's model in JAX, with the others' evidence."""
    for i in range(len(given.jitter)):
        own, rows, others = jax.tree.map(
            lambda v, i=i: v[i], on_jax((given.blocks, given.rows, given.others))
        )
        yield (
            i,
            client_step.model_of(
                given.options, on_jax(given.broadcast), own, rows, given.jitter[i]
            ),
            others,
        )


def compared(found, expected, rel=1e-9, scale=None):
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    size = np.max(np.abs(expected), initial=0.0) if scale is None else scale
    np.testing.assert_allclose(found, expected, rtol=rel, atol=rel * max(size, 1e-6))


@every_case
def test_bound_and_gradient(case):
    given = batch(**case)
    made = host_batch(given)
    value, gradient = made.objective.value_and_gradient(made.start.rows())
    for i, model, others in models(given):
        anchor = to_free(jax.tree.map(lambda v, i=i: v[i], on_jax(given.anchors)))

        def density(free, model=model, others=others, anchor=anchor, i=i):
            prior = client_step.log_prior(
                given.options.structure,
                free,
                anchor,
                jnp.asarray(given.broadcast.block.phi),
                given.floor[i],
            )
            return cavity_bound(replace(model, client=from_free(free)).grams(), *others) + prior

        expected, slope = jax.value_and_grad(density)(to_free(model.client))
        compared(value[i], expected)
        compared(gradient[i], ravel_pytree(averaging.parameters(slope, noise=True))[0], rel=1e-8)


@every_case
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
    held = few.with_held_kernels(made.start).value_and_gradient(rows)[1]
    kernels = search.kernel_count(made.start)
    compared(held[:, kernels:], gradient[:, kernels:], rel=1e-12)


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


@every_case
def test_sums_and_their_derivatives(case):
    given = batch(**case)
    sums, nats = host.send(host_batch(given), host_batch(given).start, derivatives=True)
    for i, model, others in models(given):
        expected, lost = client_step.send(given.options, model, others, jnp.asarray(1))
        compared(nats[i], lost, scale=float(expected.residual))
        for name in ("evidence", "U", "y", "shared_residual", "deviation_power", "deviation_square",
                     "local_square", "noise", "clients", "residual"):  # fmt: skip
            compared(getattr(sums, name)[i], getattr(expected, name), rel=1e-8)
        for name in ("d_evidence", "d_h", "d_J"):
            compared(getattr(sums, name)[i], getattr(expected, name), rel=1e-6)
        compared(sums.curvature[i], expected.curvature, rel=1e-5)


@every_case
def test_opening(case):
    given = batch(**case)
    nothing = jax.tree.map(np.zeros_like, given.others)
    noise, sums, nats = host.opening(host_batch(replace(given, others=nothing)))
    expected = client_step.batched_opening.function(
        given.options,
        on_jax(given.broadcast),
        on_jax(given.blocks),
        on_jax(given.rows),
        jnp.asarray(given.jitter),
    )
    jax.tree.map(compared, noise, expected[0])
    compared(sums.U, expected[1].U, rel=1e-8)
    compared(sums.evidence, expected[1].evidence, rel=1e-8)
    compared(nats, expected[2], rel=1e-6)


@pytest.mark.parametrize("name", ["plain", "padding", "tied", "full noise"])
def test_search_finds_what_the_compiled_one_finds(name):
    given = batch(**CASES[name], evaluations=25)
    _, sums, info = host.step(host_batch(given), given.broadcast)
    expected = client_step.batched_step(
        given.options, *on_jax((given.broadcast, given.others, given.blocks, given.anchors, given.rows,
                                given.jitter, given.floor))
    )  # fmt: skip
    compared(info.before, expected[2].before)
    compared(info.after, expected[2].after, rel=1e-6)
    compared(sums.evidence, expected[1].evidence, rel=1e-3)


@every_case
def test_posteriors(case):
    given = batch(**case)
    made = host_batch(given)
    found = host.posteriors(made, made.start)
    expected = batched_posteriors.function(
        given.options, on_jax(given.broadcast.block), on_jax(given.blocks), on_jax(given.rows),
        given.broadcast.jitter, jnp.asarray(given.jitter),
    )  # fmt: skip
    jax.tree.map(partial(compared, rel=1e-8), found, expected)


@pytest.mark.parametrize("name", ["plain", "replicates", "tied", "no local layer"])
def test_averages(name):
    given = batch(**CASES[name])
    made = host_batch(given)
    found = host.average(made, averaging.Averaging())
    expected = averaging.batched_average(
        given.options, averaging.Averaging(), *on_jax((given.broadcast.block, given.broadcast.jitter,
        tuple(given.others), given.blocks, given.anchors, given.rows, given.jitter, given.floor)),
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
