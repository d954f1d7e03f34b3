"""What clustering finds: the groups, the distances behind them, and what was sent to find them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

STABILITY = ("halves", "bootstraps")


@dataclass(frozen=True, eq=False)
class Zones:
    """Groups of clients. `clients` are sorted by name, and so are the rows of `distances`.

    `distances` are expected squared distances with posterior variances, in units of the outputs' spread.
    """

    clients: tuple[str, ...]
    labels: dict[str, int]
    distances: np.ndarray
    between: np.ndarray
    """the same without variances; groups are formed by these"""
    distance: str
    method: str
    groups: int
    scores: dict[int, float]
    """score of each number of groups, if the number was chosen and not given"""
    size: int
    seed: int
    together: np.ndarray
    """how often two clients are in the same group over random halves of the numbers sent"""
    grid: int = 0
    r2: dict[str, float] = field(default_factory=dict)
    r2_of: str = ""
    """"rows" or "fitted function": what r2 was measured on; "" with operators"""
    coverage: dict[str, float] = field(default_factory=dict)
    sparse: tuple[str, ...] = ()
    """clients with few rows, which were compared only near their rows"""
    stability: dict[str, float] = field(default_factory=dict)
    """mean adjusted Rand index with the labels, over those halves and over bootstraps of the numbers sent"""
    earlier: tuple[int, ...] = ()
    """seeds of sketches that clients sent before; r2 counts all of them together"""
    messages: list[dict[str, Any]] = field(default_factory=list, repr=False)

    def members(self) -> list[list[str]]:
        """The clients of each group."""
        return [[c for c in self.clients if self.labels[c] == g] for g in range(self.groups)]

    @property
    def numbers(self) -> int:
        """The most numbers that a client sent about its function: its sketches, variance and coverage.

        The coverage over the grid that a client with few rows publishes is not counted; it is in the log.
        """
        sent: dict[str, int] = {}
        for entry in self.messages:
            if entry["to"] == "server" and set(entry["arrays"]) != {"coverage"}:
                shapes = entry["arrays"].values()
                count = sum(int(np.prod(shape)) for shape in shapes)
                sent[entry["from"]] = sent.get(entry["from"], 0) + count
        return max(sent.values(), default=0)

    def to_json(self) -> dict[str, Any]:
        """What zones.json holds; the values of messages are not kept anywhere."""
        return {
            "clients": list(self.clients),
            "labels": self.labels,
            "members": self.members(),
            "groups": self.groups,
            "method": self.method,
            "distance": self.distance,
            "sketch": {"size": self.size, "grid": self.grid, "seed": self.seed},
            "r2": self.r2,
            "r2_of": self.r2_of,
            "coverage": self.coverage,
            "sparse": list(self.sparse),
            "scores": {str(k): v for k, v in self.scores.items()},
            "stability": self.stability,
            "distances": self.distances.tolist(),
            "between": self.between.tolist(),
            "together": self.together.tolist(),
            "earlier": list(self.earlier),
            "messages": self.messages,
        }

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Zones:
        """The inverse of `to_json`; raises KeyError, TypeError or ValueError if something is wrong."""
        zones = Zones(
            clients=tuple(map(str, found["clients"])),
            labels={str(name): int(label) for name, label in found["labels"].items()},
            distances=np.array(found["distances"], np.float64),
            between=np.array(found["between"], np.float64),
            distance=str(found["distance"]),
            method=str(found["method"]),
            groups=int(found["groups"]),
            scores={int(k): float(v) for k, v in found["scores"].items()},
            size=int(found["sketch"]["size"]),
            grid=int(found["sketch"]["grid"]),
            seed=int(found["sketch"]["seed"]),
            r2={str(name): float(v) for name, v in found["r2"].items()},
            r2_of=str(found["r2_of"]),
            coverage={str(name): float(v) for name, v in found["coverage"].items()},
            sparse=tuple(map(str, found["sparse"])),
            stability={str(name): float(v) for name, v in found["stability"].items()},
            together=np.array(found["together"], np.float64),
            earlier=tuple(map(int, found["earlier"])),
            messages=list(found["messages"]),
        )
        square = (len(zones.clients), len(zones.clients))
        for name in ("distances", "between", "together"):
            matrix = getattr(zones, name)
            if matrix.shape != square or not np.all(np.isfinite(matrix)):
                raise ValueError(f"`{name}` is not a table of {square[0]} by {square[0]} numbers")
        if {*zones.clients} != {*zones.labels} or not {*zones.sparse} <= {*zones.clients}:
            raise ValueError("`labels` are not those of `clients`")
        if not all(0 <= label < zones.groups for label in zones.labels.values()):
            raise ValueError("`labels` are not numbers of groups")
        if zones.stability and {*zones.stability} != {*STABILITY}:
            raise ValueError(f"`stability` is not of {' and '.join(STABILITY)}")
        return zones
