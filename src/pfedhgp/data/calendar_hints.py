"""What a calendar says about datetimes: a wave that the kernel has no part for, and an hour that comes twice.

    wave            a client's y = a + b t + c cos ωt + d sin ωt + …; the share of its variance that the wave
                    takes is compared with that of waves nearby, so that slow weather is no wave
    repeated hour   all times that a client has twice lie in the small hours of Sundays in spring or autumn

Both are hints: the rows stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from pfedhgp.base.checks import listed, short
from pfedhgp.data.columns import Columns
from pfedhgp.data.rows import Named
from pfedhgp.errors import warn

PERIODS = (("1 day", 86400.0), ("7 days", 604800.0), ("365.25 days", 31557600.0))
SHARE = 0.1
"""Share of the variance that a wave must take."""
PEAK = 4.0
"""How many times the share of waves nearby that must be."""
CYCLES, FEWEST = 4, 24
"""Periods and rows that a client must have."""
NEARBY = (0.55, 0.65, 0.75, 1.3, 1.45, 1.6)
"""Frequencies to compare with, beside the wave's."""
BACK_MONTHS, LATEST_HOUR = (3, 4, 9, 10, 11), 4
SUNDAY = 6


def warn_of_calendar(
    clients: Sequence[Named], columns: Columns, kernels: Sequence[object], *, stacklevel: int = 3
) -> None:
    """Both hints, if the only input is a datetime."""
    if len(columns.inputs) == 1 and columns.inputs[0].kind == "datetime":
        warn_of_repeated_hours(clients, columns.inputs[0].name, stacklevel=stacklevel + 1)
        warn_of_waves(clients, columns.outputs, kernels, stacklevel=stacklevel + 1)


def warn_of_waves(
    clients: Sequence[Named], outputs: Sequence[str], kernels: Sequence[object], *, stacklevel: int
) -> None:
    """One warning for each output with a daily, weekly or yearly wave, if no kernel is periodic.

    The first input is in seconds. `kernels` are what the model is fitted with; "auto" tries periods itself.
    """
    text = " ".join(repr(each).lower() for each in kernels)
    if "periodic" in text or "auto" in text:
        return
    for q, output in enumerate(outputs):
        for words, period in PERIODS:
            shares = [wave_share(each.X[:, 0], each.Y[:, q], period) for each in clients]
            known = [each for each in shares if each is not None]
            found = [each for each in known if each > 0.0]
            if found and 2 * len(found) > len(known):
                warn(
                    f"output {short(output)!r} has a wave of {words} at {len(found)} of {len(clients)} "
                    f"clients ({np.median(found):.0%} of its variance), and the kernel has no period: "
                    f"compare it with `kernel`='rbf + periodic({words})'",
                    stacklevel=stacklevel,
                )
                break


def wave_share(t: np.ndarray, y: np.ndarray, period: float) -> float | None:
    """Share of y's variance that a wave of this period takes beside a straight line.

    0 if it is small or no peak, None if the rows cannot tell.
    """
    t, y = t[np.isfinite(y)], y[np.isfinite(y)]
    if len(t) < FEWEST or np.ptp(t) < CYCLES * period or len(np.unique(t)) < FEWEST:
        return None
    step = float(np.median(np.diff(np.unique(t))))
    if step > period / 4.0:
        return None
    own = _explained(t, y, 1.0 / period)
    around = [_explained(t, y, each / period) for each in NEARBY]
    return own if own > SHARE and own > PEAK * float(np.mean(around)) else 0.0


def _explained(t: np.ndarray, y: np.ndarray, frequency: float) -> float:
    """R² of a wave with its second harmonic, in what a straight line leaves."""
    x = (t - t.mean()) / np.ptp(t)
    line = np.stack([np.ones_like(x), x], axis=1)
    angle = 2.0 * np.pi * frequency * (t - t.min())
    waves = np.stack([f(k * angle) for k in (1, 2) for f in (np.cos, np.sin)], axis=1)
    left = [_residual(line, each) for each in (y, waves)]
    total = float(left[0] @ left[0])
    if total <= 1e-24 * float(y @ y):
        return 0.0
    rest = _residual(left[1], left[0])
    return 1.0 - float(rest @ rest) / total


def _residual(basis: np.ndarray, values: np.ndarray) -> np.ndarray:
    solution = np.linalg.lstsq(basis, values, rcond=None)[0]
    return np.asarray(values - basis @ solution)


def warn_of_repeated_hours(clients: Sequence[Named], name: str, *, stacklevel: int) -> None:
    """One warning if clients have times twice that look like clocks set back; `name` is the input's."""
    found = [each for each in clients if repeated_hour(each.X[:, 0]) is not None]
    if found:
        first = repeated_hour(found[0].X[:, 0])
        names = listed([short(each.name) for each in found], 3)
        warn(
            f"input {short(name)!r}: an hour comes twice at client{'s' if len(found) > 1 else ''} {names} "
            f"({first:%Y-%m-%d %H:%M}), as when clocks are set back; its rows count as two readings of one "
            "time: give times with a time zone, or in UTC",
            stacklevel=stacklevel,
        )


def repeated_hour(t: np.ndarray) -> datetime | None:
    """The first time of an hour that clocks seem to have shown twice, or None.

    >>> repeated_hour(np.array([0.0, 1.0, 1.0]) * 3600)
    """
    times, counts = np.unique(t, return_counts=True)
    twice = times[counts > 1]
    if not len(twice) or counts.max() > 2 or 10 * len(twice) > len(times):
        return None
    moments = [datetime.fromtimestamp(float(each), UTC) for each in twice]
    plausible = all(
        each.weekday() == SUNDAY and each.month in BACK_MONTHS and each.hour < LATEST_HOUR
        for each in moments
    )
    hours = {(each.date(), each.hour) for each in moments}
    return moments[0] if plausible and len(hours) == len({day for day, _ in hours}) else None
