"""A station with few rows left: how it is thinned, judged, and, in a small federation, where it goes."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp import FederatedGP
from pfedhgp.studies import air_sparse
from pfedhgp.studies.airquality import pooled_distances

ZONES = {"a": "one", "b": "two", "c": "one", "d": "two"}


def test_only_one_station_is_thinned_and_nothing_is_lost() -> None:
    t = np.arange(100.0)
    sites = {name: (t, t**2) for name in ZONES}
    left, rest = air_sparse.thinned(sites, "b", share=0.05, seed=0)
    assert len(left["b"][0]) == 5
    assert sorted([*left["b"][0], *rest[0]]) == t.tolist()
    np.testing.assert_array_equal(left["b"][1], left["b"][0] ** 2)
    assert left["a"] is sites["a"]


def test_a_zone_is_that_of_most_of_the_group() -> None:
    assert air_sparse.in_its_zone({"a": 0, "c": 0, "b": 1, "d": 1}, ZONES, "a")
    assert not air_sparse.in_its_zone({"a": 0, "c": 1, "b": 1, "d": 1}, ZONES, "a")
    assert not air_sparse.in_its_zone({"a": 1, "c": 0, "b": 1, "d": 1}, ZONES, "a")
    chosen = air_sparse.one_of_each(ZONES, seed=3)
    assert sorted(ZONES[name] for name in chosen) == ["one", "two"]
    assert sorted(air_sparse.one_of_each(ZONES, seed=3, rounds=9)) == sorted(ZONES)


@pytest.mark.slow
def test_a_station_of_few_rows_is_put_in_its_zone_and_beats_its_own_gp() -> None:
    rng = np.random.default_rng(0)
    t = np.linspace(0.0, 6.0, 60)
    waves = {"one": np.sin(3 * t), "two": np.cos(5 * t)}
    sites = {
        name: (t, 2.0 * np.sin(t) + waves[zone] + 0.05 * rng.normal(size=60))
        for name, zone in ZONES.items()
    }
    found = air_sparse.sparse_part(
        sites,
        ZONES,
        ["d"],
        model=lambda: FederatedGP(inducing=10, local_inducing=12, rounds=3, averaging=False),
        pooled=pooled_distances,
        seed=0,
        say=lambda line: None,
    )
    assert found["pfedhgp"]["accuracy"][0] >= found["pooled"]["accuracy"][0]
    assert found["pfedhgp"]["crps"][0] < found["station-gp"]["crps"][0]
