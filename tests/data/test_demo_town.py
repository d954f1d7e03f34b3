"""The made-up town has what it says, and the split is honest."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from pfedhgp.data import demo_town
from pfedhgp.data.columns import Columns, InputColumn
from pfedhgp.data.demo_town import DAY, NEWCOMER, RUSH, START, ZONES, Town
from pfedhgp.data.readers import client_rows, read_observations


@pytest.fixture(scope="module")
def rows():
    return demo_town.simulate(seed=0)


@pytest.fixture(scope="module")
def dense():
    """A long, gapless town with a reading every hour, in which statistics are stable."""
    town = Town(days=400, every_hours=1, outages=0, newcomer_days=400.0)
    return {r.name: r.Y[:, 0] for r in demo_town.simulate(seed=1, town=town)}


def daily(y: np.ndarray) -> np.ndarray:
    """Mean by hour of the day, about its own mean."""
    profile = y.reshape(-1, 24).mean(axis=0)
    return profile - profile.mean()


def test_a_seed_is_a_town(rows):
    again, other = demo_town.simulate(seed=0), demo_town.simulate(seed=1)
    for a, b, c in zip(rows, again, other, strict=True):
        np.testing.assert_array_equal(a.Y, b.Y)
        assert a.name == c.name
        assert not np.array_equal(a.Y, c.Y, equal_nan=True)


def test_twelve_stations_in_three_zones(rows):
    assert [r.name for r in rows] == [name for names in ZONES.values() for name in names]
    assert (len(rows), len(ZONES)) == (12, 3)


def test_inputs_are_utc_seconds_of_eight_weeks(rows):
    for r in rows:
        first, last = (datetime.fromtimestamp(t, UTC) for t in (r.X[0, 0], r.X[-1, 0]))
        assert first.date() == datetime(2024, 10, 14).date()
        assert (last - first).days >= 55
        assert np.all(np.diff(r.X[:, 0]) == 7 * 3600.0)
        assert len(np.unique((r.X[:, 0] - START) % DAY)) == 24  # every hour comes up


def test_one_station_has_very_few_readings_and_all_others_many(rows):
    seen = {r.name: int(np.isfinite(r.Y).sum()) for r in rows}
    assert 10 <= seen.pop(NEWCOMER) <= 25
    assert min(seen.values()) > 150


def test_every_station_has_gaps_of_days(rows):
    for r in rows:
        times = r.X[np.isfinite(r.Y[:, 0]), 0]
        gap = times[0] - r.X[0, 0] if r.name == NEWCOMER else np.diff(times).max()
        assert gap >= 3.0 * DAY


def test_readings_are_positive_and_hardly_ever_at_the_floor(rows):
    values = np.concatenate([r.Y[np.isfinite(r.Y)] for r in rows])
    assert values.min() >= 0.5
    assert np.mean(values == 0.5) < 0.002
    assert values.max() < 150


def test_the_daily_wave_has_two_rushes_stronger_in_the_centre(dense):
    profile = {
        zone: np.mean([daily(dense[n]) for n in names], axis=0) for zone, names in ZONES.items()
    }
    for zone, wave in profile.items():
        assert int(np.argmax(wave[:13])) in (7, 8, 9)
        assert 12 + int(np.argmax(wave[12:])) in (17, 18, 19)
        expected = RUSH[zone] * demo_town.rush_hours(np.arange(24.0))
        np.testing.assert_allclose(wave, expected - expected.mean(), atol=0.6)


def test_the_season_rises_into_winter():
    season = demo_town.season(np.array([0.0, 28.0, 56.0]))
    assert season[0] < season[1] < season[2]


def test_stations_share_their_weather_and_zones_share_more(dense):
    left = {name: y - np.tile(daily(y), len(y) // 24) for name, y in dense.items()}
    zone_of = {name: zone for zone, names in ZONES.items() for name in names}
    same, other = [], []
    for a in left:
        for b in left:
            if a < b:
                (same if zone_of[a] == zone_of[b] else other).append(
                    np.corrcoef(left[a], left[b])[0, 1]
                )
    assert np.mean(other) > 0.5
    assert np.mean(same) > np.mean(other) + 0.05


def test_fewer_stations_come_from_all_zones():
    assert {zone for zone, _ in demo_town.stations(3)} == set(ZONES)
    assert (demo_town.stations(3)[-1][1], len(demo_town.stations(5))) == (NEWCOMER, 5)


# ------------------------------------------------------------------------------------------- holdout


@pytest.mark.parametrize("seed", [0, 1])
def test_training_and_test_readings_are_all_and_apart(rows, seed):
    split = demo_town.hold_out_blocks(rows, seed=seed)
    for whole, train, test in zip(rows, split.train, split.test, strict=True):
        assert whole.name == train.name == test.name
        kept = np.isfinite(train.Y[:, 0])
        np.testing.assert_array_equal(train.Y[kept], whole.Y[kept])
        times = np.concatenate([train.X[kept, 0], test.X[:, 0]])
        np.testing.assert_array_equal(np.sort(times), whole.X[np.isfinite(whole.Y[:, 0]), 0])
        share = len(test.X) / len(times)
        assert 0 < share <= 0.2
        if whole.name != NEWCOMER:
            assert share > 0.12


def test_whole_stretches_are_held_out(rows):
    split = demo_town.hold_out_blocks(rows, block_days=4.0)
    for train, test in zip(split.train, split.test, strict=True):
        if train.name == NEWCOMER:
            continue
        kept = train.X[np.isfinite(train.Y[:, 0]), 0]
        between = np.searchsorted(
            kept, test.X[:, 0]
        )  # equal for readings with no training one between
        runs = np.unique(between)
        assert len(runs) <= 4
        assert len(test.X) / len(runs) >= 7


def test_the_split_follows_its_seed(rows):
    a, b, c = (demo_town.hold_out_blocks(rows, seed=s) for s in (0, 0, 1))
    np.testing.assert_array_equal(a.test[0].X, b.test[0].X)
    assert not np.array_equal(a.test[0].X, c.test[0].X)


def test_the_table_holds_every_reading_exactly(rows, tmp_path):
    """Read back as a fit reads it: times to the second, readings to the digit, outages missing."""
    path = tmp_path / "s.csv"
    path.write_bytes(demo_town.as_csv(rows, client="station", time="time", output="no2"))
    columns = Columns("station", (InputColumn("time", "datetime"),), ("no2",))
    found = client_rows(read_observations([path], columns), columns)
    handed = demo_town.since_the_first_reading(rows)
    for back, one, whole in zip(found, handed, rows, strict=True):
        assert back.name == one.name
        np.testing.assert_array_equal(back.X, one.X)
        np.testing.assert_array_equal(back.Y, one.Y)
        assert np.isfinite(one.Y).sum() == np.isfinite(whole.Y).sum()
        assert np.isfinite(one.Y[0, 0])
    assert len(handed[-1].X) < 25 < len(rows[-1].X)
