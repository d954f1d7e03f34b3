"""Columns of a table as float64: numbers, and datetimes as seconds since 1970-01-01 UTC.

A cell that cannot be read is refused with its file, row and column, never with its value. A missing output
stays NaN; a missing input is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import polars as pl

from pfedhgp.base.checks import short
from pfedhgp.data.columns import InputColumn
from pfedhgp.data.table import Table
from pfedhgp.data.time_zones import ZONE, without_zone
from pfedhgp.errors import InputError, warn

MISSING = ("", "na", "n/a", "nan", "null", "none", "-nan", "#n/a")
"""Text that means "not observed", in any case."""
ISO = (
    r"^\d{4}-\d{1,2}-\d{1,2}"
    r"([T ]\d{1,2}:\d{2}(:\d{2}([.,]\d{1,9})?)?( ?(Z|z|UTC|[+-]\d{2}(:?\d{2})?))?)?$"
)
DAY_AND_MONTH = r"^\d{1,2}([/.\-])\d{1,2}[/.\-]\d{2,4}"
YEAR_OF_TWO = r"^\d{1,2}[/.\-]\d{1,2}[/.\-]\d{2}(?:\D|$)"
TIMES = {
    "": r"^$",
    " %H:%M": r"^ \d{1,2}:\d{2}$",
    " %H:%M:%S": r"^ \d{1,2}:\d{2}:\d{2}$",
    "T%H:%M": r"^T\d{1,2}:\d{2}$",
    "T%H:%M:%S": r"^T\d{1,2}:\d{2}:\d{2}$",
}
"""The rest of a format, by what follows the day."""
EITHER = r"^[+-]?\d{1,3},\d{3}$"
THOUSANDS = r"^[+-]?\d{1,3}([,' \x{a0}\x{202f}]\d{3})+(\.\d*)?$"
DECIMAL_COMMA = r"^[+-]?[\d. ]*,\d+([eE][+-]?\d+)?$"


def client_names(table: Table, column: str) -> list[str]:
    """Names as text, whatever they look like; "NA", "007" and "1e5" are names."""
    series = table.column(column)
    if series.dtype == pl.String:
        series = series.str.strip_chars(" \t")
    elif series.dtype.is_float():
        raise InputError(
            f"{table.path}: column {column!r} names the clients but holds {series.dtype}: "
            "write names as text or whole numbers"
        )
    names = series.cast(pl.String).fill_null("").to_list()
    absent = [not name for name in names]
    table.refuse_where(absent, column, "the client's name is missing: fill it in")
    return names


def numbers(table: Table, column: str, *, missing: bool) -> np.ndarray:
    """The column as float64; missing cells are NaN if they are allowed."""
    series = table.column(column)
    if series.dtype == pl.String:
        values = _parsed(table, column, series.str.strip_chars(), is_output=missing)
    elif series.dtype.is_numeric() or series.dtype in (pl.Boolean, pl.Null):
        values = series.cast(pl.Float64).fill_null(float("nan")).to_numpy().astype(np.float64)
    else:
        raise InputError(
            f"{table.path}: column {column!r} must be numbers, it holds {series.dtype}"
        )
    problem = "infinite, or beyond the largest number (1.8e308): remove or mend that row"
    table.refuse_where(np.isinf(values), column, problem)
    if not missing:
        problem = "an input is missing (NaN or empty): fill it in or remove the row"
        table.refuse_where(np.isnan(values), column, problem)
    return values


def _parsed(table: Table, column: str, text: pl.Series, *, is_output: bool) -> np.ndarray:
    absent = text.str.to_lowercase().is_in(list(MISSING)) | text.is_null()
    if is_output:  # true and false are 1 and 0, as in files that have a type for them
        text = text.str.replace("(?i)^true$", "1").str.replace("(?i)^false$", "0")
    values = text.cast(pl.Float64, strict=False)
    wrong = (values.is_null() & ~absent).to_numpy()
    if wrong.any():
        table.refuse_where(wrong, column, _problem(text.filter(pl.Series(wrong)), is_output))
    return np.where(absent.to_numpy(), np.nan, values.fill_null(float("nan")).to_numpy())


def _problem(wrong: pl.Series, is_output: bool) -> str:
    """What is wrong with text that should be numbers."""
    if wrong.str.contains(EITHER).all():
        return (
            "a number with a comma: write 1234 where it is a thousands separator, 1.234 where it is a "
            "decimal comma"
        )
    if wrong.str.contains(THOUSANDS).all():
        return "a number with thousands separators: write 1234.5, not 1,234.5"
    if wrong.str.contains(DECIMAL_COMMA).all():
        return "a decimal comma: write 1.5, not 1,5"
    if is_output:
        return (
            "text instead of a number: mend it, or leave the cell empty, which means not observed"
        )
    return (
        "text instead of a number: an input must be a number in every row, or a datetime such as "
        "2024-03-01T14:00:00Z in every row; mend or remove that row"
    )


# ---------------------------------------------------------------------------------------- datetimes


def kind_of(table: Table, column: str, datetime_format: str | None = None) -> str:
    """Whether an input is a number or a datetime, by its type or by its first cell that is not empty."""
    series = table.column(column)
    if series.dtype in (pl.Date, pl.Datetime):
        return "datetime"
    if series.dtype != pl.String:
        return "number"
    text = series.str.strip_chars()
    filled = text.filter(~text.str.to_lowercase().is_in(list(MISSING)))
    first = filled[:1]
    if datetime_format is not None and _by_format(first, datetime_format).is_not_null().any():
        return "datetime"
    if not len(filled) or filled.cast(pl.Float64, strict=False)[0] is not None:
        return "number"
    return "datetime" if re.match(r"^.*\d+[-/.:]\d+[-/.:T ]\d+", filled[0]) else "number"


def has_zone(table: Table, column: InputColumn) -> bool | None:
    """Whether a datetime column has a time zone; None if it has no rows."""
    series = table.column(column.name)
    if not len(series):
        return None
    if series.dtype != pl.String:
        return getattr(series.dtype, "time_zone", None) is not None
    if column.format is not None:
        return "%z" in column.format or "%Z" in column.format or "%#z" in column.format
    return bool(series.str.strip_chars().str.contains(ZONE).any())


def seconds(
    table: Table, column: InputColumn, tell: Callable[[], object] | None = None
) -> np.ndarray:
    """A datetime column as seconds since 1970-01-01 UTC; without a time zone it is taken as UTC.

    `tell` says so in other words.
    """
    series = table.column(column.name)
    if series.dtype == pl.String:
        text = series.str.strip_chars()
        _refuse_gaps(table, column.name, text.str.to_lowercase().is_in(list(MISSING)))
        if column.format is not None:
            stamps = _with_format(table, column.name, text, column.format)
        else:
            stamps = _iso(table, column.name, text)
    elif series.dtype in (pl.Date, pl.Datetime):
        _refuse_gaps(table, column.name, series.is_null())
        stamps = series
    else:
        raise InputError(
            f"{table.path}: column {column.name!r} must be datetimes, it holds {series.dtype}"
        )
    if has_zone(table, column) is False and stamps.dtype != pl.Date:
        if tell is None:
            warn(without_zone(f"column {short(column.name)!r}", zone_in_fit=column.zone))
        else:
            tell()
    if stamps.dtype == pl.Datetime and getattr(stamps.dtype, "time_zone", None) is not None:
        stamps = stamps.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    micro = stamps.cast(pl.Datetime("us")).cast(pl.Int64).to_numpy()
    return micro.astype(np.float64) / 1e6


def input_values(table: Table, column: InputColumn) -> np.ndarray:
    """One input as the model has it."""
    if column.kind == "datetime":
        return seconds(table, column)
    return numbers(table, column.name, missing=False)


def _refuse_gaps(table: Table, column: str, absent: pl.Series) -> None:
    problem = "an input is missing: fill it in or remove the row"
    table.refuse_where(absent.fill_null(True), column, problem)


def _with_format(table: Table, column: str, text: pl.Series, given: str) -> pl.Series:
    stamps = _by_format(text, given)
    table.refuse_where(stamps.is_null(), column, f"no datetime of the format {given!r}")
    problem = "a year before 100: years of two digits are %y in the format"
    table.refuse_where(stamps.dt.year() < 100, column, problem)
    return stamps


def _by_format(text: pl.Series, given: str) -> pl.Series:
    """Null if a cell has another format."""
    try:
        return text.str.to_datetime(given, strict=False, time_unit="us")
    except pl.exceptions.PolarsError:
        raise InputError(f"--datetime-format {given!r} is not a format of strptime") from None


def _iso(table: Table, column: str, text: pl.Series) -> pl.Series:
    """ISO 8601, with a space or a T, with or without seconds, a time and a zone."""
    wrong = ~text.str.contains(ISO).to_numpy()
    if wrong.any():
        table.refuse_where(wrong, column, _date_problem(text.filter(pl.Series(wrong))))
    zone = text.str.extract(ZONE, 1)
    aware = zone.is_not_null().to_numpy()
    problem = "datetimes with and without a time zone are mixed: give all of them one"
    table.refuse_where(aware != aware[:1], column, problem)
    clock = text.str.replace(" ?(Z|z|UTC)$", "").str.replace(
        r"([T ].*?) ?[+-]\d{2}(:?\d{2})?$", "$1"
    )
    clock = clock.str.replace("[T ]", "T").str.replace(",", ".", literal=True)
    clock = clock.str.replace(r"^([^T]*)$", "${1}T00:00").str.replace(
        r"(T\d{1,2}:\d{2})$", "${1}:00"
    )
    local = clock.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", strict=False, time_unit="us")
    table.refuse_where(local.is_null(), column, "no such date or time of day")
    if not aware.any():
        return local
    sign = zone.str.starts_with("-").cast(pl.Int64) * -2 + 1
    hours = zone.str.extract(r"^[+-](\d{2})", 1).cast(pl.Int64).fill_null(0)
    minutes = zone.str.extract(r"^[+-]\d{2}:?(\d{2})$", 1).cast(pl.Int64).fill_null(0)
    offset = sign * (hours * 60 + minutes)
    beyond = (minutes > 59) | (offset < -12 * 60) | (offset > 14 * 60)
    problem = "no such time zone: it must be Z or from -12:00 to +14:00, such as +01:00"
    table.refuse_where(beyond, column, problem)
    return local - (offset * 60_000_000).cast(pl.Duration("us"))


def _date_problem(wrong: pl.Series) -> str:
    if not wrong.str.contains(DAY_AND_MONTH).all():
        return (
            "not a datetime that is understood: write 2024-03-01 or 2024-03-01T14:00:00Z, "
            "or give --datetime-format"
        )
    separator = wrong.str.extract(DAY_AND_MONTH, 1)[0]
    first, second = (
        wrong.str.extract(pattern, 1).cast(pl.Int64).to_numpy().max()
        for pattern in (r"^(\d{1,2})", r"^\d{1,2}[/.\-](\d{1,2})")
    )
    year = "%y" if wrong.str.contains(YEAR_OF_TWO).all() else "%Y"
    rest = wrong.str.replace(DAY_AND_MONTH, "")
    time = next((form for form, pattern in TIMES.items() if rest.str.contains(pattern).all()), "")
    day_first, month_first = (
        separator.join(parts) + time for parts in (("%d", "%m", year), ("%m", "%d", year))
    )
    likely = [day_first] if first > 12 >= second else [month_first] if second > 12 >= first else []
    choice = likely or [day_first, month_first]
    return (
        "day and month cannot be told apart for certain: give --datetime-format "
        f"{' or '.join(repr(each) for each in choice)}"
    )
