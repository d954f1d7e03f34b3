"""Zone discovery: which clients behave alike, from what they are willing to send and never from pooled rows.

zones = model.cluster(3)
zones.labels, zones.members()        # {"Dongsi": 0, …}, [["Dongsi", …], …]
zones.distances                      # expected squared distances between clients' own functions
zones.r2                             # how well what was sent reproduces each client's rows, or its fit
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pfedhgp import zone_groups as grouping
from pfedhgp import zone_sketches as sketching
from pfedhgp.arguments import whole
from pfedhgp.errors import InputError
from pfedhgp.federation.messages import Message
from pfedhgp.model.fitted import FittedModel
from pfedhgp.runtime import with_numerics
from pfedhgp.zone_operators import operator_distances

GRID = 800
SHARE = 0.375
"""Sketch size by default, as a part of the grid's points times outputs."""
COVERED = 0.5
"""A client whose mean coverage is below this is compared under its own coverage, and joins a group last."""
MASKED_SHARE = 0.7
DRAWS = 20
DISTANCES = ("function", "operator")
Rows = Mapping[str, tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Zones:
    """Groups of clients. `clients` are in the order of their names, and so are rows of `distances`.

    `distances` are expected squared distances, posterior variances included, in units of the outputs' spread.
    """

    clients: tuple[str, ...]
    labels: dict[str, int]
    distances: np.ndarray
    between: np.ndarray
    """the same without variances: what groups are formed by"""
    distance: str
    method: str
    groups: int
    scores: dict[int, float]
    """of each number of groups, where it was chosen and not given"""
    size: int
    grid: int
    seed: int
    r2: dict[str, float]
    r2_of: str
    """"rows" or "fitted function": what r2 was measured on; "" with operators"""
    coverage: dict[str, float]
    sparse: tuple[str, ...]
    """clients that were compared under their own coverage"""
    stability: dict[str, float]
    """mean adjusted Rand index with the labels over other sketches, and over bootstraps of this one"""
    together: np.ndarray
    """how often two clients are in one group over those sketches"""
    messages: list[dict[str, Any]] = field(default_factory=list, repr=False)

    def members(self) -> list[list[str]]:
        """The clients of each group."""
        return [[c for c in self.clients if self.labels[c] == g] for g in range(self.groups)]

    def to_json(self) -> dict[str, Any]:
        """Everything but the message log's values, which nobody keeps."""
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
            "messages": self.messages,
        }

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Zones:
        """The inverse of `to_json`; KeyError, TypeError or ValueError where something is amiss."""
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
        return zones


@with_numerics
def discover(
    model: FittedModel,
    groups: int | None = None,
    *,
    method: str = "agglomerative",
    distance: str = "function",
    choose: str = "eigengap",
    size: int | None = None,
    grid: int | np.ndarray = GRID,
    seed: int = 0,
    draws: int = DRAWS,
    rows: Rows | None = None,
    own: Mapping[str, sketching.OwnFunction] | None = None,
    measure: bool = True,
) -> Zones:
    """Groups the model's clients; see `FederatedGP.cluster`.

    `own`: the clients' functions on `grid`, where they are known already. Without `measure` there is no R².
    """
    if distance not in DISTANCES:
        raise InputError(f"`distance` must be one of {', '.join(DISTANCES)}, got {distance!r}")
    seed = whole(0)(seed, "seed")
    names = tuple(sorted(model.clients))
    if len(names) < 2:
        raise InputError(f"zones need at least two clients, the model has {len(names)}")
    missing = [name for name in names if name not in rows] if rows is not None else []
    if missing:
        raise InputError(f"the rows that were given have none of client {missing[0]!r}")
    if distance == "operator":
        return _by_operators(model, names, groups, method, choose, seed, rows)
    points = _grid(model, grid)
    cells = len(points) * model.outputs
    size = max(2, round(SHARE * cells)) if size is None else size
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or not 1 <= size <= cells:
        raise InputError(f"`size` must be from 1 to {cells} (grid points × outputs), got {size!r}")
    own = own or {name: sketching.own_function(model, name, points) for name in names}
    talk = _Talk(names)
    found = _Compared(own, names, int(size), seed, talk)
    if groups is None:
        count, scores = grouping.how_many(
            found.between[np.ix_(found.dense, found.dense)], method, choose
        )
    else:
        count, scores = groups, {}
    if not 1 <= count <= len(names):
        raise InputError(f"`groups` must be from 1 to {len(names)} (clients), got {count!r}")
    labels = found.label(count, method)
    others = [
        _Compared(own, names, int(size), seed + 1 + i, None).label(count, method)
        for i in range(draws)
    ]
    resampled = [
        grouping.bootstrap(
            found.sketches[found.dense],
            np.zeros(len(found.dense)),
            lambda squared: grouping.group(squared, min(count, len(squared)), method),
            seed + i,
        )
        for i in range(draws)
    ]
    stability = (
        {
            "sketches": grouping.stability(labels, others),
            "bootstraps": grouping.stability(labels[found.dense], resampled),
        }
        if draws
        else {}
    )
    r2 = {
        name: sketching.Attack.on(model, name, points, None if rows is None else rows[name]).r2(
            found.omega, found.sketches[i]
        )
        for i, name in enumerate(names)
        if measure
    }
    r2 = {name: value for name, value in r2.items() if np.isfinite(value)}
    return Zones(
        clients=names,
        labels={name: int(label) for name, label in zip(names, labels, strict=True)},
        distances=found.squared,
        between=found.between,
        distance="function",
        method=method,
        groups=int(count),
        scores=scores,
        size=int(size),
        grid=len(points),
        seed=seed,
        r2=r2,
        r2_of="" if not measure else "fitted function" if rows is None else "rows",
        coverage={name: float(own[name].coverage.mean()) for name in names},
        sparse=tuple(names[i] for i in found.sparse),
        stability=stability,
        together=grouping.agreement([labels, *others]),
        messages=talk.log,
    )


class _Talk:
    """Both sides of the exchange, as messages, for the log."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names, self.turn = names, 0
        self.log: list[dict[str, Any]] = []

    def exchange(self, request: dict[str, Any], replies: list[dict[str, Any]]) -> None:
        def message(sender: str, arrays: dict[str, Any]) -> Message:
            whole = {name: np.asarray(a, np.float64) for name, a in arrays.items()}
            found = Message("zones", self.turn, sender, whole)
            found.check_finite()
            return found

        self.log.append(message("server", request).log_entry("all"))
        for name, arrays in zip(self.names, replies, strict=True):
            self.log.append(message(name, arrays).log_entry("server"))
        self.turn += 1


class _Compared:
    """Sketches of all clients under one seed, and what follows from them."""

    def __init__(
        self,
        own: Mapping[str, sketching.OwnFunction],
        names: tuple[str, ...],
        size: int,
        seed: int,
        talk: _Talk | None,
    ) -> None:
        means = np.stack([own[name].mean.reshape(-1) for name in names])
        self.omega = sketching.projection(means.shape[1], size, (seed, 0))
        self.sketches = means @ self.omega
        self.extra = np.array([own[name].variance.mean() for name in names])
        self.squared = grouping.squared_distances(self.sketches, self.extra)
        self.between = grouping.squared_distances(self.sketches, np.zeros(len(names)))
        covered = np.array([own[name].coverage.mean() for name in names])
        self.sparse = np.flatnonzero(covered < COVERED)
        if len(names) - len(self.sparse) < 2:  # nobody to compare with: all on equal terms
            self.sparse = self.sparse[:0]
        self.dense = np.setdiff1d(np.arange(len(names)), self.sparse)
        if talk is not None:
            replies = [
                {"sketch": s, "variance": v, "coverage": c}
                for s, v, c in zip(self.sketches, self.extra, covered, strict=True)
            ]
            talk.exchange({"grid": len(means[0]), "size": size, "seed": seed}, replies)
        self.masked = {
            int(i): self._masked(own, names, means, int(i), seed, talk) for i in self.sparse
        }

    def _masked(
        self,
        own: Mapping[str, sketching.OwnFunction],
        names: tuple[str, ...],
        means: np.ndarray,
        sparse: int,
        seed: int,
        talk: _Talk | None,
    ) -> np.ndarray:
        """Sketches of all functions under the coverage of one client, which it makes public: not what it saw,
        but where."""
        weights = np.sqrt(own[names[sparse]].coverage.reshape(-1))
        size = max(2, round(MASKED_SHARE * float(np.sum(weights**2))))
        inside = np.flatnonzero(weights > 0.1)
        size = min(size, len(inside))
        omega = sketching.projection(len(inside), size, (seed, 1, sparse))
        found = (means[:, inside] * weights[inside]) @ omega
        if talk is not None:
            talk.exchange({"coverage": weights**2, "seed": seed}, [{"sketch": s} for s in found])
        return found

    def label(self, count: int, method: str) -> np.ndarray:
        """Groups of the clients with many rows; each of the others joins the group where it adds least.

        By the means: in Ward's objective, Σ_G Σ_{i∈G} E|f_i − centre of G|², variances add Σ_G v (|G| − 1),
        which for clients equally sure of themselves is the same for every grouping into as many groups.
        The cost of joining is Ward's: n/(n + 1) times the squared distance to the group's centre.
        """
        labels = np.zeros(len(self.squared), int)
        among = min(count, len(self.dense))
        first = grouping.group(self.between[np.ix_(self.dense, self.dense)], among, method)
        labels[self.dense] = first
        for i, sketches in self.masked.items():
            costs = []
            for g in range(among):
                members = self.dense[first == g]
                gap = sketches[i] - sketches[members].mean(0)
                costs.append(len(members) / (len(members) + 1.0) * float(gap @ gap))
            labels[i] = int(np.argmin(costs))
        return grouping.in_order(labels)


def _grid(model: FittedModel, grid: int | np.ndarray) -> np.ndarray:
    if isinstance(grid, int | np.integer) and not isinstance(grid, bool) and grid >= 2:
        return sketching.public_grid(model, int(grid))
    points = np.asarray(grid, np.float64)
    if points.ndim != 2 or points.shape[1] != model.inputs or not np.all(np.isfinite(points)):
        raise InputError(
            f"`grid` must be a number of points, or points of shape (n, {model.inputs}), got {grid!r:.60}"
        )
    return points


def _by_operators(
    model: FittedModel,
    names: tuple[str, ...],
    groups: int | None,
    method: str,
    choose: str,
    seed: int,
    rows: Rows | None,
) -> Zones:
    if rows is None:
        raise InputError("distance='operator' needs the clients' inputs: give the rows (`data`)")
    squared = operator_distances(model, {name: rows[name][0] for name in names})
    count, scores = grouping.how_many(squared, method, choose) if groups is None else (groups, {})
    labels = grouping.group(squared, count, method)
    size = int(np.shape(model.shared.block.inputs)[0]) + len(_own_inputs(model, names[0]))
    talk = _Talk(names)
    talk.exchange({}, [{"operator": np.zeros((size, size))} for _ in names])
    return Zones(
        clients=names,
        labels={name: int(label) for name, label in zip(names, labels, strict=True)},
        distances=squared,
        between=squared,
        distance="operator",
        method=method,
        groups=int(count),
        scores=scores,
        size=size,
        grid=0,
        seed=seed,
        r2={},
        r2_of="",
        coverage={},
        sparse=(),
        stability={},
        together=grouping.agreement([labels]),
        messages=talk.log,
    )


def _own_inputs(model: FittedModel, name: str) -> np.ndarray:
    block = model.clients[name].block
    return np.asarray(block.inputs)[np.asarray(block.active) > 0]


def with_messages(model: FittedModel, zones: Zones) -> FittedModel:
    """The model whose log has the exchange too."""
    return replace(model, messages=[*model.messages, *zones.messages])
