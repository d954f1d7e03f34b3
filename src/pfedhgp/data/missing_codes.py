"""Values that look like codes for missing: -999, 9999, or an extreme that repeats far from the rest.

A code of `CODES` looks like one if
    it lies beyond the range of all other values by more than that range,
    or it is negative where all others are not, or a client has nothing else.
So does the smallest or largest value of all if one client has it three times or more, as far away.
An output of two values has none. Of inputs, only codes of `INPUT_CODES` are looked for.

The value stays as it is: only the owner of the data knows whether it was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pfedhgp.base.checks import listed, short
from pfedhgp.data.columns import Columns
from pfedhgp.data.rows import Named
from pfedhgp.errors import warn_caller

CODES = tuple(
    sign * value for value in (99.0, 999.0, 9999.0, 99999.0, 999.9, 9999.9) for sign in (-1.0, 1.0)
)
INPUT_CODES = tuple(code for code in CODES if code != 99.0)
"""99 is too usual a number of a row."""
REPEATED = 3
"""How often a client must have an extreme that is no usual code; also the fewest other values."""


@dataclass(frozen=True)
class Code:
    """A value that looks like a code, and who has it."""

    column: str
    value: float
    counts: dict[str, int]
    is_input: bool = False

    @property
    def shown(self) -> str:
        """The code; an extreme that is no usual one may be data, and is not shown."""
        return f"{self.value:g}" if self.value in CODES else "one extreme"

    def __str__(self) -> str:
        total, names = sum(self.counts.values()), [short(name) for name in self.counts]
        whose = f"client{'s' if len(names) > 1 else ''} {listed(names, 3)}"
        mend = (
            "remove these rows (an input cannot be missing)"
            if self.is_input
            else "make them NaN (an empty cell in a file)"
        )
        return (
            f"{'input' if self.is_input else 'output'} {short(self.column)!r}: {total} "
            f"value{'' if total == 1 else 's'} of {self.shown} at {whose} look"
            f"{'s' if total == 1 else ''} like a code for missing, far outside the rest: {mend}, or keep "
            "them if they were measured"
        )


@dataclass(frozen=True)
class Usual:
    """Between which values a fitted model's data lay, for rows that come too few at a time to tell."""

    inputs: np.ndarray
    """(2, d)"""
    outputs: np.ndarray
    """(2, Q)"""


def warn_of_codes(
    clients: Sequence[Named], columns: Columns, *, usual: Usual | None = None
) -> list[Code]:
    """One warning for each column and value that looks like a code; returns what was found."""
    found = codes_in(clients, columns, usual=usual)
    for each in found:
        warn_caller(str(each))
    return found


def codes_in(
    clients: Sequence[Named], columns: Columns, *, usual: Usual | None = None
) -> list[Code]:
    """What looks like a code in outputs, and in inputs that are numbers."""
    found = []
    for q, output in enumerate(columns.outputs):
        values = [client.Y[:, q] for client in clients]
        known = np.empty(0) if usual is None else usual.outputs[:, q]
        for value in [*_codes(values, CODES, known), *_extremes(values, known)]:
            found.append(Code(output, value, _counts(clients, values, value)))
    for j, column in enumerate(columns.inputs):
        if column.kind == "number":
            values = [client.X[:, j] for client in clients]
            known = np.empty(0) if usual is None else usual.inputs[:, j]
            for value in _codes(values, INPUT_CODES, known):
                counts = _counts(clients, values, value)
                found.append(Code(column.name, value, counts, is_input=True))
    return found


def _counts(clients: Sequence[Named], values: Sequence[np.ndarray], value: float) -> dict[str, int]:
    counts = [int(np.sum(own == value)) for own in values]
    return {client.name: n for client, n in zip(clients, counts, strict=True) if n}


def _codes(values: Sequence[np.ndarray], codes: Sequence[float], known: np.ndarray) -> list[float]:
    """Usual codes that look like ones here, from the outermost inwards."""
    pool = np.concatenate([*values, known])
    there = [code for code in codes if np.any(pool == code)]
    rest = pool[np.isfinite(pool) & ~np.isin(pool, codes)]
    if not there or not _enough(rest, known):
        return []
    own = np.concatenate(values)
    others = own[np.isfinite(own) & ~np.isin(own, codes)]
    none_below_zero = len(others) >= REPEATED and others.min() >= 0
    found = [
        code
        for code in there
        if _far(code, rest)
        or (code < 0 and (none_below_zero or any(_nothing_but(code, each) for each in values)))
    ]
    return sorted(found, key=lambda code: -abs(code - float(np.median(rest))))


def _nothing_but(code: float, own: np.ndarray) -> bool:
    seen = own[np.isfinite(own)]
    return len(seen) >= REPEATED and bool(np.all(seen == code))


def _extremes(values: Sequence[np.ndarray], known: np.ndarray) -> Iterator[float]:
    """Other values that look like codes, from the outermost inwards."""
    left = np.concatenate([*values, known])
    left = left[np.isfinite(left) & ~np.isin(left, CODES)]
    while len(left):
        low, high = float(left.min()), float(left.max())
        middle = float(np.median(left))
        value = low if middle - low > high - middle else high
        rest = left[left != value]
        if not _enough(rest, known) or not _far(value, rest) or rest.min() == rest.max():
            return
        if max(int(np.sum(own == value)) for own in values) < REPEATED:
            return
        yield value
        left = rest


def _enough(rest: np.ndarray, known: np.ndarray) -> bool:
    return len(rest) >= REPEATED or bool(len(known))


def _far(value: float, rest: np.ndarray) -> bool:
    """Whether it lies beyond the range of the rest by more than that range."""
    low, high = float(rest.min()), float(rest.max())
    return max(low - value, value - high) > high - low
