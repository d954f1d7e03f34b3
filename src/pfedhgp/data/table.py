"""A table that was read from one file, which knows where its rows were."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from pfedhgp.base.checks import listed
from pfedhgp.errors import InputError


@dataclass(frozen=True)
class Table:
    """One file's columns. `line_of` has each row's line in a text file; None if there are no lines."""

    path: Path
    frame: pl.DataFrame
    line_of: np.ndarray | None = None
    sha256: str = ""
    """Hash of the file as it was read."""
    rows_before: int = 0
    """How many rows of the file come before these."""

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

    def refuse_where(self, wrong: npt.ArrayLike, column: str, problem: str) -> None:
        """Refuses the first row that is `wrong`: names the file, the row and the column, never the value."""
        for row in np.flatnonzero(wrong)[:1]:
            line = "" if self.line_of is None else f" (line {self.line_of[row]})"
            raise InputError(
                f"{self.path}: row {self.rows_before + row + 1}{line}, column {column!r}: {problem}"
            )
