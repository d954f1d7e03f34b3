"""Calls that meet are computed together, and give what each would have had alone."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfedhgp import FederatedGP
from pfedhgp.base.batching import EFFORTS, SMALL, Batchable, batchable, run_batched, stack
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.studies.synthetic.simulator import simulate
from support.compiled import times_compiled


@batchable(static=1)
def powers(twice: bool, count: jax.Array, tree: dict) -> dict:
    """x ↦ x + Σ_{k<count} sin(x), and a product."""
    x = jax.lax.fori_loop(0, count, lambda _, x: x + jnp.sin(x), tree["x"])
    return {"x": x * (2.0 if twice else 1.0), "y": tree["A"] @ x}


def programs(counts, sizes=None, log=None):
    rng = np.random.default_rng(0)
    sizes = sizes or [3] * len(counts)
    trees = [{"x": rng.normal(size=n), "A": rng.normal(size=(2, n))} for n in sizes]

    def program(count, tree):
        def run():
            found = powers(True, np.int64(count), tree)
            if log is not None:
                log.append(threading.current_thread().name)
            return found

        return run

    return [program(count, tree) for count, tree in zip(counts, trees, strict=True)]


def test_results_are_those_of_each_program_alone():
    work = programs([2, 2, 5, 2], sizes=[3, 3, 3, 4])
    alone = [program() for program in work]
    for one, both in zip(alone, run_batched(work), strict=True):
        for name in one:
            np.testing.assert_allclose(both[name], one[name], rtol=1e-13)


def test_smaller_groups_are_filled_up_and_not_compiled_again(monkeypatch):
    fresh = batchable(static=1)(powers.__wrapped__)
    monkeypatch.setitem(globals(), "powers", fresh)
    counts = [2, 2, 5, 2]  # a group of three and one apart
    alone = [program() for program in programs(counts)]
    found = run_batched(programs(counts), pad=True, device=jax.devices("cpu")[0])
    for one, both in zip(alone, found, strict=True):
        np.testing.assert_allclose(both["y"], one["y"], rtol=1e-13)
    assert fresh.stacked._cache_size() == 1


def test_equal_shapes_and_counts_are_one_call(monkeypatch):
    sizes = []
    fresh = batchable(static=1)(powers.__wrapped__)
    compute = fresh.stacked

    def counted(fixed, layout, common, mapped):
        sizes.append(mapped[0].shape[0])
        return compute(fixed, layout, common, mapped)

    monkeypatch.setattr(fresh, "stacked", counted)
    monkeypatch.setitem(globals(), "powers", fresh)
    run_batched(programs([2, 2, 5, 2], sizes=[3, 3, 3, 4]))
    assert sorted(sizes) == [1, 1, 2]


def test_a_program_that_ends_early_does_not_hold_the_others_up():
    work = programs([2, 2])
    found = run_batched([lambda: "done", *work])
    assert found[0] == "done"
    np.testing.assert_allclose(found[2]["x"], work[1]()["x"], rtol=1e-13)


def test_an_error_in_one_program_is_raised_and_the_others_end():
    ended = []

    def fails():
        raise ValueError("this one")

    with pytest.raises(ValueError, match="this one"):
        run_batched([fails, *programs([1, 1], log=ended)])
    assert len(ended) == 2


def test_an_error_in_a_shared_call_reaches_all_that_share_it():
    @batchable()
    def bad(x):
        raise RuntimeError("cannot be traced")

    caught = []

    def program():
        try:
            bad(np.ones(2))
        except RuntimeError as error:
            caught.append(str(error))

    run_batched([program, program])
    assert caught == ["cannot be traced"] * 2


def test_heavy_calls_wait_for_those_who_are_behind():
    order = []

    @batchable(order=1)
    def heavy(x):
        return x + 1.0

    @batchable()
    def light(x):
        return x * 2.0

    def slow():
        light(np.ones(()))
        order.append("light")
        return float(heavy(np.ones(())))

    def quick():
        value = float(heavy(np.ones(())))
        order.append("heavy")
        return value

    assert run_batched([quick, slow]) == [2.0, 2.0]
    assert order == ["light", "heavy"]


def test_a_marked_function_inside_another_is_part_of_it():
    @batchable()
    def inner(x):
        return jnp.sin(x)

    @batchable()
    def outer(x):
        return inner(x) + 1.0

    found = run_batched([lambda v=v: float(outer(np.float64(v))) for v in (0.1, 0.2)])
    np.testing.assert_allclose(found, np.sin([0.1, 0.2]) + 1.0, rtol=1e-14)


def test_rows_of_one_array_are_stacked_without_a_copy():
    whole = np.arange(12.0).reshape(3, 4)
    stacked = stack([whole[0, ...], whole[1, ...], whole[2, ...]])
    assert np.shares_memory(stacked, whole)
    np.testing.assert_array_equal(stacked, whole)
    turned = stack([whole[1, ...], whole[0, ...], whole[2, ...]])
    np.testing.assert_array_equal(turned, whole[[1, 0, 2]])
    np.testing.assert_array_equal(stack([whole[1, ...], whole[2, ...]]), whole[1:])
    np.testing.assert_array_equal(stack([whole[:, 0], whole[:, 1]]), whole[:, :2].T)
    np.testing.assert_array_equal(stack([np.float64(1.0), np.float64(2.0)]), [1.0, 2.0])


def fit(seed: int):
    truth = simulate("A", seed, clients=2, outputs=1, n=12, n_test=5)
    data = {str(i): (X, Y) for i, (X, Y) in enumerate(zip(truth.X, truth.Y, strict=True))}
    settings = Structured(rounds=2, evaluations=4, first_evaluations=4, frozen_rounds=1)
    model = FederatedGP(domain=[(0.0, 10.0)], inducing=6, local_inducing=6, inference=settings).fit(
        data
    )
    bounds = [record["bound"] for record in model.history_]
    return bounds, model.predict("1", truth.X_test), model.exchanges_, model.messages_


@pytest.mark.slow
def test_federations_in_lockstep_end_where_each_would_alone():
    """With few evaluations searches have no room to drift apart by rounding."""
    alone = [fit(seed) for seed in (0, 1)]
    both = run_batched([lambda s=s: fit(s) for s in (0, 1)])
    for one, other in zip(alone, both, strict=True):
        np.testing.assert_allclose(other[0], one[0], rtol=1e-5)
        np.testing.assert_allclose(other[0][0], one[0][0], rtol=1e-10)  # at equal parameters
        np.testing.assert_allclose(other[1].mean, one[1].mean, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(other[1].sd, one[1].sd, rtol=1e-3)
        assert other[2:] == one[2:]


def test_what_is_compiled_with_less_effort_gives_the_same():
    """Small arguments by the shorter way, large ones by the usual, as all where XLA has no options."""

    def waves_again():
        def waves(tree: dict) -> jax.Array:
            return jnp.linalg.cholesky(tree["A"] @ tree["A"].T + jnp.eye(4)) @ jnp.sin(tree["x"])

        return waves

    rng = np.random.default_rng(0)
    tree = {"A": rng.normal(size=(4, 4)), "x": rng.normal(size=(4, 3))}
    want = np.linalg.cholesky(tree["A"] @ tree["A"].T + np.eye(4)) @ np.sin(tree["x"])
    for effort in EFFORTS:
        fresh = batchable(effort=effort)(waves_again())
        np.testing.assert_allclose(fresh(tree), want, rtol=1e-12, atol=1e-12)
        assert fresh.small._cache_size() == times_compiled(fresh) == 1
        np.testing.assert_allclose(jax.jit(fresh)(tree), want, rtol=1e-12, atol=1e-12)
        fresh({**tree, "x": rng.normal(size=(4, SMALL))})
        assert fresh.alone._cache_size() >= 1
        assert times_compiled(fresh) == 2
    unknown = Batchable(waves_again(), 0, 0)
    unknown.options = (("no_such_option", True),)
    np.testing.assert_allclose(unknown(tree), want, rtol=1e-12, atol=1e-12)
    assert unknown.small is unknown.alone
