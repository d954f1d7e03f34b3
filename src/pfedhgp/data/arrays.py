"""Arrays that come from Python: as float64 in two dimensions, and inputs one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedhgp.data import moments
from pfedhgp.data.moments import Column, Tell
from pfedhgp.errors import InputError

if TYPE_CHECKING:
    import narwhals as nw


def inputs_from(
    values: Any, what: str, *, names: Sequence[str] | None = None, tell: Tell | None = None
) -> list[Column]:
    """The inputs of an array (n, d), a series, or a table (its columns `names`, or all), one by one."""
    if not isinstance(values, Mapping | np.ndarray | list | tuple):
        import narwhals as nw

        try:
            frame = nw.from_native(values, eager_only=True)
        except TypeError:
            pass
        else:
            wanted = list(frame.columns) if names is None else list(names)
            refuse_missing(frame, wanted)
            found = []
            for name in wanted:
                found.append(moments.column_of_series(frame[name], f"column {name!r}", tell=tell))
            return found
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(f"{what} must be a table of numbers: its rows differ in length") from None
    if array.dtype.kind in "MUST" or (
        array.dtype.kind == "O"
        and any(isinstance(v, date | str | np.datetime64) for v in array.ravel())
    ):
        array = array[:, None] if array.ndim == 1 else array
        if array.ndim != 2:
            raise InputError(f"{what} must have one or two dimensions, got {array.ndim}")
        return [moments.column_of_array(column, what, tell=tell) for column in array.T]
    return [(column, moments.NUMBER) for column in numeric(values, what, missing=False).T]


def refuse_missing(frame: nw.DataFrame[Any], wanted: Sequence[str]) -> None:
    """A table must have the columns that are asked for."""
    for name in wanted:
        if name not in frame.columns:
            there = ", ".join(str(each) for each in frame.columns)
            raise InputError(f"no column {name!r}; the table has {there}")


def numeric(values: Any, what: str, *, missing: bool) -> np.ndarray:
    """A 2-d float64 array; refuses text, infinities, and NaN unless `missing` cells are allowed."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(f"{what} must be a table of numbers: its rows differ in length") from None
    if array.dtype.kind in "US":
        raise InputError(f"{what} must be numbers, got text")
    if array.dtype.kind in "mMc":
        raise InputError(f"{what} must be real numbers, got values of type {array.dtype}")
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
