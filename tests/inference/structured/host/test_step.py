"""The client's step in NumPy against the compiled solver, whose gradients are JAX's own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
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
    "tied": {"structure": Structure(tied=True)},
    "tied, no deviations": {"structure": Structure(tied=True, deviation=False), "kernel": wavy},
    "tied, no global layer": {"structure": Structure(tied=True, deviation=False), "latents": 0, "size": 0},
}  # fmt: skip
RARER = ("full noise", "no deviations", "no local layer", "no global layer", "tied, no deviations")
"""Left to the slow suite: their parts are those of the others."""


def some_cases(*names, slow=RARER):
    cases = [
        pytest.param(CASES[name], marks=[pytest.mark.slow] if name in slow else [], id=name)
        for name in names
    ]
    return pytest.mark.parametrize("case", cases)


every_case = some_cases(*CASES)


def host_batch(given: Batch) -> host.HostBatch:
    cells = host.serves(given.options, given.rows, given.blocks, given.broadcast.block.kernels)
    assert cells is not None
    return host.batch_of(
        given.options, cells, given.rows, given.broadcast.block, float(given.broadcast.jitter),
        given.blocks, given.anchors, given.others, given.jitter, given.floor,
    )  # fmt: skip


@partial(jax.jit, static_argnums=0)
def density_and_slope(options, broadcast, others, block, anchor, rows, jitter, floor):
    """One client's log p(y, ψ), and its gradient by JAX."""
    model = client_step.model_of(options, broadcast, block, rows, jitter)

    def density(free):
        phi = broadcast.block.phi
        prior = client_step.log_prior(options.structure, free, to_free(anchor), phi, floor)
        return cavity_bound(replace(model, client=from_free(free)).grams(), *others) + prior

    return jax.value_and_grad(density)(to_free(block))


@partial(jax.jit, static_argnums=(0, 1))
def sums_and_nats(options, derivatives, broadcast, others, block, rows, jitter):
    """What one client sends."""
    model = client_step.model_of(options, broadcast, block, rows, jitter)
    return client_step.send(options, model, others, 1 if derivatives else None)


def each_client(given: Batch, *names: str):
    """Each client's part of the batch's fields `names`, in JAX's arrays."""
    for i in range(len(given.jitter)):
        yield i, on_jax([jax.tree.map(lambda v, i=i: v[i], getattr(given, name)) for name in names])


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
    broadcast = on_jax(given.broadcast)
    for i, own in each_client(given, "others", "blocks", "anchors", "rows", "jitter", "floor"):
        expected, slope = density_and_slope(given.options, broadcast, *own)
        compared(value[i], expected)
        compared(gradient[i], ravel_pytree(averaging.parameters(slope, noise=True))[0], rel=1e-8)


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


SUMS = ("evidence", "U", "y", "shared_residual", "deviation_power", "deviation_square", "local_square",
        "noise", "clients", "residual")  # fmt: skip
WITH_DERIVATIVES = (
    "two inputs, replicates, one noise", "full noise, replicates", "no deviations", "no global layer", "tied",
    "tied, no deviations", "tied, no global layer",
)  # fmt: skip


@every_case
def test_sums_and_their_derivatives(case):
    """Derivatives do not know the form of the noise, nor replicates: with several groups, once."""
    given = batch(**case)
    wanted = case in [CASES[name] for name in WITH_DERIVATIVES]
    sums, nats = host.send(host_batch(given), host_batch(given).start, derivatives=wanted)
    broadcast = on_jax(given.broadcast)
    for i, own in each_client(given, "others", "blocks", "rows", "jitter"):
        expected, lost = sums_and_nats(given.options, wanted, broadcast, *own)
        compared(nats[i], lost, scale=float(expected.residual))
        for name in SUMS:
            compared(getattr(sums, name)[i], getattr(expected, name), rel=1e-8)
        if not wanted:
            continue
        for name in ("d_evidence", "d_h", "d_J"):
            compared(getattr(sums, name)[i], getattr(expected, name), rel=1e-6)
        compared(sums.curvature[i], expected.curvature, rel=1e-5)


@some_cases("plain", "missing cells", "padding", "full noise", "tied", slow=("full noise", "tied"))
def test_opening(case):
    """Its bound and its sums are those above; its own is the choice of the noise."""
    given = batch(**case)
    nothing = jax.tree.map(np.zeros_like, given.others)
    noise, sums, nats = host.opening(host_batch(replace(given, others=nothing)))
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
    _, sums, _ = host.opening(
        host_batch(replace(given, blocks=replace(given.blocks, inputs=inputs)))
    )
    assert list(np.isnan(sums.evidence)) == [False, True, False]


@some_cases("plain", "padding", "full noise", "tied", slow=("full noise", "tied"))
def test_search_finds_what_the_compiled_one_finds(case):
    given = batch(**case, evaluations=25)
    given = replace(given, broadcast=replace(given.broadcast, derivatives=None))
    _, sums, info = host.step(host_batch(given), given.broadcast)
    expected = client_step.batched_step(
        given.options, *on_jax((given.broadcast, given.others, given.blocks, given.anchors, given.rows,
                                given.jitter, given.floor))
    )  # fmt: skip
    compared(info.before, expected[2].before)
    compared(info.after, expected[2].after, rel=1e-6)
    compared(sums.evidence, expected[1].evidence, rel=1e-3)


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
