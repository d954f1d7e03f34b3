"""What watchers see agrees with the participation log, site by site; and what follows from it."""

from __future__ import annotations

import json
import math

import pytest

from pfedhgp.base.numerics import numerics
from pfedhgp.federation.flower.exchange import Engine
from pfedhgp.federation.flower.state import Roster
from pfedhgp.federation.flower.waiting import Patience
from pfedhgp.federation.server import Server
from pfedhgp.federation.watch import events as e
from pfedhgp.federation.watch import reports
from pfedhgp.federation.watch.holder import Watch
from pfedhgp.federation.watch.json_lines import json_line
from pfedhgp.federation.watch.server_state import (
    ServerState,
    after,
    by_status,
    seconds_left,
    status_of,
)
from support.reference_federation import Clock, LocalLink, agreement, rows_of, site_of, with_nan


class Told:
    """A state that events are folded into, by a clock of its own."""

    def __init__(self, *sites, rounds=10):
        self.state, self.now = ServerState(started=0.0), 0.0
        self("listening", e.Listening("127.0.0.1:9092", sites, rounds))

    def __call__(self, at, *events):
        self.now = self.now if isinstance(at, str) else float(at)
        for event in events:
            self.state = after(self.state, event, self.now)

    def statuses(self):
        return {n: status_of(self.state, s, self.now)[0] for n, s in self.state.sites.items()}


def test_a_run_with_absent_and_lying_sites_looks_as_its_participation_log_says(tmp_path):
    rows = {row.name: row for row in rows_of(("north", "south", "east"))}
    sites = {n: site_of(tmp_path / n, rows[n]) for n in rows}

    def change(name, request, reply):
        if name == "south" and request.kind == "round" and request.round == 1:
            return None
        return with_nan(reply) if name == "east" and request.kind == "round" else reply

    terms, clock, lines = agreement(), Clock(), []
    watch = Watch(
        ServerState(0.0),
        after,
        clock=clock,
        log=lambda event, now: lines.append(json_line(event, now)),
    )
    watch.tell(reports.listening("here", tuple(rows), terms.plan, resumed=False))
    roster = Roster(tuple(rows), terms.to_json())
    patience = Patience(timeout=30.0, grace=5.0, pause=1.0)
    engine = Engine(
        Server(terms.plan),
        roster,
        LocalLink(sites, change),
        patience,
        tell=watch.tell,
        clock=clock,
        sleep=clock.sleep,
    )
    with numerics():
        assert engine.run() == {}
    state, log = watch.state, roster.log
    for name, site in state.sites.items():
        assert site.answers == sum(name in entry["counted"] for entry in log) + 1  # the delivery
        assert site.missed == sum(name in entry["missing"] for entry in log)
        assert site.has_model
    assert state.sites["south"].missed == 1
    assert state.sites["east"].missed == 2
    for kind in ("census", "start", "round"):
        passed = [entry for entry in log if entry["kind"] == kind]
        assert state.traffic[kind].messages == sum(len(entry["counted"]) for entry in passed)
        assert state.traffic[kind].up == sum(entry["bytes_up"] for entry in passed)
        assert state.traffic[kind].down == sum(entry["bytes_down"] for entry in passed)
    history = engine.server.history
    assert [bound for _, bound in state.bounds] == [record["bound"] for record in history]
    assert state.round == terms.plan.inference.rounds == state.rounds == state.bounds[-1][0]
    assert state.phase == "delivering"
    watch.tell(e.Ended())
    assert (watch.state.phase, by_status(watch.state, clock())["has the model"]) == ("done", 3)

    parsed = [json.loads(line) for line in lines]
    assert {each["event"] for each in parsed} >= {
        "asked",
        "answered",
        "refused",
        "exchange",
        "round",
    }
    assert all(set(each) >= {"time", "level", "event"} for each in parsed)
    (exchange,) = [p for p in parsed if p["event"] == "exchange" and p["missing"].get("south")]
    assert exchange["level"] == "warning"
    assert exchange["missing"]["south"] == "no answer in time"


def test_who_is_connected_slow_missing_and_excluded():
    told = Told("a", "b", "c", "d")
    assert set(told.statuses().values()) == {"not connected"}
    told(1, e.Connected(("a", "b", "c")))
    assert told.statuses() == {
        "a": "connected",
        "b": "connected",
        "c": "connected",
        "d": "not connected",
    }
    told(2, e.Asked(1, "round", 1, ("a", "b", "c", "d")))
    told(4, *[e.Answered(n, 1, "round", 10, 20, 1.0) for n in ("a", "b")])
    assert told.statuses() == {
        "a": "answered",
        "b": "answered",
        "c": "working",
        "d": "not connected",
    }
    told(6.9)
    assert told.statuses()["c"] == "working"
    told(7.1)  # over five seconds, and over twice the two that the others took
    assert told.statuses()["c"] == "slow"
    told(8, e.Connected(("a", "b", "d")))
    assert told.statuses()["c"] == "missing"
    reason = {"c": "no answer in time", "d": "its rows do not fit"}
    told(9, e.Counted(1, "round", 1, ("a",), reason, {"b": "p = 1e-9"}))
    assert told.statuses() == {"a": "answered", "b": "excluded", "c": "missing", "d": "missing"}
    told(10, e.Asked(2, "round", 2, ("a", "b", "c", "d")))
    assert told.statuses()["d"] == "working"  # it is here, and asked again
    told(
        11, e.RefusedReply("d", 2, "round", "not a number"), e.Answered("b", 2, "round", 1, 1, 0.0)
    )
    assert told.statuses()["d"] == "refused"
    told(12, e.Counted(2, "round", 2, ("a", "b"), {"d": "not a number"}))
    assert told.statuses()["b"] == "answered"  # back in
    told(13, e.Delivered("b"), e.Delivered("stranger"))
    assert told.statuses()["b"] == "has the model"
    assert sum(by_status(told.state, told.now).values()) == 4


def test_time_left_is_the_rounds_left_at_the_pace_of_the_last():
    told = Told("a", rounds=10)
    assert seconds_left(told.state, 0.0) is None
    for number, at in enumerate((60.0, 64.0, 68.0, 72.0)):  # the first one compiles
        told(at, e.Trained(number, 0, -math.inf if number == 0 else float(number)))
        if number < 2:
            assert seconds_left(told.state, at) is None
    assert seconds_left(told.state, 72.0) == pytest.approx(7 * 4.0)
    assert seconds_left(told.state, 74.0) == pytest.approx(7 * 4.0 - 2.0)
    assert seconds_left(told.state, 1e6) == 0.0
    told(80, e.Asked(9, "deliver", 3, ("a",)))
    assert seconds_left(told.state, 80.0) is None


def test_lines_are_the_last_ones_and_json_takes_every_number():
    told = Told("a")
    for i in range(100):
        told(i, e.Line(f"line {i}"))
    assert [told.state.lines[0].text, told.state.lines[-1].text] == ["line 60", "line 99"]
    found = json.loads(json_line(e.Trained(1, 0, math.nan), 0.25))
    assert found == {
        "time": "1970-01-01T00:00:00.250Z",
        "level": "info",
        "event": "round",
        "round": 1,
        "attempt": 0,
        "bound": None,
    }
