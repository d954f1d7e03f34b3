"""A roster has 3 to 100 sites with keys of their own, and its hash is of all of it."""

from __future__ import annotations

import pytest

from pfedhgp.errors import InputError
from pfedhgp.federation.masks.roster import Question, Roster


def roster(count: int) -> Roster:
    return Roster({f"{i}": bytes([i]) for i in range(count)})


def test_fewer_than_three_and_more_than_a_hundred_are_refused():
    with pytest.raises(InputError, match="at least 3 sites, there are 2"):
        roster(2)
    with pytest.raises(InputError, match="at most 100 sites, there are 101"):
        roster(101)
    with pytest.raises(InputError, match="the same key"):
        Roster({"a": b"1", "b": b"2", "c": b"1"})


@pytest.mark.parametrize(("count", "needed"), [(3, 3), (4, 3), (6, 5), (7, 5), (10, 7), (100, 67)])
def test_the_threshold(count, needed):
    """⌊2T/3⌋ + 1; a third of the sites, less than whole, may be missing."""
    assert roster(count).threshold == needed
    assert count - needed == (count - 1) // 3


def test_the_hash_is_of_names_and_keys_in_any_order():
    one = Roster({"a": b"1", "b": b"2", "c": b"3"})
    assert one.digest == Roster({"c": b"3", "a": b"1", "b": b"2"}).digest
    assert one.digest != Roster({"a": b"1", "b": b"3", "c": b"2"}).digest
    assert one.digest != Roster({"a": b"1", "b": b"2", "d": b"3"}).digest
    assert [one.place(name) for name in one.names] == [1, 2, 3]


def test_the_hash_of_a_question_is_of_all_of_it():
    publics = {"a": b"1", "b": b"2"}
    questions = [
        Question(1, "q", publics),
        Question(2, "q", publics),
        Question(1, "r", publics),
        Question(1, "q", {"a": b"1"}),
        Question(1, "q", {"a": b"1", "b": b"3"}),
    ]
    assert len({each.digest for each in questions}) == 5
