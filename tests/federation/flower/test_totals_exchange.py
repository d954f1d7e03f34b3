"""Private runs by totals between a server and sites, without a network: numbers, ledgers, deaths, lies."""

from __future__ import annotations

import copy
import shutil
from dataclasses import replace

import numpy as np
import pytest

from support.masked_sites import needs_cryptography
from support.private_sites import made_up
from support.reference_federation import Clock, LocalLink, agreement, site_of

needs_cryptography()
from pfedhgp import FederatedGP  # noqa: E402
from pfedhgp.base.numerics import numerics  # noqa: E402
from pfedhgp.data.rows import ClientRows  # noqa: E402
from pfedhgp.errors import InputError  # noqa: E402
from pfedhgp.federation import totals_fit  # noqa: E402
from pfedhgp.federation.checkpoint import Checkpoint, decode, encode  # noqa: E402
from pfedhgp.federation.envelope import ANSWER, SIGN  # noqa: E402
from pfedhgp.federation.flower.exchange import Engine  # noqa: E402
from pfedhgp.federation.flower.masked_exchange import MaskedExchanges, masked_roster  # noqa: E402
from pfedhgp.federation.flower.masked_site import MaskKeys  # noqa: E402
from pfedhgp.federation.flower.private_site import PrivateSite  # noqa: E402
from pfedhgp.federation.flower.state import Roster, site_hash  # noqa: E402
from pfedhgp.federation.flower.totals_exchange import NextQuestion, Totals, TotalsRun  # noqa: E402
from pfedhgp.federation.flower.waiting import Patience, QuorumError  # noqa: E402
from pfedhgp.federation.masks import wire  # noqa: E402
from pfedhgp.federation.masks.keys import Identity  # noqa: E402
from pfedhgp.federation.messages import hash_arrays  # noqa: E402
from pfedhgp.federation.private_fit import public_scaling  # noqa: E402
from pfedhgp.federation.schema import DELIVER, RELEASE  # noqa: E402
from pfedhgp.federation.server import Server  # noqa: E402
from pfedhgp.federation.totals_fit import TotalsClient  # noqa: E402
from pfedhgp.model import files  # noqa: E402
from pfedhgp.privacy.ledger import Ledger, Limit  # noqa: E402

pytestmark = pytest.mark.flower
MODES = ("distributed", "central")
TABLES = {
    "model": {"kernel": "rbf(0.3)", "domain": ["0..1"], "local_inducing": 5},
    "inference": {"averaging": False},
}
POINTS = np.linspace(0.0, 1.0, 9)[:, None]


def rows_of(count, seed=0):
    made = made_up(count, 60, seed)
    pairs = zip(made.X, made.Y, strict=True)
    return [ClientRows(f"site {i}", X, Y) for i, (X, Y) in enumerate(pairs)]


def terms_of(mode, **run):
    given = {"privacy": mode, "epsilon": 1.0, "output_bounds": ["-3..3"], **run}
    return agreement(**TABLES, run=given, federation={"masks": mode == "distributed"})


class Killed(Exception):
    pass


class Federation:
    """Sites that know nothing but their disk, and a server that can be started again."""

    def __init__(self, folder, mode, count=4, *, ceiling=1.0, rows=None, **run):
        self.folder, self.rows, self.ceiling = folder, rows or rows_of(count), ceiling
        self.terms, self.masked, self.saved = terms_of(mode, **run), mode == "distributed", b""
        self.identities = {name: Identity.new() for name in self.names}
        self.public = {name: own.public for name, own in self.identities.items()}
        self.away, self.lost = set(), set()
        self.link = LocalLink({}, self.change)
        self.link.push = self.push
        self.start()

    @property
    def names(self):
        return [row.name for row in self.rows]

    def site(self, name):
        keys = MaskKeys(self.identities[name], masked_roster(self.public).digest)
        row = next(row for row in self.rows if row.name == name)
        site = site_of(self.folder / name, row, masks=keys if self.masked else None)
        site.private = PrivateSite(site.home, Limit(self.ceiling, 1e-6))
        return site

    def push(self, name, request, lifetime):
        """A new process for every request; some sites are away in some exchanges."""
        if (request.exchange, name) in self.away:
            return True
        self.link.sites[name] = self.site(name)
        return LocalLink.push(self.link, name, request, lifetime)

    def change(self, name, request, reply):
        return None if (request.exchange, request.trip, name) in self.lost else reply

    def start(self, *, resume=False, quorum=2):
        server, roster, clock = Server(self.terms.plan), Roster(tuple(self.names), ""), Clock()
        roster.agreement, totals = self.terms.to_json(), Totals()
        kept = Checkpoint(self.folder / "RUN")
        if resume:
            with numerics():
                kept.restore(server, [roster, totals])
        else:
            kept.clear()
            (self.folder / "question").unlink(missing_ok=True)
        masks = None
        if self.masked:
            masks = MaskedExchanges.of(self.public, roster.run, save=self._keep)
            if resume and self.saved:
                masks.restore(decode(self.saved))
        patience = Patience(timeout=30.0, quorum=quorum, grace=5.0, pause=1.0)
        about = {"clock": clock, "sleep": clock.sleep, "masks": masks}
        engine = Engine(server, roster, self.link, patience, **about)
        engine.save_checkpoint = lambda: kept.save(server, [roster, totals], [])
        if not resume:
            engine.save_checkpoint()
        asked = NextQuestion(self.folder / "question")
        terms = self.terms.totals(len(self.names))
        self.server = TotalsRun(self.terms, terms, engine, totals, asked)

    def _keep(self, state):
        self.saved = encode(state)

    def run(self):
        with numerics():
            return self.server.run()

    def ledger(self, name):
        return Ledger(self.folder / name / "ledger")

    def spent(self, name):
        return [entry.purpose.split()[0] for entry in self.ledger(name).entries()]


@pytest.fixture
def known_noise(monkeypatch):
    """The same noise in every process: what is left can be compared number by number."""

    def noise(deviations, below=None, grid=2.0**-30):
        given = np.asarray(deviations, np.float64)
        waves = np.cos(np.arange(given.size)).reshape(given.shape)
        return np.round(given * waves / grid) * grid

    monkeypatch.setattr("pfedhgp.privacy.noise_shares.noise", noise)
    monkeypatch.setattr("pfedhgp.privacy.release.noise", noise)


def same_predictions(folder, names, model):
    for name in names:
        own = FederatedGP.load(folder / name / "model")
        one, two = own.predict(name, POINTS), model.predict(name, POINTS)
        np.testing.assert_allclose(one.mean, two.mean, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(one.sd, two.sd, rtol=1e-6)


def test_distributed_sites_find_what_one_process_finds_with_the_same_noise(tmp_path, known_noise):
    """The shared function and each site's own layers; what leaves is behind masks, and charged in three."""
    there = Federation(tmp_path, "distributed")
    model, missing = there.run()
    assert missing == {}
    settings = vars(there.terms.model_settings)
    same = FederatedGP(**settings).fit({row.name: (row.X, row.Y) for row in there.rows})
    for name in ("mean", "covariance"):
        a, b = (np.asarray(getattr(m.shared, name)) for m in (model, same.model_))
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-10)
    same_predictions(tmp_path, there.names, same)
    assert model.settings["privacy_spent"] == same.model_.settings["privacy_spent"]
    assert all(not answer.arrays for _, _, answer in there.link.answered)
    kinds = [(entry["kind"], entry["exchange"]) for entry in there.server.engine.roster.log]
    assert kinds == [(RELEASE, 1), (RELEASE, 2), (RELEASE, 3), (RELEASE, 4)]
    for name in there.names:
        assert there.spent(name) == ["own", "totals", "spread"]
        assert there.ledger(name).epsilon(1e-6) == pytest.approx(1.0, abs=3e-4)


def test_central_sites_send_exact_sums_and_the_server_draws_the_noise_once(
    tmp_path, known_noise, caplog
):
    """What leaves the server is what one process learns from the same totals with the same noise."""
    there = Federation(tmp_path, "central")
    model, missing = there.run()
    assert missing == {}
    assert "its own rows twice" not in caplog.text
    terms, mu = there.server.terms, there.server.mu
    clients = [
        TotalsClient(terms, public_scaling(terms.promise).rows(row), None, Limit(1.0, 1e-6))
        for row in there.rows
    ]

    def ask(question, asked):
        answers = [each.answer(question, asked, mu) for each in clients]
        exact = {name: np.sum([a[name] for a in answers], axis=0) for name in answers[0]}
        return terms.with_servers_noise(exact, mu), len(clients)

    learned = totals_fit.learned_from_totals(terms, mu, ask)
    found = learned.shared().posterior()
    np.testing.assert_allclose(model.shared.mean, found.mean, rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(model.shared.covariance, found.covariance, rtol=1e-7, atol=1e-10)
    sent = {n: a.arrays for n, q, a in there.link.answered if (q.kind, q.exchange) == (RELEASE, 1)}
    for client in clients:  # exactly, for whoever runs the server
        (part,) = client.part(mu)
        np.testing.assert_allclose(sent[client.rows.name]["linear"][0], part[1], atol=1e-9)
    tau = terms.scales(mu)
    total = np.sum([each["linear"] for each in sent.values()], axis=0)
    drawn = there.server.totals.known[0].arrays["linear"] - total
    assert np.max(np.abs(drawn)) == pytest.approx(tau.linear, abs=1e-5)
    assert model.settings["privacy_spent"]["noise_at_server"] is True
    for name in there.names:
        assert there.spent(name) == ["own", "totals", "spread"]


@pytest.mark.parametrize("mode", MODES)
def test_a_site_that_is_killed_at_any_point_pays_once_and_sends_the_same_bytes(mode, tmp_path):
    """Killed after the ledger, before anything is sent; and with its answer lost on the way."""
    there = Federation(tmp_path, mode)
    real, deaths = TotalsClient.answer, []

    def dies(self, question, asked, mu):
        found = real(self, question, asked, mu)
        if self.rows.name == "site 1" and question != "scales" and question not in deaths:
            deaths.append(question)
            raise KeyboardInterrupt
        return found

    push, sent = there.link.push, {}

    def again(name, request, lifetime):
        try:
            done = push(name, request, lifetime)
        except KeyboardInterrupt:  # the same request comes again to a new process
            done = push(name, request, lifetime)
        if request.kind == RELEASE and request.trip in ("", ANSWER):
            replies = [there.site(name).answer(request) for _ in range(2)]
            for reply in replies:
                last = there.link.answered[-1][2]
                assert reply.sealed == last.sealed
                assert {n: a.tobytes() for n, a in reply.arrays.items()} == {
                    n: a.tobytes() for n, a in last.arrays.items()
                }
            sent[name, request.exchange] = len(replies)
        return done

    there.link.push = again
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TotalsClient, "answer", dies)
        assert there.run()[1] == {}
    assert deaths == ["totals", "spread"]
    assert len(sent) == 16
    for name in there.names:
        assert there.spent(name) == ["own", "totals", "spread"]
        assert there.ledger(name).epsilon(1e-6) == pytest.approx(1.0, abs=3e-4)


@pytest.mark.parametrize("mode", MODES)
def test_a_killed_server_asks_the_same_again_and_delivers_what_it_began_with(mode, tmp_path):
    there = Federation(tmp_path, mode)
    totals = []
    for exchange in (1, 2, 4):

        def die(entry, last=exchange):
            if entry["exchange"] == last:
                raise Killed

        there.server.engine.on_exchange = die
        with pytest.raises(Killed):
            there.run()
        totals.append([each.arrays for each in there.server.totals.known])
        there.start(resume=True)
    model, missing = there.run()
    assert missing == {}
    for before in totals:
        for one, two in zip(before, there.server.totals.known, strict=False):
            assert all(one[n].tobytes() == two.arrays[n].tobytes() for n in one)
    assert len(there.server.engine.roster.log) == 4
    for name in there.names:
        assert there.spent(name) == ["own", "totals", "spread"]
    first = there.server.totals.known[0].arrays
    delivered = [q for _, q, _ in there.link.answered if q.kind == DELIVER]
    assert all(np.array_equal(q.arrays["totals.linear"], first["linear"]) for q in delivered)
    assert model.settings["exchanges"] == 4


def test_so_many_sites_may_drop_out_as_were_tolerated_and_no_more(tmp_path):
    """Two of seven in each noisy exchange: the run goes on. With three it stops, and sites do not sign."""
    there = Federation(tmp_path / "two", "distributed", 7)
    assert there.server.terms.missing == 2
    there.away = {(1, "site 0"), (1, "site 1"), (3, "site 2")}
    there.lost = {(2, ANSWER, "site 3"), (2, ANSWER, "site 4")}
    model, missing = there.run()
    assert missing == {}
    counted = [len(each.counted) for each in there.server.totals.known]
    assert counted == [5, 5, 6, 7]
    within = {n: q.arrays["within"] for n, q, _ in there.link.answered if q.kind == DELIVER}
    assert [name for name in there.names if not within[name]] == ["site 0", "site 1"]
    assert np.all(np.isfinite(model.shared.mean))
    for name in there.names:
        assert np.isfinite(
            FederatedGP.load(there.folder / name / "model").predict(name, POINTS).mean
        ).all()
    some = Federation(tmp_path / "one", "distributed", 7, tolerated=1)
    some.lost = {(1, ANSWER, "site 3"), (1, ANSWER, "site 4")}
    with pytest.raises(QuorumError, match=r"5 answered, 6 are needed.*would not be private"):
        some.run()
    before = {n: some.spent(n) for n in some.names}
    request, _ = next(
        (q, a) for n, q, a in some.link.answered if q.trip == ANSWER and n == "site 0"
    )
    five = sorted(masked_roster(some.public).names)[:5]
    own = site_hash("site 0")
    signing = replace(request, trip=SIGN, arrays={}, sealed=wire.survivors_bytes({*five[:4], own}))
    assert some.site("site 0").answer(signing).code == "masks"
    some.lost = set()  # they come back: the same exchange goes on, at no further cost
    some.start(resume=True)
    assert some.run()[1] == {}
    for name in some.names:
        assert some.spent(name)[: len(before[name])] == before[name]
        assert some.spent(name) == ["own", "totals", "spread"]


def test_central_goes_on_without_sites_and_its_noise_is_whole(tmp_path, known_noise):
    there = Federation(tmp_path, "central")
    there.away = {(1, "site 0"), (2, "site 1")}
    assert there.run()[1] == {}
    first = there.server.totals.known[0]
    assert first.counted == ["site 1", "site 2", "site 3"]
    sent = [
        a.arrays["linear"]
        for _, q, a in there.link.answered
        if (q.kind, q.exchange) == (RELEASE, 1)
    ]
    drawn = first.arrays["linear"] - np.sum(sent, axis=0)
    assert np.max(np.abs(drawn)) == pytest.approx(
        there.server.terms.scales(there.server.mu).linear, abs=1e-5
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_second_run_draws_new_noise_and_is_refused_or_paid(mode, tmp_path, caplog):
    """With the old noise, two totals over other sites would differ by one site's part."""
    there = Federation(tmp_path, mode)
    there.run()
    one = there.server.totals.known[0].arrays
    there.start()
    with pytest.raises(QuorumError, match="budget"):
        there.run()
    assert "the privacy budget does not allow another release" in caplog.text
    assert all(there.spent(name) == ["own", "totals", "spread"] for name in there.names)
    there.ceiling = 2.0
    there.start()
    assert there.run()[1] == {}
    two = there.server.totals.known[0].arrays
    assert np.array_equal(one["known"], two["known"])  # own matrices are used again, at no cost
    for part in ("missing", "linear"):  # every number has new noise
        assert np.all(two[part] != one[part])
    for name in there.names:
        assert there.spent(name) == ["own", "totals", "spread", "totals", "spread"]
        assert there.ledger(name).epsilon(1e-6) < 2.0


@pytest.mark.parametrize("mode", MODES)
def test_what_a_run_by_totals_does_not_ask_is_refused_and_costs_nothing(mode, tmp_path):
    there = Federation(tmp_path, mode)
    there.run()
    asked = {(q.exchange, q.trip): q for name, q, _ in there.link.answered if name == "site 2"}
    trip = ANSWER if mode == "distributed" else ""
    site, (first, second) = there.site("site 2"), (asked[n, trip] for n in (1, 2))
    other = {"centre": second.arrays["centre"] + 1.0}
    changed = replace(second, arrays=other, block=hash_arrays(other))
    assert site.answer(changed).code in ("masks", "stale")
    assert site.answer(replace(second, round=1)).code in ("malformed", "masks")
    assert site.answer(replace(first, kind="census")).code in ("malformed", "masks")
    wrong = (
        replace(first, trip="") if mode == "distributed" else replace(first, exchange=7, round=7)
    )
    assert site.answer(wrong).code == "malformed"
    delivered = asked[5, ""]
    for name, value, code in (
        ("totals.noise", -delivered.arrays["totals.noise"], "out-of-range"),
        ("wider", np.full_like(delivered.arrays["wider"], np.nan), "not-finite"),
        ("sites", np.asarray(0.5), "out-of-range"),
    ):
        bad = replace(delivered, arrays={**delivered.arrays, name: value})
        assert site.answer(bad).code == code, name
    assert there.spent("site 2") == ["own", "totals", "spread"]


@pytest.mark.parametrize("mode", MODES)
def test_totals_that_do_not_hold_a_sites_part_are_seen_at_home_alone(mode, tmp_path):
    """Whether they do depends on rows: the answer is that of an honest delivery."""
    there = Federation(tmp_path, mode)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pfedhgp.federation.flower.site.Site.finish", lambda site: None)
        there.run()
    (delivered,) = (q for n, q, _ in there.link.answered if (n, q.kind) == ("site 2", DELIVER))
    lie = {**delivered.arrays, "totals.noise": 0.0 * delivered.arrays["totals.noise"]}
    for path in (tmp_path / "site 2" / "runs").glob("*/delivered"):
        path.unlink()
    site = there.site("site 2")
    answer = site.answer(replace(delivered, arrays=lie))
    assert (answer.code, answer.arrays, answer.seconds) == ("", {}, 0.0)
    with pytest.raises(InputError, match="totals that came do not hold what this site sent"):
        site.finish()


def test_a_question_with_numbers_at_which_sums_overflow_is_refused(tmp_path):
    """Whether ∞ − ∞ comes up in a sum would depend on where rows are."""
    there = Federation(tmp_path, "central")
    there.run()
    (second,) = (
        q for n, q, _ in there.link.answered if (n, q.exchange, q.kind) == ("site 2", 2, RELEASE)
    )
    huge = {"centre": 1e308 * np.sign(np.cos(np.arange(second.arrays["centre"].size)))[None]}
    asked = replace(second, arrays=huge, block=hash_arrays(huge))
    assert there.site("site 2").answer(asked).code == "out-of-range"


def test_a_home_that_lost_its_ledger_gets_the_model_and_pays_nothing(tmp_path, caplog):
    there = Federation(tmp_path, "central")
    push = there.link.push

    def lose(name, request, lifetime):
        if request.kind == DELIVER and name == "site 3":
            shutil.rmtree(tmp_path / name / "ledger")
        return push(name, request, lifetime)

    there.link.push = lose
    assert there.run()[1] == {}
    assert "its own rows twice" in caplog.text
    assert there.spent("site 3") == []
    assert list(files.load(tmp_path / "site 3" / "model").clients) == ["site 3"]


@pytest.mark.parametrize("mode", MODES)
def test_rows_enter_by_the_releases_alone(mode, tmp_path, caplog):
    """Twin: after what was charged all rows are replaced, and processes begin anew: the same bytes leave."""
    first = Federation(tmp_path / "a", mode)

    def die(entry):
        if entry["exchange"] == 2:
            raise Killed

    first.server.engine.on_exchange = die
    with pytest.raises(Killed):
        first.run()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    found = []
    for folder, seed in (("a", 0), ("b", 9)):
        there = copy.copy(first)
        there.folder, there.rows = tmp_path / folder, rows_of(4, seed=seed)
        there.link = LocalLink({}, there.change)
        there.link.push = there.push
        there.start(resume=True)
        assert there.run()[1] == {}
        found.append({(n, q.exchange, q.trip): (q, a) for n, q, a in there.link.answered})
    assert found[0].keys() == found[1].keys()
    assert {exchange for _, exchange, _ in found[0]} == {3, 4, 5}
    for key, (asked, answered) in found[0].items():
        other = found[1][key]
        assert (answered.code, answered.seconds) == (other[1].code, other[1].seconds) == ("", 0.0)
        if asked.trip in ("", ANSWER):
            assert sums_of(asked) == sums_of(other[0])
        if mode == "central" or asked.kind == DELIVER:  # masks have keys of their own in each
            assert sums_of(answered) == sums_of(other[1])
    assert caplog.text.count("are not those that were released before") == 8


def test_a_site_refuses_a_server_that_tolerates_as_many_as_can_unmask_it(
    tmp_path, monkeypatch, caplog
):
    """A server without the rule: two of four and its lies would read a site's share of the noise alone."""
    there, lying = Federation(tmp_path, "distributed"), terms_of("distributed", tolerated=2)
    with monkeypatch.context() as patch:
        patch.setattr("pfedhgp.federation.agreement.unmasking", lambda sites: None)
        there.server.terms = lying.totals(4)
    there.server.agreement = lying
    there.server.engine.roster.agreement = lying.to_json()
    with pytest.raises(QuorumError, match="0 sites came"):
        there.run()
    assert caplog.text.count("below 2 with masks and 4 clients, got 2") == 4
    assert all(there.spent(name) == [] for name in there.names)


def sums_of(envelope):
    return {name: array.tobytes() for name, array in envelope.arrays.items()}


@pytest.mark.parametrize(
    ("mode", "run", "words"),
    [
        ("distributed", {"tolerated": 0}, "at least 1 between machines"),
        ("central", {"tolerated": 1}, "`tolerated` is for privacy='distributed'"),
    ],
)
def test_terms_on_which_nothing_would_be_private_are_refused(mode, run, words):
    with pytest.raises(InputError, match=words):
        terms_of(mode, **run)


def test_distributed_without_masks_is_refused_by_name():
    run = {"privacy": "distributed", "epsilon": 1.0, "output_bounds": ["-3..3"]}
    with pytest.raises(InputError, match=r"needs masks.*--masks"):
        agreement(**TABLES, run=run)
    terms = terms_of("distributed", tolerated=4)
    with pytest.raises(InputError, match="from 0 to 3 with 4 clients"):
        terms.totals(4)
    with pytest.raises(InputError, match="below 4 with masks and 10 clients, got 4"):
        terms.totals(10)
    assert terms.totals(12).missing == 4
    with pytest.raises(InputError, match="needs 3 clients"):
        terms_of("distributed").totals(2)
