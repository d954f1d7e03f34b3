"""A dishonest server against the real site: what it gets with the policy off, and what it gets by default."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from pfedhgp.base.numerics import numerics
from pfedhgp.data.rows import ClientRows
from pfedhgp.federation.flower import audit
from pfedhgp.federation.flower.site import site_from_files
from pfedhgp.federation.policy.settings import OFF, Policy
from support.flower_processes import write_rows
from support.hostile_server import HONEST, HostileServer, r_squared, whole
from support.reference_federation import agreement

ROWS, SIZE = 200, 20


@pytest.fixture(scope="module")
def readings():
    """White noise at inputs that the server knows."""
    rng = np.random.default_rng(5)
    X = np.sort(rng.uniform(0.0, 1.0, (ROWS, 1)), axis=0)
    return ClientRows("a", X, rng.normal(size=(ROWS, 1)))


@pytest.fixture
def server_before(tmp_path, readings):
    """A hostile server before a site with a policy; its terms are those that the site agreed to."""
    terms = agreement(model={"inducing": SIZE}, inference={"rounds": 10})
    write_rows(tmp_path / "rows.parquet", readings)

    def make(policy: Policy | None = None, home: str = "home", **more) -> HostileServer:
        site = site_from_files(
            home=tmp_path / home,
            name="a",
            data=[tmp_path / "rows.parquet"],
            expected=terms.to_json(),
            policy=policy,
            answers_all=True,
        )
        return HostileServer(site, terms, readings.X, **more)

    return make


def test_without_a_policy_the_readings_are_stolen(server_before, readings):
    server = server_before(OFF)
    with numerics():
        found = server.steal(SIZE)
    assert set(server.codes) == {""}
    assert len(server.codes) == 2 + ROWS // SIZE
    assert r_squared(readings.Y[:, 0], found) > 0.9


def test_by_default_nothing_is_stolen(server_before, readings, tmp_path, caplog):
    server = server_before()
    with numerics():
        found = server.steal(SIZE)
    assert r_squared(readings.Y[:, 0], found) <= 0.1
    assert server.codes == ["", "", "policy", "", *9 * ["policy"]]
    assert caplog.text.count("inducing inputs are not the public grid") == 10
    lines = (tmp_path / "home" / audit.LOG).read_text().splitlines()
    assert sum(json.loads(line).get("code") == "policy" for line in lines) == 10


def test_each_lie_is_refused_by_its_own_rule(server_before, caplog):
    """And what an honest server would send, before and after it, is answered."""
    server = server_before()

    def lie(kind, number, arrays, words):
        assert not server.ask(kind, number, arrays)
        assert server.codes[-1] == "policy", server.codes
        assert words in caplog.records[-1].getMessage()

    with numerics():
        server.prepare()
        honest, opening = server.honest(SIZE), server.opening(scales=HONEST)
        lie("start", 0, {**honest, **opening, "kernel": [1e-4]}, "tells single rows apart")
        close = server.opening(scales=(0.2, 1e-4, 0.3, 0.3, 0.1))
        lie("start", 0, {**honest, **close}, "tells single rows apart")
        narrow = {**opening, "lower": [0.4], "upper": [0.6]}
        lie("start", 0, {**honest, **narrow}, "the domain leaves out rows")
        sent = server.start(SIZE)
        J, h = whole(sent["U"]), sent["y"]
        lie("round", 1, honest, "the totals are zero")
        less = {**honest, "J": 0.5 * J, "h": 0.5 * h, "evaluations": 5.0}
        lie("round", 1, {**less, "J": np.triu(J)}, "not symmetric")
        assert server.ask("round", 1, {**less, "J": 3.0 * J, "h": 3.0 * h})
        own = whole(server.replies[-1]["U"])
        lie("round", 2, {**less, "J": 0.5 * own}, "do not hold what this site sent")
        lie("round", 2, {**less, "J": own, "h": h + 1e4}, "that no rows can have said")
        many = {**less, "J": 3.0 * own, "evaluations": 20_000.0}
        lie("round", 2, many, "20000 evaluations are more than the terms say")


def test_runs_and_rounds_are_counted_on_disk(server_before, caplog):
    """Each request is answered by a site that was made anew, so that nothing is in memory alone."""
    policy = Policy(runs=2, rounds=18, repeats=1)
    with numerics():
        for run in ("ab" * 16, "cd" * 16):
            server = server_before(policy, run=run)
            server.prepare()
            sent = server.start(SIZE)
            for number in range(1, 7):
                J, h = 3.0 * whole(sent["U"]), 3.0 * sent["y"]
                server.site = server_before(policy).site
                sent = server.ask("round", number, server.honest(SIZE, J=J, h=h, evaluations=1.0))
            assert not any(server.codes)
        third = server_before(policy, run="ef" * 16)
        third.ask("census", 0, {})
        assert third.codes == ["policy"]
        assert "2 runs on the same rows so far" in caplog.text
        server.site = server_before(policy).site
        for number in range(7, 12):
            J, h = 3.0 * whole(sent["U"]), 3.0 * sent["y"]
            sent = server.ask("round", number, server.honest(SIZE, J=J, h=h)) or sent
        assert server.codes[-5:] == [*4 * [""], "policy"]
        assert "19 rounds about the same rows, and policy.toml has `rounds = 18`" in caplog.text
        server.site = server_before(replace(policy, rounds=100)).site
        for number in (11, 12):
            J, h = 3.0 * whole(sent["U"]), 3.0 * sent["y"]
            sent = server.ask("round", number, server.honest(SIZE, J=J, h=h)) or sent
    assert server.codes[-2:] == ["", "policy"]
    assert "more rounds than the terms and `repeats`" in caplog.text
