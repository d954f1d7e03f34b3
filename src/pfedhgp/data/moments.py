"""Inputs that come from Python, column by column: numbers, or datetimes as seconds since 1970-01-01 UTC.

The same numbers as of a file (`pfedhgp.data.cells`): a time zone is converted, and a datetime without one is
taken as UTC. So a model that was fitted to a table can be used with a file, and the other way round.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedhgp.base.checks import short
from pfedhgp.data.columns import Columns
from pfedhgp.data.time_zones import ZONE, without_zone
from pfedhgp.errors import InputError, warn_caller

if TYPE_CHECKING:
    import narwhals as nw

NUMBER, DATETIME = "number", "datetime"
Column = tuple[np.ndarray, str]
"""An input's values as float64, and its kind."""
Tell = Callable[[str], object]
"""Says that what it is given has no time zone."""


def taken_as_utc(what: str) -> None:
    """Warns of datetimes without a time zone."""
    warn_caller(without_zone(what, zone_in_fit=None))


def taken_as_utc_beside(columns: Columns) -> Tell:
    """The same beside a fitted model, firmly if its datetimes had a time zone.

    If they had none, the fit has said it, and later rows are like its own.
    """
    zones = {column.zone for column in columns.inputs if column.kind == DATETIME}
    if zones == {False}:
        return lambda _: None
    return lambda what: warn_caller(without_zone(what, zone_in_fit=True in zones))


def has_zone(values: Any) -> bool | None:
    """Whether datetimes have a time zone, by the first of them; None if they are no datetimes.

    >>> has_zone(["2024-03-01T14:00Z"]), has_zone([datetime(2024, 3, 1)]), has_zone([1.0])
    (True, False, None)
    """
    dtype = getattr(values, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind == "M":  # UTC, as arrays of datetime64 are
        return True
    if (zone := getattr(dtype, "time_zone", None)) is not None:
        return bool(zone)
    for each in values[:1] if isinstance(values, list) else values[:1].to_list():
        if isinstance(each, datetime):
            return each.tzinfo is not None
        if isinstance(each, str):
            return re.search(ZONE, each.strip()) is not None
        return None
    return None


def column_of_series(series: nw.Series[Any], what: str, *, tell: Tell | None) -> Column:
    """A column of a pandas or polars table; `tell` is told of a missing time zone."""
    import narwhals as nw

    dtype = series.dtype
    if dtype.is_numeric() or dtype == nw.Boolean:
        return finite(series.cast(nw.Float64).to_numpy(), what), NUMBER
    if dtype in (nw.Datetime, nw.Date):
        _refuse_gaps(series.is_null().to_numpy(), what)
        clock = series.cast(nw.Datetime("us")) if dtype == nw.Date else series
        if tell is not None and dtype == nw.Datetime and has_zone(series) is False:
            tell(what)
        return clock.dt.timestamp("us").to_numpy().astype(np.float64) / 1e6, DATETIME
    return column_of_objects(series.to_list(), what, tell=tell)


def column_of_array(values: np.ndarray, what: str, *, tell: Tell | None = None) -> Column:
    """A column of an array: numbers, datetime64 (UTC), or objects. Arrays of datetime64 have no time zone."""
    if values.dtype.kind == "M":
        _refuse_gaps(np.isnat(values), what)
        return values.astype("datetime64[us]").astype(np.int64).astype(np.float64) / 1e6, DATETIME
    if values.dtype.kind in "fiub":
        return finite(values, what), NUMBER
    if values.dtype.kind in "OUST":
        return column_of_objects(values.tolist(), what, tell=tell)
    raise InputError(f"{what} must be numbers or datetimes, got values of type {values.dtype}")


def column_of_objects(values: list[Any], what: str, *, tell: Tell | None) -> Column:
    """Python's datetimes and dates, texts of datetimes as a file has them, or anything that is a number."""
    if values and all(isinstance(each, str) for each in values):
        return _from_text(values, what, tell=tell), DATETIME
    if not any(isinstance(each, date | np.datetime64) for each in values):
        try:
            return finite(np.array(values, np.float64), what), NUMBER
        except (TypeError, ValueError):
            names = sorted({type(each).__name__ for each in values})[:3]
            raise InputError(
                f"{what} must be numbers or datetimes, got {' and '.join(names)}"
            ) from None
    _refuse_gaps([each is None or each != each for each in values], what)
    if not all(isinstance(each, date | np.datetime64) for each in values):
        raise InputError(f"{what} must be numbers or datetimes, all of one kind")
    zones = {getattr(each, "tzinfo", None) is not None for each in values}
    if len(zones) > 1:
        raise InputError(
            f"{what}: datetimes with and without a time zone are mixed: give all of them one"
        )
    if tell is not None and zones == {False} and any(isinstance(each, datetime) for each in values):
        tell(what)
    return np.array([position(each) for each in values]), DATETIME


def position(value: Any) -> float:
    """A number as it is, and a moment (a datetime, a date, datetime64 or ISO text) in seconds since 1970 UTC.

    >>> position("1970-01-02"), position(np.datetime64("1970-01-01T01")), position(2)
    (86400.0, 3600.0, 2.0)
    """
    if isinstance(value, np.datetime64):
        found = float(value.astype("datetime64[us]").astype(np.int64)) / 1e6
        return math.nan if np.isnat(value) else found
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp()
    return float(value)


def agreed(columns: Sequence[Column], kinds: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """X (n, d) of columns that must be of a model's kinds; numbers for a datetime are seconds already."""
    for (_, kind), wanted, name in zip(columns, kinds, names, strict=True):
        if kind == DATETIME and wanted != DATETIME:
            raise InputError(
                f"input {short(name)!r} was numbers in the fit, and here it is datetimes: give numbers"
            )
    return np.stack([values for values, _ in columns], axis=1)


def finite(values: Any, what: str) -> np.ndarray:
    """Float64; refuses NaN and infinities."""
    array = np.asarray(values).astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(array))
    if len(bad):
        word = "infinite" if np.isinf(array[bad[0]]) else "NaN"
        raise InputError(f"{what}: {word} value in row {bad[0]}; remove or mend that row")
    return array


def _from_text(values: list[str], what: str, *, tell: Tell | None) -> np.ndarray:
    """Text as the command line reads it."""
    import polars as pl

    from pfedhgp.data import cells
    from pfedhgp.data.columns import InputColumn
    from pfedhgp.data.table import Table

    table = Table(Path(what), pl.DataFrame({"it": values}))
    if cells.kind_of(table, "it") != DATETIME:
        raise InputError(f"{what} must be numbers or datetimes, got text")
    try:
        return cells.seconds(
            table, InputColumn("it", DATETIME), tell=partial(tell, what) if tell else int
        )
    except InputError as error:
        text = str(error).replace(", column 'it'", "")
        text = text.replace("or give --datetime-format", "or turn it into datetimes first")
        text = text.replace("give --datetime-format", "turn it into datetimes with the format")
        raise InputError(text) from None


def _refuse_gaps(absent: Any, what: str) -> None:
    bad = np.flatnonzero(np.asarray(absent, bool))
    if len(bad):
        raise InputError(f"{what}: missing in row {bad[0]}; fill it in or remove that row")
