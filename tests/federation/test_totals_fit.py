"""A client's answers in a private fit by totals: what its ledger keeps, and when its noise is drawn anew."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError
from pfedhgp.federation.private_fit import Promise
from pfedhgp.federation.totals_fit import SPREAD, TOTALS, Terms, TotalsClient
from pfedhgp.privacy.accounting import mu_for
from pfedhgp.privacy.ledger import Ledger, Limit, request_of
from pfedhgp.privacy.noise_shares import share_of
from pfedhgp.privacy.release import PublicBasis
from support.private_sites import made_up

PROMISE = Promise(1.0, 1e-6, ((0.0, 1.0),), ((-3.0, 3.0),))
TERMS = Terms(PROMISE, PublicBasis.over(np.array([0.3])), 3, 1)
MU = mu_for(1.0, 1e-6)


def fit(folder, change: int | None = None, limit: float = 8.0) -> list[TotalsClient]:
    """Three clients with ledgers; one of them may have other outputs."""
    made = made_up(3, 60, 0)
    clients = []
    for i, (X, Y) in enumerate(zip(made.X, made.Y, strict=True)):
        rows = ClientRows(f"s{i}", X, Y + 0.01 * (i == change))
        ledger = Ledger(folder / rows.name)
        clients.append(TotalsClient(TERMS, rows, ledger, Limit(limit, 1e-6)))
    for each in clients:
        each.among = request_of({c.rows.name: c.stamp for c in clients})
    return clients


def test_if_one_client_has_other_rows_all_draw_new_noise_and_pay_for_it(tmp_path):
    """Else the difference of two totals would be one client's part, with its own share of the noise alone."""
    first, again, other = fit(tmp_path), fit(tmp_path), None
    answers = [[c.answer(TOTALS, {}, MU) for c in clients] for clients in (first, again)]
    for a, b in zip(*answers, strict=True):
        assert {n: x.tobytes() for n, x in a.items()} == {n: x.tobytes() for n, x in b.items()}
    assert [len(c.ledger.entries()) for c in first] == [2, 2, 2]
    other = fit(tmp_path, change=0)
    changed = [c.answer(TOTALS, {}, MU) for c in other]
    for before, after in zip(answers[0][1:], changed[1:], strict=True):  # their rows are the same
        moved = after["linear"] - before["linear"]
        share = share_of(TERMS.scales(MU).linear, 3, 1)
        assert np.std(moved) > 0.3 * np.sqrt(2) * share
        assert np.array_equal(after["known"], before["known"])  # from the matrix that stays at home
    assert [len(c.ledger.entries()) for c in other] == [4, 3, 3]


def test_each_question_is_charged_once_and_refused_when_the_budget_is_spent(tmp_path):
    client = fit(tmp_path, limit=1.0)[0]
    client.answer(TOTALS, {}, MU)
    size = len(TERMS.public.inputs)
    first = client.answer(SPREAD, {"centre": np.zeros((1, size))}, MU)
    assert client.ledger.mu() == pytest.approx(MU, rel=1e-9)
    again = client.answer(SPREAD, {"centre": np.zeros((1, size))}, MU)
    assert np.array_equal(first["spread"], again["spread"])
    with pytest.raises(InputError, match="budget"):
        client.answer(SPREAD, {"centre": np.ones((1, size))}, MU)
    with pytest.raises(InputError, match="no question"):
        client.answer("rows", {}, MU)


def test_with_a_ledger_a_client_must_know_among_whom_noise_is_shared(tmp_path):
    client = fit(tmp_path)[0]
    client.among = ""
    with pytest.raises(ValueError, match="among whom"):
        client.answer(TOTALS, {}, MU)


def test_noise_in_a_total_is_what_the_terms_promise_without_the_tolerated(tmp_path):
    """τ of each part by μ, and shares that give it back without one of three clients."""
    tau, shares = TERMS.scales(MU), TERMS.shares(MU)
    assert shares.own == tau.own
    for part in ("gram", "linear", "spread"):
        assert np.sqrt(2) * getattr(shares, part) == pytest.approx(getattr(tau, part), rel=1e-12)


def test_if_the_server_draws_the_noise_clients_add_none_and_the_total_has_all_of_it(tmp_path):
    """Central, between machines: the same τ however many clients answer."""
    terms = replace(TERMS, clients=0, missing=0, at_server=True)
    assert terms.shares(MU) == (terms.scales(MU).own, 0.0, 0.0, 0.0)
    assert terms.noise(MU, 2) == terms.noise(MU, 9) == terms.scales(MU)
    exact = {"linear": np.zeros((1, 400)), "known": np.ones((1, 2))}
    drawn = terms.with_servers_noise(exact, MU, random.Random(0).randrange)
    assert np.std(drawn["linear"]) == pytest.approx(terms.scales(MU).linear, rel=0.1)
    assert np.array_equal(drawn["known"], exact["known"])


def test_a_fit_says_what_it_will_cost_before_it_is_charged(tmp_path):
    client = fit(tmp_path)[0]
    client.ledger = Ledger(tmp_path / "new")
    client.__dict__.pop("_own")
    assert not client.has_own
    assert client.unpaid(MU) == pytest.approx(MU, rel=1e-12)
    client.answer(TOTALS, {}, MU)
    assert client.has_own
    assert client.unpaid(MU) == 0.0
    client.among = "another exchange"
    assert client.unpaid(MU) == pytest.approx(MU * np.sqrt(0.85), rel=1e-12)


def test_a_new_process_answers_every_question_from_its_ledger(tmp_path):
    """One that begins with the second question reads its own matrix from the ledger, which is not locked."""
    fit(tmp_path)[0].answer(TOTALS, {}, MU)
    centre = {"centre": np.zeros((1, len(TERMS.public.inputs)))}
    one, two = (fit(tmp_path)[0].answer(SPREAD, centre, MU)["spread"] for _ in range(2))
    assert np.array_equal(one, two)
