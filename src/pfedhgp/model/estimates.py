"""A fitted number in the data's units, with its interval where it is known; and matrices of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
from scipy.special import ndtri

from pfedhgp.errors import InputError
from pfedhgp.model.words import duration, number, shown

REACH = float(ndtri(0.975))
"""Standard deviations to the ends of a 95% interval."""
MOST_LINES = 10
"""Lines of a repr: of more clients the first are shown, and how many more there are."""


class Estimate(float):
    """A float with `lower` and `upper`, the ends of its 95% interval; None where these are not known.

    A length along a datetime is in seconds, is shown in words, and has a `timedelta`.

    >>> Estimate(0.25, 0.2, 0.31)
    0.250 (0.200 to 0.310)
    >>> 2 * Estimate(0.25), Estimate(5400.0, is_duration=True)
    (0.5, 1.5 hours)
    """

    __slots__ = ("is_duration", "lower", "upper")
    lower: float | None
    upper: float | None
    is_duration: bool

    def __new__(
        cls,
        value: float,
        lower: float | None = None,
        upper: float | None = None,
        *,
        is_duration: bool = False,
    ) -> Estimate:
        found = super().__new__(cls, value)
        for name, each in (("lower", lower), ("upper", upper), ("is_duration", is_duration)):
            object.__setattr__(found, name, each)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"an Estimate cannot be changed: {name}")

    def __reduce__(self) -> Any:
        return _again, (float(self), self.lower, self.upper, self.is_duration)

    @property
    def interval(self) -> tuple[float, float] | None:
        """(lower, upper), or None."""
        return None if self.lower is None or self.upper is None else (self.lower, self.upper)

    @property
    def timedelta(self) -> timedelta:
        """A length along a datetime."""
        if not self.is_duration:
            raise InputError("this number is not a length of time: the input is not a datetime")
        return timedelta(seconds=float(self))

    def __repr__(self) -> str:
        words = duration if self.is_duration else number
        if self.interval is None:
            return words(float(self))
        return f"{words(float(self))} ({words(self.interval[0])} to {words(self.interval[1])})"

    __str__ = __repr__


def _again(value: float, lower: float | None, upper: float | None, is_duration: bool) -> Estimate:
    return Estimate(value, lower, upper, is_duration=is_duration)


class Values(Mapping[str, Estimate]):
    """Estimates by name, such as the noise of each output."""

    def __init__(self, entries: Mapping[str, Estimate]) -> None:
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> Estimate:
        if name not in self._entries:
            raise KeyError(f"no {name!r} here; there are {', '.join(map(repr, self._entries))}")
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{shown(k, 30)}: {v}" for k, v in self._entries.items()) + "}"


def one_or_all(entries: Mapping[str, Estimate]) -> Estimate | Values:
    """The one estimate, or all by name."""
    return next(iter(entries.values())) if len(entries) == 1 else Values(entries)


@dataclass(frozen=True, eq=False, repr=False)
class Matrix:
    """Loadings (outputs, latents) in the outputs' units: how much of each latent an output has.

    `np.asarray(matrix)` is the array, `matrix["pm25"]` a row, `matrix["pm25", 0]` an `Estimate`.
    """

    values: np.ndarray
    outputs: tuple[str, ...]
    lower: np.ndarray | None = None
    upper: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, latents)"""
        rows, columns = self.values.shape
        return rows, columns

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype)

    def __getitem__(self, key: str | tuple[str, int]) -> Any:
        output, latent = key if isinstance(key, tuple) else (key, None)
        if output not in self.outputs:
            raise KeyError(f"no output {output!r}; there are {', '.join(map(repr, self.outputs))}")
        q = self.outputs.index(output)
        if latent is None:
            return tuple(self._cell(q, r) for r in range(self.shape[1]))
        return self._cell(q, latent)

    def _cell(self, q: int, r: int) -> Estimate:
        ends = (None if end is None else float(end[q, r]) for end in (self.lower, self.upper))
        return Estimate(float(self.values[q, r]), *ends)

    def __repr__(self) -> str:
        return "\n".join(self.lines()) or "no latents"

    def lines(self) -> list[str]:
        """A head and a line for each output; none without latents."""
        if not self.shape[1]:
            return []
        head = ["output", *(f"latent {r + 1}" for r in range(self.shape[1]))]
        body = [[shown(name, 24), *map(repr, self[name])] for name in self.outputs[:MOST_LINES]]
        return columns([head, *body]) + more(len(self.outputs) - len(body), "output")


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with aligned columns: the first to the left, others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def more(count: int, thing: str) -> list[str]:
    """ "… and 4990 more clients" """
    return [f"… and {count} more {thing}{'' if count == 1 else 's'}"] if count > 0 else []
