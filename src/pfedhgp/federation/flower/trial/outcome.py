"""What came of a trial, from its participation log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pfedhgp.federation.envelope import CODES
from pfedhgp.federation.flower.trial.population import LIAR


def outcome(log: Sequence[Mapping[str, Any]], roles: Mapping[str, str]) -> dict[str, Any]:
    """Totals, and a line for each exchange: who was counted, and why others were not."""
    exchanges = [
        {
            "exchange": entry["exchange"],
            "kind": entry["kind"],
            "round": entry["round"],
            "counted": len(entry["counted"]),
            "liars_counted": sum(roles[name] == LIAR for name in entry["counted"]),
            "missing": dict(Counter(entry["missing"].values())),
            "excluded": len(entry.get("excluded", {})),
            "seconds": entry["seconds"],
            "bytes_up": entry["bytes_up"],
            "bytes_down": entry["bytes_down"],
        }
        for entry in log
    ]
    return {
        "sites": len(roles),
        "roles": dict(Counter(roles.values())),
        "rounds": sum(entry["kind"] == "round" for entry in log),
        "exchanges": len(log),
        "missing": dict(sum((Counter(e["missing"].values()) for e in log), Counter())),
        "bytes_up": sum(entry["bytes_up"] for entry in log),
        "bytes_down": sum(entry["bytes_down"] for entry in log),
        "by_exchange": exchanges,
    }


def table(found: Mapping[str, Any]) -> str:
    """The exchanges as text."""
    lines = [
        f"{'exchange':<16}{'counted':>8}{'liars in':>9}{'missing':>8}{'excluded':>9}"
        f"{'seconds':>9}{'MB up':>8}{'MB down':>9}  why missing"
    ]
    for each in found["by_exchange"]:
        why = ", ".join(f"{n} × {CODES.get(code, code)}" for code, n in each["missing"].items())
        number = f" {each['round']}" if each["kind"] == "round" else ""
        name = f"{each['exchange']} {each['kind']}{number}"
        lines.append(
            f"{name:<16}{each['counted']:>8}{each['liars_counted']:>9}"
            f"{sum(each['missing'].values()):>8}{each['excluded']:>9}{each['seconds']:>9.1f}"
            f"{each['bytes_up'] / 1e6:>8.2f}{each['bytes_down'] / 1e6:>9.2f}  {why}"
        )
    return "\n".join(lines)
