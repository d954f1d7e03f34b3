"""A made-up air-quality federation: twelve stations of one town, nitrogen dioxide in µg/m³.

    y_s(t) = season(t) + weather(t)                         all stations
           + level_z + daily_z(t) + drift_z(t)              their zone: centre, suburbs, hills
           + level_s + street_s(t) + noise                  the station alone

Season rises from autumn into winter; weather changes within days; daily has a morning and an evening rush,
strong in the centre and weak in the hills. Each station reads every seven hours, so that in time all hours
of the day come up, with outages of some days; one was set up six days before the end. Nothing here knows
which model will be fitted: the parts are sums of random cosines, and a daily profile written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from pfedhgp.data.rows import ClientRows

DAY = 86_400.0
START = datetime(2024, 10, 14, tzinfo=UTC).timestamp()

ZONES: Mapping[str, tuple[str, ...]] = {
    "centre": ("Cathedral", "Market Square", "Old Harbour", "Ring Road", "Station Road"),
    "suburbs": ("Airport Way", "Elm Park", "Millfield", "Willow Lane"),
    "hills": ("Fox Hill", "High Moor", "Reservoir"),
}
NEWCOMER = "Reservoir"
"""The station with very few rows."""

LEVEL = {"centre": 46.0, "suburbs": 36.0, "hills": 27.0}
RUSH = {"centre": 1.0, "suburbs": 0.65, "hills": 0.3}


@dataclass(frozen=True)
class Town:
    """How much of everything there is; standard deviations in µg/m³, times in days."""

    days: int = 56
    every_hours: int = 7
    weather: float = 7.0
    weather_days: float = 2.5
    zone_drift: float = 3.5
    zone_days: float = 3.0
    street: float = 3.0
    street_days: float = 5.0
    noise: float = 2.0
    outages: int = 2
    outage_days: float = 4.0
    newcomer_days: float = 6.0
    stations: int = 12


def simulate(*, seed: int = 0, town: Town | None = None) -> list[ClientRows]:
    """Each station's rows: X (n, 1) in seconds since 1970-01-01 UTC, Y (n, 1) with NaN in outages."""
    town = town or Town()
    rng = np.random.default_rng([seed, 1])
    weather = _wave(rng, town.weather, town.weather_days)
    drift = {zone: _wave(rng, town.zone_drift, town.zone_days) for zone in ZONES}
    rows = []
    for zone, name in stations(town.stations):
        offset = int(rng.integers(town.every_hours))
        hours = np.arange(offset, 24 * town.days, town.every_hours, dtype=np.float64)
        t = hours / 24.0
        street = _wave(rng, town.street, town.street_days)
        own = rng.normal(0.0, 2.0)
        y = season(t) + weather(t) + LEVEL[zone] + RUSH[zone] * rush_hours(hours % 24)
        y += drift[zone](t) + own + street(t) + rng.normal(0.0, town.noise, len(t))
        y = np.maximum(y, 0.5)  # what the instrument can tell from zero
        y = np.round(y, 1)
        y[_outages(rng, t, town)] = np.nan
        if name == NEWCOMER:
            y[t < town.days - town.newcomer_days] = np.nan
        rows.append(ClientRows(name, (START + 3600.0 * hours)[:, None], y[:, None]))
    return rows


def since_the_first_reading(rows: Sequence[ClientRows]) -> list[ClientRows]:
    """What a station would hand over: nothing from before it was set up, and outages as missing readings."""
    kept = []
    for client in rows:
        first = int(np.flatnonzero(np.isfinite(client.Y[:, 0]))[0])
        kept.append(ClientRows(client.name, client.X[first:], client.Y[first:]))
    return kept


def as_csv(rows: Sequence[ClientRows], *, client: str, time: str, output: str) -> bytes:
    """The readings as a long table; an outage is an empty cell."""
    lines = [f"{client},{time},{output}"]
    for each in since_the_first_reading(rows):
        stamps = np.datetime_as_string(each.X[:, 0].astype("datetime64[s]"), unit="m")
        for stamp, y in zip(stamps, each.Y[:, 0], strict=True):
            lines.append(f"{each.name},{stamp}Z,{'' if np.isnan(y) else y}")
    return ("\n".join(lines) + "\n").encode("utf-8")


def stations(count: int = 12) -> list[tuple[str, str]]:
    """(zone, name) of `count` stations, taken from the zones in turn from the last name on."""
    every = [(zone, name) for zone, names in ZONES.items() for name in names]
    order = sorted(every, key=lambda pair: ZONES[pair[0]][::-1].index(pair[1]))
    kept = set(order[:count])
    return [pair for pair in every if pair in kept]


def rush_hours(hour: np.ndarray) -> np.ndarray:
    """µg/m³ above the night's level by hour of the day: peaks at 8 and 18."""

    def peak(at: float, width: float) -> np.ndarray:
        gap = (hour - at + 12.0) % 24.0 - 12.0
        return np.exp(-0.5 * (gap / width) ** 2)

    return 14.0 * peak(8.0, 2.0) + 17.0 * peak(18.0, 2.8)


@dataclass(frozen=True)
class Split:
    """The same stations twice: what a model may learn from, and what it is judged by."""

    train: list[ClientRows]
    test: list[ClientRows]


def hold_out_blocks(
    rows: Sequence[ClientRows], *, fraction: float = 0.2, block_days: float = 4.0, seed: int = 0
) -> Split:
    """Takes whole stretches of `block_days` from each station, up to `fraction` of its readings.

    A held-out reading has none of its neighbours left: this asks for the days that a station missed, not for
    the gaps between two readings. Stretches of a station with few readings are shorter. Times stay in both
    parts; held-out cells of the training part are NaN.
    """
    rng = np.random.default_rng([seed, 2])
    train, test = [], []
    for client in rows:
        seen = np.isfinite(client.Y[:, 0])
        days = (client.X[:, 0] - client.X[seen, 0].min()) / DAY
        length = min(block_days, fraction * days[seen].max())
        block = np.floor(days / max(length, 1e-9)).astype(int)
        out = np.zeros(len(seen), bool)
        for one in rng.permutation(np.unique(block[seen])):
            taken = out | (seen & (block == one))
            if taken.sum() <= max(fraction * seen.sum(), 1):
                out = taken
        train.append(ClientRows(client.name, client.X, np.where(out[:, None], np.nan, client.Y)))
        test.append(ClientRows(client.name, client.X[out], client.Y[out]))
    return Split(train, test)


def season(t: np.ndarray) -> np.ndarray:
    """A year's wave, of which the demo sees autumn turn to winter."""
    return -6.0 * np.cos(2.0 * np.pi * (t + 88.0) / 365.25)


def _wave(
    rng: np.random.Generator, sd: float, days: float, parts: int = 400
) -> Callable[[np.ndarray], np.ndarray]:
    """A random smooth function of time in days: cosines whose frequencies suit a lengthscale of `days`."""
    frequency = rng.standard_t(7, parts) / days  # those of a Matérn 7/2
    phase = rng.uniform(0.0, 2.0 * np.pi, parts)
    scale = sd * np.sqrt(2.0 / parts)
    return lambda t: scale * np.cos(np.outer(t, frequency) + phase).sum(axis=1)


def _outages(rng: np.random.Generator, t: np.ndarray, town: Town) -> np.ndarray:
    out = np.zeros(len(t), bool)
    for start in rng.uniform(0.0, town.days - town.outage_days, town.outages):
        out |= (t >= start) & (t < start + town.outage_days)
    return out
