"""Cycles of known classes as a user gives them: arrays by class, or a table; checked, on one grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pfedhgp.data.arrays import numeric
from pfedhgp.data.rows import by_appearance
from pfedhgp.data.run_names import run_names
from pfedhgp.data.tables import gathered
from pfedhgp.diagnosis.decision import check_class_name
from pfedhgp.errors import InputError

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Classes:
    """The training cycles of all classes on one grid."""

    grid: FloatArray
    """(n, d)"""
    cycles: dict[str, FloatArray]
    """(C, Q, n) by class"""
    runs: dict[str, list[str]] | None
    """the run of each cycle, if they were given"""


def classes_from(
    data: Any,
    block: Any,
    *,
    client: str | None = None,
    inputs: str | Sequence[str] | None = None,
    outputs: str | Sequence[str] | None = None,
    cycle: str | None = None,
) -> Classes:
    """The cycles that `FederatedGP.fit` was given: {class: (grid, cycles)}, or a table.

    `block` is {class: the run of each cycle}, or the column of the table that names runs.
    """
    if isinstance(data, Mapping):
        return classes_of(data, block)
    if cycle is None:
        raise InputError("`block` needs `cycle`: the column that says which cycle a row is of")
    if not isinstance(block, str):
        raise InputError(
            f"`block` must name a column of the table, which says the run of a row, got "
            f"{type(block).__name__}"
        )
    import narwhals as nw

    frame = nw.from_native(data, eager_only=True)
    if block not in frame.columns:
        there = ", ".join(str(each) for each in frame.columns)
        raise InputError(f"no column {block!r}; the table has {there}")
    columns = [
        [names] if isinstance(names, str) else list(names or ()) for names in (inputs, outputs)
    ]
    X, Y = (np.stack([frame[n].cast(nw.Float64).to_numpy() for n in c], axis=1) for c in columns)
    owner = np.asarray([str(name) for name in frame[str(client)].to_list()])
    which = np.asarray([str(v) for v in frame[cycle].to_list()])
    runs = np.asarray(["" if v is None or v != v else str(v) for v in frame[block].to_list()])
    grid = np.unique(X, axis=0)
    found, own = {}, {}
    for name in dict.fromkeys(owner.tolist()):
        mine = owner == name
        cycles = np.moveaxis(gathered(name, grid, X[mine], Y[mine], which[mine]), 1, 2)
        found[name] = (grid, cycles)
        own[name] = runs_of_cycles(name, which[mine], runs[mine])
    return classes_of(found, own)


def runs_of_cycles(
    name: str, cycle: npt.NDArray[Any], runs: npt.NDArray[Any], what: str = "class"
) -> list[str]:
    """The run of each cycle of a class, from its rows; cycles in the order in which they appear."""
    place = by_appearance(cycle)
    out = []
    for c in range(int(place.max()) + 1):
        own = list(dict.fromkeys(str(run) for run in runs[place == c]))
        if len(own) > 1:
            which = str(cycle[place == c][0])
            raise InputError(f"{what} {name!r}: cycle {which!r} is in two blocks")
        if not own[0].strip():
            which = str(cycle[place == c][0])
            raise InputError(
                f"{what} {name!r}: cycle {which!r} has no block: name the run of each cycle"
            )
        out.append(own[0])
    return out


def classes_of(data: Any, block: Mapping[str, Sequence[object]] | None) -> Classes:
    """{class: (grid, cycles (C, Q, n))} with one grid and the same channels for all."""
    if not isinstance(data, Mapping):
        raise InputError(
            f"the data must be {{class: (grid, cycles)}}, got {type(data).__name__}: name the classes"
        )
    grids: dict[str, FloatArray] = {}
    arrays: dict[str, FloatArray] = {}
    for name, pair in data.items():
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise InputError(f"class {name!r} must be a pair (grid, cycles)")
        grid = numeric(pair[0], f"class {name!r}: the grid", missing=False)
        check_class_name(str(name))
        if str(name) in arrays:
            raise InputError(f"two classes are called {str(name)!r}: names are compared as text")
        arrays[str(name)] = _cycles_of_class(str(name), pair[1], len(grid))
        grids[str(name)] = grid
    if len(arrays) < 2:
        raise InputError("a diagnosis needs at least two classes")
    first = next(iter(grids.values()))
    channels = next(iter(arrays.values())).shape[1]
    for name, grid in grids.items():
        if not np.array_equal(grid, first):
            raise InputError(
                f"class {name!r} is on another grid than the first class: use one grid for all"
            )
        if arrays[name].shape[1] != channels:
            raise InputError(
                f"class {name!r} has {arrays[name].shape[1]} channels, the first class {channels}"
            )
    constant = np.flatnonzero(np.ptp(first, axis=0) == 0.0)
    if len(constant):
        raise InputError(
            f"the grid is {first[0, constant[0]]:g} at every sample (input {constant[0] + 1}), but cycles "
            "need an axis"
        )
    return Classes(first, arrays, None if block is None else _runs_of(block, arrays))


def sites_of(site: Any, classes: Classes) -> list[str]:
    """The site of each cycle, class by class; a run must lie at one site."""
    found = _runs_of(site, classes.cycles, "site")
    for name, sites in found.items():
        home: dict[str, str] = {}
        for run, own in zip(classes.runs[name] if classes.runs else (), sites, strict=False):
            if home.setdefault(run, own) != own:
                raise InputError(
                    f"class {name!r}: run {run!r} is at two sites, {home[run]!r} and {own!r}: a run lies at "
                    "one site"
                )
    return [own for name in classes.cycles for own in found[name]]


def _cycles_of_class(name: str, given: Any, samples: int) -> FloatArray:
    """(C, Q, n) of numbers; every cycle must have a value."""
    try:
        cycles = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"class {name!r}: cycles must be numbers, (C, Q, {samples})") from None
    if cycles.ndim != 3 or cycles.shape[2] != samples or 0 in cycles.shape:
        raise InputError(f"class {name!r}: cycles must be (C, Q, {samples}), got {cycles.shape}")
    endless = np.flatnonzero(np.isinf(cycles).any(axis=(1, 2)))
    if len(endless):
        raise InputError(f"class {name!r}: cycle {endless[0]} has an infinite value")
    empty = np.flatnonzero(np.isnan(cycles).all(axis=(1, 2)))
    if len(empty) == len(cycles):
        raise InputError(
            f"class {name!r} has no values: all samples are missing, from cycle 0 to cycle {len(empty) - 1}"
        )
    if len(empty):
        raise InputError(
            f"class {name!r}: cycle {empty[0]} has no values: all its samples are missing"
        )
    return cycles


def _runs_of(
    block: Mapping[str, Sequence[object]], arrays: Mapping[str, FloatArray], called: str = "block"
) -> dict[str, list[str]]:
    what = "run" if called == "block" else called
    if not isinstance(block, Mapping):
        raise InputError(
            f"`{called}` must be {{class: the {what} of each cycle}}, got {type(block).__name__}"
        )
    given = {str(name): each for name, each in block.items()}
    for name, Y in arrays.items():
        if name not in given or isinstance(given[name], str) or len(given[name]) != len(Y):
            raise InputError(
                f"`{called}` must give the {what} of each of the {len(Y)} cycles of {name!r}"
            )
    if called != "block":
        return {name: [str(each) for each in given[name]] for name in arrays}
    return {name: run_names(given[name], f"class {name!r}") for name in arrays}
