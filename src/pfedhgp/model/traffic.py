"""What was sent, added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any


@dataclass(frozen=True)
class Traffic:
    """Totals of all messages, by kind and by name of the array."""

    kinds: list[dict[str, Any]]
    arrays: list[dict[str, Any]]
    up: int
    down: int
    clients: int

    @property
    def per_client(self) -> float:
        return (self.up + self.down) / max(self.clients, 1)


def traffic(messages: Sequence[Mapping[str, Any]]) -> Traffic:
    """Adds up the message log; every array is float64, eight bytes per entry."""
    kinds: dict[str, dict[str, Any]] = {}
    arrays: dict[tuple[str, str], dict[str, Any]] = {}
    clients: set[str] = set()
    for m in messages:
        way = "up" if m["to"] == "server" else "down"
        if (client := m["from"] if way == "up" else m["to"]) != "all":
            clients.add(client)
        kind = m.get("kind", "message")
        row = kinds.setdefault(kind, {"kind": kind, "up": 0, "down": 0, "messages": 0})
        row[way] += sum(8 * prod(shape) for shape in m["arrays"].values())
        row["messages"] += 1
        for name, shape in m["arrays"].items():
            new = {"name": name, "way": way, "times": 0, "bytes": 0, "shape": shape, "kinds": []}
            entry = arrays.setdefault((way, name), new)
            entry["times"] += 1
            entry["bytes"] += 8 * prod(shape)
            if prod(shape) > prod(entry["shape"]):
                entry["shape"] = shape
            if kind not in entry["kinds"]:
                entry["kinds"].append(kind)
    ordered = sorted(arrays.values(), key=lambda e: (e["way"] == "down", -e["bytes"], e["name"]))
    total = {way: sum(row[way] for row in kinds.values()) for way in ("up", "down")}
    return Traffic(list(kinds.values()), ordered, total["up"], total["down"], len(clients))
