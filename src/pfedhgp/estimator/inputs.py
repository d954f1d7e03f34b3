"""What is asked of a fitted model, as arrays: inputs to predict at, and a new client's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pfedhgp.data.cycle_files import as_cycles, on_outputs
from pfedhgp.data.rows import LARGEST, ClientRows
from pfedhgp.data.tables import clients_from, cycles_of, dimensions, numeric, whole_cycles_of
from pfedhgp.errors import ExtrapolationWarning, InputError, warn
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.prediction import far_outside


def rows_by_client(
    model: FittedModel, data: Any, client: str | None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """{client: (X, Y)}, from data as `fit` takes them."""
    found = clients_from(
        data,
        client=client,
        inputs=None if client is None else list(model.input_names),
        outputs=None if client is None else list(model.output_names),
    )
    return {each.name: (each.X, each.Y) for each in found.clients}


def inputs_of(model: FittedModel, X: Any) -> np.ndarray:
    """X as an array (n, d): an array, or a table with the model's input columns."""
    if not isinstance(X, Mapping | np.ndarray | list | tuple):
        import narwhals as nw

        try:
            frame = nw.from_native(X, eager_only=True)
        except TypeError:
            pass
        else:
            missing = [name for name in model.input_names if name not in frame.columns]
            if missing:
                there = ", ".join(str(each) for each in frame.columns)
                raise InputError(f"no column {missing[0]!r}; the table has {there}")
            X = np.stack([frame[name].to_numpy() for name in model.input_names], axis=1)
    array = numeric(X, "`X`", missing=False)
    if array.size and np.abs(array).max() > LARGEST:
        raise InputError(f"`X` has inputs beyond {LARGEST:g}, which cannot be squared")
    if array.shape[1] != model.inputs:
        raise InputError(f"`X` has {array.shape[1]} columns, the model has {model.inputs} inputs")
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


def warn_of_far(model: FittedModel, X: np.ndarray, then: str, *, stacklevel: int = 3) -> None:
    """Says how many rows are far outside the data, and what follows."""
    far = far_outside(model.scaling.inputs(X))
    if far.any():
        text = f"{int(far.sum())} of {len(far)} rows are far outside the data: {then}"
        warn(text, ExtrapolationWarning, stacklevel=stacklevel)
