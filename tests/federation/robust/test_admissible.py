"""Honest replies of every form are admissible; each limit refuses what is beyond it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pfedhgp.base.numerics import numerics
from pfedhgp.data.rows import ClientRows, merge_replicates
from pfedhgp.federation import inprocess
from pfedhgp.federation.grouping import group_clients
from pfedhgp.federation.planning import make_plan
from pfedhgp.federation.robust.limits import Inadmissible
from pfedhgp.federation.server import Server
from pfedhgp.gp.kernels import RBF, Periodic
from pfedhgp.settings.table import ModelSettings


def clients(outputs=1, inputs=1, rows=24, missing=0.0, cycles=0, seed=0, scale=1.0):
    """Four, with different numbers of rows, far from zero; `cycles` on one grid."""
    found = []
    for i in range(4):
        rng = np.random.default_rng([seed, i])
        X = np.sort(rng.uniform(0.0, 1.0, (rows + 5 * i, inputs)), axis=0)
        if cycles:
            X = np.linspace(0.0, 1.0, rows)[:, None]
        f = np.stack([np.sin(4.0 * X[:, 0] + q) + 0.3 * i for q in range(outputs)], axis=1)
        count = max(cycles, 1)
        waves = (
            0.2 * np.cos(3.0 * X[:, 0])[:, None] * rng.normal(size=(count, 1, 1)) if cycles else 0.0
        )
        Y = f + waves + 0.1 * rng.normal(size=(count, *f.shape))
        Y[rng.uniform(size=Y.shape) < missing] = np.nan
        Y = scale * (50.0 + Y)
        name = f"c{i}"
        if cycles:
            found.append(ClientRows(name, X, np.nanmean(Y, axis=0), cycles=Y))
        else:
            found.append(ClientRows(name, X, Y[0]))
    return found


def replicates():
    """Every input is there three times."""
    found = []
    for own in clients():
        rng = np.random.default_rng(len(own.X))
        Y = np.concatenate([own.Y + 0.1 * rng.normal(size=own.Y.shape) for _ in range(3)])
        found.append(merge_replicates(own.name, np.tile(own.X, (3, 1)), Y))
    return found


FORMS = {
    "one output": ({}, clients()),
    "tiny numbers": ({}, clients(scale=1e-9)),
    "domain": ({"domain": ((0.0, 1.0),)}, clients()),
    "no noise": ({"layers": ("global", "deviation")}, clients(rows=40, scale=1e6)),
    "no deviation": ({"layers": ("global", "local")}, clients()),
    "local alone": ({"layers": ("local",)}, clients()),
    "two outputs, missing cells": ({}, clients(outputs=2, missing=0.2)),
    "full noise": ({"noise": "full"}, clients(outputs=2, missing=0.2)),
    "client loadings": ({"client_loadings": True}, clients(outputs=2)),
    "two inputs": ({}, clients(inputs=2)),
    "replicates": ({}, replicates()),
    "a sum of kernels": ({"kernel": RBF() + Periodic()}, clients()),
    "a choice": ({"kernel": ("rbf", "matern32")}, clients()),
    "own kernel of deviations": ({"deviation_kernel": "matern32"}, clients()),
}
SLOW = {
    "mean-field": ({"inference": "mean-field", "inducing": 6, "local_inducing": 6}, clients()),
    "cycle layer": ({"cycles": "free"}, clients(outputs=2, cycles=6)),
    "inputs move": ({"learn_inducing": True, "inducing": 4, "local_inducing": 4}, clients()),
    "state-space": ({"local": "state-space"}, clients(outputs=2)),
    "markov": (
        {
            **{"inference": "markov", "kernel": "matern12", "local_kernel": "matern12"},
            **{"local": "state-space", "layers": ("global", "local"), "client_loadings": True},
            "inducing": 24,
        },
        clients(outputs=2, missing=0.1),
    ),
}
SLOW["noise by level"] = ({**SLOW["markov"][0], "noise": "level"}, SLOW["markov"][1])


def trained(settings, rows, **more):
    from pfedhgp.estimator import FederatedGP
    from pfedhgp.settings.config import checked

    found = checked(FederatedGP(**{"rounds": 3, **settings}))
    plan = make_plan(found, rows[0].X.shape[1], rows[0].Y.shape[1])
    server = Server(replace(plan, robust="test"))
    with numerics():
        inprocess.run(server, group_clients(plan, rows, batch=True), **more)
    return server


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "form",
    [*FORMS, *(pytest.param(form, marks=pytest.mark.slow) for form in SLOW)],
)
def test_honest_replies_pass(form):
    settings, rows = (FORMS | SLOW)[form]
    server = trained(settings, rows)
    assert server.run.left_out == []
    assert server.best is not None


@pytest.fixture(scope="module")
def census():
    """A server before its census, and four honest replies."""
    plan = make_plan(ModelSettings(), 1, 1)
    server, groups = Server(plan), group_clients(plan, clients(), batch=False)
    request = server.request()
    return server, [reply for group in groups for reply in group.answer(request)]


@pytest.mark.parametrize(
    ("name", "lie", "why"),
    [
        ("y_pairs", 1e9, "more than `rows`"),
        ("y_cross", -1.0, "negative variance"),
        ("observations", 1.0, "fewer than cells"),
        ("x_means", 1e9, "does not fit"),
        ("y_mean", np.inf, "not finite"),
    ],
)
def test_a_census_that_no_rows_have(census, name, lie, why):
    server, replies = census
    arrays = {**replies[0].arrays, name: np.full_like(replies[0].arrays[name], lie)}
    with pytest.raises(Inadmissible, match=why):
        server.admit(replace(replies[0], arrays=arrays))
    server.admit(replies[0])


def scaled(factor, *names):
    return lambda a: {n: np.asarray(factor * a[n]) for n in names}


LIES = {
    "U and y": (scaled(50.0, "U", "y"), "more certain than φ allows"),
    "rows": (
        lambda a: {**scaled(5e3, "U")(a), "deviation_power": np.zeros((1, 1))},
        "more rows than were declared",
    ),
    "y": (scaled(50.0, "y"), "not in the range"),
    "a certain site": (
        lambda a: {"deviation_power": np.asarray(1e3 * a["deviation_power"])},
        "more certain than φ allows",
    ),
    "quiet": (lambda a: {"noise": np.full((1, 1), 1e-300)}, "smaller than its floor"),
    "loud": (lambda a: {"noise": np.full((1, 1), 1e9)}, "larger than outputs"),
    "evidence": (lambda a: {"evidence": np.asarray(1e9)}, "`evidence` is more"),
    "residual": (lambda a: {"shared_residual": np.full((1, 1, 1), 1e9)}, "shared_residual"),
    "traits": (lambda a: {"traits": np.asarray(a["traits"] + 1.0)}, "do not fit each other"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("lie", LIES)
def test_sums_that_no_rows_have(lie):
    alter, why = LIES[lie]

    def tamper(request, replies):
        if request.kind != "round":
            return replies
        return [
            replace(replies[0], arrays={**replies[0].arrays, **alter(replies[0].arrays)}),
            *replies[1:],
        ]

    server = trained({"rounds": 1}, clients(), tamper=tamper)
    assert {each["name"] for each in server.run.left_out} == {"c0"}
    assert why in server.run.left_out[0]["why"]
