"""From a fit's settings to the clients' rows: read, check, drop what does not vary, hold out. No JAX."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from pfedhgp.data.columns import Columns, InputColumn
from pfedhgp.data.holdout import Holdout, ledger, split
from pfedhgp.data.readers import (
    Observations,
    find_files,
    observations_of,
    read_tables,
    settle_columns,
)
from pfedhgp.data.table import listed, short
from pfedhgp.errors import InputError, PFedHGPWarning
from pfedhgp.settings.config import Config, Data

DELIMITERS = {"tab": "\t", "\\t": "\t", "space": " ", "comma": ",", "semicolon": ";", "pipe": "|"}


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


def ingest(config: Config) -> Ingested:
    """Reads the data of `config`; every refusal names the file, row, column or client."""
    data = config.data
    holdout = None
    if config.run.holdout is not None:
        holdout = Holdout.parse(config.run.holdout, seed=config.run.seed)
    named = (data.client, *data.inputs, *data.outputs, data.cycle, data.block)
    wanted = [name for name in named if name is not None]
    tables = read_tables(data.files, wanted=wanted, delimiter=delimiter_of(data))
    columns = settle_columns(
        tables,
        client=data.client,
        inputs=data.inputs,
        outputs=data.outputs,
        cycle=data.cycle,
        datetime_format=data.datetime_format,
    )
    blocks = None
    if data.block is not None:
        owners = [_texts(table.column(data.block)) for table in tables]
        blocks = np.concatenate(owners)
    clients = _with_outputs(observations_of(tables, columns))
    if sum(len(client.X) for client in clients) < 2:
        raise InputError("one row in all: a model needs at least two")
    if data.client is None and len(clients) == 1:
        warnings.warn(
            f"one file and no --client: {short(clients[0].name)!r} is the only client; --client names the "
            "column that tells clients apart, where there is one",
            PFedHGPWarning,
            stacklevel=2,
        )
    _tell(clients, columns)
    domain = domain_of(config.model.domain, columns, clients)
    # First drop, then split: the split can then be made again from the columns that a model knows.
    kept = _varying(clients, columns)
    clients = [replace(client, X=client.X[:, kept]) for client in clients]
    dropped = tuple(c.name for j, c in enumerate(columns.inputs) if j not in kept)
    columns = replace(columns, inputs=tuple(columns.inputs[j] for j in kept))
    training: list[Observations] = clients
    test: list[Observations] = []
    if holdout is not None:
        training, test = split(clients, holdout)
        _check_split(training, test, columns, config.run.holdout)
    return Ingested(
        columns=columns,
        dropped=dropped,
        everything=clients,
        training=training,
        test=test,
        holdout=holdout,
        domain=None if domain is None else [domain[j] for j in kept],
        blocks=blocks,
    )


def with_dates(data: Data) -> Data:
    """`datetimes` as the first file shows them: a federation's server has no file to see them in.

    As it is, where they are named already, and where the file cannot be read: `fit` says why.
    """
    if data.datetimes is not None or not data.files or not data.inputs:
        return data
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PFedHGPWarning)
            first = find_files(data.files)[:1]
            (table,) = read_tables(first, wanted=data.inputs, delimiter=delimiter_of(data))
            columns = settle_columns(
                [table],
                client=None,
                inputs=data.inputs,
                outputs=[],
                datetime_format=data.datetime_format,
            )
    except InputError:
        return data
    dated = [column.name for column in columns.inputs if column.kind == "datetime"]
    return data.model_copy(update={"datetimes": dated or None})


def _texts(column: Any) -> np.ndarray:
    import polars as pl

    return np.asarray(column.cast(pl.String).fill_null("").to_list(), dtype=object)


def _check_split(
    training: list[Observations], test: list[Observations], columns: Columns, given: str | None
) -> None:
    """What is left must be enough to fit to, and what is held out enough to test on."""
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


def delimiter_of(data: Data) -> str | None:
    """One character, also by name."""
    if data.delimiter is None:
        return None
    given = DELIMITERS.get(data.delimiter, data.delimiter)
    if len(given) != 1 or given in '"\n\r' or not given.isascii():
        raise InputError(f"--delimiter must be one character, tab or space, got {data.delimiter!r}")
    return given


def fingerprints(paths: Sequence[str]) -> dict[str, str]:
    """The SHA-256 of every file that is read."""
    found = {}
    for path in find_files([Path(p) for p in paths]):
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
        found[str(path.resolve())] = hashlib.sha256(content).hexdigest()
    return found


def _with_outputs(clients: list[Observations]) -> list[Observations]:
    """Clients without an observed output cannot be fitted: they are skipped, and named."""
    kept = [client for client in clients if np.isfinite(client.Y).any()]
    empty = [client.name for client in clients if not np.isfinite(client.Y).any()]
    if not kept:
        raise InputError("no client has an observed output: every cell of the outputs is missing")
    if empty:
        warnings.warn(
            f"skipped, because no output was observed: client {listed(empty, 3)}",
            PFedHGPWarning,
            stacklevel=2,
        )
    return kept


def _tell(clients: list[Observations], columns: Columns) -> None:
    """What was decided about clients of one row, missing cells and outputs that do not vary."""
    single = [client.name for client in clients if len(client.X) == 1]
    if single:
        others = f" and {len(single) - 1} more" if len(single) > 1 else ""
        warnings.warn(
            f"client {short(single[0])!r}{others}: one row, which the first sums reveal; predictions there "
            "are mostly what the others share",
            PFedHGPWarning,
            stacklevel=3,
        )
    Y = np.concatenate([client.Y for client in clients])
    for q, name in enumerate(columns.outputs):
        seen = Y[np.isfinite(Y[:, q]), q]
        if not len(seen):
            raise InputError(f"output {name!r} was never observed: leave it out")
        if len(seen) < len(Y):
            warnings.warn(
                f"output {name!r}: {len(Y) - len(seen)} of {len(Y)} cells are missing, kept as missing",
                PFedHGPWarning,
                stacklevel=3,
            )
        if seen.min() == seen.max():
            warnings.warn(
                f"output {name!r} is constant: there is nothing to learn about it",
                PFedHGPWarning,
                stacklevel=3,
            )


def _varying(clients: list[Observations], columns: Columns) -> list[int]:
    """Which inputs vary; the others are dropped, and named."""
    X = np.concatenate([client.X for client in clients])
    varies = X.max(axis=0) > X.min(axis=0)
    if not varies.any():
        names = ", ".join(columns.input_names)
        raise InputError(f"no input varies ({names}): a function needs two different inputs")
    for j in np.flatnonzero(~varies):
        warnings.warn(
            f"input {columns.inputs[j].name!r} is constant: dropped", PFedHGPWarning, stacklevel=3
        )
    return [int(j) for j in np.flatnonzero(varies)]


def domain_of(
    given: list[str] | None, columns: Columns, clients: Sequence[Observations] = ()
) -> list[tuple[float, float]] | None:
    """Pairs from "LOW..HIGH", one for each input; dates where the input is one. They hold every row."""
    if given is None:
        return None
    if len(given) != len(columns.inputs):
        raise InputError(
            f"--domain is given {len(given)} times for {len(columns.inputs)} inputs: once for each"
        )
    pairs = [_pair(text, column) for text, column in zip(given, columns.inputs, strict=True)]
    for j, (text, (low, high)) in enumerate(zip(given, pairs, strict=True)):
        column = short(columns.inputs[j].name)
        if not low < high:
            raise InputError(f"--domain {text} of input {column!r}: LOW must be below HIGH")
        for client in clients:
            if (client.X[:, j] < low).any() or (client.X[:, j] > high).any():
                raise InputError(
                    f"--domain {text}: client {short(client.name)!r} has rows with input {column!r} "
                    "outside it: widen it, or leave --domain out"
                )
    return pairs


def _pair(text: str, column: InputColumn) -> tuple[float, float]:
    low, dots, high = text.partition("..")
    try:
        if not dots:
            raise ValueError
        pair = (_position(low.strip(), column), _position(high.strip(), column))
        if not np.isfinite(pair).all():
            raise ValueError
    except ValueError:
        shape = "2013-01-01..2013-12-31" if column.kind == "datetime" else "0..10"
        raise InputError(
            f"--domain {text}: for input {short(column.name)!r} it must look like {shape}"
        ) from None
    return pair


def _position(text: str, column: InputColumn) -> float:
    if column.kind == "number":
        return float(text)
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
