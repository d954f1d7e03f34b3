"""Zone discovery: which clients behave alike, from what they are willing to send and never from pooled rows.

zones = model.cluster(3)
zones.labels, zones.members()        # {"Dongsi": 0, …}, [["Dongsi", …], …]
zones.distances                      # expected squared distances between clients' own functions
zones.r2                             # how well what was sent reproduces each client's rows, or its fit
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pfedhgp.base.checks import whole
from pfedhgp.base.numerics import with_numerics
from pfedhgp.errors import InputError, PFedHGPWarning
from pfedhgp.model.fitted import FittedModel
from pfedhgp.zones import groups as grouping
from pfedhgp.zones import sketches as sketching
from pfedhgp.zones.comparison import (
    Compared,
    Sketch,
    Talk,
    all_sent,
    distinct,
    grid_name,
    sent_before,
)
from pfedhgp.zones.operators import operator_distances

GRID = 800
SHARE = 0.3
"""Sketch size by default, as a part of the grid's points times outputs."""
DRAWS = 20
STABILITY = ("halves", "bootstraps")
DISTANCES = ("function", "operator")
InputsAndOutputs = Mapping[str, tuple[np.ndarray, np.ndarray]]


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
    """clients with few rows, which were compared next to these"""
    stability: dict[str, float]
    """mean adjusted Rand index with the labels, over random halves of the numbers sent and over bootstraps"""
    together: np.ndarray
    """how often two clients are in one group over those halves"""
    earlier: tuple[int, ...] = ()
    """seeds of sketches that clients had sent before: r2 is that of all of them together"""
    messages: list[dict[str, Any]] = field(default_factory=list, repr=False)

    def members(self) -> list[list[str]]:
        """The clients of each group."""
        return [[c for c in self.clients if self.labels[c] == g] for g in range(self.groups)]

    @property
    def numbers(self) -> int:
        """How many numbers a client sent about its function, at most: its sketches, variance and coverage.

        Where a client with few rows has these, its coverage over the grid, is in the log beside them.
        """
        sent: dict[str, int] = {}
        for entry in self.messages:
            if entry["to"] == "server" and set(entry["arrays"]) != {"coverage"}:
                shapes = entry["arrays"].values()
                count = sum(int(np.prod(shape)) for shape in shapes)
                sent[entry["from"]] = sent.get(entry["from"], 0) + count
        return max(sent.values(), default=0)

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
            "earlier": list(self.earlier),
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


@with_numerics
def discover(
    model: FittedModel,
    groups: int | None = None,
    *,
    method: str | None = None,
    distance: str = "function",
    choose: str = "eigengap",
    size: int | None = None,
    grid: int | np.ndarray = GRID,
    seed: int = 0,
    draws: int = DRAWS,
    rows: InputsAndOutputs | None = None,
    own: Mapping[str, sketching.OwnFunction] | None = None,
    measure: bool = True,
    log: Iterable[Mapping[str, Any]] | None = None,
    attacks: Mapping[str, sketching.Attack] | None = None,
) -> Zones:
    """Groups the model's clients; see `FederatedGP.cluster`.

    `own`, `attacks`: the clients' functions on `grid` and `Attack.on` it, where they are known already.
    Without `measure` there is no R².
    `log`: all messages so far, by default the model's: sketches in it count in R².
    """
    if distance not in DISTANCES:
        raise InputError(f"`distance` must be one of {', '.join(DISTANCES)}, got {distance!r}")
    method = grouping.USUAL[distance] if method is None else method
    seed, draws = whole(0)(seed, "seed"), whole(0)(draws, "draws")
    names = tuple(sorted(model.clients))
    if len(names) < 2:
        raise InputError(f"zones need at least two clients, the model has {len(names)}")
    missing = [name for name in names if name not in rows] if rows is not None else []
    if missing:
        raise InputError(f"the rows that were given have none of client {missing[0]!r}")
    if groups is not None and not 1 <= whole(1)(groups, "groups") <= len(names):
        raise InputError(f"`groups` must be from 1 to {len(names)} (clients), got {groups}")
    if distance == "operator":
        return _by_operators(model, names, groups, method, choose, seed, rows)
    points = _grid(model, grid)
    cells = len(points) * model.outputs
    size = max(2, round(SHARE * cells)) if size is None else size
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or not 1 <= size <= cells:
        raise InputError(f"`size` must be from 1 to {cells} (grid points × outputs), got {size!r}")
    own = own or {name: sketching.own_function(model, name, points) for name in names}
    for name in names:
        if not own[name].peaks.any():
            _warn(
                f"nothing is known of client {name!r} beyond what all share: its group means nothing"
            )
    talk = Talk(names)
    found = Compared(
        own,
        names,
        size=int(size),
        seed=seed,
        grid=grid_name(points),
        least=2 if groups is None else groups,
        talk=talk,
    )
    count, scores = _how_many(
        found.between[np.ix_(found.dense, found.dense)], groups, method, choose
    )
    labels = found.label(count, method)
    _check_found(labels, count)
    rng = np.random.default_rng((seed, 2))
    halves = [found.label(count, method, rng) for _ in range(draws)]
    resampled = [found.label(count, method, rng, again=True) for _ in range(draws)]
    stability = (
        {
            "halves": grouping.stability(labels, halves),
            "bootstraps": grouping.stability(labels, resampled),
        }
        if draws
        else {}
    )
    before = _earlier(sent_before(model.messages if log is None else log), found.sent)
    r2 = {}
    if measure:
        attacks = attacks or {
            name: sketching.Attack.on(model, name, points, None if rows is None else rows[name])
            for name in names
        }
        r2 = revealed(attacks, own, distinct([*before, *found.sent]))
    return Zones(
        clients=names,
        labels={name: int(label) for name, label in zip(names, labels, strict=True)},
        distances=found.squared,
        between=found.between,
        distance="function",
        method=method,
        groups=int(labels.max()) + 1,
        scores=scores,
        size=int(size),
        grid=len(points),
        seed=seed,
        r2=r2,
        r2_of="" if not measure else "fitted function" if rows is None else "rows",
        coverage={name: float(own[name].coverage.mean()) for name in names},
        sparse=tuple(names[i] for i in found.sparse),
        stability=stability,
        together=grouping.agreement([labels, *halves]),
        earlier=tuple(sorted({one.seed for one in before})),
        messages=talk.log,
    )


def _earlier(before: list[Sketch], now: list[Sketch]) -> list[Sketch]:
    """Those of the same grid that tell more than what is sent now; a line says that there are some."""
    more = [one for one in before if not any(one.within(other) for other in now)]
    others = [one for one in more if (one.grid, one.seed) != (now[0].grid, now[0].seed)]
    if others:
        seeds = ", ".join(str(seed) for seed in sorted({one.seed for one in others}))
        apart = any(one.grid != now[0].grid for one in others)
        _warn(
            f"clients had sent sketches before, under seed {seeds}: two sketches tell more of the rows than "
            "one. R² is that of all of them together"
            + (", but for those on another grid" if apart else "")
        )
    return [one for one in more if one.grid == now[0].grid]


def revealed(
    attacks: Mapping[str, sketching.Attack],
    own: Mapping[str, sketching.OwnFunction],
    sent: list[Sketch],
) -> dict[str, float]:
    """R² of the best linear guess at each client's rows, or fit, from all sketches that it has sent."""
    of_all = all_sent([one for one in sent if not one.under], own, "")
    of_few = [one for one in sent if one.under in own]
    found = {}
    for name, attack in attacks.items():
        more = [all_sent(of_few, own, name)] if of_few else []
        omega = np.concatenate([of_all, *more], axis=1)
        numbers = sketching.rounded(own[name].mean.reshape(-1) @ omega)
        found[name] = attack.r2(omega, numbers)
    return {name: value for name, value in found.items() if np.isfinite(value)}


def _how_many(
    squared: np.ndarray, groups: int | None, method: str, choose: str
) -> tuple[int, dict[int, float]]:
    """The number that was asked for, or one chosen from distances, and a line where there are too few."""
    if groups is not None:
        return groups, {}
    count, scores = grouping.how_many(squared, method, choose)
    if not scores:
        _warn(
            "a number of groups cannot be chosen from the distance between two clients, and all are one "
            "group: give the number of groups to have them apart"
        )
    return count, scores


def _check_found(labels: np.ndarray, asked: int) -> None:
    """Clients that are all alike make fewer groups than were asked for; no group is empty."""
    found = int(labels.max()) + 1
    if found < asked:
        _warn(f"{asked} groups were asked for and {found} found: the rest cannot be told apart")


def _warn(text: str) -> None:
    warnings.warn(text, PFedHGPWarning, stacklevel=3)


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
    rows: InputsAndOutputs | None,
) -> Zones:
    if rows is None:
        raise InputError("distance='operator' needs the clients' inputs: give the rows with `data`")
    squared = operator_distances(model, {name: rows[name][0] for name in names})
    count, scores = _how_many(squared, groups, method, choose)
    labels = grouping.group(squared, count, method)
    _check_found(labels, count)
    size = int(np.shape(model.shared.block.inputs)[0]) + len(_own_inputs(model, names[0]))
    talk = Talk(names)
    talk.exchange({}, [{"operator": np.zeros((size, size))} for _ in names])
    return Zones(
        clients=names,
        labels={name: int(label) for name, label in zip(names, labels, strict=True)},
        distances=squared,
        between=squared,
        distance="operator",
        method=method,
        groups=int(labels.max()) + 1,
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
