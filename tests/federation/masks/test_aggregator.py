"""The server finds the survivors' sum, whoever dies in whichever phase, and nothing with too few."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.masked_sites import masks_of, needs_cryptography

needs_cryptography()
from pfedhgp.federation.masks.fixed_point import decoded, encoded  # noqa: E402
from pfedhgp.federation.masks.roster import MaskError  # noqa: E402

pytestmark = pytest.mark.flower
SHAPES = {"U": (6,), "noise": (2,)}


def replies_of(masks, seed: int) -> dict[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return {n: {k: rng.normal(size=s) for k, s in SHAPES.items()} for n in masks.sites}


def vectors(replies):
    return {name: encoded(reply, SHAPES, len(replies)) for name, reply in replies.items()}


def assert_sum(total, survivors, replies):
    found = decoded(total, SHAPES, len(replies))
    for name in SHAPES:
        expected = sum(replies[each][name] for each in survivors)
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("count", [3, 4, 10])
def test_the_total_is_the_plain_sum_in_several_exchanges(count):
    masks = masks_of(count)
    for seed in range(3):
        replies = replies_of(masks, seed)
        total, survivors = masks.exchange(vectors(replies))
        assert survivors == tuple(sorted(masks.sites))
        assert_sum(total, survivors, replies)


@pytest.mark.parametrize("count", [4, 7, 10])
@pytest.mark.parametrize("phase", ["answer", "sign", "reveal"])
def test_a_third_of_the_sites_dies_in_a_phase(count, phase):
    """⌊(T − 1)/3⌋ of T; and again in the next exchange, where others die and the first are back."""
    masks = masks_of(count)
    names, few = sorted(masks.sites), (count - 1) // 3
    for seed, dead in enumerate((names[:few], names[-few:])):
        replies = replies_of(masks, seed)
        total, survivors = masks.exchange(vectors(replies), die_before={phase: dead})
        expected = set(names) - set(dead) if phase == "answer" else set(names)
        assert set(survivors) == expected
        assert_sum(total, survivors, replies)


def test_sites_die_in_every_phase_of_one_exchange():
    masks = masks_of(10)
    names, replies = sorted(masks.sites), replies_of(masks, 0)
    dead = {"answer": names[:1], "sign": names[4:5], "reveal": names[9:]}
    total, survivors = masks.exchange(vectors(replies), die_before=dead)
    assert survivors == tuple(names[1:])
    assert_sum(total, survivors, replies)


@pytest.mark.parametrize("phase", ["answer", "sign", "reveal"])
def test_with_one_less_there_is_no_total(phase):
    masks = masks_of(7)
    names, replies = sorted(masks.sites), replies_of(masks, 0)
    with pytest.raises(MaskError, match="needed"):
        masks.exchange(vectors(replies), die_before={phase: names[:3]})


def test_too_few_answers_wait_in_the_same_exchange_and_late_ones_are_not_summed():
    """The set of those who are asked stays; when enough have come back, it goes on."""
    masks = masks_of(7)
    names, replies = sorted(masks.sites), replies_of(masks, 0)
    values = vectors(replies)
    masks.begin("q", values, names[:4])
    with pytest.raises(MaskError, match="wait for more in this same exchange"):
        masks.server.settle()
    assert masks.server.ask(1, "q") == tuple(names)
    with pytest.raises(MaskError, match="another request"):
        masks.server.ask(1, "p")
    answer = {
        n: masks.sites[n].answer(1, "q", masks.server.adverts_for(n), values[n]) for n in names[4:]
    }
    masks.server.take(answer[names[4]])
    survivors = masks.server.settle()
    assert survivors == tuple(names[:5])
    with pytest.raises(MaskError, match="too late"):
        masks.server.take(answer[names[5]])
    for name in survivors:
        masks.server.add_signature(name, masks.sites[name].sign(1, survivors))
    signatures = masks.server.signatures
    told = [
        masks.sites[n].reveal(1, survivors, signatures, masks.server.boxes_for(n))
        for n in survivors
    ]
    assert_sum(masks.server.total(told), survivors, replies)


def test_wrong_shares_are_found_and_named():
    masks = masks_of(4)
    names, replies = sorted(masks.sites), replies_of(masks, 0)
    masks.begin("q", vectors(replies), names[:3])
    survivors = masks.server.settle()
    for name in survivors:
        masks.server.add_signature(name, masks.sites[name].sign(1, survivors))
    told = [
        masks.sites[n].reveal(1, survivors, masks.server.signatures, masks.server.boxes_for(n))
        for n in survivors
    ]
    assert set(told[0].own) == set(survivors)
    assert set(told[0].keys) == {names[3]}
    wrong = (int.from_bytes(told[0].own[names[1]], "big") ^ 1).to_bytes(33, "big")
    lie = replace(told[0], own={**told[0].own, names[1]: wrong})
    with pytest.raises(MaskError, match=r"own mask of 'site 01'|secret of 'site 01'"):
        masks.server.total([lie, *told[1:]])
    wrong = (int.from_bytes(told[0].keys[names[3]], "big") ^ 1).to_bytes(33, "big")
    lie = replace(told[0], keys={names[3]: wrong})
    with pytest.raises(MaskError, match=r"mask key of 'site 03'|secret of 'site 03'"):
        masks.server.total([lie, *told[1:]])
    assert_sum(masks.server.total(told), survivors, replies)


def test_replies_of_other_sizes_and_exchanges_are_refused():
    masks = masks_of(3)
    names = sorted(masks.sites)
    values = {name: np.zeros(4, np.uint64) for name in names}
    values[names[2]] = np.zeros(5, np.uint64)
    with pytest.raises(MaskError, match="another size"):
        masks.begin("q", values, names)
    with pytest.raises(MaskError, match="another exchange"):
        masks.server.take(replace(masks.server.replies[names[0]], exchange=2))


def test_signatures_of_others_and_of_another_set_are_refused():
    masks = masks_of(4)
    names = sorted(masks.sites)
    masks.begin("q", {n: np.zeros(1, np.uint64) for n in names}, names)
    survivors = masks.server.settle()
    with pytest.raises(MaskError, match="did not sign"):
        masks.server.add_signature(names[0], masks.sites[names[1]].sign(1, survivors))
    with pytest.raises(MaskError, match="did not sign"):
        masks.server.add_signature(names[0], masks.sites[names[0]].sign(1, survivors[:3]))
