"""Rows into a model and out again: what a fit with the parameters held gives, and back to what was before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pfedhgp import FederatedGP
from pfedhgp.data.rows import ClientRows
from pfedhgp.living.change import changed
from pfedhgp.living.update import updated
from pfedhgp.model import files, local_states
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.prediction import predict
from support.compiled import times_compiled
from support.held_parameters import refit

TOLERANCE = 1e-8
FIXTURE = Path(__file__).parents[1] / "fixtures" / "state-space"


def rows_of(outputs: int, sites: int = 3, n: int = 40) -> list[ClientRows]:
    rng, found = np.random.default_rng(outputs), []
    for i in range(sites):
        x = np.sort(rng.uniform(0.0, 10.0, n))
        means = [np.sin(x + q) + 0.4 * np.cos(2.0 * x + i) for q in range(outputs)]
        Y = np.stack(means, axis=1) + 0.1 * rng.normal(size=(n, outputs))
        if outputs > 1:
            Y[rng.random(Y.shape) < 0.1] = np.nan
        found.append(ClientRows(f"site {i}", x[:, None], Y))
    return found


@pytest.fixture(scope="module", params=["best", "averaged", "two outputs"])
def fitted(request) -> tuple[FittedModel, list[ClientRows]]:
    outputs = 2 if request.param == "two outputs" else 1
    rows = rows_of(outputs)
    data = {each.name: (each.X, each.Y) for each in rows}
    averaging = request.param != "best"
    model = FederatedGP(rounds=3, averaging=averaging, inducing=8, local_inducing=10).fit(data)
    return model.model_, rows


def taken(rows: list[ClientRows], which: list[np.ndarray]) -> list[ClientRows]:
    pairs = zip(rows, which, strict=True)
    return [ClientRows(c.name, c.X[mine], c.Y[mine]) for c, mine in pairs if len(mine)]


def same(found: FittedModel, expected: FittedModel, tolerance: float = TOLERANCE) -> None:
    """Predictions of every client, with each layer's, relative to their size."""
    X = np.linspace(-0.5, 10.5, 23)[:, None] * np.ones((1, found.inputs))
    X = found.scaling.lower + X / 10.0 * found.scaling.extent
    assert found.clients.keys() == expected.clients.keys()
    for name in expected.clients:
        a, b = (predict(model, name, X) for model in (found, expected))
        for one, other in [(a.mean, b.mean), (a.sd, b.sd)] + [
            (getattr(a.layers[layer], part), getattr(b.layers[layer], part))
            for layer in a.layers
            for part in ("mean", "sd")
        ]:
            size = max(np.abs(b.mean).max(), np.abs(b.sd).max())
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * size)


def test_the_sums_of_a_fit_are_those_that_made_the_global_layer(fitted):
    model, rows = fitted
    same(refit(model, rows), model)


MANY = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def splits(
    rows: list[ClientRows], seed: int, steps: int, fewest: int
) -> tuple[list[ClientRows], list[list[ClientRows]]]:
    """Each client's rows in any order: at least so many at first, the others in so many steps."""
    rng = np.random.default_rng(seed)
    first, later = [], [[] for _ in range(steps)]
    for client in rows:
        order = rng.permutation(len(client.X))
        cut = np.sort(rng.integers(fewest, len(order) + 1, steps))
        first.append(order[: cut[0]])
        for step, part in enumerate(np.split(order[cut[0] :], cut[1:] - cut[0])):
            later[step].append(part)
    return taken(rows, first), [taken(rows, part) for part in later]


@MANY
@given(seed=st.integers(0, 10**6), steps=st.integers(1, 3))
def test_updates_in_any_split_and_order_are_a_fit_with_the_parameters_held(fitted, seed, steps):
    model, rows = fitted
    first, later = splits(rows, seed, steps, fewest=5)
    now = refit(model, first)
    for part in later:
        now = changed(now, part)
    same(now, model)


@MANY
@given(seed=st.integers(0, 10**6), steps=st.integers(1, 3))
def test_forgetting_in_any_split_and_order_is_a_fit_to_what_is_left(fitted, seed, steps):
    model, rows = fitted
    first, later = splits(rows, seed, steps, fewest=5)
    now = model
    for part in later:
        now = changed(now, part, sign=-1.0)
    same(now, refit(model, first))


def test_forgetting_what_was_added_gives_the_model_before(fitted):
    model, rows = fitted
    few = [np.arange(0, 12), np.arange(5, 9), np.arange(0)]
    rest = [np.setdiff1d(np.arange(40), each) for each in few]
    part = refit(model, taken(rows, rest))
    added = changed(part, taken(rows, few))
    same(changed(added, taken(rows, few), sign=-1.0), part)


def test_a_client_that_leaves_is_as_if_it_had_never_been_summed_up(fitted):
    model, rows = fitted
    left = changed(model, leaving=["site 1"])
    same(left, refit(model, [rows[0], rows[2]]))
    assert set(left.sums) == {"site 0", "site 2"}


def test_an_adopted_client_counts_from_its_first_update_on(fitted):
    model, _ = fitted
    apart = changed(model, leaving=["site 1"])
    sums = {**model.sums, "site 1": replace(model.sums["site 1"], counted=False)}
    adopted = replace(apart, clients=model.clients, sums=sums)
    same(changed(adopted, joining=["site 1"]), model)


def of_the_fixture() -> tuple[FittedModel, list[ClientRows]]:
    table = pl.read_csv(FIXTURE / "rows.csv")
    rows = [
        ClientRows(str(name[0]), part["x"].to_numpy()[:, None], part["y"].to_numpy()[:, None])
        for name, part in table.group_by("site", maintain_order=True)
    ]
    return files.load(FIXTURE / "RUN"), rows


def of_two_outputs() -> tuple[FittedModel, list[ClientRows]]:
    """Some cells are missing; two rows have the same time."""
    rows = rows_of(2, sites=2, n=24)
    for each in rows:
        each.X[7] = each.X[6]
    model = FederatedGP(
        rounds=2, averaging=False, inducing=6, local="state-space", local_kernel="matern32"
    )
    return model.fit({each.name: (each.X, each.Y) for each in rows}).model_, rows


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(of_the_fixture, id="one output"),
        pytest.param(of_two_outputs, id="two outputs", marks=pytest.mark.slow),
    ],
)
def states(request) -> tuple[FittedModel, list[ClientRows]]:
    return request.param()


@MANY
@given(seed=st.integers(0, 10**6), steps=st.integers(1, 3))
def test_state_space_local_layers_in_any_split_and_order(states, seed, steps):
    """Late rows, rows between others and rows at the end; and out again in the order of a queue."""
    model, rows = states
    first, later = splits(rows, seed, steps, fewest=2)
    part, now = refit(model, first), refit(model, first)
    for each in later:
        now = changed(now, each)
    alike(now, refit(model, rows))
    for each in later:
        now = changed(now, each, sign=-1.0)
    alike(now, part)


def test_a_state_space_model_of_a_file_is_its_own_refit_and_updates_compile_nothing():
    model, rows = of_the_fixture()
    alike(refit(model, rows), model)
    first, later = splits(rows, 3, 1, fewest=2)
    part = changed(refit(model, first), later[0])
    compiles_nothing(part, rows)


def compiles_nothing(model: FittedModel, rows: list[ClientRows]) -> None:
    """Nor do twice as many rows as before: with compiling, a first update takes seconds."""
    compiled = [local_states.compiled_latents, local_states.compiled_covariance]
    before = [times_compiled(each) for each in compiled]
    later = [replace(each, X=each.X + 100.0) for each in rows]
    found, done = updated(model, later, lambda *_: pytest.fail("no client is new"))
    assert done.rows == {each.name: len(each.X) for each in rows}
    for each in rows:
        assert len(found.clients[each.name].states.times) > len(each.X)
    assert [times_compiled(each) for each in compiled] == before


def alike(found: FittedModel, expected: FittedModel) -> None:
    """All that predictions are made of: predicting would compile for each length of a series."""
    assert found.clients.keys() == expected.clients.keys()
    arrays = [(found.shared, expected.shared)]
    arrays += [(found.clients[name], own) for name, own in expected.clients.items()]
    for one, other in arrays:
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            size = np.abs(b).max() if np.size(b) else 1.0
            np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * size)
