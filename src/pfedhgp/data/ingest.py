"""From tables to the clients' rows: check, drop inputs that do not vary, hold out. No JAX."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pfedhgp.base.checks import short
from pfedhgp.data.columns import Columns
from pfedhgp.data.domain import check_domain, pairs_of
from pfedhgp.data.holdout import Holdout, ledger, split
from pfedhgp.data.missing_codes import warn_of_codes
from pfedhgp.data.readers import (
    Observations,
    find_columns,
    find_files,
    observations_of,
    read_tables,
)
from pfedhgp.data.rows import with_observations
from pfedhgp.data.table import Table
from pfedhgp.data.text_tables import delimiter_of
from pfedhgp.errors import InputError, PFedHGPWarning, warn


@dataclass(frozen=True)
class Ingested:
    """What a fit works with: columns without the dropped inputs, rows to train on and rows to test on."""

    columns: Columns
    dropped: tuple[str, ...]
    everything: list[Observations]
    training: list[Observations]
    test: list[Observations]
    holdout: Holdout | None
    domain: list[tuple[float, float]] | None
    blocks: np.ndarray | None = None
    """The block of each row, by its place in all files together."""
    labels: np.ndarray | None = None
    """The class of each row, in the same way."""

    @property
    def ledger(self) -> dict[str, dict[str, Any]]:
        """Counts and checksums by client, from which a report can make the split again."""
        return ledger(self.everything, self.training, self.test)

    @property
    def rows(self) -> int:
        """All rows, test rows included."""
        return sum(len(client.X) for client in self.everything)

    @property
    def missing(self) -> int:
        """Output cells that were not observed."""
        return sum(int(np.isnan(client.Y).sum()) for client in self.everything)


def ingest(
    tables: Sequence[Table],
    columns: Columns,
    *,
    block: str | None = None,
    label: str | None = None,
    domain: Sequence[str] | None = None,
    domain_needed: bool = False,
    holdout: Holdout | None = None,
) -> Ingested:
    """What a fit works with, from tables that were read. Refusals name the file, row, column or client.

    `block` is the column that names blocks of cycles, `label` that of their classes; `domain` has
    "LOW..HIGH" for each input. If it is needed, no refusal says that it can be left out.
    """
    blocks, labels = (
        None if name is None else np.concatenate([_texts(table.column(name)) for table in tables])
        for name in (block, label)
    )
    clients = with_observations(observations_of(tables, columns))
    if columns.client is None and len(clients) == 1:
        warn(
            f"one file and no --client: {short(clients[0].name)!r} is the only client; use --client if a "
            "column tells clients apart"
        )
    _tell(clients, columns)
    pairs = None
    if domain is not None:
        pairs = pairs_of(domain, columns)
        check_domain(pairs, clients, columns.input_names, domain, needed=domain_needed)
    # First drop, then split: the split can then be made again from the columns that a model knows.
    kept = _varying(clients, columns)
    clients = [replace(client, X=client.X[:, kept]) for client in clients]
    dropped = tuple(c.name for j, c in enumerate(columns.inputs) if j not in kept)
    columns = replace(columns, inputs=tuple(columns.inputs[j] for j in kept))
    training: list[Observations] = clients
    test: list[Observations] = []
    if holdout is not None:
        training, test = split(clients, holdout)
        _check_split(training, test, columns, holdout)
        training = with_observations(training)  # all that a client observed may be held out
    return Ingested(
        columns=columns,
        dropped=dropped,
        everything=clients,
        training=training,
        test=test,
        holdout=holdout,
        domain=None if pairs is None else [pairs[j] for j in kept],
        blocks=blocks,
        labels=labels,
    )


def datetimes_in(
    files: Sequence[str], inputs: Sequence[str], *, delimiter: str | None, format: str | None
) -> tuple[str, ...] | None:
    """The inputs that are datetimes in the first file; None if there are none, or if it cannot be read."""
    if not files or not inputs:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PFedHGPWarning)
            first = find_files(files)[:1]
            tables = read_tables(first, wanted=inputs, delimiter=delimiter_of(delimiter))
            columns = find_columns(
                tables, client=None, inputs=inputs, outputs=[], datetime_format=format
            )
    except InputError:
        return None
    return tuple(each.name for each in columns.inputs if each.kind == "datetime") or None


def _texts(column: Any) -> np.ndarray:
    import polars as pl

    return np.asarray(column.cast(pl.String).fill_null("").to_list(), dtype=object)


def _check_split(
    training: list[Observations], test: list[Observations], columns: Columns, holdout: Holdout
) -> None:
    """Refuses a split that leaves too little to fit to or to test on."""
    given = f"{holdout.kind}:{holdout.fraction:g}"
    if not test:
        raise InputError(f"--holdout {given} leaves no row to test on: every client has only one")
    X, Y = (np.concatenate([getattr(client, part) for client in training]) for part in "XY")
    problem = None
    for j, column in enumerate(columns.inputs):
        if X[:, j].max() == X[:, j].min():
            problem = f"in which input {short(column.name)!r} does not vary"
    for q, name in enumerate(columns.outputs):
        if not np.isfinite(Y[:, q]).any():
            problem = f"in which output {short(name)!r} was never observed"
    if problem:
        rows = f"{len(X)} row{'s' if len(X) > 1 else ''}"
        raise InputError(f"--holdout {given} leaves {rows} to fit to, {problem}: hold out less")


def _tell(clients: list[Observations], columns: Columns) -> None:
    """Warns of clients with one row, missing cells and constant outputs."""
    single = [client.name for client in clients if len(client.X) == 1]
    if single:
        others = f" and {len(single) - 1} more" if len(single) > 1 else ""
        warn(
            f"client {short(single[0])!r}{others}: one row, which the first sums reveal; predictions there "
            "are mostly what the others share",
            stacklevel=3,
        )
    warn_of_codes(clients, columns)
    Y = np.concatenate([client.Y for client in clients])
    for q, name in enumerate(columns.outputs):
        seen = Y[np.isfinite(Y[:, q]), q]
        if not len(seen):
            raise InputError(f"output {name!r} was never observed: leave it out")
        if len(seen) < len(Y):
            some = f"{len(Y) - len(seen)} of {len(Y)} cells are missing"
            warn(f"output {name!r}: {some}, kept as missing", stacklevel=3)
        if seen.min() == seen.max():
            warn(f"output {name!r} is constant: there is nothing to learn about it", stacklevel=3)


def coarseness(X: np.ndarray) -> float:
    """The largest distance between a value and the next double: closer ones cannot be told apart.

    >>> coarseness(np.array([1.0])) < 1e-15, coarseness(np.array([2.0**63]))
    (True, 2048.0)
    """
    return float(np.max(np.spacing(np.abs(X))))


def _varying(clients: list[Observations], columns: Columns) -> list[int]:
    """The inputs that vary; warns that the others are dropped."""
    X = np.concatenate([client.X for client in clients])
    varies = X.max(axis=0) > X.min(axis=0)
    if not varies.any():
        names = ", ".join(columns.input_names)
        coarse = coarseness(X)
        if coarse >= 2.0:
            raise InputError(
                f"no input varies ({names}): numbers so large are kept in steps of {coarse:g}, and these are "
                "closer together than that: subtract an offset from them"
            )
        raise InputError(f"no input varies ({names}): a function needs two different inputs")
    for j in np.flatnonzero(~varies):
        warn(f"input {columns.inputs[j].name!r} is constant: dropped", stacklevel=3)
    return [int(j) for j in np.flatnonzero(varies)]
