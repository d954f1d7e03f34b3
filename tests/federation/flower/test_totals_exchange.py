"""Private runs by totals between a server and sites, without a network: numbers, ledgers, deaths, lies."""

from __future__ import annotations

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
from pfedhgp.federation.envelope import ANSWER, REVEAL, SIGN  # noqa: E402
from pfedhgp.federation.flower.exchange import Engine  # noqa: E402
from pfedhgp.federation.flower.masked_exchange import MaskedExchanges, masked_roster  # noqa: E402
from pfedhgp.federation.flower.masked_site import MaskKeys  # noqa: E402
from pfedhgp.federation.flower.private_site import PrivateSite  # noqa: E402
from pfedhgp.federation.flower.state import Roster  # noqa: E402
from pfedhgp.federation.flower.totals_exchange import NextQuestion, Totals, TotalsRun  # noqa: E402
from pfedhgp.federation.flower.waiting import Patience, QuorumError  # noqa: E402
from pfedhgp.federation.masks import wire  # noqa: E402
from pfedhgp.federation.masks.keys import Identity  # noqa: E402
from pfedhgp.federation.schema import DELIVER, RELEASE  # noqa: E402
from pfedhgp.federation.server import Server  # noqa: E402
from pfedhgp.model import files  # noqa: E402
from pfedhgp.privacy.ledger import Ledger  # noqa: E402

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
        site.private = PrivateSite(site.home, self.ceiling)
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
        masks = None
        if self.masked:
            masks = MaskedExchanges.of(self.public, roster.run, save=self._keep)
            if resume and self.saved:
                masks.restore(decode(self.saved))
        patience = Patience(timeout=30.0, quorum=quorum, grace=5.0, pause=1.0)
        about = {"clock": clock, "sleep": clock.sleep, "masks": masks}
        engine = Engine(server, roster, self.link, patience, **about)
        engine.save_checkpoint = lambda: kept.save(server, [roster, totals], [])
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
