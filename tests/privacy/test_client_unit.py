"""ε of whole clients: which rows are used, what all of them together move, and what a ledger says."""

from __future__ import annotations

import math
import random
import warnings

import numpy as np
import pytest

from pfedhgp import RBF, FederatedGP
from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError, PFedHGPWarning
from pfedhgp.federation.private_fit import BOUND, Promise, released
from pfedhgp.federation.totals_fit import SPREAD, TOTALS, Terms, TotalsClient
from pfedhgp.privacy.accounting import mu_for
from pfedhgp.privacy.client_unit import rows_used
from pfedhgp.privacy.ledger import Ledger
from pfedhgp.privacy.release import PublicBasis, exact_sums
from support.reference_federation import agreement

MOST = 12
PROMISE = Promise(1.0, 1e-6, ((0.0, 1.0),), ((-3.0, 3.0),), MOST)
PUBLIC = PublicBasis.over(np.array([0.3]))
MU = mu_for(1.0, 1e-6)


def client(count, seed=0, *, at=None, y=None):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(count, 1)) if at is None else np.full((count, 1), at)
    Y = rng.normal(size=(count, 1)) if y is None else np.full((count, 1), y)
    return ClientRows("a", X, Y)


def distance(one, other, scales):
    """‖one − other‖ of (S, b) in standard deviations of the noise; S has 1/√2 of it beside the diagonal."""
    moved = [one[i] - other[i] for i in (0, 1)]
    return math.hypot(
        np.linalg.norm(moved[0]) / scales.gram, np.linalg.norm(moved[1]) / scales.linear
    )


@pytest.mark.parametrize(
    "rows",
    [client(MOST), client(500), client(500, at=0.5, y=9.0), client(3, at=0.0, y=-9.0)],
    ids=["as many", "more", "more, all alike", "few"],
)
def test_all_rows_of_a_client_move_a_release_by_at_most_mu(rows, monkeypatch):
    """Taken away as a whole; exchanged for any others they move it twice as far at most."""
    monkeypatch.setattr("pfedhgp.privacy.release.noise", lambda sd, below: np.zeros(np.shape(sd)))
    empty = exact_sums(PUBLIC, np.zeros((0, 1)), np.zeros((0, 1)), BOUND)
    found = released(PROMISE, PUBLIC, rows, ledger=None)
    own = (found.gram, found.linear)
    assert distance(own, empty, found.scales) <= MU
    others = released(PROMISE, PUBLIC, client(400, 5, at=0.9, y=-9.0), ledger=None)
    assert distance(own, (others.gram, others.linear), found.scales) <= 2 * MU
    if rows.Y[0, 0] == 9.0:  # nothing is given away: the worst rows come near
        assert distance(own, empty, found.scales) > 0.95 * MU
    with monkeypatch.context() as patch:  # and without the limit on rows the bound would not hold
        patch.setattr("pfedhgp.federation.private_fit.rows_used", lambda n, most, key: np.arange(n))
        whole = released(PROMISE, PUBLIC, rows, ledger=None)
        far = distance((whole.gram, whole.linear), empty, found.scales)
        assert (far > MU) == (len(rows.X) > MOST)


def test_all_rows_of_a_client_move_totals_by_at_most_mu(monkeypatch):
    """Given its noisy matrix: S and b by their weights, and the spread, in units of each one's noise."""
    terms = Terms(PROMISE, PUBLIC, 0, 0)
    monkeypatch.setattr(Terms, "shares", lambda self, mu: self.scales(mu)._replace())
    silent = lambda sd, below, grid=2.0**-30: np.zeros(np.shape(sd))  # noqa: E731
    monkeypatch.setattr("pfedhgp.privacy.release.noise", silent)
    monkeypatch.setattr("pfedhgp.privacy.noise_shares.noise", silent)
    one = TotalsClient(terms, client(500, at=0.5, y=9.0))
    none = TotalsClient(terms, ClientRows("a", np.zeros((0, 1)), np.zeros((0, 1))))
    noisy = one._own["gram"]
    none.__dict__["_own"] = one._own  # what is said later is said given this release
    scales, centre = terms.scales(MU), {"centre": np.zeros((1, len(PUBLIC.inputs)))}
    moved = [np.linalg.norm(noisy) / scales.own]
    both = [
        {**each.answer(TOTALS, {}, MU), **each.answer(SPREAD, centre, MU)} for each in (one, none)
    ]
    for name, tau in (
        ("missing", scales.gram),
        ("linear", scales.linear),
        ("spread", scales.spread),
    ):
        moved.append(np.linalg.norm(both[0][name] - both[1][name]) / tau)
    assert 0.3 * MU < math.hypot(*moved) <= MU


def test_rows_are_drawn_once_and_by_a_secret():
    key = bytes(32)
    found = rows_used(500, 20, key)
    assert len(set(found)) == 20
    assert np.array_equal(found, np.sort(found))
    assert np.array_equal(found, rows_used(500, 20, key))
    assert not np.array_equal(found, rows_used(500, 20, b"x" * 32))
    assert np.array_equal(rows_used(15, 20, key), np.arange(15))
    assert np.array_equal(rows_used(15, None, key), np.arange(15))
    often = np.zeros(30)
    for i in range(600):
        often[rows_used(30, 10, i.to_bytes(4, "big"))] += 1
    assert np.all(np.abs(often - 200) < 5 * np.sqrt(600 * (1 / 3) * (2 / 3)))


@pytest.mark.parametrize("mode", ["local", "distributed", "central"])
def test_a_fit_hides_clients_and_its_ledger_counts_them(mode, tmp_path):
    """The same fit again is the same release; own layers are fitted to all rows; a warning is given."""
    rng = np.random.default_rng(0)
    sites = {}
    for i in range(4):
        x = np.sort(rng.uniform(0, 1, 60))
        sites[f"s{i}"] = (x, np.sin(6 * x) + 0.2 * rng.normal(size=60))
    settings = {"epsilon": 4.0, "domain": (0, 1), "output_bounds": (-2, 2), "local_inducing": 5}
    settings |= {"privacy_unit": "client", "rows_per_client": 5, "averaging": False}
    model = FederatedGP(privacy=mode, kernel=RBF(lengthscale=0.3), ledger=str(tmp_path), **settings)
    with pytest.warns(PFedHGPWarning, match="below 100 .* next to useless"):
        first = model.fit(sites).model_
    spent = first.settings["privacy_spent"]
    assert (spent["epsilon"], spent["rows_per_client"]) == (4.0, 5)
    for folder in tmp_path.iterdir():
        assert 4.0 <= Ledger(folder).epsilon(1e-6) <= 4.0 + 3e-4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = model.fit(sites).model_
    np.testing.assert_array_equal(first.shared.mean, again.shared.mean)


def test_what_a_promise_of_clients_needs_is_asked_for(tmp_path):
    rows = {f"s{i}": (np.linspace(0.0, 1.0, 9), np.zeros(9)) for i in range(3)}
    private = {"privacy": "local", "epsilon": 1.0, "domain": (0, 1), "output_bounds": (-1, 1)}
    with pytest.raises(InputError, match="needs `rows_per_client`"):
        FederatedGP(privacy_unit="client", **private).fit(rows)
    with pytest.raises(InputError, match="`rows_per_client` is for privacy_unit='client'"):
        FederatedGP(rows_per_client=5, **private).fit(rows)
    ledger, one = Ledger(tmp_path), Promise(*(vars(PROMISE)[n] for n in vars(PROMISE)))
    assert one == PROMISE
    released(PROMISE, PUBLIC, client(40), ledger=ledger, below=random.Random(0).randrange)
    by_row = Promise(1.0, 1e-6, PROMISE.domain, PROMISE.output_bounds)
    with pytest.raises(InputError, match="budget"):  # another promise is another release
        released(by_row, PUBLIC, client(40), ledger=ledger)


def test_sites_see_the_unit_in_the_terms_that_they_agree_to():
    tables = {"model": {"kernel": "rbf(0.3)", "domain": ["0..1"]}}
    run = {"privacy": "local", "epsilon": 1.0, "output_bounds": ["-3..3"]}
    by_client = {"privacy_unit": "client", "rows_per_client": 12}
    found = agreement(**tables, run={**run, **by_client})
    assert found.promise.rows_per_client == 12
    assert type(found).from_json(found.to_json()).promise == found.promise
    assert found.to_json() != agreement(**tables, run=run).to_json()
