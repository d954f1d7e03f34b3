"""Private runs between a server and sites, without a network: one release, a ledger, a ceiling."""

from __future__ import annotations

import datetime
import shutil
from dataclasses import replace

import numpy as np
import pytest

from pfedhgp import FederatedGP
from pfedhgp.base.numerics import numerics
from pfedhgp.errors import InputError, NumericsError
from pfedhgp.federation import private_fit
from pfedhgp.federation.flower import private_site
from pfedhgp.federation.flower.exchange import Engine
from pfedhgp.federation.flower.private_exchange import PrivateRun, Releases
from pfedhgp.federation.flower.state import Roster
from pfedhgp.federation.flower.waiting import Patience
from pfedhgp.federation.schema import DELIVER, RELEASE
from pfedhgp.federation.server import Server
from pfedhgp.model import files
from pfedhgp.privacy.accounting import mu_for
from pfedhgp.privacy.ledger import Ledger, Limit
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


def private_home(home, row, *, ceiling=1.0, delta=1e-6, new_rows=False):
    site = site_of(home, row)
    site.private = private_site.PrivateSite(site.home, Limit(ceiling, delta), new_rows)
    return site


def federation(folder, agreed, clients, *, releases=None, change=None, **owner):
    """A private run, and its link; sites know nothing but their disk."""
    sites = {row.name: private_home(folder / row.name, row, **owner) for row in clients}
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
            promise, public, row, ledger=by_rows[row.X.tobytes()], epoch="epoch 0"
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


def test_rows_enter_by_the_release_alone(tmp_path, caplog):
    """After the release the rows are replaced: every later message is the same, bit for bit."""
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
    assert all(len(Ledger(tmp_path / n / "ledger").entries()) == 1 for n in NAMES)
    assert caplog.text.count("are not those that were released before") == len(NAMES)
    assert "--new-rows" in caplog.text


def test_only_an_owners_word_makes_a_new_release_and_a_run_that_began_goes_on(tmp_path, caplog):
    """Without it the same bytes leave, whatever the rows are; with it the site draws and pays once."""
    agreed = terms(epsilon=0.5)
    first, before = federation(tmp_path, agreed, rows())
    run(first)
    second, after = federation(tmp_path, agreed, rows(9), new_rows=True)
    run(second)
    bytes_of = [
        {n: a.arrays["linear"].tobytes() for n, q, a in link.answered if q.kind == RELEASE}
        for link in (before, after)
    ]
    assert all(bytes_of[0][n] != bytes_of[1][n] for n in NAMES)
    assert "are not those that were released" not in caplog.text
    ledgers = [Ledger(tmp_path / n / "ledger") for n in NAMES]
    assert [len(each.entries()) for each in ledgers] == [2, 2, 2]
    # The same command again, in the same run: what was drawn goes out again.
    (again,) = (q for n, q, _ in after.answered if (n, q.kind) == ("south", RELEASE))
    row = next(row for row in rows(9) if row.name == "south")
    site = private_home(tmp_path / "south", row, new_rows=True)
    assert site.answer(again).arrays["linear"].tobytes() == bytes_of[1]["south"]
    # A budget that does not allow it: refused, and without the word the last release leaves again.
    with pytest.raises(Exception, match="budget"):
        run(federation(tmp_path, terms(epsilon=0.9), rows(), new_rows=True)[0])
    third, later = federation(tmp_path, agreed, rows())
    run(third)
    found = {n: a.arrays["linear"].tobytes() for n, q, a in later.answered if q.kind == RELEASE}
    assert found == bytes_of[1]
    assert [len(each.entries()) for each in ledgers] == [2, 2, 2]


def hostile_deliveries(honest, count, seed):
    """Numbers that a delivery may have, of any size, some of them with no posterior to be found."""
    rng = np.random.default_rng(seed)
    size = honest["mean"].shape[1]
    for _ in range(count):
        scale = 10.0 ** rng.uniform(-8, 14)
        about = {name: np.array(array) for name, array in honest.items()}
        about["parameters"] = rng.uniform(-30, 30, honest["parameters"].shape)
        for prefix in ("", "others."):
            direction = rng.normal(size=honest["mean"].shape)
            about[f"{prefix}mean"] = direction * 10.0 ** rng.uniform(-2, 150)
            about[f"{prefix}covariance"] = (np.eye(size) * scale)[None]
        yield about


def test_what_a_delivery_does_at_home_is_not_seen_in_the_answer(tmp_path, monkeypatch, caplog):
    """Two homes differ in one row; at one every fit fails. All their answers are the same bytes."""
    monkeypatch.setattr("pfedhgp.federation.flower.audit.datetime", FrozenTime)
    clients, agreed = rows(), terms()
    private, link = federation(tmp_path / "run", agreed, clients)
    run(private)
    asked = {q.kind: q for n, q, _ in link.answered if n == "south"}
    base = next(row for row in clients if row.name == "south")
    more = replace(base, X=np.append(base.X, [[0.003]], 0), Y=np.append(base.Y, [[0.1]], 0))
    failed = 0
    for number, arrays in enumerate(hostile_deliveries(asked[DELIVER].arrays, 60, 0)):
        answers = []
        for kind, row in (("one", base), ("other", more), ("broken", base)):
            home = tmp_path / f"{number} {kind}"
            shutil.copytree(tmp_path / "run" / "south" / "ledger", home / "ledger")
            site = private_home(home, row)
            if kind == "broken":
                monkeypatch.setattr(private_site, "own_layers", fails)
            with numerics():
                replies = [site.answer(replace(asked[RELEASE], arrays={})) for _ in range(2)]
                replies += [site.answer(replace(asked[DELIVER], arrays=arrays)) for _ in range(2)]
            answers.append([(each.plain(), each.content()) for each in replies])
            if kind == "broken":
                with pytest.raises(InputError, match="own layers could not be fitted"):
                    site.finish()
                assert site.unfinished() == []
                failed += 1
            monkeypatch.undo()
            monkeypatch.setattr("pfedhgp.federation.flower.audit.datetime", FrozenTime)
        for other in answers[1:]:
            for one, two in zip(answers[0], other, strict=True):
                assert one[0] == two[0]
                assert one[1].keys() == two[1].keys()
                assert all(one[1][n].tobytes() == two[1][n].tobytes() for n in one[1])
        assert {each[0]["seconds"] for each in answers[0]} == {0.0}
        assert [each[0]["code"] for each in answers[0]] == ["", "", "", ""]
    assert failed == 60


class FrozenTime:
    """A clock that stands still, for the times in audit logs."""

    UTC = None

    class datetime:
        @staticmethod
        def now(zone):
            return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def fails(*_):
    raise NumericsError("a value of a row, which the server may not see")


def contents(folder):
    found = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found
    return found


def test_a_run_has_one_delivery_and_none_before_the_release(tmp_path):
    """A second one is answered as the first, and changes nothing."""
    clients, agreed = rows(), terms()
    private, link = federation(tmp_path, agreed, clients)
    run(private)
    asked = next(q for n, q, _ in link.answered if (n, q.kind) == ("north", DELIVER))
    before = contents(tmp_path / "north" / "model")
    other = replace(asked, arrays={**asked.arrays, "mean": 2.0 * asked.arrays["mean"]})
    site = link.sites["north"]
    assert site.answer(other).code == ""
    site.finish()
    assert contents(tmp_path / "north" / "model") == before
    fresh = private_home(tmp_path / "new", clients[0])
    assert fresh.answer(asked).code == "malformed"
    assert fresh.unfinished() == []


def test_a_site_that_is_killed_after_its_answer_makes_its_model_later(tmp_path, monkeypatch):
    """The delivery is on its disk; a failure that no second try can mend ends it."""
    clients = rows()
    private, _ = federation(tmp_path, terms(), clients)
    monkeypatch.setattr("pfedhgp.federation.flower.site.Site.finish", lambda site: None)
    run(private)
    monkeypatch.undo()
    homes = [private_home(tmp_path / row.name, row) for row in clients]
    assert all(len(site.unfinished()) == 1 for site in homes)
    assert not (tmp_path / "north" / "model").exists()
    homes[0].finish()
    assert files.load(tmp_path / "north" / "model").settings["privacy_spent"]["epsilon"] == 1.0
    assert homes[0].unfinished() == []
    monkeypatch.setattr(private_site, "own_layers", fails)
    with pytest.raises(InputError, match=r"NumericsError at .*\. The server does not know") as info:
        homes[1].finish()
    assert "a value of a row" not in str(info.value)
    homes[1].finish()  # there is nothing left to do


def test_a_delta_above_the_sites_ceiling_is_refused_and_the_smaller_one_counts(tmp_path, caplog):
    """δ = .9 would allow a release without much noise at ε = 1."""
    with pytest.raises(Exception, match="delta"):
        run(federation(tmp_path, terms(delta=0.9), rows())[0])
    assert "δ = 0.9 is above this site's --delta-ceiling 1e-06" in caplog.text
    assert not (tmp_path / "north" / "ledger").exists()
    private, _ = federation(tmp_path, terms(delta=1e-9), rows())
    run(private)
    kept = Ledger(tmp_path / "north" / "ledger")
    assert kept.mu() == pytest.approx(mu_for(1.0, 1e-9))
    assert private_site.PrivateSite(tmp_path).limit(terms(delta=1e-9).promise) == Limit(1.0, 1e-9)
    wide, _ = federation(tmp_path / "wide", terms(delta=1e-5), rows(), delta=1e-4)
    assert run(wide)[1] == {}
    assert private_site.PrivateSite(tmp_path, Limit(1.0, 1e-4)).limit(terms().promise).delta == 1e-6


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
