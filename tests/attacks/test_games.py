"""Membership, attribute, property and linkage: they succeed without a defence, and fail against noise."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
from scipy.stats import norm

from pfedhgp.attacks import games
from pfedhgp.attacks.captured import captured
from pfedhgp.attacks.channels import Releases, Sums
from pfedhgp.attacks.intervals import beyond
from pfedhgp.data.scaling import Scaling
from pfedhgp.federation.planning import make_plan
from pfedhgp.privacy import release as releases
from pfedhgp.privacy.accounting import mu_for
from pfedhgp.privacy.release import PublicBasis
from pfedhgp.settings.table import ModelSettings
from support.overheard import wavy_rows

ROWS = wavy_rows(5, 50, 1, seed=21)
SCALING = Scaling(np.zeros(1), np.full(1, 10.0), np.zeros(1), np.ones(1))
MU = mu_for(1.0, 1e-6)


def sums(rows=ROWS, **settings):
    return Sums(captured(make_plan(ModelSettings(**settings), 1, 1), rows))


def noisy(mu=MU, seed=0, scale=0.5):
    make = partial(releases.release, below=random.Random(seed).randrange)
    return Releases(PublicBasis.over(np.array([scale])), SCALING, 2.0, mu, make)


def test_without_a_defence_every_attack_succeeds():
    """The audit's own test."""
    channel = sums(inducing=12)
    told = games.membership(channel, ROWS, 10, seed=0)
    assert told.area.value == 1.0
    assert told.true_positives.value == 1.0
    assert games.attribute(channel, ROWS, 3, seed=0).value > 0.99
    assert games.property_of_sites(channel, ROWS, seed=0).value > 0.8
    matched = games.linkage(channel, ROWS, 2, seed=0)
    assert matched.low > 1 / len(ROWS)


def test_with_differential_privacy_rows_are_near_chance():
    channel = noisy()
    told = games.membership(channel, ROWS, 150, seed=0)
    assert told.area.low < 0.566, "the most that ε = 1 allows is .566"
    assert told.area.value < 0.65
    assert told.true_positives.low < 0.018
    assert games.attribute(channel, ROWS, 150, seed=0).value < 0.05


def test_halved_noise_is_found_out(monkeypatch):
    """Every row is a canary: features as long as can be, the largest output. Halved, μ = 1 is 2."""
    canary = [type(r)(r.name, np.full((4, 1), 5.0), np.full((4, 1), 2.0)) for r in ROWS]
    honest = releases.noise

    def area():
        told = [games.membership(noisy(1.0, seed), canary, 200, seed) for seed in (1, 2, 3)]
        return float(np.mean([each.area.value for each in told]))

    promised, halved = 0.760, 0.921  # Φ(μ/√2)
    assert area() == pytest.approx(promised, abs=0.04)
    monkeypatch.setattr(releases, "noise", lambda tau, below: honest(tau / 2, below))
    assert area() == pytest.approx(halved, abs=0.04)


def test_honest_audits_seldom_find_more_than_was_promised():
    """Scores of 400 honest audits of 200 rows: at most 4% of the intervals lie above the truth."""
    rng, truth = np.random.default_rng(0), norm.sf(norm.isf(games.FALSE) - MU)
    alarms = wrong = 0
    for trial in range(400):
        there, absent = rng.normal(MU, 1.0, 200), rng.normal(0.0, 1.0, 200)
        found = beyond(there, absent, games.FALSE, trial)
        alarms += found.low > truth
        wrong += not found.low <= truth <= found.high
    assert alarms <= 16
    assert wrong <= 24
    # noise of half the size, where it is easy to see, is beyond the promise all the same
    strong = norm.sf(norm.isf(games.FALSE) - 1.7)
    for trial in range(10):
        there, absent = rng.normal(3.4, 1.0, 400), rng.normal(0.0, 1.0, 400)
        assert beyond(there, absent, games.FALSE, trial).low > strong


def test_the_function_that_sums_show_is_the_clients_own():
    x = np.linspace(0.1, 0.9, 30)[:, None]
    for channel in (sums(inducing=12), noisy(np.inf, scale=0.15)):
        client = channel.scaling.rows(ROWS[0])
        shown = channel.function(channel.sent(ROWS[0]), client.X)
        inside = (client.X[:, 0] > 0.05) & (client.X[:, 0] < 0.95)
        left = np.var((client.Y - shown)[inside])
        assert left < 0.5 * np.var(client.Y[inside])
        assert channel.function(channel.sent(ROWS[0]), x).shape == (30, 1)


@pytest.mark.filterwarnings("ignore:privacy='sums'")
def test_closed_sums_do_not_hide_sites_or_known_rows():
    """Plainly: the rule is about solving for rows. Who knows all others still knows the last one."""
    channel = sums(privacy="sums")
    assert games.membership(channel, ROWS, 6, seed=0).area.value == 1.0
