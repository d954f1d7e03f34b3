"""Time zones of datetimes: how text names one, and what is said where there is none."""

from __future__ import annotations

ZONE = r"(?:[T ]\d{1,2}:\d{2}.*?) ?(Z|z|UTC|[+-]\d{2}(?::?\d{2})?)$"


def without_zone(what: str, *, zone_in_fit: bool | None) -> str:
    """What is said of datetimes that have no time zone."""
    if zone_in_fit:
        return (
            f"{what} has no time zone, and the fit's datetimes had one: taken as UTC, which may be hours "
            "off: give times with a time zone"
        )
    return f"{what} has no time zone: taken as UTC"
