"""Private runs between a server and sites, without a network: one release, a ledger, a ceiling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pfedhgp import FederatedGP
from pfedhgp.base.numerics import numerics
from pfedhgp.errors import InputError
from pfedhgp.federation import private_fit
from pfedhgp.federation.flower import private_site
from pfedhgp.federation.flower.exchange import Engine
from pfedhgp.federation.flower.private_exchange import PrivateRun, Releases
from pfedhgp.federation.flower.state import Roster
from pfedhgp.federation.flower.waiting import Patience
from pfedhgp.federation.schema import DELIVER, RELEASE
from pfedhgp.federation.server import Server
from pfedhgp.model import files
from pfedhgp.privacy.ledger import Ledger
from support.private_sites import made_up
from support.reference_federation import Clock, LocalLink, agreement, site_of

TABLES = {
    "model": {"kernel": "rbf(0.2)", "domain": ["0..1"], "local_inducing": 5},
    "inference": {"averaging": False},
    "run": {"privacy": "local", "epsilon": 1.0, "output_bounds": ["-3..3"]},
}
NAMES = ("north", "south", "east")


def rows(seed=0):
    from pfedhgp.data.rows import ClientRows

    made = made_up(len(NAMES), 60, seed)
    return [ClientRows(n, X, Y) for n, X, Y in zip(NAMES, made.X, made.Y, strict=True)]


def terms(**run):
    return agreement(**{**TABLES, "run": {**TABLES["run"], **run}})


def federation(folder, agreed, clients, *, ceiling=1.0, releases=None, change=None):
    """A private run, and its link; sites know nothing but their disk."""
    sites = {row.name: site_of(folder / row.name, row) for row in clients}
    for site in sites.values():
        site.private = private_site.PrivateSite(site.home, ceiling)
    link = LocalLink(sites) if change is None else LocalLink(sites, change)
    server, roster, clock = Server(agreed.plan), Roster(NAMES, agreed.to_json()), Clock()
    patience = Patience(timeout=30.0, quorum=2, grace=5.0, pause=1.0)
    engine = Engine(server, roster, link, patience, clock=clock, sleep=clock.sleep)
    return PrivateRun(agreed, engine, releases or Releases()), link


def run(private):
    with numerics():
        return private.run()


def test_sites_release_once_and_find_what_one_process_finds_from_the_same_releases(
    tmp_path, monkeypatch
):
    """The shared function and each site's own layers, number by number; the server sees one release each."""
    clients, agreed = rows(), terms()
    private, link = federation(tmp_path, agreed, clients)
    model, missing = run(private)
    assert missing == {}
    asked = [(name, request.kind) for name, request, _ in link.answered]
    assert asked == [*((n, RELEASE) for n in sorted(NAMES)), *((n, DELIVER) for n in sorted(NAMES))]
    assert all(not answer.arrays for _, q, answer in link.answered if q.kind == DELIVER)
    kept = {name: Ledger(tmp_path / name / "ledger") for name in NAMES}
    assert all(ledger.epsilon(1e-6) == pytest.approx(1.0, abs=3e-4) for ledger in kept.values())
    # The same fit in one process, from the same releases.
    by_rows = {
        row.X.tobytes(): Ledger(tmp_path / row.name / "ledger")
        for row in (private_fit.public_scaling(agreed.promise).rows(r) for r in clients)
    }
    real = private_fit.released
    monkeypatch.setattr(
        "pfedhgp.estimator.private_training.released",
        lambda promise, public, row, **more: real(
            promise, public, row, ledger=by_rows[row.X.tobytes()]
        ),
    )
    settings = vars(agreed.model_settings)
    same = FederatedGP(**settings).fit({row.name: (row.X, row.Y) for row in clients})
    for name in ("mean", "covariance"):
        a, b = (np.asarray(getattr(m.shared, name)) for m in (model, same.model_))
        np.testing.assert_array_equal(a, b)
    points = np.linspace(0.0, 1.0, 9)[:, None]
    for name in NAMES:
        own = FederatedGP.load(tmp_path / name / "model")
        one, two = own.predict(name, points), same.predict(name, points)
        np.testing.assert_allclose(one.mean, two.mean, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(one.sd, two.sd, rtol=1e-8)
        assert files.load(tmp_path / name / "model").settings["privacy_spent"]["epsilon"] == 1.0


def test_a_release_that_was_lost_is_sent_again_and_other_terms_are_above_the_budget(
    tmp_path, caplog
):
    """Killed between ledger and sending: the same bytes, one entry. Twin: other rows change nothing later."""
    clients, agreed = rows(), terms()

    def lost(name, request, reply):
        return None if (name, request.kind) == ("south", RELEASE) else reply

    first, link = federation(tmp_path, agreed, clients, change=lost)
    run(first)
    second, again = federation(tmp_path, agreed, clients)
    run(second)
    for name in NAMES:
        (a,) = (x for n, q, x in link.answered if (n, q.kind) == (name, RELEASE))
        (b,) = (x for n, q, x in again.answered if (n, q.kind) == (name, RELEASE))
        assert all(a.arrays[key].tobytes() == b.arrays[key].tobytes() for key in a.arrays)
        assert len(Ledger(tmp_path / name / "ledger").entries()) == 1
    for other in (terms(epsilon=0.5), terms(output_bounds=["-4..4"])):
        refused, _ = federation(tmp_path, other, clients)
        with pytest.raises(Exception, match="budget"):
            run(refused)
    above, _ = federation(tmp_path / "new", terms(epsilon=4.0), clients)
    with pytest.raises(Exception, match="budget"):
        run(above)
    assert "above this site's --epsilon-ceiling 1" in caplog.text
    assert not (tmp_path / "new" / "north" / "ledger").exists()
    more, _ = federation(tmp_path, terms(epsilon=0.5), clients, ceiling=4.0)
    assert run(more)[1] == {}


def test_rows_enter_by_the_release_alone(tmp_path, monkeypatch):
    """After the release the rows are replaced: every later message is the same, bit for bit."""
    monkeypatch.setattr(private_fit, "request_of", lambda parts: "a" * 64)
    sent = []
    for seed in (0, 9):
        private, link = federation(tmp_path, terms(), rows(seed))
        run(private)
        sent.append({(n, q.kind): (q.arrays, a.arrays, a.code) for n, q, a in link.answered})
    assert sent[0].keys() == sent[1].keys()
    for key, (asked, answered, code) in sent[0].items():
        other = sent[1][key]
        assert (code, asked.keys(), answered.keys()) == ("", other[0].keys(), other[1].keys())
        for one, two in ((asked, other[0]), (answered, other[1])):
            assert all(one[name].tobytes() == two[name].tobytes() for name in one)


def test_a_killed_server_delivers_what_it_began_with(tmp_path):
    agreed, clients, kept = terms(), rows(), Releases()
    first, _ = federation(tmp_path, agreed, clients, releases=kept)

    class Killed(Exception):
        pass

    def die(entry):
        raise Killed

    first.engine.on_exchange = die
    with pytest.raises(Killed):
        run(first)
    after = Releases()
    after.restore(kept.state())
    second, link = federation(tmp_path, agreed, clients, releases=after)
    model, missing = run(second)
    assert missing == {}
    assert {request.kind for _, request, _ in link.answered} == {DELIVER}
    whole, _ = federation(tmp_path, agreed, clients)
    np.testing.assert_array_equal(model.shared.mean, run(whole)[0].shared.mean)


def test_anything_but_the_release_and_the_delivery_is_refused(tmp_path):
    agreed, clients = terms(), rows()
    private, link = federation(tmp_path, agreed, clients)
    run(private)
    asked = {request.kind: request for name, request, _ in link.answered if name == "north"}
    site = link.sites["north"]
    census = replace(asked[RELEASE], kind="census")
    assert site.answer(census).code == "malformed"
    assert site.answer(replace(asked[RELEASE], arrays={"x": np.ones(1)})).code == "malformed"
    wrong = {**asked[DELIVER].arrays, "mean": np.full((1, 9), np.nan)}
    assert site.answer(replace(asked[DELIVER], arrays=wrong)).code == "not-finite"
    bad = {**asked[DELIVER].arrays, "covariance": -asked[DELIVER].arrays["covariance"]}
    assert site.answer(replace(asked[DELIVER], arrays=bad)).code == "out-of-range"


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"run": {"privacy": "local", "epsilon": 1.0}}, "needs `output_bounds`"),
        ({"model": {"kernel": "rbf(0.2)"}}, "needs `domain`"),
        ({"federation": {"masks": True}}, "no form for masks"),
        ({"run": {**TABLES["run"], "ledger": "here"}}, "every site has its ledger in its own home"),
    ],
)
def test_what_has_no_private_form_is_refused_by_name(tables, words):
    with pytest.raises(InputError, match=words):
        agreement(**{**TABLES, **tables})
