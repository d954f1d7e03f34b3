"""Zones without a fit: two groups of clients whose distances are known, and one client with few rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pfedhgp.zones.result import KeptZones, Zones


def zones_of(names: Sequence[str], groups: Sequence[int], **changes: Any) -> Zones:
    """Clients on a line, groups ten apart; a squared distance has 0.25 of uncertainty beside it."""
    place = np.array([10.0 * g + 0.5 * i for i, g in enumerate(groups)])
    between = (place[:, None] - place[None, :]) ** 2
    distances = between + 0.25 * (1.0 - np.eye(len(names)))
    fields: dict[str, Any] = {
        "clients": tuple(names),
        "labels": dict(zip(names, groups, strict=True)),
        "distances": distances,
        "between": between,
        "distance": "function",
        "method": "agglomerative",
        "groups": max(groups) + 1,
        "scores": {},
        "size": 24,
        "grid": 200,
        "seed": 0,
        "r2": {name: 0.5 + 0.01 * i for i, name in enumerate(names)},
        "r2_of": "rows",
        "coverage": dict.fromkeys(names, 0.9),
        "sparse": (names[-1],),
        "stability": {"halves": 0.97, "bootstraps": 0.91},
        "together": np.equal.outer(np.array(groups), np.array(groups)).astype(float),
        "messages": [
            {"kind": "zones", "round": 0, "from": "server", "to": "all", "bytes": 24, "arrays": {}},
            *(
                {"kind": "zones", "round": 0, "from": n, "to": "server", "bytes": 208, "arrays": {}}
                for n in names
            ),
        ],
    }
    return Zones(**{**fields, **changes})


def kept_of(names: Sequence[str], groups: Sequence[int], **changes: Any) -> KeptZones:
    """With places, and a truth in which the last client is elsewhere."""
    places = {name: (40.0 + 0.3 * i, 116.0 + 0.2 * (i % 3)) for i, name in enumerate(names)}
    truth = {name: ("town", "hills")[g] for name, g in zip(names, groups, strict=True)}
    return KeptZones(zones_of(names, groups, **changes), places, truth)
