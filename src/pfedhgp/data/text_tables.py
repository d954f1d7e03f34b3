"""CSV files as columns of text: encoding, delimiter and structure are checked before anything is parsed.

A file that is not what it seems (UTF-16, semicolons, a row with a field too many) is refused by one line
that names the file, the row and what to do. Nothing is guessed that could change a number.
"""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from pfedhgp.data.table import Table, listed
from pfedhgp.errors import InputError, PFedHGPWarning

DELIMITERS = {",": "','", ";": "';'", "\t": "tab", "|": "'|'"}
LARGEST_FIELD = 1 << 30


class RepeatedColumn(InputError):
    """The one refusal that quotes a header, which is a row where there is no header."""


def read_text(path: Path, data: bytes, *, delimiter: str, wanted: Iterable[str]) -> Table:
    """The table of a delimited text file; every cell is text, fields left empty are ""."""
    content = _decoded(path, data)
    header = _header(path, content, delimiter)
    _check_delimiter(path, content, header, delimiter, list(wanted))
    names = _names(path, header)
    rows = _quoted_rows if '"' in content else _plain_rows
    return rows(path, content, delimiter, names)


def _decoded(path: Path, data: bytes) -> str:
    """Text of a UTF-8 file, with line feeds only; other encodings are refused by name."""
    if not data.strip():
        raise InputError(f"{path}: the file is empty")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or _looks_utf16(data):
        raise InputError(
            f"{path}: the encoding is UTF-16, UTF-8 is needed: "
            "`iconv -f UTF-16 -t UTF-8` converts it"
        )
    if b"\0" in data:
        line = data.count(b"\n", 0, data.index(b"\0")) + 1
        raise InputError(
            f"{path}: a NUL byte in line {line}: the file is damaged, or not a text file"
        )
    try:
        content = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}: line {line} is not UTF-8; the encoding is probably Latin-1 (Windows-1252): "
            "`iconv -f WINDOWS-1252 -t UTF-8` converts it"
        ) from None
    return content.replace("\r\n", "\n").replace("\r", "\n")


def _looks_utf16(data: bytes) -> bool:
    """Without a mark: every other byte of what should be ASCII is NUL."""
    start = np.frombuffer(data[:400], np.uint8)
    halves = (start[0::2], start[1::2])
    return len(start) >= 8 and any(np.mean(half == 0) > 0.8 for half in halves if len(half))


def _header(path: Path, content: str, delimiter: str) -> list[str]:
    # The first line that is not blank; a quoted header with a line feed in it is read whole.
    reader = csv.reader(io.StringIO(content), delimiter=delimiter)
    try:
        return next(fields for fields in reader if any(field.strip() for field in fields))
    except StopIteration:
        raise InputError(f"{path}: the file has no header") from None


def _check_delimiter(
    path: Path, content: str, header: list[str], delimiter: str, wanted: list[str]
) -> None:
    """Where columns are missing, says which delimiter would have found them."""
    found = {name.strip() for name in header}
    if all(name in found for name in wanted):
        return
    for other, shown in DELIMITERS.items():
        if other == delimiter:
            continue
        names = {name.strip() for name in _header(path, content, other)}
        if len(names) > 1 and (all(name in names for name in wanted) or len(found) == 1):
            raise InputError(
                f"{path}: columns are separated by {shown}, not by {DELIMITERS.get(delimiter, delimiter)}: "
                f"add --delimiter {'tab' if other == chr(9) else repr(other)}"
            )


def _names(path: Path, header: Sequence[str]) -> list[str]:
    names = [name.strip() for name in header]
    if names != list(header):
        warnings.warn(
            f"{path}: spaces around column names are ignored", PFedHGPWarning, stacklevel=2
        )
    for name in names:
        if name and names.count(name) > 1:
            raise RepeatedColumn(
                f"{path}: column {name!r} is there {names.count(name)} times; "
                f"the header has {listed(names)}: rename or remove one"
            )
    # Columns without a name cannot be asked for; polars needs them to be different.
    return [name or f"\0unnamed {i}" for i, name in enumerate(names)]


def _plain_rows(path: Path, content: str, delimiter: str, names: list[str]) -> Table:
    """Without quotes a line is a row, and counting delimiters checks all of them at once."""
    lines = content.split("\n")
    numbers = [i for i, line in enumerate(lines) if line.strip()]
    kept = [lines[i] for i in numbers[1:]]
    line_of = np.asarray(numbers[1:], np.int64) + 1
    fields = np.fromiter((line.count(delimiter) for line in kept), np.int64, len(kept)) + 1
    _check_fields(path, fields, line_of, kept, delimiter, len(names))
    return Table(path, _frame("\n".join(kept), delimiter, names), line_of)


def _frame(body: str, delimiter: str, names: list[str]) -> pl.DataFrame:
    if not body:
        return pl.DataFrame({name: pl.Series([], dtype=pl.String) for name in names})
    frame = pl.read_csv(
        io.BytesIO(body.encode("utf-8")),
        separator=delimiter,
        has_header=False,
        infer_schema=False,
        quote_char=None,
        new_columns=names,
    )
    return frame.with_columns(pl.all().fill_null(""))


def _quoted_rows(path: Path, content: str, delimiter: str, names: list[str]) -> Table:
    """With quotes a field may hold delimiters and line feeds: read by the standard library, strictly."""
    csv.field_size_limit(LARGEST_FIELD)
    reader = csv.reader(io.StringIO(content), delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    starts: list[int] = []
    begin = 1
    try:
        for fields in reader:
            if any(field.strip() for field in fields):
                rows.append(fields)
                starts.append(begin)
            begin = reader.line_num + 1
    except csv.Error as error:
        if "unexpected end of data" in str(error):
            raise InputError(
                f"{path}: the quote that opens in line {begin} is never closed: "
                'add the missing " or remove the one that is there'
            ) from None
        raise InputError(
            f"{path}: line {begin} has a quote inside a field: double it, or quote the whole field"
        ) from None
    line_of = np.asarray(starts[1:], np.int64)
    count = np.asarray([len(fields) for fields in rows[1:]], np.int64)
    _check_fields(path, count, line_of, None, delimiter, len(names))
    columns = list(zip(*rows[1:], strict=True)) or [()] * len(names)
    data = {
        name: pl.Series(column, dtype=pl.String)
        for name, column in zip(names, columns, strict=True)
    }
    return Table(path, pl.DataFrame(data), line_of)


def _check_fields(
    path: Path,
    fields: np.ndarray,
    line_of: np.ndarray,
    lines: list[str] | None,
    delimiter: str,
    expected: int,
) -> None:
    wrong = np.flatnonzero(fields != expected)
    if not len(wrong):
        return
    row = int(wrong[0])
    hint = "mend or remove that row"
    if delimiter == "," and lines is not None and fields[row] > expected:
        hint += ", or write numbers with decimal points if it has decimal commas"
    raise InputError(
        f"{path}: row {row + 1} (line {line_of[row]}) has {fields[row]} fields, "
        f"the header has {expected}: {hint}"
    )
