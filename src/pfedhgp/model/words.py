"""Numbers, dates, durations and names as people read them."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pfedhgp.model.fitted import FittedModel

DASH = "–"


def shown(name: object, limit: int = 48) -> str:
    """A name that came from somebody's data, on one line, without control characters, not too long."""
    text = "".join(" " if unicodedata.category(c)[0] == "C" else c for c in str(name))
    text = " ".join(text.split()) or "(no name)"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def number(value: Any, digits: int = 3) -> str:
    """Three significant digits, without an exponent where that is readable; a dash for what is missing."""
    if value is None or isinstance(value, bool | str):
        return DASH
    value = float(value)
    if not math.isfinite(value):
        return DASH
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size >= 6 or size < -4:
        return f"{value:.{digits - 1}e}".replace("-", "−")
    return f"{value:,.{max(digits - 1 - size, 0)}f}".replace("-", "−").replace(",", "\u202f")


def percent(value: Any) -> str:
    """A fraction as percent."""
    if value is None or not math.isfinite(float(value)):
        return DASH
    return f"{100.0 * float(value):.1f}".replace("-", "−") + "\u202f%"


def byte_size(count: float) -> str:
    """Bytes in the largest unit that leaves a number above one."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f}\u202f{unit}" if unit == "B" else f"{number(count)}\u202f{unit}"


def duration(seconds: float, digits: int = 3) -> str:
    """A stretch of time in the unit that suits it, to so many significant digits."""
    sizes = ((86_400.0 * 365.25, "year"), (86_400.0, "day"), (3_600.0, "hour"), (60.0, "minute"))
    size, unit = next((pair for pair in sizes if abs(seconds) >= pair[0]), (1.0, "second"))
    text = number(seconds / size, digits)
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return f"{text} {unit}{'' if text == '1' else 's'}"


@dataclass(frozen=True)
class InputAxis:
    """An input as people know it: its column's name, and whether its numbers are dates."""

    name: str
    is_date: bool = False

    def values(self, x: npt.ArrayLike) -> np.ndarray:
        """What to draw: the numbers, or UTC dates where they are seconds since 1970."""
        x = np.asarray(x, np.float64)
        return np.round(x * 1e6).astype("datetime64[us]") if self.is_date else x

    def point(self, x: float) -> str:
        """One value as text."""
        if not self.is_date:
            return number(x, 4)
        return str(np.datetime64(round(float(x) / 60.0), "m")).replace("T", " ") + " UTC"

    def length(self, x: float) -> str:
        """A distance along the input as text."""
        return duration(x) if self.is_date else number(x)

    @property
    def label(self) -> str:
        return f"{shown(self.name)} (UTC)" if self.is_date else shown(self.name)


def axes_of(model: FittedModel) -> tuple[InputAxis, ...]:
    """The model's inputs; the columns that it was fitted to say which are dates."""
    columns = model.settings.get("columns") or {}
    kinds = {entry["name"]: entry.get("kind", "number") for entry in _entries(columns)}
    return tuple(InputAxis(name, kinds.get(name) == "datetime") for name in model.input_names)


def _entries(columns: Any) -> Iterable[dict[str, Any]]:
    found = columns.get("inputs", ()) if isinstance(columns, dict) else ()
    return [entry for entry in found if isinstance(entry, dict) and "name" in entry]
