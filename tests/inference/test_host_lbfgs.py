"""L-BFGS in NumPy: the same search as the compiled one, batch by batch, and what ends it early."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfedhgp.inference import host_lbfgs, lbfgs
from pfedhgp.inference.lbfgs import Pairs
from support import twins
from support.objectives import logistic, quadratic, rosenbrock


def clipped(x):
    """NaN outside a ball; the minimum is inside."""
    return jnp.sum((x - 0.3) ** 4) - jnp.sqrt(1.5 - jnp.dot(x, x))


def logs(x):
    return jnp.sum(x - 2.0 * jnp.log(x)) + 0.3 * jnp.prod(x)


def walls(x):
    return jnp.where(x[0] > 3.0, jnp.inf, jnp.sum((x - 2.9) ** 2 * (1.0 + x**2)))


RNG = np.random.default_rng(0)
PROBLEMS = {
    "rosenbrock": (rosenbrock, RNG.normal(size=(5, 2))),
    "rosenbrock, 8": (rosenbrock, np.abs(RNG.normal(size=(4, 8)))),
    "quadratic": (quadratic(300.0), RNG.normal(size=(3, 20))),
    "logistic": (logistic(), RNG.normal(size=(4, 8))),
    "NaN outside": (clipped, RNG.uniform(-0.5, 0.5, size=(6, 4))),
    "NaN below zero": (logs, np.geomspace(1e-3, 20.0, 12).reshape(4, 3)),
    "a wall": (walls, RNG.normal(-30.0, 10.0, size=(3, 2))),
}


def batch_of(objective):
    """The objective for the rows of a batch, and how many rows each call had."""
    both, sizes = twins.compiled(jax.vmap(jax.value_and_grad(objective))), []

    def value_and_gradient(x, which):
        sizes.append(list(which))
        return tuple(np.asarray(found) for found in both(x))

    return value_and_gradient, sizes


def host(objective, starts, evaluations, movable=None, **options):
    found, sizes = batch_of(objective)
    movable = np.ones(starts.shape[1]) if movable is None else movable
    return host_lbfgs.minimize(
        found, starts, evaluations=evaluations, movable=movable, **options
    ), sizes


def compiled(objective, starts, evaluations, movable=None, **options):
    movable = np.ones(starts.shape[1]) if movable is None else movable

    def one(x, n):
        return lbfgs.minimize(objective, x, evaluations=n, movable=movable, **options)

    return twins.compiled(jax.vmap(one, (0, None)))(starts, evaluations)


@pytest.mark.parametrize("evaluations", [1, 2, 5, 12, 20])
@pytest.mark.parametrize("name", PROBLEMS)
def test_visits_the_points_of_the_compiled_search(name, evaluations):
    objective, starts = PROBLEMS[name]
    found, sizes = host(objective, starts, evaluations)
    expected = compiled(objective, starts, evaluations)
    # At the optimum, steps that gain less than the rounding go either way.
    on = np.abs(expected.gradient).max(axis=1) > 1e-4
    np.testing.assert_array_equal(found.accepted[on], expected.accepted[on])
    assert evaluations > 5 or on.any()
    for field in ("x", "value", "first_value"):
        np.testing.assert_allclose(
            getattr(found, field), getattr(expected, field), rtol=1e-8, atol=1e-8
        )
    scale = np.abs(expected.gradient).max()
    np.testing.assert_allclose(found.gradient, expected.gradient, atol=1e-8 * max(scale, 1.0))
    assert len(sizes) == evaluations
    np.testing.assert_array_equal(found.evaluations, evaluations)


@pytest.mark.parametrize("name", PROBLEMS)
def test_ends_where_the_compiled_search_ends(name):
    objective, starts = PROBLEMS[name]
    found, _ = host(objective, starts, 150)
    expected = compiled(objective, starts, 150)
    np.testing.assert_allclose(found.x, expected.x, atol=1e-6)
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-9, atol=1e-12)


def test_frozen_coordinates_stay():
    starts = RNG.normal(size=(3, 4))
    movable = np.array([1.0, 0.0, 1.0, 0.0])
    found, _ = host(rosenbrock, starts, 15, movable)
    np.testing.assert_allclose(found.x, compiled(rosenbrock, starts, 15, movable).x, rtol=1e-8)
    np.testing.assert_array_equal(found.x[:, [1, 3]], starts[:, [1, 3]])
    each = np.eye(4)[:3]
    own, _ = host(rosenbrock, starts, 15, each)
    np.testing.assert_array_equal(own.x[each == 0.0], starts[each == 0.0])
    assert np.all(own.x[each == 1.0] != starts[each == 1.0])


def test_a_batch_is_its_searches_one_by_one():
    objective, starts = PROBLEMS["NaN below zero"]
    together, _ = host(objective, starts, 15)
    for i in range(len(starts)):
        alone, _ = host(objective, starts[i : i + 1], 15)
        for found, expected in zip(together, alone, strict=True):
            np.testing.assert_allclose(found[i], expected[0], rtol=1e-9, atol=1e-9)


def test_a_start_that_is_not_finite_is_handed_back_and_not_evaluated_again():
    starts = np.array([[1.0, 2.0, 3.0], [-1.0, 2.0, 3.0]])
    found, sizes = host(logs, starts, 10)
    np.testing.assert_array_equal(found.x[1], starts[1])
    assert not np.isfinite(found.value[1])
    np.testing.assert_array_equal(found.evaluations, [10, 1])
    assert found.accepted[1] == 0
    assert sizes == [[0, 1]] + [[0]] * 9


@pytest.mark.parametrize("settled", [1e-2, 1e-6])
def test_a_settled_search_is_left_out_and_is_near_its_optimum(settled):
    objective, starts = PROBLEMS["logistic"]
    best = compiled(objective, starts, 150).value
    found, sizes = host(objective, starts, 150, settled=settled)
    assert len(sizes) == found.evaluations.max() < 100
    np.testing.assert_allclose(found.value, best, atol=20.0 * settled)
    for i, count in enumerate(found.evaluations):
        assert sum(i in each for each in sizes) == count
        # Its last point is the one it had with that budget.
        same = compiled(objective, starts, int(count))
        np.testing.assert_allclose(found.x[i], same.x[i], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ["logistic", "rosenbrock, 8", "NaN below zero", "a wall"])
def test_the_compiled_search_settles_with_it(name):
    objective, starts = PROBLEMS[name]
    found, _ = host(objective, starts, 150, settled=1e-5)
    expected = compiled(objective, starts, 150, settled=1e-5)
    assert found.evaluations.max() < 100
    for field in ("accepted", "evaluations"):
        np.testing.assert_array_equal(getattr(found, field), getattr(expected, field))
    for field in ("x", "value", "first_value"):
        np.testing.assert_allclose(
            getattr(found, field), getattr(expected, field), rtol=1e-8, atol=1e-8
        )


def test_both_searches_leave_off_at_a_share_of_their_gain():
    objective, starts = PROBLEMS["logistic"]
    long, _ = host(objective, starts, 150, settled=1e-5)
    found, _ = host(objective, starts, 150, settled=1e-5, share=1e-2)
    expected = compiled(objective, starts, 150, settled=1e-5, share=1e-2)
    np.testing.assert_array_equal(found.evaluations, expected.evaluations)
    assert found.evaluations.sum() < long.evaluations.sum()
    gained, all_of_it = found.first_value - found.value, long.first_value - long.value
    assert np.all(gained > 0.9 * all_of_it)


@pytest.mark.parametrize("name", ["rosenbrock, 8", "quadratic", "logistic"])
def test_both_searches_go_on_with_the_pairs_of_earlier_ones(name):
    objective, starts = PROBLEMS[name]
    before, _ = host(objective, starts, 9, pairs=Pairs.none(*starts.shape))
    found, _ = host(objective, before.x, 6, pairs=before.pairs)

    def one(x, pairs):
        movable = np.ones(starts.shape[1])
        return lbfgs.minimize(objective, x, evaluations=6, movable=movable, pairs=pairs)

    expected = twins.compiled(jax.vmap(one))(before.x, before.pairs)
    whole, _ = host(objective, starts, 14, pairs=Pairs.none(*starts.shape))
    for field in ("x", "value", "S", "Y"):
        size = np.abs(getattr(expected, field)).max()
        np.testing.assert_allclose(
            getattr(found, field), getattr(expected, field), rtol=1e-6, atol=1e-8 * size
        )
    # The first evaluation is that of the point where the last search ended, unless its step was refused.
    same = (before.accepted == 9) & (whole.accepted == 14)
    np.testing.assert_allclose(found.x[same], whole.x[same], rtol=1e-6, atol=1e-8)


def test_a_search_that_knows_the_curvature_is_short():
    objective, starts = PROBLEMS["quadratic"]
    first, _ = host(objective, starts, 400, settled=1e-7, pairs=Pairs.none(*starts.shape))

    def moved(x):
        return objective(x - 0.1)

    cold, _ = host(moved, first.x, 400, settled=1e-7)
    warm, _ = host(moved, first.x, 400, settled=1e-7, pairs=first.pairs)
    np.testing.assert_allclose(warm.value, cold.value, atol=1e-6)
    assert warm.evaluations.sum() < 0.5 * cold.evaluations.sum()


def test_a_compiled_search_at_its_optimum_ends_when_steps_run_dry():
    """|x| with a slope that says there is a way down."""

    @jax.custom_jvp
    def edge(x):
        return jnp.sum(jnp.abs(x))

    edge.defjvp(lambda x, dx: (edge(x[0]), jnp.sum(dx[0])))
    found = compiled(edge, np.zeros((2, 1)), 200, settled=1e-9)
    np.testing.assert_array_equal(found.x, 0.0)
    assert found.evaluations.max() < 30


def test_a_search_at_its_optimum_ends_when_steps_run_dry():
    """|x| at 0: no step is downhill, whatever its gradient says."""
    found = host_lbfgs.minimize(
        lambda x, _: (np.abs(x[:, 0]), np.ones_like(x)),
        np.zeros((2, 1)),
        evaluations=200,
        movable=np.ones(1),
        settled=1e-9,
    )
    np.testing.assert_array_equal(found.x, 0.0)
    assert found.evaluations.max() < 30


def test_a_held_coordinate_stays_although_an_earlier_search_moved_it():
    """Curvature of an earlier search is not taken along directions that are held now."""
    rng = np.random.default_rng(3)
    half = rng.normal(size=(4, 4))
    A = half @ half.T + np.eye(4)

    def loss(x, which):
        return 0.5 * np.einsum("ci,ij,cj->c", x, A, x), x @ A

    start = rng.normal(size=(2, 4))
    free = host_lbfgs.minimize(loss, start, evaluations=6, movable=np.ones(4))
    held = np.array([0.0, 1.0, 1.0, 1.0])
    found = host_lbfgs.minimize(loss, start, evaluations=30, movable=held, pairs=free.pairs)
    np.testing.assert_array_equal(found.x[:, 0], start[:, 0])
    best = -np.linalg.solve(A[1:, 1:], A[1:, :1] @ start[:, :1].T).T
    np.testing.assert_allclose(found.x[:, 1:], best, atol=1e-5)
