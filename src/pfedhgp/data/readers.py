"""Files to clients: CSV (gz too), Parquet and Feather; long tables, or one file per client.

    tables = read_tables(paths, wanted=names)                 # nothing is parsed yet
    columns = find_columns(tables, client=..., inputs=..., outputs=...)
    rows = client_rows(observations_of(tables, columns), columns)

No JAX here: what is wrong with a file is said before anything slow begins.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from pfedhgp.base.checks import listed, short
from pfedhgp.data import cells
from pfedhgp.data.columns import Columns, InputColumn
from pfedhgp.data.cycle_files import SUFFIXES, table_of_cycles
from pfedhgp.data.rows import ClientRows
from pfedhgp.data.table import Table
from pfedhgp.data.tables import rows_of
from pfedhgp.data.text_tables import read_text
from pfedhgp.errors import InputError, RowError, warn

TEXT = {".csv": ",", ".txt": ",", ".tsv": "\t"}
PARQUET = (".parquet", ".pq")
FEATHER = (".feather", ".arrow", ".ipc")
NOTES = (".txt", ".txt.gz")
"""What people also write notes in."""
KNOWN = (*TEXT, *(f"{suffix}.gz" for suffix in TEXT), *PARQUET, *FEATHER, *SUFFIXES)


@dataclass(frozen=True)
class Observations:
    """One client's rows as they lie in the files, before replicates are merged; NaN in Y is missing."""

    name: str
    X: np.ndarray
    Y: np.ndarray
    cycle: np.ndarray | None = None
    order: np.ndarray | None = None
    """Each row's place in all files together."""

    def take(self, rows: np.ndarray) -> Observations:
        """Some of the rows."""
        cycle, order = (None if a is None else a[rows] for a in (self.cycle, self.order))
        return Observations(self.name, self.X[rows], self.Y[rows], cycle, order)


def wanted_names(columns: Columns) -> list[str]:
    """Every column that is read, each once."""
    names = [columns.client, *columns.input_names, *columns.outputs, columns.cycle]
    return list(dict.fromkeys(name for name in names if name is not None))


def client_rows(
    clients: Sequence[Observations], columns: Columns, *, whole_cycles: bool = False
) -> list[ClientRows]:
    """What the model takes; with a cycle column, what a table with cycles becomes.

    With `whole_cycles` (for a cycle layer) clients keep each cycle.
    """
    return [rows_of(each.name, each.X, each.Y, each.cycle, whole=whole_cycles) for each in clients]


def read_observations(
    paths: Sequence[str | Path], columns: Columns, *, delimiter: str | None = None
) -> list[Observations]:
    """The rows of files whose columns are known, as a RUN folder has them."""
    tables = read_tables(paths, wanted=wanted_names(columns), delimiter=delimiter)
    return observations_of(tables, columns)


def place_of(tables: Sequence[Table], order: int) -> str:
    """Where a row of all tables together is: its file, and its row and line there."""
    for table in tables:
        if order < len(table):
            line = "" if table.line_of is None else f" (line {table.line_of[order]})"
            return f"row {order + 1}{line} of {table.path}"
        order -= len(table)
    raise IndexError(order)


@contextmanager
def naming_rows(
    paths: Sequence[str | Path],
    columns: Columns,
    rows: Sequence[Observations],
    *,
    delimiter: str | None = None,
) -> Iterator[None]:
    """A row that is refused inside is named by its place in these files, of which `rows` are."""
    try:
        yield
    except RowError as error:
        orders = {each.name: each.order for each in rows}
        order = orders.get(error.client)
        if order is None:
            raise
        tables = read_tables(paths, wanted=wanted_names(columns), delimiter=delimiter)
        place = place_of(tables, int(order[error.row]))
        raise InputError(error.text.format(row=place)) from None


def observations_in(
    path: Path,
    content: bytes,
    columns: Columns,
    *,
    delimiter: str | None = None,
    rows_before: int = 0,
) -> list[Observations]:
    """The rows of a part of a text file, from its content; `rows_before` come before it."""
    table = _parsed(path, content, wanted_names(columns), delimiter)
    return observations_of([replace(table, rows_before=rows_before)], columns)


def check_header(
    path: Path, header: bytes, columns: Columns, *, delimiter: str | None = None
) -> None:
    """Refuses a text file that lacks a column."""
    table = _parsed(path, header, wanted_names(columns), delimiter)
    for name in wanted_names(columns):
        table.column(name)


# ------------------------------------------------------------------------------------------- files


def find_files(paths: Sequence[str | Path]) -> list[Path]:
    """The named files, and from a folder all files that can be read, sorted by name."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.is_file() and _suffix(p) in KNOWN)
            if not inside:
                raise InputError(f"{path}: no file in this folder can be read ({listed(KNOWN)})")
            found += [p for p in inside if not p.name.startswith(".")]
        elif path.exists():
            found.append(path)
        else:
            raise InputError(f"{path}: no such file")
    if not found:
        raise InputError("no data: name a file, several files or a folder")
    seen: set[Path] = set()
    for path in found:
        if path.resolve() in seen:
            raise InputError(f"{path}: named twice: name it once")
        seen.add(path.resolve())
    return found


def client_of(path: Path) -> str:
    """A file's name without its suffix: the client, if there is no client column."""
    return path.name[: len(path.name) - len(_suffix(path))]


def _suffix(path: Path) -> str:
    name = path.name.lower()
    return next((s for s in sorted(KNOWN, key=len, reverse=True) if name.endswith(s)), path.suffix)


def read_tables(
    paths: Sequence[str | Path], *, wanted: Iterable[str], delimiter: str | None = None
) -> list[Table]:
    """The tables of all files; `wanted` columns help to notice a wrong delimiter."""
    names, files = list(wanted), find_files(paths)
    folders = {Path(path) for path in paths if Path(path).is_dir()}
    tables = []
    for path in files:
        beside = [p for p in files if p.parent == path.parent and _suffix(p) not in NOTES]
        if _suffix(path) in NOTES and path.parent in folders and beside:
            tables.append(_read_unless_a_note(path, names, delimiter, beside))
        else:
            tables.append(_read(path, names, delimiter))
    return tables


def _read_unless_a_note(
    path: Path, wanted: list[str], delimiter: str | None, beside: list[Path]
) -> Table:
    """A .txt file in a folder of tables of other kinds: a table too, or a README."""
    try:
        table = _read(path, wanted, delimiter)
        if all(name in table.frame.columns for name in wanted):
            return table
    except InputError:
        pass
    kinds = sorted({_suffix(p) for p in beside})
    raise InputError(
        f"{path}: not a table like the {' and '.join(kinds)} files beside it: move it elsewhere, or name the "
        f"files: {' '.join(f'{path.parent}/*{kind}' for kind in kinds)}"
    )


def _read(path: Path, wanted: list[str], delimiter: str | None) -> Table:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    table = _parsed(path, data, wanted, delimiter)
    return replace(table, sha256=hashlib.sha256(data).hexdigest())


def _parsed(path: Path, data: bytes, wanted: list[str], delimiter: str | None) -> Table:
    suffix = _suffix(path)
    if suffix not in KNOWN:
        raise InputError(f"{path}: not a kind of file that is read; known: {listed(KNOWN)}")
    if not data:
        raise InputError(f"{path}: the file is empty")
    if suffix in (*PARQUET, *FEATHER):
        return _read_binary(path, data, "Parquet" if suffix in PARQUET else "Feather")
    if suffix in SUFFIXES:  # whole cycles
        return Table(path, table_of_cycles(path))
    if suffix.endswith(".gz"):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error):
            raise InputError(f"{path}: not a whole gzip file: compress it again") from None
    usual = TEXT[suffix.removesuffix(".gz")]
    return read_text(path, data, delimiter=delimiter or usual, wanted=wanted)


def _read_binary(path: Path, data: bytes, kind: str) -> Table:
    read = pl.read_parquet if kind == "Parquet" else pl.read_ipc
    try:
        frame = read(io.BytesIO(data))
    except (pl.exceptions.PolarsError, OSError, pl.exceptions.PanicException):
        raise InputError(f"{path}: cannot be read as {kind}: write the file again") from None
    stripped = [name.strip() for name in frame.columns]
    if len(set(stripped)) == len(stripped):
        frame.columns = stripped
    return Table(path, frame)


# ----------------------------------------------------------------------------------------- columns


def find_columns(
    tables: Sequence[Table],
    *,
    client: str | None,
    inputs: Sequence[str],
    outputs: Sequence[str],
    cycle: str | None = None,
    datetime_format: str | None = None,
) -> Columns:
    """The columns with each input's kind, which the first table that has rows decides."""
    names = [*([client] if client else []), *inputs, *outputs, *([cycle] if cycle else [])]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"column {twice[0]!r} is used twice: {listed(names)}")
    for table in tables:
        for name in names:
            table.column(name)
    sample = next((table for table in tables if len(table)), tables[0])
    found = []
    for name in inputs:
        kind = cells.kind_of(sample, name, datetime_format)
        column = InputColumn(name, kind, datetime_format if kind == "datetime" else None)
        if kind == "datetime":
            column = replace(column, zone=cells.has_zone(sample, column))
        found.append(column)
    if datetime_format is not None and not any(each.kind == "datetime" for each in found):
        raise InputError(
            f"{sample.path}: no input is a datetime of the format {datetime_format!r}: mend "
            "--datetime-format (it needs a year, a month and a day), or leave it out"
        )
    return Columns(client, tuple(found), tuple(outputs), cycle)


def observations_of(tables: Sequence[Table], columns: Columns) -> list[Observations]:
    """Every client's rows, in the order in which clients first appear."""
    if columns.client is None:
        _refuse_same_names(tables)
    if not any(len(table) for table in tables):
        raise InputError(f"{tables[0].path}: a header and no rows")
    _refuse_mixed_zones(tables, columns)
    parts: dict[str, list[Observations]] = {}
    start = 0
    for table in tables:
        for part in _clients_in(table, columns, start):
            parts.setdefault(part.name, []).append(part)
        start += len(table)
    return [joined(name, pieces) for name, pieces in parts.items()]


def _clients_in(table: Table, columns: Columns, start: int) -> list[Observations]:
    for name in wanted_names(columns):
        table.column(name)
    if not len(table):
        warn(f"{table.path}: no rows, skipped")
        return []
    X = np.stack([cells.input_values(table, column) for column in columns.inputs], axis=1)
    Y = np.empty((len(table), 0))
    if columns.outputs:
        observed = [cells.numbers(table, name, missing=True) for name in columns.outputs]
        Y = np.stack(observed, axis=1)
    cycle = None
    if columns.cycle is not None:
        cycle = np.asarray(table.column(columns.cycle).cast(pl.String).fill_null("").to_list())
    order = start + np.arange(len(table))
    if columns.client is None:
        return [Observations(client_of(table.path), X, Y, cycle, order)]
    whole = Observations("", X, Y, cycle, order)
    return _by_name(cells.client_names(table, columns.client), whole)


def _by_name(names: list[str], whole: Observations) -> list[Observations]:
    code = {name: i for i, name in enumerate(dict.fromkeys(names))}
    index = np.fromiter((code[name] for name in names), np.int64, len(names))
    order = np.argsort(index, kind="stable")
    ends = np.cumsum(np.bincount(index, minlength=len(code)))
    groups = np.split(order, ends[:-1])
    found = zip(code, groups, strict=True)
    return [replace(whole.take(rows), name=name) for name, rows in found]


def joined(name: str, pieces: Sequence[Observations]) -> Observations:
    """One client's rows from several pieces, under this name."""
    X, Y = (np.concatenate([getattr(piece, part) for piece in pieces]) for part in "XY")
    cycles = [piece.cycle for piece in pieces if piece.cycle is not None]
    orders = [piece.order for piece in pieces if piece.order is not None]
    cycle, order = (np.concatenate(each) if each else None for each in (cycles, orders))
    return Observations(name, X, Y, cycle, order)


def _refuse_mixed_zones(tables: Sequence[Table], columns: Columns) -> None:
    """Clocks with and without a time zone do not compare, in one file or in several."""
    for column in columns.inputs:
        if column.kind != "datetime":
            continue
        found = {cells.has_zone(table, column): table.path for table in reversed(tables)}
        if True in found and False in found:
            raise InputError(
                f"{found[True]} has a time zone in column {column.name!r} and {found[False]} has none: "
                "give all of them one"
            )


def _refuse_same_names(tables: Sequence[Table]) -> None:
    seen: dict[str, Path] = {}
    for table in tables:
        name = client_of(table.path)
        if name in seen:
            raise InputError(
                f"{seen[name]} and {table.path} are both client {short(name)!r}: "
                "rename one, or name the column that holds the clients with --client"
            )
        seen[name] = table.path
