"""Hints about datetimes: a wave without a period in the kernel, and an hour that comes twice."""

import warnings
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
import pytest

from pfedhgp import FederatedGP
from pfedhgp.data.calendar_hints import repeated_hour, wave_share

DAY = 86400.0
T = np.arange(0.0, 20 * DAY, 3 * 3600.0)


def weather(seed: int) -> np.ndarray:
    """Red noise with a memory of two days."""
    rng, y = np.random.default_rng(seed), np.zeros(len(T))
    for i in range(1, len(T)):
        y[i] = np.exp(-1 / 16) * y[i - 1] + rng.normal()
    return y / y.std()


@pytest.mark.parametrize("seed", range(5))
def test_a_daily_wave_is_found_and_its_share_is_that_of_the_wave(seed):
    noise = np.random.default_rng(seed).normal(size=len(T))
    wave = np.sqrt(2.0) * np.sin(2 * np.pi * T / DAY + seed)
    assert wave_share(T, wave + noise, DAY) == pytest.approx(0.5, abs=0.12)
    assert wave_share(T, wave + weather(seed), DAY) > 0.3


def test_weather_and_noise_have_no_wave():
    found = [wave_share(T, weather(seed), DAY) for seed in range(100)]
    assert np.mean(np.array(found) > 0) <= 0.05
    noise = [wave_share(T, np.random.default_rng(s).normal(size=len(T)), DAY) for s in range(100)]
    assert np.mean(np.array(noise) > 0) <= 0.05


def test_too_few_rows_or_days_cannot_tell():
    assert wave_share(T[:16], np.sin(T[:16]), DAY) is None
    assert wave_share(T, np.sin(T), 7 * DAY) is None  # under four weeks
    assert wave_share(T[::8], np.sin(T[::8]), DAY) is None  # a row a day


def hours(first: str, count: int) -> np.ndarray:
    begin = np.datetime64(first, "s")
    return (begin + 3600 * np.arange(count)).astype(np.int64).astype(float)


def test_an_hour_that_clocks_show_twice():
    t = hours("2024-10-26T00", 72)
    again = hours("2024-10-27T02", 1)
    assert repeated_hour(np.concatenate([t, again])) == datetime.fromisoformat(
        "2024-10-27T02:00+00:00"
    )
    assert repeated_hour(t) is None
    assert repeated_hour(np.concatenate([t, hours("2024-10-26T02", 1)])) is None  # a Saturday
    assert repeated_hour(np.concatenate([t, t])) is None  # two sensors


def table(wave: float, twice: bool) -> pd.DataFrame:
    when = [datetime(2024, 10, 20) + timedelta(hours=3 * i) for i in range(80)]
    rng, parts = np.random.default_rng(0), []
    for site in "ab":
        y = wave * np.sin(2 * np.pi * np.arange(80) / 8) + 0.3 * rng.normal(size=80)
        parts.append(pd.DataFrame({"site": site, "time": when, "y": y}))
    if twice:
        extra = pd.DataFrame({"site": ["a"], "time": [datetime(2024, 10, 27, 3)], "y": [0.1]})
        parts.append(extra)
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize(
    ("wave", "twice", "kernel", "words"),
    [
        (1.0, False, "rbf", "wave of 1 day at 2 of 2 clients"),
        (0.0, True, "rbf", "an hour comes twice at client"),
        (1.0, False, "rbf + periodic(1 day)", None),
        (0.0, False, "rbf", None),
    ],
)
def test_a_fit_says_so(wave, twice, kernel, words):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        FederatedGP(kernel=kernel, rounds=1, inducing=8, local_inducing=4).fit(
            table(wave, twice), client="site", inputs="time", outputs="y"
        )
    texts = [str(each.message) for each in told]
    ours = [text for text in texts if "wave of" in text or "comes twice" in text]
    assert (len(ours) == 0) if words is None else (words in ours[0])
