"""From what people have (a table with a client column, or arrays by client) to each client's arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedhgp.base.checks import column, columns, optional, refusal
from pfedhgp.data.rows import ClientRows, by_appearance, merge_replicates
from pfedhgp.errors import InputError

if TYPE_CHECKING:  # narwhals is needed for tables alone
    import narwhals as nw

AS_HOURS = "turn it into numbers, for instance hours: (t - t.min()).dt.total_seconds() / 3600"
AS_HOURS_OF_ARRAY = (
    "turn them into numbers, for instance hours: (t - t.min()) / np.timedelta64(1, 'h')"
)


@dataclass(frozen=True, eq=False)
class GivenData:
    """Each client's rows, and the names of inputs and outputs."""

    clients: list[ClientRows]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def clients_from(
    data: Any,
    *,
    client: str | None = None,
    inputs: str | Sequence[str] | None = None,
    outputs: str | Sequence[str] | None = None,
    cycle: str | None = None,
    whole_cycles: bool = False,
) -> GivenData:
    """What a table holds, or a mapping from client to (X, y).

    With `whole_cycles` (for a cycle layer) clients keep each cycle, not only means over them.
    """
    client, cycle = optional(column)(client, "client"), optional(column)(cycle, "cycle")
    names: Any = optional(columns)
    of_inputs, of_outputs = names(inputs, "inputs"), names(outputs, "outputs")
    if isinstance(data, Mapping):
        if client is not None:
            raise InputError(
                "`client` names a column of a table; a mapping has clients as its keys: leave it out"
            )
        return _from_mapping(data, of_inputs, of_outputs, cycle, whole_cycles)
    import narwhals as nw

    try:
        frame = nw.from_native(data, eager_only=True)
    except TypeError:
        raise InputError(
            "`data` must be a pandas or polars table with `client=`, or a mapping from client to (X, y)"
        ) from None
    if client is None or inputs is None or outputs is None:
        raise InputError("a table needs `client=`, `inputs=` and `outputs=`: names of its columns")
    if whole_cycles and cycle is None:
        raise InputError(
            "a cycle layer needs `cycle=`: the column that says which cycle a row is of"
        )
    return _from_table(frame, client, of_inputs, of_outputs, cycle, whole_cycles)


def numeric(values: Any, what: str, *, missing: bool) -> np.ndarray:
    """A 2-d float64 array; refuses text, infinities, and NaN unless `missing` cells are allowed."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(f"{what} must be a table of numbers: its rows differ in length") from None
    if array.dtype.kind in "US":
        raise InputError(f"{what} must be numbers, got text")
    if array.dtype.kind in "mMc":
        how = "" if array.dtype.kind == "c" else f": {AS_HOURS_OF_ARRAY}"
        raise InputError(f"{what} must be real numbers, got values of type {array.dtype}{how}")
    if array.dtype.kind not in "fiub":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise InputError(f"{what} must be numbers, got values of type {array.dtype}") from None
    array = array.astype(np.float64)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise InputError(f"{what} must have one or two dimensions, got {array.ndim}")
    bad = np.isinf(array) if missing else ~np.isfinite(array)
    if bad.any():
        row, column = (int(v) for v in np.argwhere(bad)[0])
        word = "infinite" if np.isinf(array[row, column]) else "NaN"
        raise InputError(
            f"{what}: {word} value in row {row}, column {column}; remove or mend that row"
        )
    return array


def dimensions(values: Any) -> int:
    """The number of axes; 0 if rows differ in length, which `numeric` refuses."""
    try:
        return np.ndim(values)
    except ValueError:
        return 0


def _from_mapping(
    data: Mapping[Any, Any],
    inputs: tuple[str, ...] | None,
    outputs: tuple[str, ...] | None,
    cycle: str | None,
    whole_cycles: bool,
) -> GivenData:
    if cycle is not None:
        raise InputError(
            "`cycle` names a column of a table; give arrays of cycles as (grid, cycles)"
        )
    if not data:
        raise InputError("`data` has no clients")
    clients = []
    for key, pair in data.items():
        name = _spoken(key)
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InputError(f"client {name!r}: expected a pair (X, y)")
        X = numeric(pair[0], f"client {name!r}: inputs", missing=False)
        if dimensions(pair[1]) == 3:
            clients.append(cycles_of(name, X, pair[1], whole=whole_cycles))
            continue
        Y = numeric(pair[1], f"client {name!r}: outputs", missing=True)
        if len(X) != len(Y):
            raise InputError(f"client {name!r}: {len(X)} rows of inputs but {len(Y)} of outputs")
        clients.append(
            whole_cycles_of(name, X, Y[None]) if whole_cycles else ClientRows(name, X, Y)
        )
    _refuse_twins([rows.name for rows in clients])
    d, Q = clients[0].X.shape[1], clients[0].Y.shape[1]
    if d == 0 or Q == 0:
        raise InputError(
            f"client {clients[0].name!r} has {d} inputs and {Q} outputs: give some of both"
        )
    for rows in clients:
        if rows.X.shape[1] != d or rows.Y.shape[1] != Q:
            raise InputError(
                f"client {rows.name!r} has {rows.X.shape[1]} inputs and {rows.Y.shape[1]} outputs, "
                f"the first client {d} and {Q}"
            )
    return GivenData(
        clients, _labels(inputs, d, "x", "inputs"), _labels(outputs, Q, "y", "outputs")
    )


def _spoken(key: Any) -> str:
    """A client's name as text. Bytes would become "b'a'", and nothing would become "None"."""
    if isinstance(key, bytes | bytearray) or key is None or key == "" or key != key:
        raise refusal("data", "a mapping from clients' names (text or numbers) to (X, y)", key)
    return str(key)


def _refuse_twins(names: Sequence[str]) -> None:
    """Names are compared as text, so 1 and "1" are one client."""
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(f"two clients are called {name!r}: rename one of them")


def _labels(names: tuple[str, ...] | None, count: int, letter: str, what: str) -> tuple[str, ...]:
    if names is None:
        return (letter,) if count == 1 else tuple(f"{letter}{j}" for j in range(count))
    if len(names) != count:
        raise InputError(f"`{what}` names {len(names)} columns, the data have {count}")
    return names


def _from_table(
    frame: nw.DataFrame[Any],
    client: str,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    cycle: str | None,
    whole_cycles: bool,
) -> GivenData:
    wanted = (client, *inputs, *outputs, *((cycle,) if cycle else ()))
    for name in wanted:
        if name not in frame.columns:
            there = ", ".join(str(each) for each in frame.columns)
            raise InputError(f"no column {name!r}; the table has {there}")
    if len(set(wanted)) != len(wanted):
        raise InputError(f"a column is used twice: {', '.join(wanted)}")
    if len(frame) == 0:
        raise InputError("the table has no rows")
    X = _columns(frame, inputs, missing=False)
    Y = _columns(frame, outputs, missing=True)
    given = frame[client].to_list()
    for row, name in enumerate(given):
        if name is None or name != name:  # NaN
            raise InputError(
                f"column {client!r}: no client's name in row {row}; name it, or drop it"
            )
        if isinstance(name, bytes):
            raise InputError(
                f"column {client!r}: row {row} holds bytes; names must be text: decode it"
            )
    owner = np.array([str(name) for name in given])
    names = list(dict.fromkeys(owner.tolist()))
    clients = []
    for name in names:
        mine = owner == name
        which = None if cycle is None else frame[cycle].to_numpy()[mine]
        clients.append(rows_of(name, X[mine], Y[mine], which, whole=whole_cycles))
    return GivenData(clients, inputs, outputs)


def rows_of(
    name: str, X: np.ndarray, Y: np.ndarray, cycle: np.ndarray | None, *, whole: bool
) -> ClientRows:
    """One client's rows. If they are of cycles: each cycle `whole`, or rows at equal inputs merged."""
    if cycle is None:
        return ClientRows(name, X, Y)
    if not whole:
        return merge_replicates(name, X, Y)
    grid = np.unique(X, axis=0)
    return whole_cycles_of(name, grid, gathered(name, grid, X, Y, cycle))


def _columns(frame: nw.DataFrame[Any], names: tuple[str, ...], *, missing: bool) -> np.ndarray:
    import narwhals as nw

    columns = []
    for name in names:
        series = frame[name]
        if not series.dtype.is_numeric() and series.dtype != nw.Boolean:
            how = f": {AS_HOURS}" if series.dtype in (nw.Datetime, nw.Date) else ""
            raise InputError(f"column {name!r} must be numbers, it holds {series.dtype}{how}")
        values = series.cast(nw.Float64).to_numpy()
        columns.append(numeric(values, f"column {name!r}", missing=missing)[:, 0])
    return np.stack(columns, axis=1)


def cycles_of(name: str, grid: np.ndarray, cycles: Any, *, whole: bool) -> ClientRows:
    """Cycles (C, Q, n) on one grid: kept `whole`, or their mean, counts and scatter."""
    array = np.asarray(cycles)
    if array.dtype.kind not in "fiub":
        raise InputError(
            f"client {name!r}: cycles must be numbers, got values of type {array.dtype}"
        )
    array = array.astype(np.float64)
    if np.isinf(array).any():
        raise InputError(f"client {name!r}: infinite value in its cycles")
    if array.shape[2] != len(grid):
        raise InputError(
            f"client {name!r}: cycles of {array.shape[2]} samples on a grid of {len(grid)}"
        )
    if whole:
        return whole_cycles_of(name, grid, np.moveaxis(array, 1, 2))
    stacked = np.moveaxis(array, 1, 2).reshape(-1, array.shape[1])
    return merge_replicates(name, np.tile(grid, (array.shape[0], 1)), stacked)


def gathered(
    name: str, grid: np.ndarray, X: np.ndarray, Y: np.ndarray, cycle: np.ndarray
) -> np.ndarray:
    """A client's rows as cycles (C, n, Q), in the order in which cycles first appear.

    The grid (n, d) holds all their inputs; what a cycle lacks is missing.
    """
    place = {tuple(row): n for n, row in enumerate(grid.tolist())}
    at, owner = np.array([place[tuple(row)] for row in X.tolist()]), by_appearance(cycle)
    cells, count = np.unique(owner * len(grid) + at, return_counts=True)
    if len(cells) != len(X):
        twice = cycle[owner == cells[count > 1][0] // len(grid)][0]
        raise InputError(f"client {name!r}: cycle {str(twice)!r} has two rows at the same inputs")
    cycles = np.full((int(owner.max()) + 1, len(grid), Y.shape[1]), np.nan)
    cycles[owner, at] = Y
    return cycles


def whole_cycles_of(name: str, grid: np.ndarray, cycles: np.ndarray) -> ClientRows:
    """Cycles (C, n, Q) on one grid, and their mean cell by cell; cycles without a value are left out."""
    if len(np.unique(grid, axis=0)) != len(grid):
        raise InputError(f"client {name!r}: the grid of its cycles has the same inputs twice")
    seen = np.isfinite(cycles)
    there = seen.any(axis=(1, 2))
    cycles, seen = cycles[there], seen[there]
    counts = seen.sum(0)
    mean = np.where(seen, cycles, 0.0).sum(0) / np.maximum(counts, 1)
    mean = np.where(counts > 0, mean, np.nan)
    return ClientRows(name, grid, mean, counts.astype(np.float64), cycles=cycles)
