"""What a site refuses, whoever runs the server; and that it resends the same bytes after kill -9."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from support.masked_sites import masks_of, needs_cryptography, scope_of

needs_cryptography()
from pfedhgp.federation.masks import keys  # noqa: E402
from pfedhgp.federation.masks.keys import Identity  # noqa: E402
from pfedhgp.federation.masks.roster import (  # noqa: E402
    Advert,
    Card,
    MaskError,
    Roster,
    Scope,
)
from pfedhgp.federation.masks.site import MaskedSite  # noqa: E402

pytestmark = pytest.mark.flower
ZEROS = np.zeros(3, np.uint64)


def asked(count: int = 7, answering: int | None = None):
    """A run whose first exchange was answered by all, or the first `answering`."""
    masks = masks_of(count)
    names = sorted(masks.sites)
    masks.begin("q", {n: ZEROS for n in names}, names[:answering])
    return masks, names


def signed_by(masks, names, survivors):
    return {n: masks.sites[n].sign(1, survivors) for n in names}


def test_the_roster_is_pinned_and_has_this_sites_key():
    scope, identities = scope_of(3)
    name, own = next(iter(identities.items()))
    other = Roster({**scope.roster.sites, "one more": Identity.new().public})
    with pytest.raises(MaskError, match="not the one that was agreed"):
        MaskedSite.joining(name, own, Scope(other, "a run"), scope.roster.digest)
    with pytest.raises(MaskError, match="another key"):
        MaskedSite.joining(name, Identity.new(), scope, scope.roster.digest)


def test_cards_are_signed_and_one_a_run():
    scope, identities = scope_of(3)
    names = sorted(identities)
    site = MaskedSite.joining(names[0], identities[names[0]], scope, scope.roster.digest)
    secret = keys.new_secret()
    forged = Card.signed(scope, names[1], keys.public_of(secret), identities[names[2]])
    with pytest.raises(MaskError, match="not signed"):
        site.meet([forged])
    first, second = (
        Card.signed(scope, names[1], keys.public_of(keys.new_secret()), identities[names[1]])
        for _ in range(2)
    )
    site.meet([first])
    with pytest.raises(MaskError, match="two cards"):
        site.meet([second])
    elsewhere = Card.signed(Scope(scope.roster, "b"), names[2], b"k" * 32, identities[names[2]])
    with pytest.raises(MaskError, match="not signed"):
        site.meet([elsewhere])


def test_a_question_is_answered_once_and_resent_byte_for_byte():
    masks, names = asked()
    site, told = masks.sites[names[0]], masks.server.adverts_for(names[0])
    first = masks.server.replies[names[0]].to_bytes()
    assert site.answer(1, "q", told, ZEROS).to_bytes() == first
    assert site.answer(1, "q", told, ZEROS + np.uint64(1)).to_bytes() == first
    with pytest.raises(MaskError, match="with something else"):
        site.answer(1, "another", told, ZEROS)
    with pytest.raises(MaskError, match="with something else"):  # a smaller set
        site.answer(1, "q", told[:-1], ZEROS)


def test_the_same_question_in_another_exchange_is_refused():
    """The sums over U and over U without one give that one's numbers."""
    masks, names = asked()
    server, site = masks.server, masks.sites[names[0]]
    server.ask(2, "q")
    with pytest.raises(MaskError, match="answered in an earlier exchange"):
        site.answer(2, "q", server.adverts_for(names[0]), ZEROS)
    with pytest.raises(MaskError, match="no key for exchange 3"):
        site.answer(3, "r", [replace(a, exchange=3) for a in server.adverts_for(names[0])], ZEROS)
    site.answer(2, "r", server.adverts_for(names[0]), ZEROS)
    with pytest.raises(MaskError, match="exchange 1 is over"):
        site.answer(1, "q", server.adverts_for(names[0]), ZEROS)
    with pytest.raises(MaskError, match="exchange 2 is over"):
        site.advertise(2)


def test_questions_with_few_forged_or_foreign_sites_are_refused():
    masks = masks_of(7)
    names, server = sorted(masks.sites), masks.server
    server.ask(1, "q")
    site, told = masks.sites[names[0]], masks.server.adverts_for(names[0])
    with pytest.raises(MaskError, match="4 sites are asked, and 5 are needed"):
        site.answer(1, "q", told[:4], ZEROS)
    forged = replace(told[6], public=keys.public_of(keys.new_secret()))
    with pytest.raises(MaskError, match="not signed for this exchange"):
        site.answer(1, "q", [*told[:6], forged], ZEROS)
    stranger, own = Identity.new(), keys.public_of(keys.new_secret())
    more = Advert("x", 1, own, stranger.sign(server.scope.advert("x", 1, own)))
    with pytest.raises(MaskError, match="'x' is not signed"):
        site.answer(1, "q", [*told, more], ZEROS)
    with pytest.raises(MaskError, match="wrong about this site"):
        site.answer(1, "q", told[1:], ZEROS)
    with pytest.raises(MaskError, match="wrong about this site"):
        site.answer(1, "q", [*told, told[3]], ZEROS)
    assert site.reply is None


def test_survivors_are_signed_once_and_are_enough():
    masks, names = asked()
    site = masks.sites[names[0]]
    with pytest.raises(MaskError, match="4 sites have answered, and 5 are needed"):
        site.sign(1, names[:4])
    with pytest.raises(MaskError, match="not all asked"):
        site.sign(1, [*names, "somebody"])
    with pytest.raises(MaskError, match="not among them"):
        site.sign(1, names[1:])
    with pytest.raises(MaskError, match="not the one that was answered last"):
        site.sign(2, names)
    site.sign(1, names)
    site.sign(1, reversed(names))
    with pytest.raises(MaskError, match="another set of survivors"):
        site.sign(1, names[:6])


def test_forged_survivor_sets_reveal_nothing():
    """With too few signatures, with one site's signature for many, of another set, of another exchange."""
    masks, names = asked()
    site, server = masks.sites[names[0]], masks.server
    server.settle()
    boxes = server.boxes_for(names[0])
    with pytest.raises(MaskError, match="not signed here"):
        site.reveal(1, names, signed_by(masks, names[1:], names), boxes)
    good = signed_by(masks, names, names)
    with pytest.raises(MaskError, match="4 survivors have signed, and 5 are needed"):
        site.reveal(1, names, dict(list(good.items())[:4]), boxes)
    with pytest.raises(MaskError, match="1 survivors have signed"):
        site.reveal(1, names, dict.fromkeys(names, good[names[0]]), boxes)
    with pytest.raises(MaskError, match="not signed here"):
        site.reveal(1, names[:6], good, boxes)
    own = Identity.new()
    statement = server.scope.survivors(1, site.question.digest, names)
    forged = {n: own.sign(statement) for n in names}
    with pytest.raises(MaskError, match="0 survivors have signed"):
        site.reveal(1, names, forged, boxes)
    assert site.revealed is None


def test_a_site_never_reveals_both_of_one_site():
    """A server that gets five sites to sign without two, and then asks for a reveal with them."""
    masks, names = asked()
    site, server = masks.sites[names[0]], masks.server
    some = names[:5]
    server.settle()
    told = site.reveal if site.signed else None
    assert told is None
    signatures = signed_by(masks, some, some)
    boxes = server.boxes_for(names[0])
    found = site.reveal(1, some, signatures, boxes)
    assert set(found.own) == set(some)
    assert set(found.keys) == set(names[5:])
    assert not set(found.own) & set(found.keys)
    with pytest.raises(MaskError, match="another set of survivors"):
        site.sign(1, names)
    with pytest.raises(MaskError, match="not signed here"):
        site.reveal(1, names, signatures, boxes)
    assert site.reveal(1, some, signatures, {}) == found  # the same again, and no more


def test_boxes_of_other_exchanges_and_for_others_do_not_open():
    masks, names = asked()
    site, server = masks.sites[names[0]], masks.server
    survivors = server.settle()
    good = signed_by(masks, names, survivors)
    swapped = {n: server.replies[n].boxes[names[1]] for n in survivors}
    assert site.reveal(1, survivors, good, swapped).own == {}


def test_a_site_that_lost_its_state_has_no_key_for_the_exchange():
    """It begins again with a new card, which the others refuse in this run: it is out of it."""
    masks = masks_of(4)
    name, *others = sorted(masks.sites)
    scope, own = masks.server.scope, masks.sites[name].identity
    again = MaskedSite.joining(name, own, scope, scope.roster.digest)
    masks.server.ask(1, "q")
    with pytest.raises(MaskError, match="no key"):
        again.answer(1, "q", masks.server.adverts_for(name), ZEROS)
    with pytest.raises(MaskError, match="two cards"):
        masks.sites[others[0]].meet([again.card()])


PROGRAM = """
import json, os, signal, sys
import numpy as np
from cryptography.hazmat.primitives.serialization import load_der_private_key
from pfedhgp.federation.masks import stored
from pfedhgp.federation.masks.keys import Identity
from pfedhgp.federation.masks.roster import Roster, Scope
from pfedhgp.federation.masks.site import MaskedSite

folder = sys.argv[1]
given = json.load(open(f"{folder}/given.json"))
roster = Roster({n: bytes.fromhex(k) for n, k in given["roster"].items()})
identity = Identity(load_der_private_key(bytes.fromhex(given["key"]), None))

def save(state):
    with open(f"{folder}/new.json", "w") as file:
        json.dump(state, file)
    os.replace(f"{folder}/new.json", f"{folder}/state.json")

site = MaskedSite(given["name"], identity, Scope(roster, "a run"), save)
site.restore(json.load(open(f"{folder}/state.json")))
told = [stored.advert_from(tree) for tree in given["told"]]
reply = site.answer(1, "q", told, np.arange(5).astype(np.uint64))
with open(f"{folder}/{sys.argv[2]}", "wb") as file:
    file.write(reply.to_bytes())
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_resends_the_same_bytes(tmp_path):
    """State is on disk before the reply leaves: a second process reads it and sends the same."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    from pfedhgp.federation.masks import stored

    masks = masks_of(3)
    names = sorted(masks.sites)
    site, server = masks.sites[names[0]], masks.server
    server.ask(1, "q")
    private = site.identity.private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    told = [stored.to_json(advert) for advert in server.adverts_for(names[0])]
    roster = {n: key.hex() for n, key in server.scope.roster.sites.items()}
    given = {"name": names[0], "key": private.hex(), "roster": roster, "told": told}
    (tmp_path / "given.json").write_text(json.dumps(given))
    (tmp_path / "state.json").write_text(json.dumps(site.state()))
    for sink in ("first", "second"):
        done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path), sink], check=False)
        assert done.returncode == -signal.SIGKILL
    first = (tmp_path / "first").read_bytes()
    assert first == (tmp_path / "second").read_bytes()
    site.restore(json.loads((tmp_path / "state.json").read_text()))
    assert site.reply.to_bytes() == first
    values = {n: np.arange(5).astype(np.uint64) for n in names}
    server.take(site.reply)
    for name in names[1:]:
        server.take(masks.sites[name].answer(1, "q", server.adverts_for(name), values[name]))
    survivors = server.settle()
    for name in names:
        server.add_signature(name, masks.sites[name].sign(1, survivors))
    state = json.loads(json.dumps(site.state()))  # and a kill between signing and revealing
    site.restore(state)
    revealed = [
        masks.sites[n].reveal(1, survivors, server.signatures, server.boxes_for(n)) for n in names
    ]
    site.restore(json.loads(json.dumps(site.state())))
    assert site.reveal(1, survivors, server.signatures, {}) == revealed[0]
    np.testing.assert_array_equal(server.total(revealed), 3 * values[names[0]])


def test_nothing_leaves_before_it_is_kept():
    """If the disk is full, there is no reply; the next try makes a new one."""
    masks = masks_of(3)
    names = sorted(masks.sites)
    site, server = masks.sites[names[0]], masks.server
    server.ask(1, "q")

    def full(state):
        raise OSError("no space left on device")

    kept, site.save = site.state(), full
    with pytest.raises(OSError, match="no space"):
        site.answer(1, "q", server.adverts_for(names[0]), ZEROS)
    lost = site.reply
    site.restore(kept)
    site.save = lambda state: None
    assert site.answer(1, "q", server.adverts_for(names[0]), ZEROS).to_bytes() != lost.to_bytes()


def test_a_site_that_wants_more_sites_in_a_sum_neither_answers_nor_signs_with_fewer():
    """As privacy="distributed" does: the noise of fewer would be too little."""
    masks, names = asked(7)
    masks.sites[names[0]].fewest = 6
    with pytest.raises(MaskError, match="5 sites have answered, and 6 are needed"):
        masks.sites[names[0]].sign(1, names[:5])
    assert masks.sites[names[0]].sign(1, names[:6])
    assert masks.sites[names[1]].sign(1, names[:5]), "the threshold of masks is 5"


def test_a_key_is_shared_out_anew_when_a_card_comes_later():
    """The same key, and only then: a site that drops out must be opened by those who came late, too."""
    scope, identities = scope_of(4)
    sites = {
        name: MaskedSite.joining(name, own, scope, scope.roster.digest)
        for name, own in identities.items()
    }
    *early, late = sorted(sites)
    one = sites[early[0]]
    one.meet(sites[name].card() for name in early)
    first = one.advertise(1)
    assert one.advertise(1) == first
    one.meet([sites[late].card()])
    second = one.advertise(1)
    assert (first.public, first.signature) == (second.public, second.signature)
    assert set(second.boxes) == {*first.boxes, late}
    assert one.advertise(1) == second
