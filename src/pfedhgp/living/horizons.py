"""How far ahead, in which steps, and in which words: "3 days", "3d", "90 min", or a number of input units."""

from __future__ import annotations

import re
from datetime import timedelta

import numpy as np

from pfedhgp.base import checks
from pfedhgp.data.columns import Columns
from pfedhgp.errors import InputError
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.words import duration, number

SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
NAMES = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), "s"),
    **dict.fromkeys(("min", "m", "minute", "minutes"), "min"),
    **dict.fromkeys(("h", "hour", "hours"), "h"),
    **dict.fromkeys(("d", "day", "days"), "d"),
    **dict.fromkeys(("w", "week", "weeks"), "w"),
}
MOST = 100_000
"""Steps of a forecast."""


def has_dates(model: FittedModel) -> bool:
    """Whether the first input is a datetime: then the model's numbers are seconds."""
    stored = model.settings.get("columns")
    return stored is not None and Columns.from_json(stored).inputs[0].kind == "datetime"


Length = float | str | timedelta | np.timedelta64
"""A number in units of the input or, if it is a datetime, text such as "3 days", or a timedelta."""


def length(model: FittedModel, given: Length, name: str) -> float:
    """A length of time in the units of the first input."""
    if isinstance(given, timedelta | np.timedelta64):  # pandas' Timedelta is a timedelta
        if not has_dates(model):
            raise InputError(
                f"`{name}` is a timedelta, but the first input is no datetime: give a number in its units"
            )
        given = float(np.timedelta64(given, "us") / np.timedelta64(1, "s"))
    if isinstance(given, str):
        found = re.fullmatch(r"\s*([0-9.]+)\s*([a-z]*)\s*", given.lower())
        value = _number(found[1]) if found else None
        if found is None or value is None or (found[2] and found[2] not in NAMES):
            raise InputError(f"`{name}` is {given!r}: give a number, or one with s, min, h, d or w")
        if found[2] and not has_dates(model):
            raise InputError(
                f"`{name}` is {given!r}, but the first input is no datetime: give a number in its units"
            )
        given = value * (SECONDS[NAMES[found[2]]] if found[2] else 1.0)
    found_length: float = checks.number(above=0.0)(given, name)
    return found_length


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def grid(last: float, step: float, horizon: float, *, dates: bool = False) -> np.ndarray:
    """last + step, last + 2 step, … up to the horizon."""
    count = int(np.floor(horizon / step + 1e-9))
    if not 1 <= count <= MOST:
        as_text, such_as = (duration, ", such as '3 days'") if dates else (number, "")
        raise InputError(
            f"the horizon, {as_text(horizon)}, has {count:,} steps of {as_text(step)}: give a horizon of "
            f"1 to {MOST:,} steps{such_as}"
        )
    return last + step * np.arange(1, count + 1)
