"""What crosses the wire: named arrays of float64 with a kind, a round and the global block's hash.

Never rows, never a client's weights, inducing inputs or loadings. A client's reply to each kind of request:

| request  | the reply holds |
|----------|-----------------|
| census   | counts and sums: rows, Σx, Σx², per output observed cells, mean and sums around it |
| extent   | counts of rows in bins along each input; sums of squared differences by lag; where a kernel |
|          | leaves its period open, how much waves explain along each input |
| cycles   | with a cycle layer: sums over cycles around their mean, of the size of its basis (`CycleSums`), |
|          | of the first half of the cycles and of the rest; how many cycles, how many that lack cells. |
|          | Asked once; again only where cells are missing, whose expected sums depend on the layer |
| start    | the solver's statistics at the starting values, of each start that is compared |
| round    | the solver's statistics after the client's step |
| finish   | nothing; with mean-field E[f_δ f_δᵀ], E[f_l f_lᵀ] and Σ, which the structured statistics hold |
| zones    | only where `cluster` is asked for: a random sketch of the fitted deviation + local function, |
|          | its mean variance and coverage; where a client has few rows, once more under its coverage |
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pfedhgp.errors import MessageError, NonFiniteMessageError

SCHEMA = 2
KINDS = ("census", "extent", "cycles", "start", "round", "finish", "zones")


@dataclass(frozen=True)
class Message:
    """One message, either way. `block` is the hash of the global block that it speaks of."""

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
        return sum(array.nbytes for array in self.arrays.values())

    def log_entry(self, receiver: str) -> dict[str, Any]:
        """What the message log keeps: names, shapes and bytes, never values."""
        shapes = {name: list(array.shape) for name, array in self.arrays.items()}
        return {
            "round": self.round,
            "kind": self.kind,
            "from": self.sender,
            "to": receiver,
            "bytes": self.nbytes,
            "arrays": shapes,
        }

    def check_finite(self) -> None:
        """Refuses NaN and infinities, naming the sender and the array."""
        for name, array in self.arrays.items():
            if not np.all(np.isfinite(array)):
                raise NonFiniteMessageError(
                    f"the {self.kind} message of round {self.round} is not finite",
                    client=self.sender,
                    matrix=name,
                )


def hash_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over names, shapes and values, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name], dtype=np.float64)
        digest.update(f"{name}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
