"""Rows as the solvers take them: replicates and cycle layers, against all cells in one dense Gaussian."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference as ref
from pfedhgp.data.rows import ClientRows
from pfedhgp.data.scaling import Scaling
from pfedhgp.data.tables import clients_from
from pfedhgp.errors import InputError
from pfedhgp.gp import linalg
from pfedhgp.inference.grams import accumulate
from pfedhgp.inference.rows import cycle_rows, equal_shapes, noise_of, white_rows
from pfedhgp.inference.structured.bound import design_of, summary
from pfedhgp.model.blocks import Rows
from pfedhgp.model.cycle_layer import CycleBasis, CycleLayer
from support import cycles as cy
from support import twins

CYCLES = 4
FORMS = {"scalar": "scalar", "outputs": "output", "full": "full"}


def setting(
    noise: str, *, gaps: bool, C: int = 5, n: int = 7, at_grid: bool = False, seed: int = 0
):
    """(problem with the layer's noise in its only client, grid, cycles, layer), two outputs on [0, 3]."""
    rng = np.random.default_rng(seed)
    problem = twins.make_problem(seed, sizes=(n,), Q=2, noise=noise)
    grid = np.sort(problem.Xs[0], axis=0)
    problem = twins.replace(problem, Xs=[grid])
    if at_grid:
        problem = twins.at_the_data(problem)
    made = cy.random_layer(rng, full=noise == "full")
    if noise == "scalar":
        made = CycleLayer(made.basis, made.factor, made.noise[0, 0] * np.eye(2), "free")
    basis = CycleBasis(3.0 * made.basis.inputs, 3.0 * made.basis.lengthscale)
    layer = CycleLayer(basis, made.factor, made.noise, "free")
    client = eqx.tree_at(lambda b: b.noise, problem.clients[0], noise_of(layer, FORMS[noise]))
    problem = twins.replace(problem, clients=[client])
    Y = rng.normal(size=(C, n, 2))
    return problem, grid, cy.with_gaps(rng, Y) if gaps else Y, layer


def pieces(problem: twins.Problem, rows, block=None, chunk: int = 1024):
    """(c, h, J) of the only client."""
    basis = problem.shared.basis(problem.jitter)
    block = problem.clients[0] if block is None else block
    design = design_of(problem.structure, problem.shared, basis, block, problem.jitter)
    return summary(accumulate(rows, design, chunk=chunk), problem.k)


def bound(problem: twins.Problem, rows) -> float:
    c, h, J = pieces(problem, rows)
    return float(c + linalg.log_partition(J, h))


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("noise", FORMS)
def test_equivalence_with_the_dense_bound_of_all_cells(noise, gaps):
    """log N(all cells; 0, 1 1ᵀ ⊗ HHᵀ + I ⊗ Σ_e) − ½ Σ_cycles Σ_cells res/σ²."""
    problem, grid, Y, layer = setting(noise, gaps=gaps)
    rows = cycle_rows(grid, Y, layer, separate=noise == "full")
    (sparse,) = ref.sparse_clients([grid], [np.zeros((7, 2))], problem.model, problem.inducing)
    K = sparse.H_g @ sparse.H_g.T + sparse.H_c @ sparse.H_c.T
    Sigma = cy.dense_covariance(layer, grid)
    expected = ref.cycles_log_evidence_observed(Y.reshape(5, -1), K, Sigma)
    expected += sum(sparse._replace(Y=cycle).residual_term for cycle in Y)
    assert bound(problem, rows) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("gaps", [False, True])
def test_exact_where_inducing_inputs_are_at_the_grid_and_a_bound_elsewhere(gaps):
    for at_grid in (True, False):
        problem, grid, Y, layer = setting("outputs", gaps=gaps, at_grid=at_grid)
        K = ref.exact_joint_covariance([grid], problem.model, noise=False)
        Sigma = cy.dense_covariance(layer, grid)
        evidence = ref.cycles_log_evidence_observed(Y.reshape(5, -1), K, Sigma)
        found = bound(problem, cycle_rows(grid, Y, layer, separate=False))
        if at_grid:
            assert found == pytest.approx(evidence, rel=1e-6)
        else:
            assert found < evidence - 1.0


@pytest.mark.parametrize("gaps", [False, True])
def test_gradients_against_finite_differences(gaps):
    problem, grid, Y, layer = setting("outputs", gaps=gaps)
    rows = cycle_rows(grid, Y, layer, separate=False)

    @jax.jit
    def value(loadings):
        block = eqx.tree_at(lambda b: b.loadings, problem.clients[0], loadings.reshape(2, 2))
        c, h, J = pieces(problem, rows, block)
        return c + linalg.log_partition(J, h)

    start = np.asarray(problem.clients[0].loadings).ravel()
    numeric = twins.five_point(lambda v: np.asarray(value(jnp.asarray(v))), start)
    twins.assert_close(jax.grad(value)(jnp.asarray(start)), numeric, 1e-8)


def test_invariance_to_order_patterns_chunks_and_padding():
    problem, grid, Y, layer = setting("outputs", gaps=True)
    rows = cycle_rows(grid, Y, layer, separate=False)
    known = pieces(problem, rows)
    shuffled = cycle_rows(grid, Y[::-1], layer, separate=False)
    apart = cycle_rows(grid, Y, layer, separate=True)  # each pattern on rows of its own
    longer = equal_shapes([rows, apart])[0]
    assert longer.X.shape == apart.X.shape
    for other, chunk in ((shuffled, 1024), (apart, 1024), (rows, 3), (longer, 1024)):
        for found, expected in zip(pieces(problem, other, chunk=chunk), known, strict=True):
            twins.assert_close(found, expected, 1e-9)


def test_many_patterns_take_no_more_than_the_grid():
    """Every cycle its own pattern: the weights are compressed to as many as there are cells."""
    problem, grid, Y, layer = setting("outputs", gaps=True, C=12)
    rows = cycle_rows(grid, Y, layer, separate=False)
    assert rows.cycles.weights.shape == (7, 2, 14)
    K = ref.exact_joint_covariance([grid], problem.model, noise=False)
    exact, grid, Y, layer = setting("outputs", gaps=True, C=12, at_grid=True)
    Sigma = cy.dense_covariance(layer, grid)
    evidence = ref.cycles_log_evidence_observed(Y.reshape(12, -1), K, Sigma)
    found = bound(exact, cycle_rows(grid, Y, layer, separate=False))
    assert found == pytest.approx(evidence, rel=1e-6)


def test_what_is_trained_on_does_not_grow_with_the_cycles():
    _, grid, Y, layer = setting("outputs", gaps=False)
    few = cycle_rows(grid, Y, layer, separate=False)
    many = cycle_rows(grid, np.tile(Y, (20, 1, 1)), layer, separate=False)
    assert [a.shape for a in jax.tree.leaves(few)] == [a.shape for a in jax.tree.leaves(many)]


def test_a_layer_without_weights_is_plain_replicates():
    problem, grid, Y, layer = setting("outputs", gaps=True)
    white = CycleLayer(layer.basis, np.zeros((10, 0)), layer.noise, "white")
    rows = cycle_rows(grid, Y, white, separate=False)
    one_by_one = twins.rows_of(np.tile(grid, (5, 1)), Y.reshape(-1, 2))
    for found, expected in zip(pieces(problem, rows), pieces(problem, one_by_one), strict=True):
        twins.assert_close(found, expected, 1e-9)


def test_full_noise_with_too_many_patterns_is_refused():
    _, _, Y, layer = setting("full", gaps=True, C=12)
    long = np.linspace(0, 3, 1000)[:, None]
    cycles = np.tile(Y[:, :1], (1, 1000, 1))
    for i in range(len(cycles)):
        cycles[i, i, 0] = np.nan
    with pytest.raises(InputError, match=r"client 'press 4': .* use noise='output'"):
        cycle_rows(long, cycles, layer, separate=True, client="press 4")


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
    (merged,) = clients_from({"a": (X, cycles)}).clients
    flat = np.moveaxis(cycles, 1, 2).reshape(-1, Q)
    return twins.rows_of(np.tile(X, (CYCLES, 1)), flat), merged_rows(merged, full=full)


@pytest.mark.parametrize(
    "noise",
    ["outputs", *(pytest.param(each, marks=pytest.mark.slow) for each in ("scalar", "full"))],
)
def test_exact_replicates_equal_their_rows_in_value_and_gradient(noise):
    problem = twins.make_problem(noise=noise, Q=2, R=2, seed=4)
    one_by_one, merged = repeated(problem, np.random.default_rng(1), full=noise == "full")
    assert len(merged.X) < 0.7 * len(one_by_one.X)
    if noise == "full":  # padded with patterns that no replicate has, as in a group
        wider = Rows(merged.X, merged.Y, merged.mask, jnp.zeros((5, 2, 2)), None, jnp.ones((5, 2)))
        merged, _ = equal_shapes([merged, wider])
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
    (merged,) = clients_from({"a": (grid, cycles)}).clients
    rows = merged_rows(merged, full=False)
    basis = problem.shared.basis(problem.jitter)
    design = design_of(problem.structure, problem.shared, basis, problem.clients[0], problem.jitter)
    c, h, J = summary(accumulate(rows, design), problem.k)
    noise = np.asarray(problem.clients[0].noise.covariance(1))[0, 0] * np.eye(len(grid))
    K = ref.exact_joint_covariance([grid], problem.model, noise=False)
    expected = ref.cycles_log_evidence_dense(cycles[:, 0], K, noise)
    assert float(c + linalg.log_partition(J, h)) == pytest.approx(expected, rel=1e-6)
