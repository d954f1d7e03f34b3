"""Cycles on one grid are summed up by means, counts and scatter: nothing is lost."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference as ref
from pfedhgp.data.rows import ClientRows
from pfedhgp.data.scaling import Scaling
from pfedhgp.data.tables import clients_from
from pfedhgp.gp import linalg
from pfedhgp.inference.grams import accumulate
from pfedhgp.inference.scaled_rows import equal_patterns, white_rows
from pfedhgp.inference.structured.bound import design_of, summary
from pfedhgp.model.blocks import Rows
from support import twins

CYCLES = 4


def merged_rows(merged: ClientRows, *, full: bool) -> Rows:
    Q = merged.Y.shape[1]
    plain = Scaling(*np.array([[0.0], [1.0]]), np.zeros(Q), np.ones(Q))
    return white_rows(plain.rows(merged), full_noise=full)


def repeated(problem: twins.Problem, rng: np.random.Generator, *, full: bool) -> tuple[Rows, Rows]:
    """The first client's inputs as a grid, observed in `CYCLES` cycles with gaps: (all rows, merged)."""
    X = np.asarray(problem.rows[0].X)
    Q = problem.rows[0].Y.shape[1]
    cycles = rng.normal(size=(CYCLES, Q, len(X)))
    cycles[rng.uniform(size=cycles.shape) < 0.15] = np.nan
    (merged,), _, _ = clients_from({"a": (X, cycles)})
    flat = np.moveaxis(cycles, 1, 2).reshape(-1, Q)
    return twins.rows_of(np.tile(X, (CYCLES, 1)), flat), merged_rows(merged, full=full)


@pytest.mark.parametrize("noise", ["scalar", "outputs", "full"])
def test_exact_replicates_equal_their_rows_in_value_and_gradient(noise):
    problem = twins.make_problem(noise=noise, Q=2, R=2, seed=4)
    one_by_one, merged = repeated(problem, np.random.default_rng(1), full=noise == "full")
    assert len(merged.X) < 0.7 * len(one_by_one.X)
    if noise == "full":  # padded with patterns that no replicate has, as in a group
        wider = Rows(merged.X, merged.Y, merged.mask, jnp.zeros((5, 2, 2)), None, jnp.ones((5, 2)))
        merged, _ = equal_patterns([merged, wider])
        assert len(merged.scatter) == 5
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
    rows = merged_rows(merged, full=False)
    basis = problem.shared.basis(problem.jitter)
    design = design_of(problem.structure, problem.shared, basis, problem.clients[0], problem.jitter)
    c, h, J = summary(accumulate(rows, design), problem.k)
    noise = np.asarray(problem.clients[0].noise.covariance(1))[0, 0] * np.eye(len(grid))
    K = ref.exact_joint_covariance([grid], problem.model, noise=False)
    expected = ref.cycles_log_evidence_dense(cycles[:, 0], K, noise)
    assert float(c + linalg.log_partition(J, h)) == pytest.approx(expected, rel=1e-6)
