"""A table that was read from one file, which knows where its rows were."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from pfedhgp.errors import InputError


@dataclass(frozen=True)
class Table:
    """One file's columns. `line_of` has each row's line in a text file; None if there are no lines."""

    path: Path
    frame: pl.DataFrame
    line_of: np.ndarray | None = None
    sha256: str = ""
    """Of the file, as it was read."""

    def __len__(self) -> int:
        return self.frame.height

    @property
    def names(self) -> list[str]:
        return [name for name in self.frame.columns if not name.startswith("\0")]

    def column(self, name: str) -> pl.Series:
        """The column, or an error that lists what there is."""
        if name in self.frame.columns:
            return self.frame[name]
        near = difflib.get_close_matches(name, self.names, n=1)
        guess = f" (did you mean {near[0]!r}?)" if near else ""
        raise InputError(
            f"{self.path}: no column {name!r}{guess}; the file has {listed(self.names)}"
        )

    def refuse(self, row: int, column: str, problem: str) -> InputError:
        """An error that names the file, the row and the column; never the value."""
        line = "" if self.line_of is None else f" (line {self.line_of[row]})"
        return InputError(f"{self.path}: row {row + 1}{line}, column {column!r}: {problem}")


def listed(names: Iterable[str], most: int = 20) -> str:
    """Names in a line, the first ones of many."""
    shown = [repr(name) if name != name.strip() or not name else name for name in names]
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(short(name) for name in shown[:most]) + more


def short(name: str, most: int = 60) -> str:
    """A name as it is put into a message: one line, and not 300 characters of it."""
    flat = name if name.isprintable() else repr(name)
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"
