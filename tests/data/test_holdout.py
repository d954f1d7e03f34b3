"""The held-out rows: how many, which ones, and never both trained and tested on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfedhgp.data.holdout import KINDS, Holdout, checksum, is_the_same, ledger, split
from pfedhgp.data.readers import Observations
from pfedhgp.errors import InputError


def _client(n: int, seed: int = 0, name: str = "a", cycle=None) -> Observations:
    rng = np.random.default_rng(seed)
    return Observations(name, rng.normal(size=(n, 2)), rng.normal(size=(n, 1)), cycle)


@given(st.integers(1, 60), st.sampled_from(KINDS), st.floats(0.01, 0.99), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_training_and_test_are_the_clients_rows_once_each(n, kind, fraction, seed):
    client = _client(n, seed)
    (train,), test = split([client], Holdout(kind, fraction, seed))
    assert len(train.X) >= 1
    parts = np.concatenate([train.Y[:, 0], *(part.Y[:, 0] for part in test)])
    np.testing.assert_array_equal(np.sort(parts), np.sort(client.Y[:, 0]))
    if n >= 20 and 0.1 <= fraction <= 0.9:
        assert abs(sum(len(part.X) for part in test) - fraction * n) <= 0.06 * n + 2


def test_last_is_the_future():
    client = _client(50)
    (train,), (test,) = split([client], Holdout("last", 0.2))
    assert len(test.X) == 10
    assert train.X[:, 0].max() < test.X[:, 0].min()


def test_blocks_are_stretches():
    client = _client(200)
    _, (test,) = split([client], Holdout("blocks", 0.2, 3))
    assert len(test.X) == 40
    order = np.argsort(client.X[:, 0])
    held = np.isin(client.X[order, 0], test.X[:, 0])
    lengths = np.diff(np.flatnonzero(np.diff(np.concatenate([[0], held, [0]]))))[::2]
    assert min(lengths) >= 10
    assert len(lengths) <= 4


@pytest.mark.parametrize("kind", ["last", "blocks"])
def test_rows_at_equal_times_stay_together(kind):
    X = np.repeat(np.arange(20.0), 3)[:, None]
    client = Observations("a", X, np.arange(60.0)[:, None])
    (train,), (test,) = split([client], Holdout(kind, 0.25))
    assert not set(train.X[:, 0]) & set(test.X[:, 0])
    assert len(test.X) == 15


def test_whole_cycles_are_held_out():
    cycle = np.repeat(["c", "a", "b", "d"], 5)
    client = _client(20, cycle=cycle)
    (train,), (test,) = split([client], Holdout("random", 0.25, 1))
    assert not set(train.cycle) & set(test.cycle)
    assert len(test.X) == 5
    (_,), (last,) = split([client], Holdout("last", 0.25))
    assert set(last.cycle) == {"d"}


def test_seeds_choose_rows_and_clients_differ():
    same = [_client(40, name="a"), _client(40, name="b")]
    first = [part.Y[:, 0].tolist() for part in split(same, Holdout("random", 0.3, 7))[1]]
    again = [part.Y[:, 0].tolist() for part in split(same, Holdout("random", 0.3, 7))[1]]
    other = [part.Y[:, 0].tolist() for part in split(same, Holdout("random", 0.3, 8))[1]]
    assert first == again
    assert first != other
    assert first[0] != first[1]


@given(st.permutations(range(30)), st.sampled_from(KINDS))
@settings(max_examples=30, deadline=None)
def test_a_clients_split_depends_on_its_rows_and_its_name_alone(order, kind):
    """Not on their order, nor on who else is there: that is what lets a report make it again."""
    client, holdout = _client(30, 3), Holdout(kind, 0.3, 5)
    (_, alone), (_, (test,)) = (
        split([_client(9, 1, "z"), client], holdout),
        split([client.take(np.array(order))], holdout),
    )
    assert {tuple(row) for row in test.Y} == {tuple(row) for row in alone[-1].Y}


def test_the_ledger_knows_rows_again_and_holds_none():
    clients = [_client(30, 3), _client(1, 4, "one")]
    holdout = Holdout("random", 0.3, 5)
    kept = ledger(clients, *split(clients, holdout))
    assert kept["a"].keys() == {"rows", "cells", "held_out", "check"}
    assert {k: v for k, v in kept["a"].items() if k != "check"} == {
        **{"rows": 30, "cells": 21, "held_out": 9}
    }
    assert len(kept["a"]["check"]) == 4
    assert kept["one"] == {"rows": 1, "cells": 1, "held_out": 0}  # of one row not even a checksum
    assert is_the_same(clients[0].take(np.arange(30)[::-1]), kept["a"])
    assert not is_the_same(clients[0].take(np.arange(29)), kept["a"])
    assert not is_the_same(clients[0], None)
    changed = Observations("a", clients[0].X, clients[0].Y.copy())
    changed.Y[7, 0] += 1e-6
    assert not is_the_same(changed, kept["a"])


def test_checksums_do_not_mind_the_kind_of_nan_or_zero():
    X = np.array([[0.0], [1.0]])
    one = Observations("a", X, np.array([[0.0], [np.nan]]))
    other = Observations("a", X, np.array([[-0.0], [np.float64(-np.nan)]]))
    assert checksum(one) == checksum(other)
    cycles = [Observations("a", X, X, np.array(names)) for names in (["u", "v"], ["v", "u"])]
    assert checksum(cycles[0]) != checksum(cycles[1])


def test_rows_without_an_observed_output_are_not_tested_on():
    client = Observations("a", np.arange(10.0)[:, None], np.full((10, 1), np.nan))
    (train,), test = split([client], Holdout("last", 0.5))
    assert len(train.X) == 5
    assert test == []


@pytest.mark.parametrize(
    "text", ["", "random", "random:", "random:0", "last:1", "half:0.5", "last:x"]
)
def test_other_words_are_refused(text):
    with pytest.raises(InputError, match="--holdout must be"):
        Holdout.parse(text, seed=0)
