"""How far ahead, in which steps, and in which words: "3 days", "3d", "90 min", or a number of input units."""

from __future__ import annotations

import re

import numpy as np

from pfedhgp.data.columns import Columns
from pfedhgp.errors import InputError
from pfedhgp.model.fitted import FittedModel

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


def length(model: FittedModel, given: float | str, name: str) -> float:
    """A length of time in the units of the first input."""
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
    if not np.isfinite(given) or given <= 0:
        raise InputError(f"`{name}` must be above 0, got {given}")
    return float(given)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def grid(last: float, step: float, horizon: float) -> np.ndarray:
    """last + step, last + 2 step, … up to the horizon."""
    count = int(np.floor(horizon / step + 1e-9))
    if not 1 <= count <= MOST:
        raise InputError(
            f"the horizon has {count} steps of {step:g}: give a horizon of 1 to {MOST:,} steps"
        )
    return last + step * np.arange(1, count + 1)
