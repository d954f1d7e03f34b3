"""Masks between a server and sites, without a network: totals, deaths in every phase, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from support.masked_sites import needs_cryptography
from support.reference_federation import (
    Clock,
    LocalLink,
    agreement,
    assert_same,
    replay,
    rows_of,
    site_of,
)

needs_cryptography()
from pfedhgp.base.numerics import numerics  # noqa: E402
from pfedhgp.errors import InputError  # noqa: E402
from pfedhgp.federation import inprocess  # noqa: E402
from pfedhgp.federation.checkpoint import Checkpoint, decode, encode  # noqa: E402
from pfedhgp.federation.envelope import (  # noqa: E402
    ANSWER,
    CARD,
    KEY,
    REVEAL,
    SIGN,
)
from pfedhgp.federation.flower import audit  # noqa: E402
from pfedhgp.federation.flower.exchange import Engine  # noqa: E402
from pfedhgp.federation.flower.masked_exchange import (  # noqa: E402
    MaskedExchanges,
    masked_roster,
)
from pfedhgp.federation.flower.masked_site import MaskKeys  # noqa: E402
from pfedhgp.federation.flower.state import Roster, site_hash  # noqa: E402
from pfedhgp.federation.flower.waiting import Patience, QuorumError  # noqa: E402
from pfedhgp.federation.grouping import group_clients  # noqa: E402
from pfedhgp.federation.masks import kept, wire  # noqa: E402
from pfedhgp.federation.masks.keys import Identity, framed  # noqa: E402
from pfedhgp.federation.masks.roster import MaskError  # noqa: E402
from pfedhgp.federation.schema import ALARM, DELIVER  # noqa: E402
from pfedhgp.federation.server import Server  # noqa: E402

pytestmark = pytest.mark.flower
MASKED = {"masks": True}
TRIPS = (ANSWER, SIGN, REVEAL)


class Killed(Exception):
    pass


class Federation:
    """Sites with keys and homes, and a server that can be started again."""

    def __init__(self, folder, count, *, rows=16, **tables):
        names = [f"site {i}" for i in range(count)]
        self.folder, self.rows = folder, rows_of(names, rows=rows)
        self.terms = agreement(**{"federation": MASKED, **tables})
        self.identities = {name: Identity.new() for name in names}
        self.public = {name: own.public for name, own in self.identities.items()}
        self.pinned = masked_roster(self.public).digest
        self.link = LocalLink({name: self.site(name) for name in names})
        self.delivered = {}
        self.saved = b""
        self.server()

    @property
    def names(self):
        return [row.name for row in self.rows]

    def site(self, name, *, home=None, pinned=None):
        """As it is after a start: nothing but its disk."""
        row = next(row for row in self.rows if row.name == name)
        keys = MaskKeys(self.identities[name], pinned or self.pinned)
        return site_of(home or self.folder / name, row, masks=keys)

    def server(self, *, resume=False, quorum=1):
        """A new server process; with `resume` it goes on from what the last one kept."""
        server, roster, clock = Server(self.terms.plan), Roster(tuple(self.names), ""), Clock()
        roster.agreement = self.terms.to_json()
        kept = Checkpoint(self.folder / "RUN" / "checkpoint")
        if resume and kept.folder.is_dir():
            with numerics():
                kept.restore(server, [roster])
        roster.run = self.engine.roster.run if resume else roster.run
        masks = MaskedExchanges.of(self.public, roster.run, save=self._keep)
        if resume and self.saved:
            masks.restore(decode(self.saved))
        patience = Patience(timeout=30.0, quorum=quorum, grace=5.0, pause=1.0)
        self.engine = Engine(
            server, roster, self.link, patience, clock=clock, sleep=clock.sleep, masks=masks
        )
        self.engine.save_checkpoint = lambda: kept.save(server, [roster], [])

    def _keep(self, state):
        self.saved = encode(state)

    def run(self):
        with numerics():
            return self.engine.run()

    def asked(self, name, trip, exchange):
        """A request that the site has got, and its answer."""
        for who, request, answer in self.link.answered:
            if (who, request.trip, request.exchange) == (name, trip, exchange):
                return request, answer
        raise AssertionError("it was never asked")


def test_masked_sites_find_what_masks_in_one_process_find_and_only_totals_leave(tmp_path):
    """Number by number; what leaves is bytes that look like noise, and is in the audit logs."""
    there = Federation(tmp_path, 4)
    assert there.run() == {}
    expected = Server(there.terms.plan)
    with numerics():
        inprocess.run(expected, group_clients(there.terms.plan, there.rows, batch=False))
    assert_same(there.engine.server, expected, 0.0)
    log = there.engine.roster.log
    assert [entry["missing"] for entry in log] == [{}] * len(log)
    assert [entry["kind"] for entry in log][:4] == ["magnitude", "magnitude", "census", "extent"]
    values = []
    for _, request, answer in there.link.answered:
        if request.kind == DELIVER:  # a site can raise an alarm, and nothing else
            assert not answer.sealed
            assert {n: a.tolist() for n, a in answer.arrays.items()} in (
                {ALARM: [0.0]},
                {ALARM: [1.0]},
            )
            continue
        assert not answer.arrays
        assert answer.sealed
        if request.trip == ANSWER:
            values.append(wire.read_reply(answer.sealed).values)
    large = [each for each in values if each.size > 300]
    assert len(large) >= 8
    for each in large:
        counts = np.bincount(each.astype("<u8").view(np.uint8), minlength=256)
        wanted = 8 * each.size / 256
        assert chi2.sf(np.sum((counts - wanted) ** 2) / wanted, 255) > 1e-6
    trips = [sorted({r.trip for _, r, _ in there.link.answered if r.exchange == n}) for n in (1, 2)]
    assert trips == [sorted([CARD, KEY, *TRIPS]), sorted(TRIPS)]
    found = audit.check(tmp_path / "site 0")
    assert found.bad_line is None
    sent = sum(answer.nbytes for name, _, answer in there.link.answered if name == "site 0")
    assert found.bytes_sent == sent
    for path in (tmp_path / "site 0").rglob("*"):
        if path.is_file():
            assert not any(name.encode() in path.read_bytes() for name in there.names[1:]), path


def test_a_third_of_the_sites_is_killed_in_each_phase(tmp_path):
    """Two of seven: before they answer, after it, before they sign and before they reveal.

    Every answer is given by a site that knows nothing but its disk. The result is the sum of those whom the
    participation log counts, and who was killed takes part in the next exchange.
    """
    there = Federation(tmp_path, 7, inference={"rounds": 4, "tolerance": 0.0})
    dead = {5: (ANSWER, "site 0", "site 3"), 6: ("lost", "site 1", "site 2")}
    dead |= {7: (SIGN, "site 3", "site 4"), 8: (REVEAL, "site 5", "site 6")}
    order = [CARD, KEY, ANSWER, "lost", SIGN, REVEAL]

    def push(name, request, lifetime):
        phase, *names = dead.get(request.exchange, ("",))
        killed = request.kind != DELIVER and name in names
        if killed and order.index(request.trip) >= order.index(phase):
            return True
        reply = there.site(name).answer(request)
        again = there.site(name).answer(request)
        if request.trip in TRIPS:
            assert reply.sealed == again.sealed != b"", "the same bytes"
        if not (killed and phase == "lost" and request.trip == ANSWER):
            there.link.inbox.append((name, reply))
        return True

    there.link.push = push
    assert there.run() == {}
    log = {entry["exchange"]: entry for entry in there.engine.roster.log}
    assert {n: sorted(log[n]["missing"]) for n in (5, 6, 7, 8)} == {
        5: ["site 0", "site 3"],
        6: ["site 1", "site 2"],
        7: [],
        8: [],
    }
    expected = replay(there.terms.plan, there.rows, list(log.values()))
    assert_same(there.engine.server, expected, 0.0)


@pytest.mark.parametrize("trip", [KEY, ANSWER, SIGN, REVEAL])
def test_a_killed_server_goes_on_in_the_same_exchange_with_the_same_sites(tmp_path, trip):
    """Killed when half of the sites were asked; one that had answered before may be gone for good."""
    there = Federation(tmp_path, 4, inference={"rounds": 1})
    exchange = 1 if trip == KEY else 3
    push = there.link.push

    def dying(name, request, lifetime):
        if (request.exchange, request.trip, name) == (exchange, trip, "site 2"):
            raise Killed
        return push(name, request, lifetime)

    there.link.push = dying
    with pytest.raises(Killed):
        there.run()
    there.link.push = push
    gone = trip in (SIGN, REVEAL)
    if gone:  # its masked reply is on the server's disk
        lost = there.link.sites.pop("site 3")
    there.server(resume=True)
    if gone:
        there.engine.on_exchange = lambda entry: there.link.sites.update({"site 3": lost})
    assert there.run() == {}
    log = there.engine.roster.log
    assert [entry["missing"] for entry in log] == [{}] * len(log)
    assert_same(there.engine.server, replay(there.terms.plan, there.rows, log), 0.0)


def test_too_few_sites_wait_in_the_same_exchange(tmp_path):
    """Three of four are needed: with two the server stops, and later asks the same four again."""
    there = Federation(tmp_path, 4, inference={"rounds": 1})
    push = there.link.push

    def away(name, request, lifetime):
        missing = request.exchange == 4 and name in ("site 0", "site 1")
        return push(name, request, lifetime) if not missing else True

    there.link.push = away
    with pytest.raises(QuorumError, match="2 answered, 3 are needed with masks"):
        there.run()
    there.link.push = push
    there.server(resume=True)
    assert there.run() == {}
    assert all(entry["missing"] == {} for entry in there.engine.roster.log)


def test_a_site_that_comes_late_or_lost_its_disk(tmp_path):
    """One joins in exchange 3, one loses its keys and is left out from then on; all get the model."""
    there = Federation(tmp_path, 5, inference={"rounds": 2})
    late = there.link.sites.pop("site 4")

    def change(entry):
        if entry["exchange"] == 2:
            there.link.sites["site 4"] = late
        if entry["exchange"] == 5:
            there.link.sites["site 1"] = there.site("site 1", home=tmp_path / "new disk")

    there.engine.on_exchange = change
    assert there.run() == {}
    log = there.engine.roster.log
    assert [entry["missing"] for entry in log] == [
        *2 * [{"site 4": "no-answer"}],
        *3 * [{}],
        *2 * [{"site 1": "forgotten"}],
    ]
    assert_same(there.engine.server, replay(there.terms.plan, there.rows, log), 0.0)
    assert sorted(there.engine.roster.delivered) == there.names


def test_forged_survivors_smaller_sets_and_questions_without_masks_are_refused(tmp_path):
    there = Federation(tmp_path, 4, inference={"rounds": 1})
    push, refused = there.link.push, []

    def forging(name, request, lifetime):
        if (request.exchange, name) == (4, "site 0"):
            refused.extend(_forged(there.link.sites["site 0"], request))
        return push(name, request, lifetime)

    def _forged(site, request):
        others = [site_hash(name) for name in there.names]
        if request.trip == ANSWER:
            cards, adverts = wire.read_question(request.sealed)
            # without masks; then as the wrong trip
            yield site.answer(replace(request, trip="", sealed=b"")).code
            yield site.answer(replace(request, sealed=b"nonsense")).code
            # a key that its owner did not sign
            forged = [replace(adverts[0], public=adverts[1].public), *adverts[1:]]
            yield site.answer(replace(request, sealed=wire.question_bytes(cards, forged))).code
            # two sites of four
            yield site.answer(replace(request, sealed=wire.question_bytes(cards, adverts[:2]))).code
        if request.trip == SIGN:
            # fewer than are needed; one that was never asked; then, after the true set, a smaller one
            for names in (others[:2], [*others, "f" * 16]):
                yield site.answer(replace(request, sealed=wire.survivors_bytes(names))).code
            assert not site.answer(request).code
            smaller = wire.survivors_bytes(sorted(others)[1:])
            if site_hash("site 0") not in sorted(others)[1:]:
                smaller = wire.survivors_bytes(sorted(others)[:-1])
            yield site.answer(replace(request, sealed=smaller)).code
        if request.trip == REVEAL:
            names, signatures, boxes = wire.read_opening(request.sealed)
            fewer = dict(list(signatures.items())[:2])
            mine = [name for name in names if name != site_hash("site 1")]
            swapped = {name: b"\0" * 96 for name in signatures}
            for parts in (
                (names, fewer, boxes),
                (mine, signatures, boxes),
                (names, swapped, boxes),
            ):
                yield site.answer(replace(request, sealed=wire.opening_bytes(*parts))).code

    there.link.push = forging
    assert there.run() == {}
    assert refused == ["malformed", *9 * ["masks"]]
    # The same exchange with fewer sites, after it is over; and the same question in another exchange.
    request, _ = there.asked("site 0", ANSWER, 5)
    cards, adverts = wire.read_question(request.sealed)
    site = there.link.sites["site 0"]
    smaller = wire.question_bytes(cards, [a for a in adverts if a.name != site_hash("site 3")])
    assert site.answer(replace(request, sealed=smaller)).code == "masks"
    assert site.answer(replace(request, exchange=99)).code in ("masks", "malformed")


def test_another_list_of_sites_no_list_and_two_sites_are_refused(tmp_path, caplog):
    there = Federation(tmp_path, 4)
    there.link.sites["site 1"] = there.site("site 1", pinned=b"\0" * 32)
    there.link.sites["site 2"] = site_of(tmp_path / "site 2", there.rows[2])
    with pytest.raises(QuorumError, match="2 sites came, 3 are needed with masks"):
        there.run()
    assert "not the one that was agreed on" in caplog.text
    assert "give --roster and --key" in caplog.text
    plain = agreement()
    census = replace(
        there.link.answered[0][1], agreement=plain.to_json(), kind="census", trip="", sealed=b""
    )
    assert there.site("site 0", home=tmp_path / "other").answer(census).code == "config"
    with pytest.raises(InputError, match="at least 3 sites, there are 2"):
        masked_roster({name: there.public[name] for name in there.names[:2]})
    other = {name: there.public[name] for name in there.names[:3]}
    again = MaskedExchanges.of(other, there.engine.roster.run)
    with pytest.raises(InputError, match="not the one that the run with masks began with"):
        again.restore(kept.state_of(there.engine.masks.server))


def test_replies_that_lie_about_their_sender_or_are_cut_off_change_nothing(tmp_path, caplog):
    there = Federation(tmp_path, 4, inference={"rounds": 1})
    answers = {}

    def change(name, request, reply):
        answers[name] = reply
        if name == "site 3" and request.exchange == 4:
            return replace(reply, sealed=reply.sealed[:-3])
        if name == "site 3" and request.exchange == 5 and request.trip == ANSWER:
            return replace(reply, sealed=answers["site 0"].sealed)
        return reply

    there.link.change = change
    assert there.run() == {}
    missing = [entry["missing"] for entry in there.engine.roster.log]
    assert missing == [{}, {}, {}, {"site 3": "masks"}, {"site 3": "masks"}, {}]
    log = there.engine.roster.log
    assert_same(there.engine.server, replay(there.terms.plan, there.rows, log), 0.0)


def test_bytes_are_those_without_masks(tmp_path):
    """At most 1.05 times, up and down, with 128 inducing inputs and 4 sites."""
    sizes = {}
    tables = {"model": {"inducing": 128, "local_inducing": 5}, "inference": {"rounds": 1}}
    for masks in (False, True):
        there = Federation(tmp_path / str(masks), 4, rows=40, **tables)
        if not masks:
            there.terms = agreement(**tables)
            there.link.sites = {r.name: site_of(tmp_path / "p" / r.name, r) for r in there.rows}
            there.server()
            there.engine.masks = None
        there.run()
        last = there.engine.roster.log[-1]
        sizes[masks] = np.array([last["bytes_up"], last["bytes_down"]])
    assert np.all(sizes[True] <= 1.05 * sizes[False])
    assert np.all(sizes[True] > sizes[False])


def test_what_is_not_the_one_spelling_is_not_read():
    for data in (b"\0", b"\0" * 7 + b"\2a", b"\0" * 16):
        with pytest.raises(MaskError, match="a message of the masks"):
            wire.read_card(data)
    with pytest.raises(MaskError, match="not in order"):
        wire.read_named(framed("b", b"1", "a", b"2"))
    assert wire.read_named(wire.named({"b": b"1", "a": b""})) == {"a": b"", "b": b"1"}
