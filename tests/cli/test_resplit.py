"""Rows for a report of a model that has grown: which are in it goes by its own sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pfedhgp.cli.resplit import parts_of
from pfedhgp.data.columns import Columns, InputColumn
from pfedhgp.data.holdout import Holdout, ledger, split
from pfedhgp.data.readers import Observations
from pfedhgp.model.kept_sums import KeptSums, row_hashes
from support.reported import case_of

COLUMNS = Columns(client="site", inputs=(InputColumn("x0", "number"),), outputs=("y0",))
NAMES = ("client 0", "client 1", "client 2")


def rows_of(name: str, first: int, count: int) -> Observations:
    x = np.arange(first, first + count, dtype=float)[:, None]
    return Observations(name, x, np.sin(x) + len(name))


def joined(one: Observations, two: Observations) -> Observations:
    X, Y = (np.concatenate(pair) for pair in ((one.X, two.X), (one.Y, two.Y)))
    order = np.random.default_rng(0).permutation(len(X))
    return Observations(one.name, X[order], Y[order])


def sums_of(*parts: Observations) -> KeptSums:
    hashes = [row_hashes(part.name, part.X, part.Y) for part in parts]
    inputs, rows = (np.concatenate(each) for each in zip(*hashes, strict=True))
    nothing = np.zeros(1)
    return KeptSums(nothing[None], nothing[None], nothing, nothing, inputs, rows)


@pytest.fixture(scope="module")
def before():
    return [rows_of(name, 0, 20) for name in NAMES]


@pytest.fixture(scope="module", params=[None, Holdout("random", 0.2, 3)])
def fit(request, before):
    """Rows of the fit, rows held out, and a model of three clients: the first has grown by five rows."""
    training, test = (before, []) if request.param is None else split(before, request.param)
    metrics = {
        "data": ledger(before, training, test),
        "updates": [{"what": "update", "rows": {"client 0": 5}}],
    }
    if request.param is not None:
        metrics["holdout"] = request.param.to_json()
    sums = {each.name: sums_of(each) for each in training}
    sums["client 0"] = sums_of(training[0], rows_of("client 0", 20, 5))
    return training, test, replace(case_of().model, sums=sums, metrics=metrics)


def x_of(rows, name: str) -> list[float]:
    return sorted(x for each in rows if each.name == name for x in each.X[:, 0])


def test_rows_that_came_are_rows_of_the_model_and_the_split_stays(before, fit):
    training, test, model = fit
    given = [joined(before[0], rows_of("client 0", 20, 5)), *before[1:]]
    found = parts_of(given, COLUMNS, model, as_now=True)
    assert x_of(found.rows, "client 0") == [*x_of(training, "client 0"), *range(20, 25)]
    assert not found.others
    for name in NAMES:
        assert x_of(found.held_out, name) == x_of(test, name)
    for name in NAMES[1:]:
        assert x_of(found.rows, name) == x_of(training, name)


def test_rows_that_the_model_never_saw_are_other_rows(before, fit):
    """With them the rows of the fit cannot be told from later ones: those held out are other rows, too."""
    training, test, model = fit
    given = [joined(before[0], rows_of("client 0", 20, 8)), *before[1:]]
    found = parts_of(given, COLUMNS, model, as_now=True)
    assert x_of(found.rows, "client 0") == [*x_of(training, "client 0"), *range(20, 25)]
    assert x_of(found.others, "client 0") == [*x_of(test, "client 0"), 25.0, 26.0, 27.0]


def test_the_rows_of_the_fit_alone_are_split_as_ever(before, fit):
    training, test, model = fit
    found = parts_of(before, COLUMNS, model, as_now=True)
    for name in NAMES:
        assert x_of(found.rows, name) == x_of(training, name)
        assert x_of(found.held_out, name) == x_of(test, name)
    assert not found.others


def test_rows_that_were_forgotten_are_other_rows(before, fit):
    training, test, model = fit
    gone = training[1].take(np.arange(len(training[1].X)) == 2)
    stayed = training[1].take(np.arange(len(training[1].X)) != 2)
    metrics = {**model.metrics, "updates": [{"what": "forget", "rows": {"client 1": 1}}]}
    sums = {**model.sums, "client 1": sums_of(stayed)}
    found = parts_of(before, COLUMNS, replace(model, sums=sums, metrics=metrics), as_now=True)
    assert x_of(found.rows, "client 1") == x_of([stayed], "client 1")
    assert x_of(found.others, "client 1") == x_of([gone], "client 1")
    assert x_of(found.held_out, "client 1") == x_of(test, "client 1")


def test_who_asks_for_the_rows_of_the_fit_gets_no_others(before, fit):
    _, _, model = fit
    given = [joined(before[0], rows_of("client 0", 20, 5)), *before[1:]]
    found = parts_of(given, COLUMNS, model)
    assert [each.name for each in found.others] == ["client 0"]
