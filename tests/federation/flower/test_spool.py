"""Replies that wait on disk are those that came, and a thousand of them do not fill the memory."""

from __future__ import annotations

import tracemalloc

import numpy as np

from pfedhgp.federation.flower.spool import Spool, SpooledArrays
from pfedhgp.federation.messages import Message, bytes_of, layout_of


def test_arrays_come_back_as_they_were(tmp_path):
    arrays = {
        "U": np.arange(6.0).reshape(2, 3),
        "bound": np.asarray(-1.5),
        "none": np.zeros((0, 4)),
        "turned": np.arange(6.0).reshape(3, 2).T,
    }
    spool = Spool(tmp_path / "replies", room=0)
    found = spool.keep(arrays)
    assert isinstance(found, SpooledArrays)
    assert layout_of(found) == layout_of(arrays)
    assert bytes_of(found) == bytes_of(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
    Message("census", 0, "north", found).check_finite()
    kept = found["U"]
    spool.clear()
    assert not (tmp_path / "replies").exists()
    np.testing.assert_array_equal(kept, arrays["U"], "what was read stays")


def test_few_replies_stay_in_memory(tmp_path):
    spool = Spool(tmp_path / "replies", room=100)
    first = {"h": np.ones(10)}
    assert spool.keep(first) is first
    assert isinstance(spool.keep(first), SpooledArrays)
    spool.clear()
    assert spool.keep(first) is first
    assert Spool().keep(first) is first, "without a folder there is no other place"


def test_many_replies_do_not_fill_the_memory(tmp_path):
    """600 of 200 kB, 120 MB in all, are summed in less than 4 MB; the sum is that of the arrays."""
    spool, room = Spool(tmp_path / "replies", room=1_000_000), 4_000_000
    expected, made = np.zeros(25_000), np.random.default_rng(0)
    tracemalloc.start()
    try:
        replies = []
        for i in range(600):
            array = made.standard_normal(25_000)
            expected += array
            replies.append(Message("census", 0, str(i), spool.keep({"h": array})))
        total = np.zeros(25_000)
        for reply in replies:
            reply.check_finite()
            total = total + reply.arrays["h"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(total, expected)
    assert peak < room
