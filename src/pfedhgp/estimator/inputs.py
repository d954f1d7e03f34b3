"""What is asked of a fitted model, as arrays: inputs to predict at, and a new client's rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pfedhgp.data import moments
from pfedhgp.data.arrays import dimensions, inputs_from, numeric
from pfedhgp.data.columns import Columns, InputColumn
from pfedhgp.data.cycle_files import as_cycles, on_outputs
from pfedhgp.data.missing_codes import Code, Usual, warn_of_codes
from pfedhgp.data.rows import LARGEST, ClientRows
from pfedhgp.data.tables import (
    CLIENT,
    clients_from,
    cycles_of,
    is_table,
    table_inputs,
    whole_cycles_of,
)
from pfedhgp.errors import ExtrapolationWarning, InputError, warn
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.prediction import far_outside


def columns_of(model: FittedModel) -> Columns:
    """The columns of the fit; an older model from Python has plain numbers and a `client` column."""
    stored = model.settings.get("columns")
    if stored is not None:
        return Columns.from_json(stored)
    return Columns(CLIENT, tuple(map(InputColumn, model.input_names)), model.output_names)


def kinds_of(model: FittedModel) -> tuple[str, ...]:
    """Each input's kind: number or datetime."""
    return tuple(column.kind for column in columns_of(model).inputs)


def client_column(model: FittedModel, data: Any, client: str | None) -> str | None:
    """The client column of a table: the one that is named, or that of the fit if the table has it."""
    if client is not None or not is_table(data):
        return client
    import narwhals as nw

    frame = nw.from_native(data, eager_only=True)
    known = columns_of(model).client or CLIENT
    return known if known in frame.columns else None


def clients_of(model: FittedModel, data: Any, client: str | None) -> list[ClientRows]:
    """Rows as `fit` takes them, of the model's columns."""
    column = client_column(model, data, client)
    table = column is not None
    if is_table(data) and not table:
        raise InputError(
            f"the table has no column {(columns_of(model).client or CLIENT)!r}, which named the clients in "
            "the fit: say which one does (`client`)"
        )
    found = clients_from(
        data,
        client=column,
        inputs=list(model.input_names) if table else None,
        outputs=list(model.output_names) if table else None,
        known=columns_of(model),
    ).clients
    for each in found:
        d, Q = each.X.shape[1], each.Y.shape[1]
        if (d, Q) != (model.inputs, model.outputs):
            raise InputError(
                f"client {each.name!r} has {d} inputs and {Q} outputs, the model {model.inputs} and "
                f"{model.outputs}"
            )
    return found


def rows_by_client(
    model: FittedModel, data: Any, client: str | None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """{client: (X, Y)}, from data as `fit` takes them."""
    return {each.name: (each.X, each.Y) for each in clients_of(model, data, client)}


def inputs_of(model: FittedModel, X: Any) -> np.ndarray:
    """X as an array (n, d): an array, or a table with the model's input columns; datetimes as seconds."""
    columns = columns_of(model)
    tell = moments.taken_as_utc_beside(columns)
    if is_table(X):
        array = table_inputs(inputs_from(X, "`X`", names=columns.input_names, tell=tell), columns)
    else:
        found = inputs_from(X, "`X`", tell=tell)
        if len(found) != model.inputs:
            raise InputError(f"`X` has {len(found)} columns, the model has {model.inputs} inputs")
        array = moments.agreed(found, kinds_of(model), columns.input_names)
    if array.size and np.abs(array).max() > LARGEST:
        raise InputError(f"`X` has inputs beyond {LARGEST:g}, which cannot be squared")
    return array


def cycles_on(
    model: FittedModel,
    cycles: Any,
    grid: Any,
    channels: Sequence[str] | None,
    *,
    names: Sequence[str] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The grid (n, d), and cycles (C, n, Q) of the model's outputs; missing ones are NaN.

    A cycle that has no value inside the training inputs is refused, by its name or its number.
    """
    X = inputs_of(model, grid)
    Y = on_outputs(as_cycles(cycles, len(X)), channels, model.output_names)
    seen = np.asarray(np.isfinite(Y).any(axis=1))  # (C, n)
    inside = ~far_outside(model.scaling.inputs(X))
    astray = np.flatnonzero(seen.any(axis=1) & ~(seen & inside).any(axis=1))
    if len(astray):
        c = int(astray[0])
        own, low, high = X[seen[c]], model.scaling.lower, model.scaling.upper
        which = str(c) if names is None else repr(names[c])
        raise InputError(
            f"cycle {which} overlaps no training input: its samples are at {own.min(axis=0)} to "
            f"{own.max(axis=0)}, the data were {low} to {high}"
        )
    return X, np.moveaxis(Y, 1, 2)


def rows_of(model: FittedModel, name: str, X: Any, y: Any) -> ClientRows:
    """A new client's rows; as cycles where the model has a cycle layer, or where they come as cycles."""
    rows = _read(name, inputs_of(model, X), y, layered=model.cycle_layer is not None)
    if len(rows.X) != len(rows.Y):
        raise InputError(
            f"client {name!r}: {len(rows.X)} rows of inputs but {len(rows.Y)} of outputs"
        )
    outputs = rows.Y.shape[1]
    if outputs != model.outputs:
        raise InputError(f"client {name!r}: {outputs} outputs, the model has {model.outputs}")
    if not np.isfinite(rows.Y).any():
        raise InputError(
            f"client {name!r} has no observed output: use predict, it gets the population's"
        )
    return rows


def _read(name: str, X: np.ndarray, y: Any, *, layered: bool) -> ClientRows:
    if dimensions(y) == 3:
        return cycles_of(name, X, y, whole=layered)
    Y = numeric(y, f"client {name!r}: outputs", missing=True)
    if layered and len(X) == len(Y):
        return whole_cycles_of(name, X, Y[None])
    return ClientRows(name, X, Y)


def warn_of_codes_beside(model: FittedModel, rows: Sequence[ClientRows]) -> list[Code]:
    """Warns of later rows that look like codes for missing, beside the range of the fit's data."""
    scaling, Q = model.scaling, model.outputs
    ends = [scaling.centre + sign * 3.0 * scaling.spread for sign in (-1.0, 1.0)]
    usual = Usual(
        inputs=np.stack([scaling.lower, scaling.upper]),
        outputs=np.stack([np.broadcast_to(end, (Q,)) for end in ends]),
    )
    return warn_of_codes(rows, columns_of(model), usual=usual)


def far_words(model: FittedModel, X: np.ndarray, then: str) -> str | None:
    """How many rows are far outside the data, and what follows; None if none is."""
    far = far_outside(model.scaling.inputs(X))
    if not far.any():
        return None
    return f"{int(far.sum())} of {len(far)} rows are far outside the data: {then}"


def warn_of_far(model: FittedModel, X: np.ndarray, then: str, *, stacklevel: int = 3) -> None:
    """Says it in a warning."""
    if (text := far_words(model, X, then)) is not None:
        warn(text, ExtrapolationWarning, stacklevel=stacklevel)
