"""Federated equals pooled; neither the order of clients nor how rows and work are split matters."""

from __future__ import annotations

import numpy as np
import pytest

import reference
from pfedhgp import FederatedGP, Markov
from pfedhgp.data.rows import ClientRows
from pfedhgp.federation.grouping import group_clients
from pfedhgp.federation.planning import make_plan
from pfedhgp.federation.server import Server
from pfedhgp.inference.markov import step
from pfedhgp.inference.markov.knots import Evidence, posterior
from pfedhgp.inference.markov.population import OPENING_NOISE
from pfedhgp.inference.markov.server import lengths_of
from pfedhgp.settings.config import checked
from support.markov_stations import SETTINGS, stations

STEPS, ROUNDS = 24, 3


def plan_and_rows():
    rows = [
        ClientRows(name, t[t[:, 0] < STEPS], y[t[:, 0] < STEPS, None])
        for name, (t, y) in stations()[0].items()
    ]
    small = {**SETTINGS, "inducing": STEPS, "domain": ((0.0, STEPS - 1.0),)}
    solver = Markov(rounds=ROUNDS, evaluations=3, frozen_rounds=1)
    return make_plan(checked(FederatedGP(inference=solver, **small)), 1, 1), rows


def trained(plan, rows, *, batch: bool = True, exchanges: int | None = None):
    server, groups = Server(plan), group_clients(plan, rows, batch=batch)
    while (request := server.request()) is not None and server.exchanges != exchanges:
        server.gather([reply for group in groups for reply in group.answer(request)])
    return server, groups


def test_exact_bound_of_the_opening_is_the_pooled_dense_gaussian():
    """Drifts are not there yet: y_i = c_iᵀu + ε, all clients' rows in one covariance."""
    plan, rows = plan_and_rows()
    server, groups = trained(plan, rows, exchanges=2)
    block, scaling = server.current.leader.block, server.run.prepared.scaling
    own = {
        name: np.asarray(group.parties[0].blocks.global_loadings)[i, 0]
        for group in groups
        for i, name in enumerate(group.names)
    }
    X = np.concatenate([scaling.inputs(client.X) for client in rows])
    y = np.concatenate([client.Y[:, 0] for client in rows])
    c = np.concatenate([np.tile(own[client.name], (len(client.X), 1)) for client in rows])
    K = OPENING_NOISE * np.eye(len(y))
    for r, length in enumerate(lengths_of(block)):
        K += np.outer(c[:, r], c[:, r]) * reference.matern12(X, X, lengthscale=length)
    scaled = (y - scaling.centre[0]) / scaling.spread[0]
    expected = reference.log_gaussian(scaled, 0.0, K)
    assert server.history[0]["bound"] == pytest.approx(expected, rel=1e-9)


def test_exact_invariance_to_the_order_of_clients_and_the_split_of_the_work():
    plan, rows = plan_and_rows()
    straight, _ = trained(plan, rows)
    alone, _ = trained(plan, rows, batch=False)
    turned, _ = trained(plan, rows[::-1])
    bounds = np.array([record["bound"] for record in straight.history])
    for other in (alone, turned):
        found = np.array([record["bound"] for record in other.history])
        np.testing.assert_allclose(found, bounds, rtol=1e-8)
        np.testing.assert_allclose(
            other.best.shared.knot_h, straight.best.shared.knot_h, rtol=1e-5, atol=1e-6
        )


def test_exact_sums_of_a_series_that_lies_at_two_clients():
    """With the same loadings, what two halves say of the knots adds up to what the whole says."""
    rng = np.random.default_rng(1)
    M, R = 12, 2
    places = np.linspace(0.0, 1.0, M)
    J = rng.normal(size=(M, R, R))
    told = Evidence(J @ np.swapaxes(J, 1, 2), rng.normal(size=(M, R)))
    q = posterior(places, np.array([0.2, 0.5]), told)
    c, logs = np.array([[0.8, -0.4]]), np.log([[0.3, 0.01, 0.2]])
    values = rng.normal(size=(1, M))

    def said(which: np.ndarray) -> step.Sent:
        ones = np.ones((1, len(which)))
        series = step.Series(
            places[None, which], which[None], values[:, which], ones, ones, np.zeros(1)
        )
        prior = step.LoadingsPrior(np.zeros((1, R)), np.eye(R)[None])
        expected = step.ExpectedLogs(logs, np.ones_like(logs))
        return step.send(step.Problem.of(series, q, prior, expected), logs, c, M)

    whole = said(np.arange(M))
    parts = [said(np.arange(0, M, 2)), said(np.arange(1, M, 2))]
    assert whole.evidence[0] == pytest.approx(sum(p.evidence[0] for p in parts), rel=1e-12)
    for name in ("J", "h"):
        total = sum(getattr(p.about_knots[0], name) for p in parts)
        np.testing.assert_allclose(getattr(whole.about_knots[0], name), total, rtol=1e-12)
