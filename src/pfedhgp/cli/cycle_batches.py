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


def read_batches(
    path: Path, columns: Columns, *, cycle: str | None, label: str | None, delimiter: str | None
) -> list[Batch]:
    """The cycles of a file; those of a table are grouped by their inputs."""
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
        return [Batch(names, found.grid[:, None], found.cycles, own, labels)]
    return _from_table(path, columns, cycle, label, delimiter)


def _from_table(
    path: Path, columns: Columns, cycle: str | None, label: str | None, delimiter: str | None
) -> list[Batch]:
    if cycle is None:
        raise InputError(f"{path}: a table needs --cycle, the column that numbers the cycles")
    given = delimiter_of(delimiter)
    wanted = [*columns.input_names, *columns.outputs, cycle, *([label] if label else [])]
    tables = read_tables([path], wanted=wanted, delimiter=given)
    if len(tables) > 1:
        raise InputError(f"{path}: a folder, but one table of cycles is needed")
    there = tuple(name for name in columns.outputs if name in tables[0].frame.columns)
    if not there:
        tables[0].column(columns.outputs[0])  # raises an error that lists the columns
    needed = replace(columns, client=None, outputs=there, cycle=cycle)
    (rows,) = observations_of(tables, needed)
    assert rows.cycle is not None
    truth = None
    if label is not None:
        truth = tables[0].column(label).cast(pl.String).fill_null("").to_list()
    groups: dict[bytes, list[tuple[str, Any, Any, str | None]]] = {}
    for name in dict.fromkeys(rows.cycle.tolist()):
        mine = np.flatnonzero(rows.cycle == name)
        order = np.lexsort(rows.X[mine].T[::-1])
        X, Y = rows.X[mine][order], rows.Y[mine][order]
        if len(np.unique(X, axis=0)) != len(X):
            raise InputError(f"{path}: cycle {name!r} has two rows at the same inputs")
        if not np.isfinite(Y).any():
            raise InputError(f"{path}: cycle {name!r} has no values: all its samples are missing")
        own = None if truth is None else str(truth[mine[0]])
        groups.setdefault(X.tobytes(), []).append((name, X, Y, own))
    return [
        Batch(
            [each[0] for each in group],
            group[0][1],
            np.stack([each[2].T for each in group]),
            there,
            None if truth is None else [str(each[3]) for each in group],
        )
        for group in groups.values()
    ]
