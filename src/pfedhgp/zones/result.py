"""What clustering finds: the groups, the distances behind them, and what was sent to find them.

On disk it is RUN/zones/zones.json. A report shows it if its model is the one that was clustered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pfedhgp.base import atomic_files
from pfedhgp.base.checks import listed
from pfedhgp.errors import InputError
from pfedhgp.model.run_folder import parse_json
from pfedhgp.zones.groups import agreement

FOLDER, FILE = "zones", "zones.json"
STABILITY = ("halves", "bootstraps")
"""Of sketches."""
DRAWN = "draws"
"""Of loadings."""
SKETCH, MATRICES = ("size", "grid", "seed"), ("distances", "between", "together")
Places = Mapping[str, tuple[float, float]]


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
    """function (by sketches), loadings or operator"""
    method: str
    groups: int
    scores: dict[int, float]
    """score of each number of groups, if the number was chosen and not given"""
    size: int
    seed: int
    together: np.ndarray
    """how often two clients are in the same group over random halves of the numbers sent, or over draws"""
    grid: int = 0
    r2: dict[str, float] = field(default_factory=dict)
    r2_shared: dict[str, float] = field(default_factory=dict)
    """by loadings: the same for an attacker without them, who takes the mean of all clients' loadings"""
    r2_of: str = ""
    """"rows" or "fitted function": what r2 was measured on; "" with operators"""
    coverage: dict[str, float] = field(default_factory=dict)
    sparse: tuple[str, ...] = ()
    """clients with few rows, which were compared only near their rows"""
    stability: dict[str, float] = field(default_factory=dict)
    """mean adjusted Rand index with the labels, over those halves and over bootstraps of the numbers sent; by
    loadings, over draws from their posteriors"""
    earlier: tuple[int, ...] = ()
    """seeds of sketches that clients sent before; r2 counts all of them together"""
    messages: list[dict[str, Any]] = field(default_factory=list, repr=False)

    def members(self) -> list[list[str]]:
        """The clients of each group."""
        return [[c for c in self.clients if self.labels[c] == g] for g in range(self.groups)]

    def __repr__(self) -> str:
        groups = "; ".join(listed(each, 8) for each in self.members())
        return f"Zones({len(self.clients)} clients in {self.groups} groups: {groups})"

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
        found: dict[str, Any] = {**vars(self), "members": self.members()}
        found["sketch"] = {name: found.pop(name) for name in SKETCH}
        found["scores"] = {str(count): score for count, score in self.scores.items()}
        found |= {name: found[name].tolist() for name in MATRICES}
        return found | {name: list(found[name]) for name in ("clients", "sparse", "earlier")}

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Zones:
        """The inverse of `to_json`; raises KeyError, TypeError or ValueError if something is wrong."""
        same: dict[str, Any] = {name: str(found[name]) for name in ("distance", "method", "r2_of")}
        same |= {name: int(found["sketch"][name]) for name in SKETCH}
        same |= {name: np.array(found[name], np.float64) for name in MATRICES}
        for name in ("r2", "coverage", "stability"):
            same[name] = {str(key): float(value) for key, value in found[name].items()}
        shared = found.get("r2_shared", {})  # older files lack it
        same["r2_shared"] = {str(key): float(value) for key, value in shared.items()}
        zones = Zones(
            clients=tuple(map(str, found["clients"])),
            labels={str(name): int(label) for name, label in found["labels"].items()},
            groups=int(found["groups"]),
            scores={int(count): float(score) for count, score in found["scores"].items()},
            sparse=tuple(map(str, found["sparse"])),
            earlier=tuple(map(int, found["earlier"])),
            messages=list(found["messages"]),
            **same,
        )
        square = (len(zones.clients), len(zones.clients))
        for name in MATRICES:
            matrix = getattr(zones, name)
            if matrix.shape != square or not np.all(np.isfinite(matrix)):
                raise ValueError(f"`{name}` is not a table of {square[0]} by {square[0]} numbers")
        if {*zones.clients} != {*zones.labels} or not {*zones.sparse} <= {*zones.clients}:
            raise ValueError("`labels` are not those of `clients`")
        if not all(0 <= label < zones.groups for label in zones.labels.values()):
            raise ValueError("`labels` are not numbers of groups")
        of = (DRAWN,) if zones.distance == "loadings" else STABILITY
        if zones.stability and {*zones.stability} != {*of}:
            raise ValueError(f"`stability` is not of {' and '.join(of)}")
        return zones


@dataclass(frozen=True, eq=False)
class KeptZones:
    """The groups, where the clients are, and the true zones of made-up data."""

    zones: Zones
    places: Places | None = None
    """(latitude, longitude)"""
    truth: Mapping[str, str] | None = None

    def agreement(self) -> float:
        """The adjusted Rand index of the groups with the true zones."""
        truth, names = self.truth or {}, self.zones.clients
        return agreement([truth[n] for n in names], [self.zones.labels[n] for n in names])


def write(folder: Path, kept: KeptZones, model: str) -> None:
    """zones.json; `model` is the SHA-256 of the spec that was clustered."""
    content: dict[str, Any] = {**kept.zones.to_json(), "model": model}
    for name in ("places", "truth"):
        if (found := getattr(kept, name)) is not None:
            content[name] = dict(found)
    atomic_files.write_bytes(
        folder / FILE, (json.dumps(content, allow_nan=False) + "\n").encode("ascii")
    )


def read(folder: Path, model: str) -> KeptZones | None:
    """What `write` wrote, or None if there is nothing; zones of another model are refused."""
    path = folder / FILE
    if not path.is_file():
        return None
    again = "run `pfedhgp cluster` again, with --overwrite"
    try:
        found = parse_json(path.read_bytes())
        if found["model"] != model:
            raise InputError(f"{path}: these zones belong to another model: {again}")
        places, truth = found.get("places"), found.get("truth")
        if places is not None:
            places = {str(n): (float(p[0]), float(p[1])) for n, p in places.items()}
        if truth is not None:
            truth = {str(n): str(z) for n, z in truth.items()}
        kept = KeptZones(Zones.from_json(found), places, truth)
        for given in (places, truth):
            if given is not None and not {*kept.zones.clients} <= {*given}:
                raise ValueError("a client's place or true zone is missing")
        return kept
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InputError(f"{path}: not zones ({' '.join(str(error).split())}): {again}") from None
