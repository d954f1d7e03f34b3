"""A file that grows: its new whole lines, again and again, until the caller stops or the file ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pfedhgp.errors import InputError


@dataclass(frozen=True)
class Batch:
    """Whole lines that have come, and where in the file they are."""

    header: bytes
    lines: tuple[bytes, ...]
    first_line: int
    """The number of the first of them, from 1"""
    rows_before: int
    """How many rows come before them: lines that are not blank"""

    @property
    def content(self) -> bytes:
        """Header and lines as a file, in which each has its number in the whole file."""
        return self.header + b"\n" * (self.first_line - 2) + b"".join(self.lines)

    def parts(self) -> Iterator[Batch]:
        """Each line that is not blank by itself."""
        rows = self.rows_before
        for i, line in enumerate(self.lines):
            if line.strip():
                yield Batch(self.header, (line,), self.first_line + i, rows)
                rows += 1

    def without(self, numbers: set[int]) -> Batch:
        """The lines of these numbers are blank."""
        lines = enumerate(self.lines, self.first_line)
        return replace(self, lines=tuple(b"\n" if n in numbers else line for n, line in lines))


def batches(path: Path, *, once: bool, every: float = 2.0) -> Iterator[Batch]:
    """All lines so far, then the lines that have come since, each time with the header.

    A line counts when its end has been written. A file that becomes shorter was replaced: it is read from
    its beginning again.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    header, done, line, rows = b"", 0, 1, 0
    while True:
        with open(path, "rb") as file:
            if path.stat().st_size < done:
                header, done, line, rows = b"", 0, 1, 0
            file.seek(done)
            content = file.read()
        whole = content if once else content[: content.rfind(b"\n") + 1]
        done += len(whole)
        lines = whole.splitlines(keepends=True)
        if lines and not header:
            header, lines, line = lines[0].rstrip(b"\r\n") + b"\n", lines[1:], 2
        found = Batch(header, tuple(lines), line, rows)
        line, rows = line + len(lines), rows + sum(bool(each.strip()) for each in lines)
        if rows > found.rows_before:
            yield found
        if once:
            return
        time.sleep(every)
