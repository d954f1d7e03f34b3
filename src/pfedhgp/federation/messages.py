"""What crosses between server and clients: named arrays of float64 with a kind, a round and a hash.

Which arrays, of which shapes and with which meaning, `schema` says, and docs/messages.md as a page.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pfedhgp.errors import MessageError, NonFiniteMessageError
from pfedhgp.federation.schema import KINDS

SCHEMA = 3
"""Raised when messages of an older version cannot be understood any more."""


@dataclass(frozen=True)
class Message:
    """One message, either way. `block` is the hash of the request's arrays."""

    kind: str
    round: int
    sender: str
    arrays: Mapping[str, np.ndarray] = field(repr=False)
    block: str = ""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise MessageError(f"unknown kind of message `{self.kind}`; known: {', '.join(KINDS)}")
        if self.schema != SCHEMA:
            raise MessageError(f"message of schema {self.schema}, this version speaks {SCHEMA}")
        for name, array in self.arrays.items():
            if not isinstance(array, np.ndarray) or array.dtype != np.float64:
                raise MessageError(f"`{name}` of a {self.kind} message is not an array of float64")

    @property
    def nbytes(self) -> int:
        return bytes_of(self.arrays)

    def log_entry(self, receiver: str) -> dict[str, Any]:
        """What the message log keeps."""
        return logged(self.kind, self.round, (self.sender, receiver), self.arrays)

    def check_finite(self) -> None:
        """Refuses NaN and infinities, naming the sender and the array."""
        for name, array in self.arrays.items():
            if not np.isfinite(array).all():
                raise NonFiniteMessageError(
                    f"the {self.kind} message of round {self.round} is not finite",
                    client=self.sender,
                    matrix=name,
                )


def logged(
    kind: str, number: int, ends: tuple[str, str], arrays: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """A line of the message log: names, shapes and bytes, never values; `ends` are sender and receiver."""
    return {
        "round": number,
        "kind": kind,
        "from": ends[0],
        "to": ends[1],
        "bytes": bytes_of(arrays),
        "arrays": layout_of(arrays),
    }


def bytes_of(arrays: Mapping[str, np.ndarray]) -> int:
    """How many bytes the numbers take."""
    return sum(array.nbytes for array in arrays.values())


def layout_of(arrays: Mapping[str, np.ndarray]) -> dict[str, list[int]]:
    """Names and shapes, in their order: what logs keep of a message, and how its numbers are read back."""
    return {name: list(array.shape) for name, array in arrays.items()}


def hash_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over names, shapes and values, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name], dtype=np.float64)
        digest.update(f"{name}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
