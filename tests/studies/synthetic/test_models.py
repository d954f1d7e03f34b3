"""The rows that are not our solver: pFedGP's averaging, and Algorithm 1's starting values."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from pfedhgp import FederatedGP
from pfedhgp.data.rows import ClientRows
from pfedhgp.federation.clients import ClientGroup
from pfedhgp.federation.server import Server
from pfedhgp.settings.config import checked
from pfedhgp.studies.synthetic import algorithm1
from pfedhgp.studies.synthetic.models import clients_of
from pfedhgp.studies.synthetic.personal import Personal
from pfedhgp.studies.synthetic.simulator import simulate


def simulated_rows(truth) -> list[ClientRows]:
    return [ClientRows(name, X, Y) for name, (X, Y) in clients_of(truth).items()]


def personal(rounds: int) -> FederatedGP:
    settings = Personal(rounds=rounds, evaluations=6)
    return FederatedGP(domain=[(0.0, 10.0)], noise="scalar", layers=("local",), inference=settings)


def test_pfedgp_predicts_with_the_average_of_the_kernels_that_were_sent():
    truth = simulate("A", 0, clients=3, outputs=2, n=12, n_test=5)
    sent = []
    model = personal(3)
    original = ClientGroup.answer

    def listening(self, request):
        replies = original(self, request)
        if request.kind in ("start", "round"):
            sent.append([reply.arrays["kernel"] for reply in replies])
        return replies

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientGroup, "answer", listening)
        model.fit(clients_of(truth))
    assert len(sent) == 3
    average = np.mean(sent[1], axis=0)
    assert np.ptp(sent[1], axis=0).max() > 1e-3  # each client had moved its own
    for client in model.model_.clients.values():
        kernel = np.log(np.ravel(jax.tree.leaves(client.block.kernels)[0]))
        np.testing.assert_allclose(kernel, average, rtol=1e-12)


def test_pfedgp_sends_kernels_and_nothing_else_while_training():
    model = personal(2).fit(clients_of(simulate("A", 1, clients=2, outputs=2, n=12, n_test=5)))
    up = [e for e in model.messages_ if e["to"] == "server" and e["kind"] in ("start", "round")]
    assert all(entry["arrays"] == {"kernel": [2], "clients": []} for entry in up)


def test_algorithm_1_starts_where_the_paper_does():
    truth = simulate("A", 0, clients=2, n=50, n_test=5)
    model = algorithm1.Algorithm1(**algorithm1.settings(rounds=None, seed=0))
    plan = _plan_of(model, simulated_rows(truth))
    assert (plan.inference.rounds, plan.inference.local_steps) == (20, 80)
    options = plan.inference.options(plan.spec)
    assert (options.local_rate, options.server_rate) == (0.1, 0.1)
    server, group = Server(plan), ClientGroup(plan, simulated_rows(truth))
    server.gather(group.answer(server.request()))
    request = server.request()
    block = server.current.openings[0].party.block
    np.testing.assert_allclose(np.ravel(block.kernels.lengthscale), 2.0)
    np.testing.assert_allclose(np.ravel(block.inputs), np.linspace(0, 10, 25))
    assert float(block.phi) == pytest.approx(1.0)
    caught = {}
    original = algorithm1.AsPrinted.clients

    def catching(self, spec, like, blocks, rows):
        caught["party"] = original(self, spec, like, blocks, rows)
        raise InterruptedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(algorithm1.AsPrinted, "clients", catching)
        with pytest.raises(InterruptedError):
            group.answer(request)
    party = caught["party"]
    np.testing.assert_allclose(np.ravel(party.blocks.kernels.lengthscale), 0.35)
    np.testing.assert_allclose(party.blocks.inputs[1, :, 0], np.linspace(0, 10, 25))
    np.testing.assert_allclose(np.exp(party.blocks.noise.log_variance), 0.05**2)
    np.testing.assert_allclose(party.rows.X[0], truth.X[0])  # the data's own units
    np.testing.assert_allclose(party.rows.Y[0], truth.Y[0])
    assert np.std(party.blocks.loadings) == pytest.approx(0.5, rel=0.5)


def test_algorithm_1_has_loadings_of_its_own_for_each_run():
    starts = [
        algorithm1.AsPrinted(seed=seed).server(plan.spec, block).block.loadings
        for seed in (0, 0, 1)
        for plan, block in (_plan_and_block(),)
    ]
    np.testing.assert_array_equal(starts[0], starts[1])
    assert np.all(starts[0] != starts[2])


def _plan_of(model, rows):
    return model.make_plan(checked(model), rows[0].X.shape[1], rows[0].Y.shape[1])


def _plan_and_block():
    rows = simulated_rows(simulate("A", 0, clients=2, n=30, n_test=5))
    plan = _plan_of(algorithm1.Algorithm1(**algorithm1.settings(rounds=1, seed=0)), rows)
    server, group = Server(plan), ClientGroup(plan, rows)
    server.gather(group.answer(server.request()))
    server.request()
    return plan, server.current.openings[0].party.block
