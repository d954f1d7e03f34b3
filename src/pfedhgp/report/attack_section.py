"""What an attacker learns: what an audit's attacks found, as lines of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def lines(findings: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Each attack with what it found, what chance finds, and what the defence promises."""
    return [
        {
            "attack": str(each["attack"]),
            "measure": str(each["measure"]),
            "found": found_text(each),
            "chance": "" if each["chance"] is None else f"{each['chance']:.2f}",
            "promised": str(each["promised"]),
        }
        for each in findings
    ]


def found_text(finding: Mapping[str, Any]) -> str:
    """A value with its interval, or why there is none.

    >>> found_text({"found": {"value": 0.25, "low": 0.1, "high": 0.4}, "why": ""})
    '0.25 (0.10 to 0.40)'
    """
    found = finding["found"]
    if found is None:
        return f"not tried: {finding['why']}"
    value = f"{found['value']:.2f}"
    if found.get("low") is None or found["low"] != found["low"]:
        return value
    return f"{value} ({found['low']:.2f} to {found['high']:.2f})"
