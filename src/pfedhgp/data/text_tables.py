"""CSV files as columns of text: encoding, delimiter and structure are checked before anything is parsed.

A file that is not what it seems (UTF-16, semicolons, a row with a field too many) is refused by one line
that names the file, the row and what to do. Nothing is guessed that could change a number.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from pfedhgp.data.table import Table
from pfedhgp.errors import InputError, warn

DELIMITERS = {",": "','", ";": "';'", "\t": "tab", "|": "'|'"}
LARGEST_FIELD = 1 << 30
TOP = 60
"""A header that is not the first line is looked for in so many lines."""


class RepeatedColumn(InputError):
    """An error that quotes a column that nobody asked for: a cell, if the file has no header."""

    def __init__(self, path: Path, column: str, times: int) -> None:
        super().__init__(f"{path}: column {column!r} is there {times} times: rename or remove one")
        self.column = column


BY_NAME = {"tab": "\t", "\\t": "\t", "space": " ", "comma": ",", "semicolon": ";", "pipe": "|"}


def delimiter_of(given: str | None) -> str | None:
    """One character, also by name."""
    if given is None:
        return None
    found = BY_NAME.get(given, given)
    if len(found) != 1 or found in '"\n\r' or not found.isascii():
        raise InputError(f"--delimiter must be one character, tab or space, got {given!r}")
    return found


def read_text(path: Path, data: bytes, *, delimiter: str, wanted: Iterable[str]) -> Table:
    """The table of a delimited text file; every cell is text, fields left empty are ""."""
    content = _decoded(path, data)
    header = _header(path, content, delimiter)
    _check_header(path, content, header, delimiter, list(wanted))
    names = _names(path, header)
    rows = _quoted_rows if '"' in content else _plain_rows
    return rows(path, content, delimiter, names)


def _decoded(path: Path, data: bytes) -> str:
    """Text of a UTF-8 file, with line feeds only; other encodings are refused by name."""
    if not data.strip():
        raise InputError(f"{path}: the file is empty")
    if (wide := with_zeros(data)) is not None:
        raise InputError(
            f"{path}: the encoding is {wide[:6]}, UTF-8 is needed: "
            f"{_by_command(path, f'iconv -f {wide} -t UTF-8')} converts it"
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
        shown, name = probable(data)
        raise InputError(
            f"{path}: line {line} is not UTF-8; the encoding is probably {shown}: "
            f"{_by_command(path, f'iconv -f {name} -t UTF-8')} converts it"
        ) from None
    return content.replace("\r\n", "\n").replace("\r", "\n")


def _header(path: Path, content: str, delimiter: str) -> list[str]:
    # The first line that is not blank; a quoted header with a line feed in it is read whole.
    reader = csv.reader(io.StringIO(content), delimiter=delimiter)
    try:
        return next(fields for fields in reader if any(field.strip() for field in fields))
    except StopIteration:
        raise InputError(f"{path}: the file has no header") from None


def _check_header(
    path: Path, content: str, header: list[str], delimiter: str, wanted: list[str]
) -> None:
    """If columns are missing, says where they probably are."""
    found = {name.strip() for name in header}
    if all(name in found for name in wanted):
        return
    _check_first_lines(path, content, delimiter, wanted)
    for other, shown in DELIMITERS.items():
        if other == delimiter:
            continue
        names = {name.strip() for name in _header(path, content, other)}
        if len(names) > 1 and (all(name in names for name in wanted) or len(found) == 1):
            raise InputError(
                f"{path}: columns are separated by {shown}, not by {DELIMITERS.get(delimiter, delimiter)}: "
                f"add --delimiter {'tab' if other == chr(9) else repr(other)}"
            )
    _check_spaces(path, content, wanted)


def _check_first_lines(path: Path, content: str, delimiter: str, wanted: list[str]) -> None:
    """Remarks above the header, or a header behind a #."""
    lines = content.split("\n", TOP + 1)[:TOP]
    first = next(i for i, line in enumerate(lines) if line.strip())
    rows = [{name.strip(' "\t') for name in line.lstrip("# ").split(delimiter)} for line in lines]
    place = next((i for i, names in enumerate(rows) if wanted and names.issuperset(wanted)), None)
    remarks = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    if place is not None and lines[place].startswith("#"):
        above = f"{place + 1}s/^#+ *//" + (f"; 1,{place}d" if place else "")
        command = _by_command(path, f"sed -E '{above}'")
        raise InputError(
            f"{path}: the header, line {place + 1}, begins with #: {command} takes that away"
        )
    if place is not None and place > first:
        what = "remarks" if remarks == place else "something else"
        count = "1 is" if place == 1 else f"1 to {place} are"
        raise InputError(
            f"{path}: line{'' if place == 1 else 's'} {count} {what}, the header is line {place + 1}: "
            f"{_by_command(path, f'tail -n +{place + 1}')} leaves out what is above it"
        )
    if lines[0].startswith("#") and not all(name.startswith("#") for name in wanted):
        raise InputError(
            f"{path}: the file begins with remarks (#), and line {remarks + 1} after them has no column "
            f"{_absent(rows, remarks, wanted)!r}: name columns that are there, and leave out the remarks "
            f"with {_by_command(path, f'tail -n +{remarks + 1}')}"
        )


def _by_command(path: Path, words: str) -> str:
    """A command line that writes a mended copy into the current folder."""
    name = shlex.quote(str(path))
    copy = shlex.quote(f"{path.name.split('.')[0] or 'table'}-mended.csv")
    if path.name.lower().endswith(".gz"):
        return f"`gunzip -c {name} | {words} > {copy}`"
    return f"`{words} {name} > {copy}`"


def _absent(rows: list[set[str]], place: int, wanted: list[str]) -> str:
    there = rows[place] if place < len(rows) else set()
    return next((name for name in wanted if name not in there), wanted[0])


def _check_spaces(path: Path, content: str, wanted: list[str]) -> None:
    """One space between columns is a delimiter; several, as in tables that are aligned, are not."""
    lines = [line for line in content.split("\n") if line.strip()]
    names = lines[0].split()
    if len(names) < 2 or not all(name in names for name in wanted):
        return
    if all(line.split(" ") == line.split() for line in lines):
        raise InputError(f"{path}: columns are separated by spaces: add --delimiter space")
    command = _by_command(path, "sed -E 's/^ +| +$//g; s/ +/,/g'")
    raise InputError(
        f"{path}: columns are separated by several spaces: {command} makes commas of them"
    )


def _names(path: Path, header: Sequence[str]) -> list[str]:
    names = [name.strip() for name in header]
    if names != list(header):
        warn(f"{path}: spaces around column names are ignored")
    for name in names:
        if name and names.count(name) > 1:
            raise RepeatedColumn(path, name, names.count(name))
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


# ----------------------------------------------------------------------------------- encodings
#
# Nothing is converted here: a guess at an encoding can change a client's name without anyone seeing it. The
# name that is found goes into the advice, and `iconv` converts the file or says that it cannot.

MARKS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
"""UTF-32's first: UTF-16's little-endian mark is the beginning of it."""
ZEROS = {
    "UTF-32LE": (0, 1, 1, 1),
    "UTF-32BE": (1, 1, 1, 0),
    "UTF-16LE": (0, 1, 0, 1),
    "UTF-16BE": (1, 0, 1, 0),
}
"""Which of four neighbouring bytes are zero in text that is mostly ASCII."""
_HIGH = re.compile(rb"[\x80-\xff]+")
_HANZI = re.compile(rb"(?:[\xa1-\xa9\xb0-\xf7][\xa1-\xfe])+")


def with_zeros(data: bytes) -> str | None:
    """iconv's name for UTF-16 or UTF-32 text, with the order of bytes if there is no mark; None for others.

    >>> with_zeros("a,b\\n1,2\\n".encode("utf-32-be")), with_zeros(b"a,b\\n")
    ('UTF-32BE', None)
    """
    for mark, name in MARKS.items():
        if data.startswith(mark):
            return name
    start = np.frombuffer(data[: min(len(data), 400) // 4 * 4], np.uint8).reshape(-1, 4)
    if len(start) < 2:
        return None
    zero = np.mean(start == 0, axis=0) > 0.8
    return next((name for name, where in ZEROS.items() if np.array_equal(zero, where)), None)


def probable(data: bytes) -> tuple[str, str]:
    """(for people, for iconv): GB18030 if all bytes beyond ASCII are pairs of its usual characters.

    In a file of Western Europe such bytes mostly stand alone, between ASCII letters.

    >>> probable("东四,1\\n".encode("gb18030"))[1], probable("Käse,1\\n".encode("latin-1"))[1]
    ('GB18030', 'WINDOWS-1252')
    """
    if all(_HANZI.fullmatch(run) for run in _HIGH.findall(data)):
        return "GB18030 (Chinese)", "GB18030"
    return "Latin-1 (Windows-1252)", "WINDOWS-1252"
