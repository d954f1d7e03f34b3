"""Zone discovery: which clients behave alike, from what they are willing to send and never from pooled rows.

zones = model.cluster(3)
zones.labels, zones.members()        # {"Dongsi": 0, …}, [["Dongsi", …], …]
zones.distances                      # expected squared distances between clients' own functions
zones.r2                             # how well what was sent reproduces each client's rows, or its fit

By loadings, where clients have their own (`zones.loadings`), else by sketches of their functions
(`zones.sketches`), or by the paper's operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypedDict

import numpy as np

from pfedhgp.base.checks import one_of, whole
from pfedhgp.base.numerics import with_numerics
from pfedhgp.errors import InputError, warn
from pfedhgp.federation.masks.roster import refuse_with
from pfedhgp.model.fitted import FittedModel
from pfedhgp.zones import groups as grouping
from pfedhgp.zones import sketches as sketching
from pfedhgp.zones.comparison import (
    Comparison,
    Sketch,
    SketchDistances,
    SketchLog,
    distinct,
    grid_name,
    joint_matrix,
    sent_before,
)
from pfedhgp.zones.loadings import InputsAndOutputs, Loadings, LoadingsComparison, loadings_r2
from pfedhgp.zones.operators import operator_distances
from pfedhgp.zones.result import DRAWN, STABILITY, Zones

GRID = 800
SHARE = 0.3
"""Default size of a sketch, as a share of the grid's points times outputs."""
DRAWS = 20
DISTANCES = ("function", "operator")
BY = ("loadings", "sketch")


class SketchSettings(TypedDict, total=False):
    """Those settings that a sketch has."""

    size: int | None
    grid: int | np.ndarray
    seed: int


@dataclass(frozen=True, eq=False)
class ClusterSettings:
    """How to group clients; `FederatedGP.cluster` explains each of these."""

    groups: int | None = None
    method: str | None = None
    distance: str = "function"
    by: str | None = None
    choose: str = "eigengap"
    size: int | None = None
    grid: int | np.ndarray = GRID
    seed: int = 0
    draws: int = DRAWS

    def checked(self, clients: int, *, own_loadings: bool) -> ClusterSettings:
        """The same settings, checked for this number of clients, with defaults filled in."""
        one_of(*DISTANCES)(self.distance, "distance")
        by = self._by(own_loadings)
        if clients < 2:
            raise InputError(f"clustering needs at least two clients, the model has {clients}")
        if self.groups is not None and not 1 <= whole(1)(self.groups, "groups") <= clients:
            raise InputError(
                f"`groups` must be from 1 to {clients} (the clients), got {self.groups}"
            )
        kind = self.distance if by == "sketch" else by
        return replace(
            self,
            by=by,
            method=grouping.DEFAULT_METHOD[kind] if self.method is None else self.method,
            seed=whole(0)(self.seed, "seed"),
            draws=whole(0)(self.draws, "draws"),
        )

    def _by(self, own_loadings: bool) -> str:
        """What is compared: "loadings" or "sketch"; operators are compared in place of a sketch."""
        if self.by is None:
            plain = self.distance == "function" and self.size is None
            return "loadings" if own_loadings and plain else "sketch"
        one_of(*BY)(self.by, "by")
        if self.by == "sketch":
            return self.by
        if self.distance != "function":
            raise InputError("by='loadings' cannot be combined with distance='operator'")
        if self.size is not None:
            raise InputError(
                "`size` is that of a sketch: leave it out, or use by='sketch' in place of by='loadings'"
            )
        return self.by

    def sketch_size(self, cells: int) -> int:
        """Numbers in a sketch of a function with `cells` values on the grid."""
        size = max(2, round(SHARE * cells)) if self.size is None else self.size
        whole_number = isinstance(size, int | np.integer) and not isinstance(size, bool)
        if not whole_number or not 1 <= size <= cells:
            raise InputError(
                f"`size` must be from 1 to {cells} (grid points × outputs), got {size!r}"
            )
        return int(size)


class Known(NamedTuple):
    """What `discover` need not compute again: clients' functions on the grid, and attacks on them."""

    own: Mapping[str, sketching.OwnFunction]
    attacks: Mapping[str, sketching.Attack] | None = None


def _refuse_where_private(model: FittedModel) -> None:
    """Clients would send more than totals, or more than their one release."""
    refuse_with(bool(model.settings.get("masks")), "grouping clients")
    if model.settings.get("privacy_spent"):
        raise InputError(
            "grouping clients has no private form: each client would send a sketch of its own function, "
            "which was fitted to its rows"
        )


@with_numerics
def discover(
    model: FittedModel,
    how: ClusterSettings,
    *,
    rows: InputsAndOutputs | None = None,
    known: Known | None = None,
    measure: bool = True,
    log: Iterable[Mapping[str, Any]] | None = None,
) -> Zones:
    """Groups the model's clients; see `FederatedGP.cluster`.

    Without `measure` there is no R². `log` has all messages so far, by default the model's: R² counts the
    sketches in it.
    """
    _refuse_where_private(model)
    names = tuple(sorted(model.clients))
    how = how.checked(len(names), own_loadings=model.structure.client_loadings)
    missing = [name for name in names if name not in rows] if rows is not None else []
    if missing:
        raise InputError(f"`data` has no rows of client {missing[0]!r}")
    if how.distance == "operator":
        return _by_operators(model, names, how, rows)
    if how.by == "loadings":
        return _by_loadings(model, how, rows, measure, model.messages if log is None else log)
    points = _grid(model, how.grid)
    size = how.sketch_size(len(points) * model.outputs)
    own = known.own if known else {n: sketching.own_function(model, n, points) for n in names}
    for name in names:
        if not own[name].peaks.any():
            warn(f"client {name!r} adds nothing to what all clients share: its group is arbitrary")
    sent = SketchLog(names)
    found = Comparison(
        own,
        names,
        size=size,
        seed=how.seed,
        grid=grid_name(points),
        least=2 if how.groups is None else how.groups,
        log=sent,
    )
    before = _earlier(sent_before(model.messages if log is None else log), found.sent)
    r2 = {}
    if measure:
        attacks = known.attacks if known else None
        attacks = attacks or _attacks(model, points, rows)
        r2 = sketch_r2(attacks, own, distinct([*before, *found.sent]))
    return zones_of(
        found,
        names,
        how,
        grid=len(points),
        r2=r2,
        r2_of="" if not measure else "fitted function" if rows is None else "rows",
        coverage={name: float(own[name].coverage.mean()) for name in names},
        earlier=tuple(sorted({one.seed for one in before})),
        messages=sent.entries,
    )


def zones_of(
    found: SketchDistances, names: tuple[str, ...], how: ClusterSettings, **facts: Any
) -> Zones:
    """The groups that follow from what clients sent, and how stable they are; `facts` are other fields."""
    method = str(how.method)
    count, scores = _group_count(found.between[np.ix_(found.dense, found.dense)], how)
    labels = found.label(count, method)
    _check_found(labels, count)
    rng = np.random.default_rng((how.seed, 2))
    halves = [found.label(count, method, rng) for _ in range(how.draws)]
    resampled = [found.label(count, method, rng, bootstrap=True) for _ in range(how.draws)]
    return Zones(
        clients=names,
        labels={name: int(label) for name, label in zip(names, labels, strict=True)},
        distances=found.squared,
        between=found.between,
        distance="function",
        method=method,
        groups=int(labels.max()) + 1,
        scores=scores,
        size=found.sketches.shape[1],
        seed=how.seed,
        sparse=tuple(names[i] for i in found.sparse),
        stability={
            name: grouping.stability(labels, others)
            for name, others in zip(STABILITY, (halves, resampled), strict=True)
            if others
        },
        together=grouping.shared_membership([labels, *halves]),
        **facts,
    )


def _earlier(before: list[Sketch], now: list[Sketch]) -> list[Sketch]:
    """Sketches of the same grid that reveal more than what is sent now; warns if there are any."""
    more = [one for one in before if not any(one.is_part_of(other) for other in now)]
    others = [one for one in more if (one.grid, one.seed) != (now[0].grid, now[0].seed)]
    if others:
        seeds = ", ".join(str(seed) for seed in sorted({one.seed for one in others}))
        apart = any(one.grid != now[0].grid for one in others)
        warn(
            f"clients already sent sketches with seed {seeds}: two sketches reveal more about the rows than "
            "one. R² counts all of them together"
            + (", except those on another grid" if apart else "")
        )
    return [one for one in more if one.grid == now[0].grid]


def sketch_r2(
    attacks: Mapping[str, sketching.Attack],
    own: Mapping[str, sketching.OwnFunction],
    sent: list[Sketch],
) -> dict[str, float]:
    """R² of the best linear guess at each client's rows (or fit) from all sketches that it has sent."""
    of_all = joint_matrix([one for one in sent if not one.near], own, "")
    of_few = [one for one in sent if one.near in own]
    found = {}
    for name, attack in attacks.items():
        more = [joint_matrix(of_few, own, name)] if of_few else []
        omega = np.concatenate([of_all, *more], axis=1)
        numbers = sketching.rounded(own[name].mean.reshape(-1) @ omega)
        found[name] = attack.r2(omega, numbers)
    return {name: value for name, value in found.items() if np.isfinite(value)}


def _group_count(squared: np.ndarray, how: ClusterSettings) -> tuple[int, dict[int, float]]:
    """The number of groups that was given, or one chosen from the distances; warns if that is impossible."""
    if how.groups is not None:
        return how.groups, {}
    count, scores = grouping.choose_count(squared, str(how.method), how.choose)
    if not scores:
        warn(
            "the number of groups cannot be chosen from the distance between two clients, so all are in one "
            "group: give the number of groups to separate them"
        )
    return count, scores


def _check_found(labels: np.ndarray, wanted: int) -> None:
    """Warns if identical clients make fewer groups than wanted; no group is empty."""
    found = int(labels.max()) + 1
    if found < wanted:
        warn(f"only {found} of {wanted} groups were found: some clients cannot be told apart")


def _grid(model: FittedModel, grid: int | np.ndarray) -> np.ndarray:
    if isinstance(grid, int | np.integer) and not isinstance(grid, bool) and grid >= 2:
        return sketching.public_grid(model, int(grid))
    points = np.asarray(grid, np.float64)
    if points.ndim != 2 or points.shape[1] != model.inputs or not np.all(np.isfinite(points)):
        raise InputError(
            f"`grid` must be a number of points or an array of shape (n, {model.inputs}), got {grid!r:.60}"
        )
    return points


def _by_loadings(
    model: FittedModel,
    how: ClusterSettings,
    rows: InputsAndOutputs | None,
    measure: bool,
    log: Iterable[Mapping[str, Any]],
) -> Zones:
    """Groups by clients' loadings, which each of them sends with one number that says how sure it is."""
    loadings = Loadings.of(model)
    names = loadings.names
    points = _grid(model, how.grid)
    before = [one for one in sent_before(log) if one.grid == grid_name(points)]
    with_own, with_mean = loadings_r2(model, points, rows) if measure else ({}, {})
    if measure and before:
        own = {n: sketching.own_function(model, n, points) for n in names}
        with_own = sketch_r2(_attacks(model, points, rows), own, distinct(before))
    return zones_of_loadings(
        loadings,
        how,
        grid=len(points),
        r2=with_own,
        r2_shared=with_mean,
        r2_of="" if not measure else "fitted function" if rows is None else "rows",
        earlier=tuple(sorted({one.seed for one in before})) if measure else (),
    )


def zones_of_loadings(loadings: Loadings, how: ClusterSettings, **facts: Any) -> Zones:
    """The groups that follow from clients' loadings; `facts` are other fields of the result."""
    names = loadings.names
    found = LoadingsComparison(loadings, 2 if how.groups is None else how.groups)
    method = str(how.method)
    count, scores = _group_count(found.between[np.ix_(found.dense, found.dense)], how)
    labels = found.label(count, method)
    _check_found(labels, count)
    rng = np.random.default_rng((how.seed, 2))
    draws = [found.label(count, method, rng) for _ in range(how.draws)]
    sent = SketchLog(names)
    each = zip(loadings.numbers, loadings.information, strict=True)
    sent.request({}, [{"loadings": c, "information": p} for c, p in each])
    return Zones(
        clients=names,
        labels={name: int(label) for name, label in zip(names, labels, strict=True)},
        distances=found.squared,
        between=found.between,
        distance="loadings",
        method=method,
        groups=int(labels.max()) + 1,
        scores=scores,
        size=int(loadings.numbers[0].size),
        seed=how.seed,
        coverage=dict(zip(names, map(float, found.coverage), strict=True)),
        sparse=tuple(names[i] for i in found.sparse),
        stability={DRAWN: grouping.stability(labels, draws)} if draws else {},
        together=grouping.shared_membership([labels, *draws]),
        messages=sent.entries,
        **facts,
    )


def _attacks(
    model: FittedModel, points: np.ndarray, rows: InputsAndOutputs | None
) -> dict[str, sketching.Attack]:
    return {
        name: sketching.Attack.on(model, name, points, None if rows is None else rows[name])
        for name in sorted(model.clients)
    }


def _by_operators(
    model: FittedModel,
    names: tuple[str, ...],
    how: ClusterSettings,
    rows: InputsAndOutputs | None,
) -> Zones:
    """Groups by the paper's operators, which each client would send."""
    if rows is None:
        raise InputError("distance='operator' needs the clients' inputs: give the rows with `data`")
    method = str(how.method)
    squared = operator_distances(model, {name: rows[name][0] for name in names})
    count, scores = _group_count(squared, how)
    labels = grouping.group(squared, count, method)
    _check_found(labels, count)
    own = int(np.sum(np.asarray(model.clients[names[0]].block.active) > 0))
    size = int(np.shape(model.shared.block.inputs)[0]) + own
    sent = SketchLog(names)
    sent.request({}, [{"operator": np.zeros((size, size))} for _ in names])
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
        seed=how.seed,
        together=grouping.shared_membership([labels]),
        messages=sent.entries,
    )
