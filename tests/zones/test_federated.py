"""Zones between machines find what `discover` finds in one process; a site sends no more than it allows."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest

from pfedhgp.base.numerics import numerics
from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError
from pfedhgp.federation.envelope import Envelope
from pfedhgp.federation.flower.exchange import Engine, Patience
from pfedhgp.federation.flower.site import site_from_files
from pfedhgp.federation.flower.state import Roster
from pfedhgp.federation.messages import hash_arrays
from pfedhgp.federation.planning import fitted_model
from pfedhgp.federation.server import Server
from pfedhgp.model import files
from pfedhgp.zones.at_server import ZonesAtServer
from pfedhgp.zones.at_site import ZonesAtSite
from pfedhgp.zones.clustering import ClusterSettings, discover
from support.flower_processes import write_rows
from support.reference_federation import Clock, LocalLink, agreement

NAMES = ("a", "b", "c", "d", "few")


def rows_of_zones():
    """Two zones of two clients, and a client with three rows that behaves like the second."""
    found = []
    for i, name in enumerate(NAMES):
        rng = np.random.default_rng([7, i])
        X = np.sort(rng.uniform(0.0, 5.0, (3 if name == "few" else 24, 1)), axis=0)
        sign = 1.0 if name in "ab" else -1.0
        Y = np.sin(X) + sign * np.cos(3.0 * X) + 0.05 * rng.normal(size=X.shape)
        found.append(ClientRows(name, X, Y))
    return found


@dataclass
class Trained:
    """Sites that have the model, the engine that can ask them, and all of it as one model."""

    engine: Engine
    rows: list[ClientRows]
    home: object

    def whole(self, tmp):
        """What one process would have: every client's block in one model."""
        parts = [files.load(tmp / name / "model") for name in NAMES]
        clients = {name: part.clients[name] for name, part in zip(NAMES, parts, strict=True)}
        jitter = {n: p.client_jitter[n] for n, p in zip(NAMES, parts, strict=True)}
        return replace(parts[0], clients=clients, client_jitter=jitter)

    def server(self, **how):
        server = self.engine.server
        model = fitted_model(
            server.plan,
            server,
            groups=(),
            rows=(),
            input_names=("x",),
            output_names=("y",),
            settings={},
            messages=[],
        )
        return ZonesAtServer(self.engine.ask, model, NAMES, ClusterSettings(**how))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    tmp = tmp_path_factory.mktemp("zones")
    terms = agreement(
        model={"inducing": 8, "local_inducing": 12, "domain": ["0..5"]}, inference={"rounds": 2}
    )
    rows, sites = rows_of_zones(), {}
    for row in rows:
        write_rows(tmp / f"{row.name}.parquet", row)
        sites[row.name] = site_from_files(
            home=tmp / row.name,
            name=row.name,
            data=[tmp / f"{row.name}.parquet"],
            expected=terms.to_json(),
            least_rows=1,
            answers_all=True,
        )
        sites[row.name].answer_zones = ZonesAtSite(tmp / row.name, 1.0)
    clock = Clock()
    engine = Engine(
        Server(terms.plan),
        Roster(NAMES, terms.to_json()),
        LocalLink(sites),
        Patience(timeout=30.0, quorum=1, grace=5.0, pause=1.0),
        clock=clock,
        sleep=clock.sleep,
        announced={"zones": True},
    )
    with numerics():
        assert engine.run() == {}
    assert all(site.awaits_zones for site in sites.values())
    return Trained(engine, rows, tmp)


def test_labels_are_those_of_one_process(trained):
    """With a client that has few rows, which is compared near them."""
    rows = {row.name: (row.X, row.Y) for row in trained.rows}
    expected = discover(trained.whole(trained.home), ClusterSettings(groups=2), rows=rows)
    server = trained.server(groups=2)
    found = server.find()
    assert found.sparse == expected.sparse == ("few",)
    assert found.labels == expected.labels
    assert len({found.labels[name] for name in "ab"}) == 1
    np.testing.assert_allclose(found.distances, expected.distances, rtol=1e-9, atol=1e-9)
    assert found.stability == expected.stability
    for name in NAMES:  # what sites measured themselves, in two digits
        assert found.r2[name] == pytest.approx(expected.r2[name], abs=0.0051)
    assert [e["arrays"] for e in found.messages] == [e["arrays"] for e in expected.messages]
    server.tell(found)
    for name in NAMES:
        kept = json.loads((trained.home / name / "zones.json").read_text())
        assert (kept["group"], kept["groups"]) == (found.labels[name] + 1, 2)
        log = (trained.home / name / "audit.jsonl").read_text()
        assert '"kind": "zones: few rows"' in log
    kinds = [entry["kind"] for entry in trained.engine.roster.log]
    said = ["zones", "zones: coverage", "zones: few rows", "zones: groups"]
    assert kinds[-4:] == said


def test_a_site_sends_no_more_than_it_allows(trained, caplog):
    """Another seed reveals more: what was sent before counts."""
    site = trained.engine.link.sites["a"]
    trained.server(groups=2).find()  # whichever tests ran before
    first = json.loads((trained.home / "a" / "zones.json").read_text())["sketches"]
    site.answer_zones = ZonesAtSite(trained.home / "a", 0.5)
    found = trained.server(groups=2, seed=1).find()
    assert "a" not in found.clients
    asked = [entry for entry in trained.engine.roster.log if entry["kind"] == "zones"]
    assert asked[-1]["missing"] == {"a": "reveal"}
    assert "its ceiling (--reveal) is 0.5" in caplog.text
    (r2,) = re.findall(r"with R² (\S+), and its ceiling", caplog.text)
    assert float(r2) > 0.6  # no rounding decides
    assert json.loads((trained.home / "a" / "zones.json").read_text())["sketches"] == first
    site.answer_zones = ZonesAtSite(trained.home / "a", 0.0)
    assert _asked(trained, "zones", grid=800, size=2, seed=0).code == "reveal"
    assert "this site sends nothing for zones" in caplog.text
    site.answer_zones = ZonesAtSite(trained.home / "a", 1.0)
    assert _asked(trained, "zones", grid=800, size=2, seed=0).code == ""
    assert _asked(trained, "zones", grid=800, size=801, seed=0).code == "malformed"
    assert _asked(trained, "zones", grid=10**9, size=2, seed=0).code == "malformed"
    assert _asked(trained, "zones", run="cd" * 16, grid=800, size=2, seed=0).code == "stale"
    site.answer_zones = None
    assert _asked(trained, "zones", grid=800, size=2, seed=0).code == "malformed"


def test_zones_need_two_sites_that_answer(trained):
    for site in trained.engine.link.sites.values():
        site.answer_zones = ZonesAtSite(site.home, 0.0)
    with pytest.raises(InputError, match="at least two sites, and 0 answered"):
        trained.server(groups=2).find()


def _asked(trained, kind, run=None, **numbers):
    engine = trained.engine
    arrays = {name: np.asarray(float(value)) for name, value in numbers.items()}
    envelope = Envelope(
        run=run or engine.roster.run,
        exchange=99,
        kind=kind,
        round=0,
        sender="server",
        arrays=arrays,
        block=hash_arrays(arrays),
        receiver="a",
        agreement=engine.roster.agreement,
    )
    return engine.link.sites["a"].answer(envelope)
