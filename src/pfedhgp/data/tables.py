"""From what people have (a table with a client column, or arrays by client) to each client's arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedhgp.base.checks import column, columns, optional, refusal
from pfedhgp.data import moments
from pfedhgp.data.arrays import dimensions, inputs_from, numeric, refuse_missing
from pfedhgp.data.columns import Columns, InputColumn
from pfedhgp.data.moments import Column
from pfedhgp.data.rows import ClientRows, by_appearance, merge_replicates
from pfedhgp.errors import InputError

if TYPE_CHECKING:  # narwhals is needed for tables alone
    import narwhals as nw

CLIENT = "client"
"""The client column of a model that was fitted to arrays by client, when it is used with a table."""


@dataclass(frozen=True, eq=False)
class GivenData:
    """Each client's rows, and the columns that they came from."""

    clients: list[ClientRows]
    columns: Columns
    flat: bool = False
    """Whether there is one output that came without an axis of its own: y was (n,), or `outputs` one name"""

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.columns.input_names

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.columns.outputs


def clients_from(
    data: Any,
    *,
    client: str | None = None,
    inputs: str | Sequence[str] | None = None,
    outputs: str | Sequence[str] | None = None,
    cycle: str | None = None,
    whole_cycles: bool = False,
    known: Columns | None = None,
) -> GivenData:
    """What a table holds, or a mapping from client to (X, y).

    With `whole_cycles` (for a cycle layer) clients keep each cycle, not only means over them. `known` are the
    columns of a fitted model, whose kinds the inputs must have; without them the data decide.
    """
    client, cycle = optional(column)(client, "client"), optional(column)(cycle, "cycle")
    names: Any = optional(columns)
    of_inputs, of_outputs = names(inputs, "inputs"), names(outputs, "outputs")
    if isinstance(data, Mapping):
        if client is not None:
            raise InputError(
                "`client` names a column of a table; a mapping has clients as its keys: leave it out"
            )
        return _from_mapping(data, of_inputs, of_outputs, cycle, whole_cycles, known)
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
    found, X = _inputs_of_table(frame, client, of_inputs, of_outputs, cycle, known)
    clients = _from_table(frame, found, X, whole_cycles)
    return GivenData(clients, found, flat=isinstance(outputs, str))


def is_table(data: Any) -> bool:
    """Whether it is a pandas or polars table."""
    if isinstance(data, Mapping | np.ndarray | list | tuple | str):
        return False
    import narwhals as nw

    try:
        nw.from_native(data, eager_only=True)
    except TypeError:
        return False
    return True


def _from_mapping(
    data: Mapping[Any, Any],
    inputs: tuple[str, ...] | None,
    outputs: tuple[str, ...] | None,
    cycle: str | None,
    whole_cycles: bool,
    known: Columns | None,
) -> GivenData:
    if cycle is not None:
        raise InputError(
            "`cycle` names a column of a table; give arrays of cycles as (grid, cycles)"
        )
    if not data:
        raise InputError("`data` has no clients")
    clients = []
    first: list[tuple[str, ...]] = []
    for key, pair in data.items():
        name = _spoken(key)
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InputError(f"client {name!r}: expected a pair (X, y)")
        X, of = _inputs_of_client(pair[0], name, inputs, known)
        first.append(of)
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
    labels_of_inputs = _labels(inputs, d, "x", "inputs")
    if known is None:
        kinds = _same_kinds([rows.name for rows in clients], first)
        zone = _zone_in(next(iter(data.values()))[0]) if moments.DATETIME in kinds else None
    elif len(known.inputs) == d:
        kinds, zone = tuple(each.kind for each in known.inputs), None
    else:  # the caller refuses it
        kinds, zone = (moments.NUMBER,) * d, None
    columns = tuple(
        InputColumn(name, kind, zone=zone if kind == moments.DATETIME else None)
        for name, kind in zip(labels_of_inputs, kinds, strict=True)
    )
    flat = all(dimensions(pair[1]) == 1 for pair in data.values())
    labels = _labels(outputs, Q, "y", "outputs")
    return GivenData(clients, Columns(CLIENT, columns, labels), flat=flat)


def _inputs_of_client(
    X: Any, name: str, inputs: Sequence[str] | None, known: Columns | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """A client's inputs (n, d), and what each of them is."""
    found = inputs_from(X, f"client {name!r}: inputs", tell=_teller(known))
    if not found:
        return np.zeros((len(X), 0)), ()
    if known is not None and len(known.inputs) == len(found):
        kinds = [each.kind for each in known.inputs]
        return moments.agreed(found, kinds, inputs or [f"x{j}" for j in range(len(found))]), ()
    return np.stack([values for values, _ in found], axis=1), tuple(kind for _, kind in found)


def _teller(known: Columns | None) -> moments.Tell:
    """What says that datetimes have no time zone."""
    return moments.taken_as_utc if known is None else moments.taken_as_utc_beside(known)


def _zone_in(X: Any) -> bool | None:
    """Whether a client's datetimes, of whatever form, have a time zone."""
    if is_table(X):
        import narwhals as nw

        frame = nw.from_native(X, eager_only=True)
        zones = [moments.has_zone(frame[name]) for name in frame.columns]
    else:
        array = np.asarray(X)
        rows = array if array.ndim > 1 else array[:, None]
        zones = [
            moments.has_zone(column if column.dtype.kind == "M" else column.tolist())
            for column in rows.T
        ]
    found = [each for each in zones if each is not None]
    return all(found) if found else None


def _same_kinds(names: Sequence[str], kinds: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    for name, own in zip(names, kinds, strict=True):
        if own != kinds[0]:
            raise InputError(
                f"inputs of client {name!r} are {' and '.join(own)}, those of the first client "
                f"{' and '.join(kinds[0])}: give all of them the same"
            )
    return kinds[0]


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


def _inputs_of_table(
    frame: nw.DataFrame[Any],
    client: str,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    cycle: str | None,
    known: Columns | None,
) -> tuple[Columns, np.ndarray]:
    """The columns with each input's kind, and X (n, d)."""
    wanted = (client, *inputs, *outputs, *((cycle,) if cycle else ()))
    refuse_missing(frame, wanted)
    if len(set(wanted)) != len(wanted):
        raise InputError(f"a column is used twice: {', '.join(wanted)}")
    if len(frame) == 0:
        raise InputError("the table has no rows")
    found = inputs_from(frame.to_native(), "the table", names=inputs, tell=_teller(known))
    if known is not None:
        kinds = [each.kind for each in known.inputs]
        own = tuple(map(InputColumn, inputs, kinds))
    else:
        own = tuple(
            InputColumn(name, kind, zone=_zone_of(frame, name, kind))
            for name, (_, kind) in zip(inputs, found, strict=True)
        )
    columns = Columns(client, own, outputs, cycle)
    return columns, table_inputs(found, columns)


def _zone_of(frame: nw.DataFrame[Any], name: str, kind: str) -> bool | None:
    return moments.has_zone(frame[name]) if kind == moments.DATETIME else None


def table_inputs(found: Sequence[Column], columns: Columns) -> np.ndarray:
    """X (n, d) of a table's columns, which must be of the model's kinds: a table of numbers is no clock."""
    for (_, kind), wanted in zip(found, columns.inputs, strict=True):
        if kind != wanted.kind == moments.DATETIME:
            raise InputError(
                f"column {wanted.name!r} was datetimes in the fit, and here it holds numbers: give datetimes"
            )
    return moments.agreed(found, [each.kind for each in columns.inputs], columns.input_names)


def _from_table(
    frame: nw.DataFrame[Any], columns: Columns, X: np.ndarray, whole_cycles: bool
) -> list[ClientRows]:
    client, cycle = str(columns.client), columns.cycle
    Y = outputs_of(frame, columns.outputs)
    owner = np.array(client_names(frame, client))
    clients = []
    for name in dict.fromkeys(owner.tolist()):
        mine = owner == name
        which = None if cycle is None else frame[cycle].to_numpy()[mine]
        clients.append(rows_of(name, X[mine], Y[mine], which, whole=whole_cycles))
    return clients


def client_names(frame: nw.DataFrame[Any], client: str) -> list[str]:
    """Each row's client, as text."""
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
    return [str(name) for name in given]


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


def outputs_of(frame: nw.DataFrame[Any], names: Sequence[str]) -> np.ndarray:
    """Y (n, Q) of a table; a missing cell is NaN."""
    import narwhals as nw

    columns = []
    for name in names:
        series = frame[name]
        if not series.dtype.is_numeric() and series.dtype != nw.Boolean:
            raise InputError(
                f"column {name!r} must be numbers, it holds {series.dtype}: turn it into numbers first, as "
                "pandas.to_numeric does"
            )
        values = series.cast(nw.Float64).to_numpy()
        columns.append(numeric(values, f"column {name!r}", missing=True)[:, 0])
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
