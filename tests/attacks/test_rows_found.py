"""Rows from a run's own messages: with closed sums no more than the histogram shows."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp.attacks.captured import captured
from pfedhgp.attacks.channels import Releases
from pfedhgp.attacks.rows_found import from_release, from_sums, from_totals, why_not
from pfedhgp.data.scaling import Scaling
from pfedhgp.errors import InputError
from pfedhgp.federation.planning import make_plan
from pfedhgp.privacy.accounting import mu_for
from pfedhgp.privacy.release import PublicBasis
from pfedhgp.settings.table import ModelSettings
from support.overheard import wavy_rows

CLOSED = pytest.mark.filterwarnings("ignore:privacy='sums'")


def plan_of(outputs, **settings):
    return make_plan(ModelSettings(**settings), 1, outputs)


def heard(rows, **settings):
    return captured(plan_of(rows[0].Y.shape[1], **settings), rows)


@CLOSED
@pytest.mark.parametrize(
    ("rows", "outputs"),
    [
        (60, 1),
        pytest.param(60, 3, marks=pytest.mark.slow),
        pytest.param(200, 1, marks=pytest.mark.slow),
        pytest.param(200, 3, marks=pytest.mark.slow),
    ],
)
def test_closed_sums_tell_no_more_rows_than_the_histogram(rows, outputs):
    clients = wavy_rows(3, rows, outputs, seed=11)
    found = from_sums(heard(clients, privacy="sums"), clients, most=2 if rows == 60 else 1)
    assert found.before.trials == rows * (2 if rows == 60 else 1)
    assert found.found.value <= found.before.high
    assert found.found.value < 0.35


@CLOSED
@pytest.mark.parametrize("outputs", [1, 3])
def test_twenty_rows_are_told_nothing_of(outputs):
    """They send no statistics at all, and their histogram has five rows a cell."""
    clients = [*wavy_rows(2, 60, outputs, seed=12), wavy_rows(3, 20, outputs, seed=12)[2]]
    told = heard(clients, privacy="sums")
    assert set(told.replies["start"]) == {"client 0", "client 1"}
    cells = told.replies["extent"]["client 2"].arrays["histogram"]
    assert cells.sum() == 20
    assert from_sums(told, clients[2:], most=1) is None


@CLOSED
def test_totals_of_masked_clients_tell_no_more_rows_than_their_histogram():
    """The attacker knows how many rows each client has, and the histogram of all."""
    clients = wavy_rows(3, 40, 1, seed=13)
    told = heard(clients, privacy="sums", inducing=9)  # what 3 × 40 rows answer for, 0.8 of it
    found = from_totals(told, clients, seed=0)
    assert found.found.trials == 120
    assert found.found.value <= found.before.high


def test_a_release_tells_no_rows():
    clients = wavy_rows(2, 60, 1, seed=14)
    public = PublicBasis.over(np.array([0.3]))
    scaling = Scaling(np.zeros(1), np.full(1, 10.0), np.zeros(1), np.ones(1))
    found = from_release(Releases(public, scaling, 2.0, mu_for(1.0, 1e-6)), clients, most=2)
    assert found.found.value <= found.before.high
    exact = from_release(Releases(public, scaling, 2.0, np.inf), clients, most=1)
    assert exact.found.trials == 60


def test_what_the_attack_does_not_know_is_said():
    clients = wavy_rows(2, 40, 1)
    clients[0].Y[3] = np.nan
    told = heard(clients, privacy="none", inducing=5)
    assert "missing cells" in why_not(told, clients)
    with pytest.raises(InputError, match="structured"):
        heard(clients, inference="mean-field")
