"""Cycles to classify, from a table or from an .npz or .mat file, in batches of one grid each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pfedhgp.data.columns import Columns
from pfedhgp.data.cycle_files import SUFFIXES, read_cycles
from pfedhgp.data.readers import observations_of, read_tables
from pfedhgp.data.text_tables import delimiter_of
from pfedhgp.errors import InputError


@dataclass(frozen=True, eq=False)
class Batch:
    """Cycles (C, Q, n) on one grid."""

    names: list[str]
    grid: np.ndarray
    cycles: np.ndarray
    channels: tuple[str, ...] | None
    labels: list[str] | None
    runs: list[str] | None = None


def read_batches(
    path: Path,
    columns: Columns,
    *,
    cycle: str | None,
    label: str | None,
    delimiter: str | None,
    block: str | None = None,
) -> list[Batch]:
    """The cycles of a file; those of a table are grouped by their inputs.

    `block` is the column with the run of each cycle; .npz and .mat files have it as `block`.
    """
    if path.suffix.lower() in SUFFIXES:
        found = read_cycles(path, label=label or "label")
        if label is not None and found.label is None:
            raise InputError(f"{path}: no array {label!r}")
        names = [str(c) for c in range(len(found.cycles))]
        labels = list(found.label) if label is not None and found.label is not None else None
        own = found.channels if found.named else columns.outputs
        unknown = [name for name in own if name not in columns.outputs]
        if unknown:
            raise InputError(
                f"{path}: no channel {unknown[0]!r} in the model; it has {', '.join(columns.outputs)}"
            )
        if not found.named and len(own) != found.cycles.shape[1]:
            raise InputError(
                f"{path}: {found.cycles.shape[1]} channels without names, but the model has "
                f"{len(own)} outputs ({', '.join(own)}): add an array `channels` with their names"
            )
        if block not in (None, "block") or (block == "block" and found.block is None):
            raise InputError(f"{path}: no array `block`; runs are read from that array alone")
        runs = None if found.block is None else list(found.block)
        return [Batch(names, found.grid[:, None], found.cycles, own, labels, runs)]
    return _from_table(path, columns, cycle, label, block, delimiter)


def _from_table(
    path: Path,
    columns: Columns,
    cycle: str | None,
    label: str | None,
    block: str | None,
    delimiter: str | None,
) -> list[Batch]:
    if cycle is None:
        raise InputError(f"{path}: a table needs --cycle, the column that numbers the cycles")
    given = delimiter_of(delimiter)
    wanted = [
        *columns.input_names,
        *columns.outputs,
        cycle,
        *(name for name in (label, block) if name),
    ]
    tables = read_tables([path], wanted=wanted, delimiter=given)
    if len(tables) > 1:
        raise InputError(f"{path}: a folder, but one table of cycles is needed")
    there = tuple(name for name in columns.outputs if name in tables[0].frame.columns)
    if not there:
        tables[0].column(columns.outputs[0])  # raises an error that lists the columns
    needed = replace(columns, client=None, outputs=there, cycle=cycle)
    (rows,) = observations_of(tables, needed)
    assert rows.cycle is not None
    truth, runs = (
        None if name is None else tables[0].column(name).cast(pl.String).fill_null("").to_list()
        for name in (label, block)
    )
    groups: dict[bytes, list[tuple[str, Any, Any, str | None, str | None]]] = {}
    for name in dict.fromkeys(rows.cycle.tolist()):
        mine = np.flatnonzero(rows.cycle == name)
        order = np.lexsort(rows.X[mine].T[::-1])
        X, Y = rows.X[mine][order], rows.Y[mine][order]
        if len(np.unique(X, axis=0)) != len(X):
            raise InputError(f"{path}: cycle {name!r} has two rows at the same inputs")
        if not np.isfinite(Y).any():
            raise InputError(f"{path}: cycle {name!r} has no values: all its samples are missing")
        own = None if truth is None else str(truth[mine[0]])
        run = None if runs is None else _one_run(path, name, [runs[row] for row in mine])
        groups.setdefault(X.tobytes(), []).append((name, X, Y, own, run))
    return [
        Batch(
            [each[0] for each in group],
            group[0][1],
            np.stack([each[2].T for each in group]),
            there,
            None if truth is None else [str(each[3]) for each in group],
            None if runs is None else [str(each[4]) for each in group],
        )
        for group in groups.values()
    ]


def _one_run(path: Path, cycle: str, runs: list[str]) -> str:
    """The run of a cycle's rows, which must be the same in all."""
    if len(set(runs)) > 1:
        raise InputError(f"{path}: cycle {cycle!r} is in two blocks")
    if not runs[0].strip():
        raise InputError(f"{path}: cycle {cycle!r} has no block: name the run of each cycle")
    return runs[0]
