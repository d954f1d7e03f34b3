"""One array of a message: its name, its shape in symbols, what its numbers may be, and what it means.

    Field("d_J", "P RM RM", "∂J/∂θ_g", triangle="symmetric")

A word of the shape is a product of symbols: RM stands for R · M. Of a symmetric or lower triangular matrix
one triangle is sent, row by row; packing is here and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np


class Sizes(Protocol):
    """What each symbol stands for; a dictionary will do."""

    def __getitem__(self, symbol: str, /) -> int: ...


@dataclass(frozen=True)
class Range:
    """What the numbers of an array may be, beside finite."""

    words: str
    holds: Callable[[np.ndarray], Any]


FINITE = Range("", lambda a: True)
NOT_NEGATIVE = Range("≥ 0", lambda a: np.all(a >= 0.0))
POSITIVE = Range("> 0", lambda a: np.all(a > 0.0))
COUNT = Range("whole, ≥ 0", lambda a: np.all((a >= 0.0) & (a == np.floor(a))))
FLAG = Range("0 or 1", lambda a: np.all((a == 0.0) | (a == 1.0)))
ONE = Range("1", lambda a: np.all(a == 1.0))
POWERS = Range("diagonal ≥ 0", lambda a: np.all(np.diagonal(a) >= 0.0))
VARIANCES = Range("diagonal > 0", lambda a: np.all(np.diagonal(a) > 0.0))


@dataclass(frozen=True)
class Field:
    """`name` may end with a star: one array for each parameter of a kernel, as many as it has."""

    name: str
    shape: str
    meaning: str
    range: Range = FINITE
    triangle: Literal["", "symmetric", "lower"] = ""

    def whole_shape(self, sizes: Sizes) -> tuple[int, ...]:
        """The shape as the arithmetic knows it."""
        return tuple(math.prod(_number(s, sizes) for s in word) for word in self.shape.split())

    def sent_shape(self, sizes: Sizes) -> tuple[int, ...]:
        """The shape in the message: a triangle is one axis."""
        whole = self.whole_shape(sizes)
        return (*whole[:-2], whole[-1] * (whole[-1] + 1) // 2) if self.triangle else whole

    def pack(self, array: Any) -> np.ndarray:
        """As it is sent; axes in front, such as one of clients, stay."""
        found = np.asarray(array, np.float64)
        return found[..., *self._places(found.shape[-1])] if self.triangle else found

    def unpack(self, array: Any) -> np.ndarray:
        """The inverse of `pack`."""
        sent = np.asarray(array, np.float64)
        if not self.triangle:
            return sent
        size = (math.isqrt(8 * sent.shape[-1] + 1) - 1) // 2
        rows, columns = self._places(size)
        full = np.zeros((*sent.shape[:-1], size, size))
        full[..., rows, columns] = sent
        if self.triangle == "symmetric":
            full[..., columns, rows] = sent
        return full

    def _places(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        return np.triu_indices(size) if self.triangle == "symmetric" else np.tril_indices(size)


def _number(symbol: str, sizes: Sizes) -> int:
    return int(symbol) if symbol.isdigit() else sizes[symbol]


def pack(fields: Iterable[Field], arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """All arrays as they are sent, in their order; each must be declared."""
    return {name: _declared(fields, name).pack(array) for name, array in arrays.items()}


def unpack(fields: Iterable[Field], arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The inverse of `pack`."""
    return {name: _declared(fields, name).unpack(array) for name, array in arrays.items()}


def _declared(fields: Iterable[Field], name: str) -> Field:
    for field in fields:
        if field.name == name or (field.name[-1] == "*" and name.startswith(field.name[:-1])):
            return field
    raise KeyError(f"{name!r} is not declared as part of a message")
