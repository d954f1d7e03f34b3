"""Numbers and times as people read them."""

from __future__ import annotations

import datetime

LONGEST_NAME = 80


def size(number: float) -> str:
    """ "512 B", "7.5 kB", "1.2 MB" """
    for unit, one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= one:
            value = number / one
            return f"{value:.0f} {unit}" if value >= 100.0 else f"{value:.1f} {unit}"
    return f"{number:.0f} B"


def duration(seconds: float | None) -> str:
    """ "8 s", "3 min 20 s", "2 h 5 min" """
    if seconds is None:
        return "–"
    whole = round(max(seconds, 0.0))
    if whole < 100:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 100:
        return f"{minutes} min {rest} s" if minutes < 10 and rest else f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    return f"{hours // 24} days"


def clock(at: float | None) -> str:
    """The time of day, UTC: "14:03:27"."""
    if at is None:
        return "–"
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%H:%M:%S")


def bound(value: float | None) -> str:
    """A bound in nats."""
    if value is None:
        return "–"
    text = f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:,.1f}"
    return text.replace("-", "−")


def short(name: str) -> str:
    """A name for a page: long ones are cut."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def counted(number: int, thing: str) -> str:
    """ "1 site", "2 sites" """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
