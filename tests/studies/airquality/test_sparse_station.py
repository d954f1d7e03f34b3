"""A station with few rows left: how it is thinned, and how it is judged."""

from __future__ import annotations

import numpy as np

from pfedhgp.studies.airquality import sparse_station

ZONES = {"a": "one", "b": "two", "c": "one", "d": "two"}


def test_only_one_station_is_thinned_and_nothing_is_lost() -> None:
    t = np.arange(100.0)
    sites = {name: (t, t**2) for name in ZONES}
    left, rest = sparse_station.thinned(sites, "b", share=0.05, seed=0)
    assert len(left["b"][0]) == 5
    assert sorted([*left["b"][0], *rest[0]]) == t.tolist()
    np.testing.assert_array_equal(left["b"][1], left["b"][0] ** 2)
    assert left["a"] is sites["a"]


def test_a_zone_is_that_of_most_of_the_group() -> None:
    assert sparse_station.in_its_zone({"a": 0, "c": 0, "b": 1, "d": 1}, ZONES, "a")
    assert not sparse_station.in_its_zone({"a": 0, "c": 1, "b": 1, "d": 1}, ZONES, "a")
    assert not sparse_station.in_its_zone({"a": 1, "c": 0, "b": 1, "d": 1}, ZONES, "a")
    chosen = sparse_station.one_of_each(ZONES, seed=3)
    assert sorted(ZONES[name] for name in chosen) == ["one", "two"]
    assert sorted(sparse_station.one_of_each(ZONES, seed=3, rounds=9)) == sorted(ZONES)
