"""Replies of an exchange that wait for the others: in memory while they are few, then on disk.

A server adds replies in the order of its list of sites, whatever the order in which they come: floating-point
sums depend on it, and a run that is repeated has to end with the same bits. Some checks also look at all
replies twice. So replies wait; but a thousand of them do not fit into memory. Beyond `room` bytes a reply
is a file, and its arrays are read from there one at a time, when somebody looks at them.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from pfedhgp.federation.messages import bytes_of

ROOM = 64 * 1024 * 1024
"""Bytes of replies that stay in memory."""


class SpooledArrays(Mapping[str, np.ndarray]):
    """Named arrays of float64 in a file. Each look at one reads it anew; none is kept."""

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.path, self.places, start = path, {}, 0
        for name, shape in shapes.items():
            self.places[name] = (start, shape)
            start += 8 * math.prod(shape)

    @staticmethod
    def write(path: Path, arrays: Mapping[str, np.ndarray]) -> SpooledArrays:
        with open(path, "wb") as file:
            for array in arrays.values():
                file.write(np.ascontiguousarray(array, np.float64).data)
        return SpooledArrays(path, {name: array.shape for name, array in arrays.items()})

    def __getitem__(self, name: str) -> np.ndarray:
        start, shape = self.places[name]
        size = math.prod(shape)
        if not size:
            return np.zeros(shape)
        return np.memmap(self.path, np.float64, "c", start, (size,)).reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


class Spool:
    """The arrays of one exchange's replies. Without a folder all of them stay in memory."""

    def __init__(self, folder: Path | None = None, room: int = ROOM) -> None:
        self.folder, self.room = folder, room
        self.clear()

    def keep(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """The same arrays, from disk if there is no more room in memory."""
        size = bytes_of(arrays)
        if self.folder is None or self.held + size <= self.room:
            self.held += size
            return arrays
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.count += 1
        return SpooledArrays.write(self.folder / f"{self.count}.f8", arrays)

    def clear(self) -> None:
        """Before the next exchange. Also removes what a killed process left."""
        self.held = self.count = 0
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
