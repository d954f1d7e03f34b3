"""What the functions of `pfedhgp.plot` are given, checked: names of clients, inputs and outputs, and rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pfedhgp.base import checks
from pfedhgp.data.arrays import numeric
from pfedhgp.data.rows import ClientRows
from pfedhgp.data.tables import client_names
from pfedhgp.errors import InputError
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.words import InputAxis, axes_of

if TYPE_CHECKING:
    from pfedhgp.estimator import FederatedGP

Result = TypeVar("Result")


def fitted(model: FederatedGP) -> FittedModel:
    """The model inside a fitted `FederatedGP`."""
    if not hasattr(model, "get_params"):
        raise InputError(f"a fitted FederatedGP is wanted, got {type(model).__name__}")
    model.clients_  # noqa: B018 (raises NotFittedError before `fit`)
    return model.model_


def result_of(value: Any, kind: type[Result], name: str, maker: str) -> Result:
    """What a method of the model returned; else an error says what is wanted, and where it comes from."""
    if not isinstance(value, kind):
        got = type(value).__name__
        raise InputError(f"`{name}` must be the {kind.__name__} that {maker} returns, got {got}")
    return value


def client_of(model: FittedModel, client: str) -> str:
    """A client of the model."""
    name = checks.client_name(client, model.clients)
    if name not in model.clients:
        known = ", ".join(list(model.clients)[:8])
        raise InputError(f"no client {name!r} in the model; it has {known}")
    return name


def place_of(wanted: str | int | None, names: Sequence[str], what: str) -> int:
    """Which of `names` is meant, by name or number; the first by default."""
    if wanted is None:
        return 0
    if isinstance(wanted, str) and wanted in names:
        return list(names).index(wanted)
    if isinstance(wanted, int) and not isinstance(wanted, bool) and 0 <= wanted < len(names):
        return wanted
    raise InputError(f"no {what} {wanted!r}; there are {', '.join(names)}")


def moment(value: Any, axis: InputAxis, name: str) -> float:
    """A place along an input as the model's number: dates may come as datetimes or as text."""
    if axis.is_date and not isinstance(value, int | float):
        try:
            return float(np.datetime64(value, "us").astype(np.int64)) / 1e6
        except (TypeError, ValueError):
            raise InputError(f"`{name}`: {value!r} is no date") from None
    found: float = checks.number()(value, name)
    return found


def client_column(model: FittedModel) -> str | None:
    """The column that named the clients in the fit, if they came in a table."""
    found: str | None = (model.settings.get("columns") or {}).get("client")
    return found


def rows_of(
    rows: Any,
    client: str,
    axes: Sequence[InputAxis],
    outputs: Sequence[str],
    column: str | None = None,
) -> ClientRows | None:
    """A client's rows, from (X, y), from {client: (X, y)}, or from a table with the model's columns.

    If the table has the `column` that names clients, only this client's rows of it count.
    """
    if rows is None:
        return None
    if isinstance(rows, Mapping):
        rows = rows.get(client)
        if rows is None:
            return None
    if isinstance(rows, tuple | list):
        if len(rows) != 2:
            raise InputError("`rows` must be (X, y), or a table with the model's columns")
        X, Y = (_numbers(part) for part in rows)
    else:
        X, Y = _of_table(rows, client, axes, outputs, column)
    if X.shape != (len(Y), len(axes)) or Y.shape[1] != len(outputs):
        raise InputError(
            f"`rows` have {X.shape[1]} inputs and {Y.shape[1]} outputs, the model {len(axes)} and "
            f"{len(outputs)}"
        )
    order = np.argsort(X[:, 0], kind="stable")
    return ClientRows(client, X[order], Y[order])


def _numbers(values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind == "M":
        array = array.astype("datetime64[us]").astype(np.int64) / 1e6
    return numeric(array, "`rows`", missing=True)


def _of_table(
    table: Any,
    client: str,
    axes: Sequence[InputAxis],
    outputs: Sequence[str],
    column: str | None,
) -> tuple[np.ndarray, np.ndarray]:
    import narwhals as nw

    try:
        frame = nw.from_native(table, eager_only=True)
    except TypeError:
        raise InputError("`rows` must be (X, y), or a table with the model's columns") from None
    inputs = [axis.name for axis in axes]
    missing = [name for name in (*inputs, *outputs) if name not in frame.columns]
    if missing:
        there = ", ".join(map(str, frame.columns))
        raise InputError(f"no column {missing[0]!r}; the table has {there}")
    if column is not None and column in frame.columns:
        frame = frame.filter([name == client for name in client_names(frame, column)])
        if not len(frame):
            raise InputError(f"`rows`: the table has no row of client {client!r}")
    X, Y = (
        np.stack([_column(frame[name]) for name in names], axis=1) for names in (inputs, outputs)
    )
    return numeric(X, "`rows`", missing=False), numeric(Y, "`rows`", missing=True)


def _column(series: Any) -> np.ndarray:
    """Numbers; of datetimes, seconds since 1970 (UTC)."""
    import narwhals as nw

    if isinstance(series.dtype, nw.Datetime):
        return np.asarray(series.dt.timestamp("us").to_numpy()) / 1e6
    return np.asarray(series.to_numpy())


def between(rows: ClientRows, j: int, low: float, high: float) -> ClientRows:
    """The rows whose input j lies from `low` to `high`, both included."""
    kept = (low <= rows.X[:, j]) & (high >= rows.X[:, j])
    return ClientRows(rows.name, rows.X[kept], rows.Y[kept])


def axes_along(model: FittedModel, along: str | int | None) -> tuple[int, InputAxis]:
    """The input that a figure runs along."""
    j = place_of(along, model.input_names, "input")
    return j, axes_of(model)[j]
