"""L-BFGS by single evaluations: against SciPy's, its budget, and what it must survive."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from pfedhgp.inference.lbfgs import minimize
from support import twins
from support.objectives import logistic, quadratic, rosenbrock


def run(objective, start, evaluations: int, movable=None):
    start = jnp.asarray(start, jnp.float64)
    movable = jnp.ones_like(start) if movable is None else jnp.asarray(movable)
    search = twins.compiled(lambda x, m, n: minimize(objective, x, evaluations=n, movable=m))
    return search(start, movable, evaluations)


PROBLEMS = {
    "rosenbrock, 2": (rosenbrock, [-1.2, 1.0]),
    "rosenbrock, 10": (rosenbrock, [-1.2, 1.0] * 5),
    "quadratic, 10": (quadratic(10.0), np.zeros(20)),
    "quadratic, 1000": (quadratic(1000.0), np.zeros(20)),
    "logistic": (logistic(), np.zeros(8)),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_reaches_scipys_optimum_in_one_and_a_half_times_its_evaluations(name):
    objective, start = PROBLEMS[name]
    both = twins.compiled(jax.value_and_grad(objective))
    theirs = scipy.optimize.minimize(
        lambda x: tuple(np.asarray(v, float) for v in both(x)),
        np.asarray(start, float),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-9},
    )
    found = run(objective, start, int(1.5 * theirs.nfev))
    assert float(found.value) <= theirs.fun + 1e-9 * max(abs(theirs.fun), 1.0)
    np.testing.assert_allclose(found.x, theirs.x, atol=1e-4)
    # What it reports is what it found.
    value, gradient = both(found.x)
    assert float(found.value) == pytest.approx(float(value), rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(found.gradient, gradient, atol=1e-8)
    assert float(found.first_value) == pytest.approx(float(both(np.asarray(start, float))[0]))


@pytest.mark.parametrize("evaluations", [1, 2, 17])
def test_evaluates_the_objective_exactly_as_often_as_asked(evaluations):
    seen = []

    def counted(x):
        jax.debug.callback(lambda v: seen.append(float(v)), x[0])
        return rosenbrock(x)

    found = run(counted, [-1.2, 1.0], evaluations)
    jax.block_until_ready(found)
    jax.effects_barrier()
    assert len(seen) == evaluations
    assert 1 <= int(found.accepted) <= evaluations  # the start counts as the first


def test_traces_the_objective_once_however_long_it_runs():
    traces = []

    def noted(x):
        traces.append(1)
        return rosenbrock(x)

    run(noted, [-1.2, 1.0], 500)
    assert len(traces) == 1


def test_one_evaluation_returns_the_start():
    found = run(rosenbrock, [-1.2, 1.0], 1)
    np.testing.assert_array_equal(found.x, [-1.2, 1.0])
    assert float(found.value) == float(found.first_value) == pytest.approx(24.2)
    np.testing.assert_allclose(found.gradient, [-215.6, -88.0], rtol=1e-12)


def test_frozen_coordinates_do_not_move_and_the_others_find_their_optimum():
    H = np.array([[3.0, 1.0, 0.5], [1.0, 2.0, 0.3], [0.5, 0.3, 1.0]])
    start = np.array([0.7, -0.4, 2.0])
    found = run(lambda x: 0.5 * jnp.dot(x, H @ x) - jnp.sum(x), start, 40, [1.0, 0.0, 1.0])
    assert float(found.x[1]) == start[1]
    assert float(found.gradient[1]) == 0.0
    free = [0, 2]
    expected = np.linalg.solve(H[np.ix_(free, free)], 1.0 - H[free, 1] * start[1])
    np.testing.assert_allclose(found.x[jnp.asarray(free)], expected, rtol=1e-7)
    nothing = run(rosenbrock, [-1.2, 1.0], 20, [0.0, 0.0])
    np.testing.assert_array_equal(nothing.x, [-1.2, 1.0])


def test_a_frozen_coordinate_without_a_derivative_does_not_stop_the_others():
    """√|x₁| has an infinite slope at 0, and 0 · ∞ is NaN."""
    found = run(lambda x: (x[0] - 2.0) ** 2 + jnp.sqrt(jnp.abs(x[1])), [0.0, 0.0], 20, [1.0, 0.0])
    np.testing.assert_allclose(found.x, [2.0, 0.0], atol=1e-8)


@pytest.mark.parametrize(
    ("objective", "start", "optimum"),
    [
        (lambda x: jnp.sum(x - 2.0 * jnp.log(x)), [1e-3, 50.0], [2.0, 2.0]),  # NaN below zero
        (lambda x: jnp.sum(-jnp.sqrt(1.0 - x**2) - 0.5 * x), [0.0, 0.9], [5**-0.5] * 2),
        (lambda x: jnp.where(x[0] > 3.0, jnp.inf, (x[0] - 2.9) ** 2), [-40.0], [2.9]),
        (lambda x: jnp.where(x[0] > 3.0, -jnp.inf, (x[0] - 2.9) ** 2), [-40.0], [2.9]),
    ],
    ids=["log", "sqrt", "inf", "minus inf"],
)
def test_survives_regions_that_are_not_finite(objective, start, optimum):
    found = run(objective, start, 80)
    assert np.isfinite(float(found.value))
    np.testing.assert_allclose(found.x, optimum, atol=1e-6)


def test_a_start_that_is_not_finite_is_handed_back():
    found = run(lambda x: jnp.sum(jnp.log(x)), [-1.0], 10)
    np.testing.assert_array_equal(found.x, [-1.0])
    assert not np.isfinite(float(found.value))
    assert int(found.accepted) == 0


@twins.compiled
def bumpy(start, waves, evaluations):
    """A bowl with bumps: not convex, with many minima."""

    def objective(x):
        return jnp.sum(jnp.sin(waves @ x)) + 0.1 * jnp.dot(x, x)

    return minimize(objective, start, evaluations=evaluations, movable=jnp.ones_like(start))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([0.1, 1.0, 30.0]))
def test_never_ends_above_its_start(seed, scale):
    rng = np.random.default_rng(seed)
    waves, start = scale * rng.normal(size=(5, 3)), 3.0 * rng.normal(size=3)
    ends = [bumpy(start, waves, n) for n in (2, 10, 40)]
    values = [float(ends[0].first_value), *(float(end.value) for end in ends)]
    # More evaluations never end higher, but for the last bit: XLA may fuse one value two ways.
    assert np.all(np.diff(values) <= 4e-16 * np.max(np.abs(values)))
    assert values[-1] < values[0]


def test_batched_searches_equal_single_ones():
    """Each search of a batch has its own steps, though their evaluations go together.

    Every field while there is still a way to go; at the end only the value, as steps that gain
    less than the rounding go either way.
    """
    starts = np.random.default_rng(3).normal(size=(6, 4))
    scales = np.geomspace(0.1, 10.0, 6)
    bowl = quadratic(50.0, d=4, seed=4)

    def search(start, scale, evaluations):
        def objective(x):
            return scale * bowl(x) + jnp.sum(jnp.logaddexp(0.0, -3.0 * x))

        return minimize(objective, start, evaluations=evaluations, movable=jnp.ones(4))

    batch, alone = twins.compiled(jax.vmap(search, (0, 0, None))), twins.compiled(search)
    for evaluations in (10, 40):
        together = batch(starts, scales, evaluations)
        for i in range(6):
            one = alone(starts[i], scales[i], evaluations)
            np.testing.assert_allclose(together.value[i], one.value, rtol=1e-10)
            if evaluations == 10:
                assert int(one.accepted) > 5
                for found, expected in zip(together, one, strict=True):
                    np.testing.assert_allclose(found[i], expected, rtol=1e-10, atol=1e-10)
