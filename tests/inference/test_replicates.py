"""Cycles on one grid are summed up by means, counts and scatter: nothing is lost."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import reference as ref
import twins
from pfedhgp import linalg
from pfedhgp.data.tables import clients_from
from pfedhgp.inference.grams import accumulate
from pfedhgp.inference.structured import design_of, summary
from pfedhgp.model.blocks import Rows

CYCLES = 4


def repeated(problem: twins.Problem, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """The first client's inputs as a grid, observed in `CYCLES` cycles with gaps: (all rows, merged)."""
    X = np.asarray(problem.rows[0].X)
    Q = problem.rows[0].Y.shape[1]
    cycles = rng.normal(size=(CYCLES, Q, len(X)))
    cycles[rng.uniform(size=cycles.shape) < 0.15] = np.nan
    (merged,), _, _ = clients_from({"a": (X, cycles)})
    flat = np.moveaxis(cycles, 1, 2).reshape(-1, Q)
    seen = np.isfinite(merged.Y)
    return twins.rows_of(np.tile(X, (CYCLES, 1)), flat), Rows(
        jnp.asarray(merged.X),
        jnp.asarray(np.where(seen, merged.Y, 0.0)),
        jnp.asarray(merged.counts),
        jnp.asarray(merged.scatter),
    )


@pytest.mark.parametrize("noise", ["scalar", "outputs", "full"])
def test_exact_replicates_equal_their_rows_in_value_and_gradient(noise):
    problem = twins.make_problem(noise=noise, Q=2, R=2, seed=4)
    one_by_one, merged = repeated(problem, np.random.default_rng(1))
    if (
        noise == "full"
    ):  # with correlated noise only cells that were all observed may share a scatter
        whole = np.asarray(one_by_one.mask).all(axis=1)
        one_by_one = jax.tree.map(lambda a: a[np.flatnonzero(whole)], one_by_one)
        X, Y = np.asarray(one_by_one.X), np.asarray(one_by_one.Y)
        table = {"c": np.array(["a"] * len(X)), "x": X[:, 0], "p": Y[:, 0], "q": Y[:, 1]}
        (found,), _, _ = clients_from(
            pd.DataFrame(table).assign(k=0),
            client="c",
            inputs="x",
            outputs=["p", "q"],
            cycle="k",
        )
        merged = Rows(*(jnp.asarray(v) for v in (found.X, found.Y, found.counts, found.scatter)))
    shared, client = problem.shared, problem.clients[0]
    basis = shared.basis(problem.jitter)
    size = basis.factor.shape[0] * basis.factor.shape[1]

    def pieces(rows, block):
        design = design_of(problem.structure, shared, basis, block, problem.jitter)
        return summary(accumulate(rows, design), size)

    for found, expected in zip(pieces(merged, client), pieces(one_by_one, client), strict=True):
        twins.assert_close(found, expected, 1e-10)
    moved = jax.grad(lambda block: pieces(merged, block)[0])(client)
    straight = jax.grad(lambda block: pieces(one_by_one, block)[0])(client)
    for found, expected in zip(jax.tree.leaves(moved), jax.tree.leaves(straight), strict=True):
        twins.assert_close(found, expected, 1e-8)


def test_exact_evidence_of_white_cycles_is_the_dense_one():
    """Against the (C·N)-dimensional Gaussian, with inducing inputs at the grid."""
    problem = twins.at_the_data(twins.make_problem(tied=True, sizes=(7,), seed=5))
    grid = problem.Xs[0]
    cycles = np.random.default_rng(2).normal(size=(3, 1, len(grid)))
    (merged,), _, _ = clients_from({"a": (grid, cycles)})
    rows = Rows(*(jnp.asarray(v) for v in (merged.X, merged.Y, merged.counts, merged.scatter)))
    basis = problem.shared.basis(problem.jitter)
    design = design_of(problem.structure, problem.shared, basis, problem.clients[0], problem.jitter)
    c, h, J = summary(accumulate(rows, design), problem.k)
    noise = np.asarray(problem.clients[0].noise.covariance(1))[0, 0] * np.eye(len(grid))
    K = ref.exact_joint_covariance([grid], problem.model, noise=False)
    expected = ref.cycles_log_evidence_dense(cycles[:, 0], K, noise)
    assert float(c + linalg.log_partition(J, h)) == pytest.approx(expected, rel=1e-6)
