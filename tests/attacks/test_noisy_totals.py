"""Attacks on private runs by totals: near the promise from outside, all rows for a trusted server."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from pfedhgp.attacks import audit, games, noisy_totals
from pfedhgp.attacks.noisy_totals import NoisyTotals
from pfedhgp.federation.private_fit import Promise, public_basis, public_scaling
from pfedhgp.federation.totals_fit import Terms
from pfedhgp.gp.kernels import RBF
from pfedhgp.privacy.accounting import mu_for
from pfedhgp.privacy.totals import Scales
from support.overheard import wavy_rows

ROWS = wavy_rows(4, 50, 1, seed=21)
PROMISE = Promise(1.0, 1e-6, ((0.0, 10.0),), ((-3.0, 3.0),))
SCALING = public_scaling(PROMISE)
TERMS = Terms(PROMISE, public_basis(RBF(lengthscale=3.0), SCALING), 4, 1)
MU = mu_for(1.0, 1e-6)
WHOLE = replace(TERMS, clients=1, missing=0)
FEW = audit.Effort(clients=1, rows=8, outputs=6, splits=1, noisy=60)


def below():
    """Noise that is the same in every run of the tests."""
    return random.Random(0).randrange


def channel(mu=MU, seed=0, **terms):
    return NoisyTotals(replace(WHOLE, **terms), SCALING, mu, random.Random(seed).randrange)


def test_what_is_sent_is_what_is_expected_and_the_noise_that_is_promised():
    """Number by number; without a row it differs by what one row may move, in units of the noise, at most."""
    here, client = channel(), ROWS[0]
    seen = here.sent(client)
    whitened = np.sqrt(here.precision(seen)) * (seen - here.expected(client, seen))
    assert np.std(whitened) == pytest.approx(1.0, abs=0.15)
    step = here.expected(client, seen) - here.expected(games.without(client, 3), seen)
    assert np.linalg.norm(np.sqrt(here.precision(seen)) * step) <= MU * (1 + 1e-9)


def test_from_outside_membership_is_near_what_epsilon_allows():
    told = games.membership(channel(), ROWS, 150, seed=0)
    assert told.area.low < 0.566, "the most that ε = 1 allows is .566"
    assert told.area.value < 0.66
    assert games.attribute(channel(), ROWS, 100, seed=0).value < 0.05


def test_halved_noise_is_found_out(monkeypatch):
    """Every row is a canary, with the largest output, in totals with half of the noise that was promised."""
    canary = [type(r)(r.name, np.full((4, 1), 5.0), np.full((4, 1), 3.0)) for r in ROWS]

    def area():
        told = [games.membership(channel(1.7, seed), canary, 250, seed) for seed in (1, 2)]
        return float(np.mean([each.area.value for each in told]))

    promised = 0.885  # Φ(μ/√2) at μ = 1.7
    assert promised - 0.06 < area() < promised + 0.01

    def half(name, place):
        real = getattr(noisy_totals, name)

        def less(*given):
            found = list(given)
            found[place] = (
                found[place] / 2
                if isinstance(found[place], float)
                else Scales(*(each / 2 for each in found[place]))
            )
            return real(*found)

        monkeypatch.setattr(noisy_totals, name, less)

    half("noisy_gram", 1)
    half("part_of_totals", 2)
    half("part_of_spread", 3)
    assert area() > promised + 0.07


def test_a_trusted_server_finds_rows_and_who_gets_the_model_does_not():
    for terms in (replace(TERMS, at_server=True), replace(TERMS, missing=0)):
        found = audit.audit_totals(
            terms, SCALING, MU, ROWS, hidden=False, effort=FEW, below=below()
        )
        values = {(f.attack, f.measure): f.found for f in found}
        assert len(values) == len(found)
        exact = terms.at_server
        server, outside = (
            values["membership", f"AUC, by {w}"] for w in ("the server", "who gets the model")
        )
        assert outside.low < 0.566
        if exact:
            assert server.value > 0.99
            assert values["attribute", "R², by the server"].value > 0.99
            assert values["property", "signs right, by the server"].value > 0.7
        promised = {f.promised for f in found if f.measure.endswith("server")}
        assert promised == {"nothing: the server is trusted"}


def test_of_distributed_totals_the_server_finds_nobodys_rows():
    found = audit.audit_totals(TERMS, SCALING, MU, ROWS, hidden=True, effort=FEW, below=below())
    by_attack = {f.attack: f for f in found}
    rows = by_attack["reconstruction"]
    assert rows.found.low <= rows.chance + 0.02, (rows.found, rows.chance)
    assert by_attack["linkage"].why == audit.IN_TOTALS
    assert "rows are protected, not sites" in by_attack["property"].promised
    alone = audit.audit_totals(TERMS, SCALING, MU, ROWS[:1], hidden=True, effort=FEW, below=below())
    assert {f.attack for f in alone if f.found is None} == {"reconstruction", "property", "linkage"}
