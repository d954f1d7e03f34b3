"""Sites and server with faults between them, without a network: the result is the participation log's."""

from __future__ import annotations

import errno
import shutil
import threading
from dataclasses import replace

import jax
import numpy as np
import pytest

from pfedhgp.base.numerics import numerics
from pfedhgp.cli.server import TimeLeft, line_of
from pfedhgp.errors import InputError
from pfedhgp.federation import inprocess
from pfedhgp.federation.checkpoint import Checkpoint
from pfedhgp.federation.envelope import CODES, Envelope
from pfedhgp.federation.flower import audit
from pfedhgp.federation.flower.audit import AuditLog
from pfedhgp.federation.flower.exchange import Engine, Patience, QuorumError
from pfedhgp.federation.flower.site import check_home, site_from_files
from pfedhgp.federation.flower.spool import Spool
from pfedhgp.federation.flower.state import Roster
from pfedhgp.federation.flower.waiting import MOST_TIMEOUTS, changes, listed
from pfedhgp.federation.grouping import group_clients
from pfedhgp.federation.messages import hash_arrays
from pfedhgp.federation.policy.settings import of_a_trial
from pfedhgp.federation.schema import DELIVER
from pfedhgp.federation.server import Server
from pfedhgp.gp import kernel_text
from pfedhgp.model import files
from support.flower_processes import write_rows
from support.reference_federation import (
    Clock,
    LocalLink,
    agreement,
    assert_same,
    replay,
    rows_of,
    site_of,
    with_nan,
)

NAMES = ("north", "south", "east")
ROWS = rows_of(NAMES)
ZONES = {"kind": "zones"}
MEAN_FIELD = {"name": "mean-field", "rounds": 2}


def federation(tmp_path, terms, *, sites=NAMES, known=NAMES, quorum=1, change=None, delivered=None):
    """(engine, link) over `sites`, of those that are `known` to the server, in `tmp_path`."""
    rows = {row.name: row for row in ROWS}
    homes = {n: site_of(tmp_path / n, rows[n], delivered) for n in sites}
    link = LocalLink(homes) if change is None else LocalLink(homes, change)
    server, roster, clock = Server(terms.plan), Roster(known, terms.to_json()), Clock()
    patience = Patience(timeout=30.0, quorum=quorum, grace=5.0, pause=1.0)
    engine = Engine(server, roster, link, patience, clock=clock, sleep=clock.sleep)
    return engine, link


@pytest.fixture
def compiled():
    """A list that grows by an entry whenever JAX compiles something, or fetches it from its cache."""
    found = []

    def note(event, duration, **more):
        if event.endswith("backend_compile_duration"):
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    jax.jit(lambda x: x + len(found))(1.0)
    assert len(found) == 1, "it does notice"
    yield found
    jax.monitoring.unregister_event_duration_listener(note)


def run(engine):
    with numerics():
        return engine.run()


@pytest.mark.parametrize(
    "tables",
    [
        {},
        pytest.param({"inference": MEAN_FIELD}, marks=pytest.mark.slow),
        pytest.param({"model": {"learn_inducing": True}}, marks=pytest.mark.slow),
        pytest.param({"model": {"kernel": "rbf + periodic"}}, marks=pytest.mark.slow),
    ],
    ids=["structured", "mean-field", "inducing inputs move", "open period"],
)
def test_sites_and_server_find_what_one_process_finds(tmp_path, tables):
    terms = agreement(**tables)
    delivered = {}
    engine, _ = federation(tmp_path, terms, delivered=delivered)
    engine.spool = Spool(tmp_path / "replies", room=0)  # replies wait on disk
    assert run(engine) == {}
    expected = Server(terms.plan)
    with numerics():
        inprocess.run(expected, group_clients(terms.plan, ROWS, batch=False))
    assert_same(engine.server, expected, 0.0)
    assert_same(engine.server, replay(terms.plan, ROWS, engine.roster.log), 0.0)
    assert set(delivered) == set(NAMES)
    assert engine.server.exchanges == expected.exchanges


def test_server_and_site_read_the_kernel_text_once_each(tmp_path, monkeypatch):
    read, parse = [], kernel_text.parse

    def counted(text, *more):
        read.append(text)
        return parse(text, *more)

    monkeypatch.setattr(kernel_text, "parse", counted)
    lines = (f"{x[0]},{y[0]}" for x, y in zip(ROWS[0].X, ROWS[0].Y, strict=True))
    (tmp_path / "north.csv").write_text("\n".join(["x,y", *lines]))
    terms = agreement(model={"kernel": "rbf(0.5)"})
    engine, link = federation(tmp_path, terms, sites=(), known=("north",))
    home, data = tmp_path / "north", [tmp_path / "north.csv"]
    expected = terms.to_json()
    link.sites["north"] = site_from_files(
        home=home, name="north", data=data, expected=expected, answers_all=True
    )
    assert run(engine) == {}
    assert terms.settings()["kernel"] == "rbf(0.5)"
    assert files.load(home / "model").settings["kernel"] == "rbf(0.5)"
    assert read == ["rbf(0.5)"] * 2


@pytest.mark.parametrize(
    ("inference", "layers"),
    [
        ({"rounds": 2}, ["global", "deviation", "local"]),
        ({"rounds": 2}, ["global", "deviation"]),
        pytest.param(MEAN_FIELD, ["global", "deviation", "local"], marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:not used")
def test_a_site_that_was_never_counted_gets_the_whole_model(tmp_path, inference, layers):
    """It fits its own block at the end, with all of its layers, and the others are as they were."""
    terms = agreement(inference=inference, model={"layers": layers})

    def change(name, request, reply):
        trained = name == "east" and request.kind != DELIVER
        return with_nan(reply) if trained and request.kind in ("start", "round") else reply

    engine, link = federation(tmp_path, terms, change=change)
    for row in ROWS:
        write_rows(tmp_path / f"{row.name}.parquet", row)
        data = [tmp_path / f"{row.name}.parquet"]
        link.sites[row.name] = site_from_files(
            home=tmp_path / row.name,
            name=row.name,
            data=data,
            expected=terms.to_json(),
            policy=of_a_trial(terms.plan),
            answers_all=True,
        )
    assert run(engine) == {}
    assert "east" not in engine.roster.log[-1]["counted"]
    models = {name: files.load(tmp_path / name / "model") for name in NAMES}
    shapes = {name: np.shape(model.clients[name].block.loadings) for name, model in models.items()}
    assert shapes["east"] == shapes["north"] == (1, int("local" in layers))


def test_a_site_that_is_away_comes_back_and_one_joins_late(tmp_path):
    """South is away in rounds 1 and 2; east is there from round 2 on."""
    terms = agreement(inference={"rounds": 4})

    def change(name, request, reply):
        if name == "south" and request.kind == "round" and request.round in (1, 2):
            return None  # it answered, but too late: the step has to be taken back
        return reply

    engine, link = federation(tmp_path, terms, sites=("north", "south"), change=change)
    late = site_of(tmp_path / "east", ROWS[2])
    engine.callbacks = [
        lambda record: link.sites.update(east=late) if record["round"] == 1 else None
    ]
    assert run(engine) == {}
    log = engine.roster.log
    counted = {entry["round"]: entry["counted"] for entry in log if entry["kind"] == "round"}
    assert counted == {
        1: ["north"],
        2: ["north", "east"],
        3: ["north", "south", "east"],
        4: ["north", "south", "east"],
    }
    assert log[3]["missing"] == {"south": "no-answer", "east": "no-answer"}
    up, down = (8 * n for n in _numbers(link, "north", 4))
    bound = f"bound {engine.server.history[1]['bound']:.2f}"
    sizes = f"{up} bytes of arrays up, {down} down"
    assert line_of(log[3], 90.0).splitlines() == [
        f"exchange 4, round 1: 1 site in 30.0 s, {bound}, at most 90 s left, {sizes}",
        "  without south: no answer in time",
        "  without east: no answer in time",
    ]
    assert_same(engine.server, replay(terms.plan, ROWS, log))
    waited = [entry["seconds"] for entry in log]
    assert waited[0] == waited[3] == 30.0  # the whole timeout, for a site that is missing for once
    assert max(waited[1], waited[2], *waited[4:]) <= 10.0  # the grace, for one that was away before


def _numbers(link, name, exchange):
    """How many numbers a site answered and was asked with, by the messages themselves."""
    ((request, reply),) = (
        (q, a) for n, q, a in link.answered if (n, q.exchange) == (name, exchange)
    )
    return [sum(a.size for a in each.arrays.values()) for each in (reply, request)]


def test_who_is_withdrawn_is_not_waited_for_and_who_is_new_takes_part(tmp_path):
    """After round 2 the server is stopped, south taken out of its list and east put in."""
    terms, kept = agreement(inference={"rounds": 4, "tolerance": 0.0}), {}
    first, _ = federation(tmp_path, terms, sites=("north", "south"), known=("north", "south"))

    class Stopped(Exception):
        pass

    def keep():
        kept["server"], kept["roster"] = first.server.state(), first.roster.state()
        if first.roster.log[-1]["round"] == 2:
            raise Stopped

    first.save_checkpoint = keep
    with pytest.raises(Stopped):
        run(first)
    second, _ = federation(tmp_path, terms, sites=("north", "east"), known=("north", "east"))
    with numerics():
        second.server.restore(kept["server"])
        second.roster.restore(kept["roster"])
    assert run(second) == {}
    log = second.roster.log
    rounds = [entry for entry in log if entry["kind"] == "round"]
    assert [e["counted"] for e in rounds] == [*2 * [["north", "south"]], *2 * [["north", "east"]]]
    assert [e.get("withdrawn") for e in rounds] == [None, None, ["south"], None]
    assert [e.get("joined") for e in rounds] == [None, None, ["east"], None]
    assert all(entry["missing"] == {} for entry in log)
    assert (
        max(e["seconds"] for e in rounds) <= 1.0
    )  # a look at the link: neither 30 s nor the grace
    assert_same(second.server, replay(terms.plan, ROWS, log))
    assert "south" not in second.roster.delivered


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (lambda first, request, reply: with_nan(reply), "not-finite"),
        (lambda first, request, reply: first, "stale"),
        (lambda first, request, reply: replace(reply, run="0" * 32), "other-request"),
        (lambda first, request, reply: replace(reply, sender="north"), "other-request"),
        (lambda first, request, reply: replace(reply, block="0" * 64), "other-request"),
        (lambda first, request, reply: replace(reply, code="an unknown text"), "internal"),
        (
            lambda first, request, reply: replace(
                reply, arrays={**reply.arrays, "rows": np.ones(9)}
            ),
            "malformed",
        ),
        (
            lambda first, request, reply: replace(
                reply, arrays={**reply.arrays, "U": np.zeros(40_000)}
            ),
            "oversized",
        ),
    ],
    ids=["nan", "replay", "run", "name", "block", "code", "extra", "oversized"],
)
def test_bad_replies_are_refused_and_change_nothing(tmp_path, caplog, fault, code):
    terms = agreement()
    kept = {}

    def change(name, request, reply):
        if name != "south":
            return reply
        first = kept.setdefault("first", reply)
        return fault(first, request, reply) if request.kind in ("start", "round") else reply

    engine, _ = federation(tmp_path, terms, change=change)
    run(engine)
    log = engine.roster.log
    assert [entry["missing"] for entry in log] == [{}, {}, *3 * [{"south": code}]]
    assert caplog.text.count(CODES[code]) == 3, "once an exchange"
    assert_same(engine.server, replay(terms.plan, ROWS, log))


@pytest.mark.parametrize("stop", [4, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_a_killed_server_goes_on_from_its_checkpoint(tmp_path, stop):
    """In mid-exchange, after `stop` complete ones: the census, the extent, the start, and a round."""
    terms, kept = agreement(), Checkpoint(tmp_path / "killed" / "checkpoint")
    whole, _ = federation(tmp_path / "whole", terms)
    run(whole)

    class Killed(Exception):
        pass

    def dying(name, request, reply):
        if request.exchange == stop + 1 and name == "south":
            raise Killed  # after north has answered, before all are counted
        return reply

    first, _ = federation(tmp_path / "killed", terms, change=dying)
    first.save_checkpoint = lambda: kept.save(first.server, [first.roster], [])
    with pytest.raises(Killed):
        run(first)
    second, link = federation(tmp_path / "killed", terms)
    with numerics():
        kept.restore(second.server, [second.roster])
    assert second.server.exchanges == stop
    run(second)
    assert_same(second.server, whole.server, 0.0)
    north = [request for name, request in link.seen if name == "north"]
    assert north[0].exchange == stop + 1
    lines = (
        (tmp_path / "killed" / "north" / audit.LOG).read_text().count(f'"exchange": {stop + 1}, ')
    )
    assert lines == 4, "asked and answered twice: the second time from the disk"


def test_a_killed_site_goes_on_from_its_disk(tmp_path, compiled):
    """Every answer is given by a site that was made anew: nothing but compiled code lives in memory alone."""
    terms = agreement()
    whole, _ = federation(tmp_path / "whole", terms)
    run(whole)
    engine, link = federation(tmp_path / "anew", terms)

    def push(name, request, lifetime):
        row = next(row for row in ROWS if row.name == name)
        link.inbox.append((name, site_of(tmp_path / "anew" / name, row).answer(request)))
        return True

    link.push = push
    compiled.clear()
    run(engine)
    assert_same(engine.server, whole.server, 0.0)
    assert compiled == [], "no round, and no restored site, compiles anything again"


def test_a_site_that_lost_its_home_begins_again(tmp_path):
    terms = agreement(inference={"rounds": 3})
    engine, link = federation(tmp_path, terms)

    def lose(record):
        if record["round"] == 1:
            link.sites["south"] = site_of(tmp_path / "new disk", ROWS[1])

    engine.callbacks = [lose]
    run(engine)
    missing = {e["round"]: e["missing"] for e in engine.roster.log if e["kind"] == "round"}
    assert missing == {1: {}, 2: {"south": "forgotten"}, 3: {}}


@pytest.mark.parametrize("back", [1, 2])
def test_a_home_from_a_backup_that_is_behind_catches_up(tmp_path, back):
    """After round 2 south is set back to what it was `back` exchanges before: it begins again in round 4."""
    terms = agreement(inference={"rounds": 5, "tolerance": 0.0})
    engine, link = federation(tmp_path, terms)
    home, copies = tmp_path / "south", {}

    def each(record):
        copies[record["round"]] = tmp_path / f"backup {record['round']}"
        shutil.copytree(home, copies[record["round"]])
        if record["round"] == 2:
            shutil.rmtree(home)
            shutil.copytree(copies[2 - back], home)
            link.sites["south"] = site_of(home, ROWS[1])

    engine.callbacks = [each]
    assert run(engine) == {}
    missing = {e["round"]: e["missing"] for e in engine.roster.log if e["kind"] == "round"}
    assert missing == {1: {}, 2: {}, 3: {"south": "forgotten"}, 4: {}, 5: {}}
    rest = [request for name, request in link.seen if name == "south" and request.round == 4]
    assert (rest[0].counted, rest[0].left_out) == (0, True)


@pytest.mark.parametrize("lost", ["all", "the last round"])
def test_a_home_that_is_behind_at_the_end_still_gets_the_model(tmp_path, lost):
    terms, delivered = agreement(inference={"rounds": 2, "tolerance": 0.0}), {}
    engine, link = federation(tmp_path, terms, delivered=delivered)
    home = tmp_path / "south"

    def each(record):
        if record["round"] == 1 and lost != "all":
            shutil.copytree(home, tmp_path / "backup")
        if record["round"] == 2:
            shutil.rmtree(home)
            if lost != "all":
                shutil.copytree(tmp_path / "backup", home)
            link.sites["south"] = site_of(home, ROWS[1], delivered)

    engine.callbacks = [each]
    assert run(engine) == {}
    assert set(delivered) == set(NAMES)
    asked = [r for name, r in link.seen if name == "south" and r.kind == DELIVER]
    assert [(r.counted > 0, bool(r.missed())) for r in asked] == [(True, False), (False, True)]


def test_a_reply_that_comes_twice_is_counted_once(tmp_path, caplog):
    whole, _ = federation(tmp_path / "whole", agreement())
    run(whole)
    engine, link = federation(tmp_path / "twice", agreement())
    once = link.pull
    link.pull = lambda: [pair for pair in once() for _ in range(2 if pair[0] == "south" else 1)]
    assert run(engine) == {}
    assert_same(engine.server, whole.server, 0.0)
    assert sorted(engine.roster.delivered) == sorted(NAMES)
    refused = f"refused a reply of south: {CODES['duplicate']}"
    assert caplog.text.count(refused) == engine.server.exchanges + 1  # the delivery's, too


def test_a_site_of_another_name_is_told_so_and_claims_no_home(tmp_path):
    """The server knows a site by its key; `--name` is what the site believes to be."""
    engine, link = federation(tmp_path, agreement(), sites=("north", "east"))
    link.sites["south"] = site_of(tmp_path / "south", replace(ROWS[1], name="sooth"))
    run(engine)
    assert {entry["missing"].get("south") for entry in engine.roster.log} == {"name"}
    assert "name" in (tmp_path / "south" / audit.LOG).read_text().splitlines()[-1]
    assert not (tmp_path / "south" / "site.json").exists()
    site_of(tmp_path / "south", ROWS[1])
    with pytest.raises(InputError, match="the home of another site"):
        site_of(tmp_path / "north", ROWS[1])


def test_changed_rows_terms_and_old_requests_are_refused(tmp_path):
    terms = agreement()
    engine, link = federation(tmp_path, terms)
    run(engine)
    requests = [request for name, request in link.seen if name == "south"]
    site = site_of(tmp_path / "south", ROWS[1])
    before = sorted(p.name for p in (tmp_path / "south" / "runs").rglob("*"))
    assert site.answer(requests[2]).code == "stale"
    assert site.answer(_asked_anew(requests[-2], jitter=np.ones(()))).code == "stale"
    assert site.answer(replace(requests[-2], agreement="{}")).code == "config"
    assert site.answer(replace(requests[-2], run="../../etc")).code == "malformed"
    later = replace(requests[-2], exchange=requests[-2].exchange + 9, round=requests[-2].round + 9)
    assert site.answer(replace(later, counted=1)).code == "forked"
    assert sorted(p.name for p in (tmp_path / "south" / "runs").rglob("*")) == before
    again = site.answer(requests[-2])
    assert again.code == ""
    other = ROWS[1].Y.copy()
    other[3] += 1e-9
    changed = site_of(tmp_path / "south", replace(ROWS[1], Y=other))
    assert changed.answer(requests[-2]).code == "rows-changed"


def _asked_anew(request, **arrays):
    """A request with other numbers, and their hash."""
    changed = {**request.arrays, **arrays}
    return replace(request, arrays=changed, block=hash_arrays(changed))


def test_requests_that_are_not_as_the_plan_says_are_refused(tmp_path):
    terms = agreement()
    engine, link = federation(tmp_path, terms)
    run(engine)
    requests = {request.kind: request for name, request in link.seen if name == "south"}
    site = site_of(tmp_path / "elsewhere", ROWS[1])
    asked = replace(requests["extent"], counted=0)
    for change, code in (
        ({"centre": np.array([np.nan])}, "not-finite"),
        ({"centre": np.zeros(2)}, "malformed"),
        ({"centre": np.zeros(1, np.float32)}, "malformed"),
        ({"more": np.zeros(1)}, "malformed"),
        ({"centre": np.zeros(1_000)}, "oversized"),
        ({"missed/round/J": np.zeros(1)}, "malformed"),
    ):
        assert site.answer(replace(asked, arrays={**asked.arrays, **change})).code == code
    assert site.answer(asked).code == ""


def test_bad_broadcasts_change_nothing_at_a_site(tmp_path):
    """Before every request a broken, an endless and an old one, one of another round, hash and kind.

    The answers stay, number by number.
    """
    engine, link = federation(tmp_path, agreement())
    run(engine)
    south = [(request, reply) for name, request, reply in link.answered if name == "south"]
    site, before, codes = site_of(tmp_path / "elsewhere", ROWS[1]), None, []
    for request, expected in south:
        for name, array in list(request.arrays.items())[-1:]:  # the census has none
            codes.append(_code(site, request, {name: np.full_like(array, np.nan)}))
            codes.append(_code(site, request, {name: np.zeros(20_000)}))
        for wrong in ({"round": 77}, {"round": request.round + 1}, {"block": "0" * 64}, ZONES):
            assert site.answer(replace(request, **wrong)).code == "malformed", (request, wrong)
        if before is not None and before.exchange < request.exchange - 1:
            assert site.answer(before).code == "stale"
        reply = site.answer(request)
        assert reply.code == ""
        for name, array in expected.arrays.items():
            np.testing.assert_array_equal(reply.arrays[name], array)
        before = before or request
    assert codes == (len(south) - 1) * ["not-finite", "oversized"]


def test_a_histogram_is_refused_where_the_terms_name_the_domain(tmp_path):
    """The extent's answer has counts of rows by place; and a census is the first exchange and no other."""
    terms = agreement(model={"domain": ["0..6"]})
    site = site_of(tmp_path, ROWS[0])
    asked = Envelope("ab" * 16, 2, "extent", 0, "server", agreement=terms.to_json())
    sides = {"centre": np.full(1, 2.5), "spread": np.ones(1)}
    census = replace(asked, kind="census", exchange=1, block=hash_arrays({}))
    assert site.answer(_asked_anew(asked, **sides)).code == "malformed"
    assert site.answer(replace(census, exchange=2)).code == "malformed"
    assert site.answer(census).code == ""


def _code(site, request, change):
    return site.answer(replace(request, arrays={**request.arrays, **change})).code


def test_too_few_sites_stop_the_run_and_say_so(tmp_path):
    engine, _ = federation(tmp_path, agreement(), sites=("north",), quorum=2)
    with pytest.raises(QuorumError, match="1 of 3 sites answered the census request, and"):
        run(engine)


def test_exceptions_at_a_site_leave_as_a_code_alone(tmp_path, caplog):
    secret = "CANARY-9f31"
    site = site_of(tmp_path / "south", ROWS[1])

    def read(text):
        raise ValueError(f"row 3: {secret}")

    site.read = read
    engine, link = federation(tmp_path, agreement(), sites=("north",))
    link.sites["south"] = site
    run(engine)
    assert {entry["missing"].get("south") for entry in engine.roster.log} == {"internal"}
    written = [p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()]
    assert not any(secret.encode() in content for content in written)
    assert secret not in caplog.text
    assert "ValueError at " in caplog.text


def test_a_server_killed_while_it_delivers_asks_only_those_that_have_not_got_the_model(tmp_path):
    terms, kept = agreement(), Checkpoint(tmp_path / "checkpoint")

    class Killed(Exception):
        pass

    first, _ = federation(tmp_path, terms)
    first.save_checkpoint = lambda: kept.save(first.server, [first.roster], [])

    def on_delivery(name):
        if len(first.roster.delivered) == 2:
            raise Killed

    first.on_delivery = on_delivery
    with pytest.raises(Killed):
        run(first)
    had = first.roster.delivered
    second, link = federation(tmp_path, terms)
    with numerics():
        kept.restore(second.server, [second.roster])
    second.roster.delivered = list(had)
    assert run(second) == {}
    (last,) = set(NAMES) - set(had)
    assert [(name, request.kind) for name, request in link.seen] == [(last, DELIVER)]
    assert_same(second.server, first.server, 0.0)


class SlowLink:
    """Sites that answer `takes` seconds after they were asked, by the engine's clock."""

    def __init__(self, link, clock, takes):
        self.link, self.clock, self.takes, self.due = link, clock, takes, []

    def __getattr__(self, name):
        return getattr(self.link, name)

    def push(self, name, request, lifetime):
        if not self.link.push(name, request, lifetime):
            return False
        answers, self.link.inbox = self.link.inbox, []
        ready = self.clock() + self.takes.get(name, 0.0)
        self.due += [(ready, ready < self.clock() + lifetime, each) for each in answers]
        return True

    def pull(self):
        now = [each for each in self.due if each[0] <= self.clock()]
        self.due = [each for each in self.due if each not in now]
        self.link.inbox = [reply for _, alive, reply in now if alive]
        return self.link.pull()


def test_compiling_longer_than_the_timeout_is_not_missing(tmp_path):
    """The timeout, 30 s, counts from the first answer: all compile for 100 s, and one for 20 s more."""
    engine, link = federation(tmp_path, agreement(), quorum=3)
    said = []
    engine.say = said.append
    engine.link = SlowLink(link, engine.clock, {"north": 100.0, "south": 100.0, "east": 120.0})
    assert run(engine) == {}
    assert not any(entry["missing"] for entry in engine.roster.log)
    census = [line for line in said if line.startswith("exchange 1, census: ")]
    assert census == [
        *(
            f"exchange 1, census: waiting for {n} s: east, north, south connected, no answer yet; "
            "the time starts with the first answer"
            for n in (30, 60, 90)
        ),
        "exchange 1, census: waiting for 120 s: east connected, no answer yet; 10 s left",
    ]
    assert said[0] == "north connected: 3 of 3 sites are connected"
    assert "training is done: delivering the model to 3 of 3 sites" in said


def test_nobody_there_is_waited_for_once_and_a_silent_one_not_for_ever(tmp_path):
    engine, _ = federation(tmp_path / "nobody", agreement(), sites=())
    with pytest.raises(QuorumError, match="north, south, east: no answer in time"):
        run(engine)
    assert engine.clock() == 30.0
    silent, _ = federation(tmp_path / "silent", agreement(), change=lambda *about: None)
    with pytest.raises(QuorumError, match="0 of 3 sites answered the census request"):
        run(silent)
    assert silent.clock() == MOST_TIMEOUTS * 30.0


def test_a_quorum_that_refused_is_said_so_with_the_reasons(tmp_path, caplog):
    """All refuse at once: nobody waits, and nobody "did not answer in time"."""

    def change(name, request, reply):
        return replace(reply, code="data" if name == "east" else "config", arrays={})

    engine, _ = federation(tmp_path, agreement(), change=change, quorum=2)
    with pytest.raises(QuorumError) as caught:
        run(engine)
    assert str(caught.value) == (
        "0 of 3 sites answered the census request, and the quorum is 2: "
        f"north, south: {CODES['config']}; east: {CODES['data']}; the same command goes on from here"
    )
    assert engine.clock() < 2.0
    assert caplog.text == "", "it is said once"


def test_names_are_listed_shortly_and_who_came_and_left_is_said():
    assert listed(["A", "B"]) == "A, B"
    assert listed(list("ABCDEFG")) == "A, B, C, D, E and 2 others"
    assert changes({"A"}, {"B"}, ["A", "B", "C"]) == [
        "B connected: 1 of 3 sites are connected",
        "A disconnected: 1 of 3 sites are connected",
    ]


def test_the_time_left_is_that_of_the_rounds_that_are_left():
    left = TimeLeft(10)
    assert left.after({"kind": "start", "round": 0, "seconds": 50.0}) is None
    assert left.after({"kind": "round", "round": 1, "seconds": 2.0}) == 18.0
    assert left.after({"kind": "round", "round": 2, "seconds": 4.0}) == 24.0
    assert left.after({"kind": "round", "round": 10, "seconds": 9.0}) == 0.0


def test_a_full_disk_at_a_site_lets_nothing_out_and_the_site_goes_on_later(tmp_path, monkeypatch):
    """What cannot be logged does not leave; after a restart the run goes on, and the log verifies."""
    engine, link = federation(tmp_path, agreement(), quorum=3)
    site, usual = link.sites["south"], AuditLog.append

    def full(self, direction, **about):
        if self is site.audit and direction == "sent":
            raise OSError(errno.ENOSPC, "No space left on device", str(self.path))
        return usual(self, direction, **about)

    with monkeypatch.context() as patch:
        patch.setattr(AuditLog, "append", full)
        with pytest.raises(OSError, match="No space left on device"):
            run(engine)
    assert not engine.roster.log
    link.inbox.clear()
    assert run(engine) == {}
    assert audit.check(tmp_path / "south").bad_line is None
    assert_same(engine.server, replay(agreement().plan, ROWS, engine.roster.log), 0.0)


def test_a_removed_home_is_one_line(tmp_path):
    engine, link = federation(tmp_path, agreement())
    run_one = engine.server.request()
    shutil.rmtree(tmp_path / "south")
    asked = engine._envelope(run_one, 1, "south")
    with pytest.raises(InputError, match="south was removed while the site was running"):
        link.sites["south"].answer(asked)
    assert not (tmp_path / "south").exists()


def test_a_home_may_be_away_for_a_moment(tmp_path):
    """`federate` moves the homes when it writes the model into RUN."""
    home = tmp_path / "home"
    home.mkdir()
    home.rename(tmp_path / "moved")
    back = threading.Timer(0.2, lambda: (tmp_path / "moved").rename(home))
    back.start()
    check_home(home)
    back.join()
    assert home.is_dir()
