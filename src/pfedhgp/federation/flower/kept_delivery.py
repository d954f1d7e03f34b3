"""The delivery of a private run: on disk before it is answered, used when nobody waits for an answer.

    HOME/runs/<run>/delivered               the run has had its delivery
    HOME/runs/<run>/delivery.safetensors    the numbers, until the site has its model

A site answers a delivery with nothing, whatever its own rows make of it: else a server could try deliveries
and read rows from the answers. One that is killed before it has its model goes on from the disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pfedhgp.base.atomic_files import write_bytes
from pfedhgp.federation.checkpoint import decode, encode
from pfedhgp.inference.arrays import State
from pfedhgp.model.run_folder import naming

CAME, NUMBERS = "delivered", "delivery.safetensors"


@dataclass(frozen=True)
class KeptDelivery:
    """The delivery of the run in a folder."""

    folder: Path

    @property
    def came(self) -> bool:
        return (self.folder / CAME).is_file()

    def keep(self, arrays: Mapping[str, np.ndarray]) -> None:
        """The first one; a run has no second."""
        if not self.came:
            write_bytes(self.folder / NUMBERS, encode(State(dict(arrays))))
            write_bytes(self.folder / CAME, b"")

    def arrays(self) -> dict[str, np.ndarray]:
        with naming(self.folder / NUMBERS):
            return dict(decode((self.folder / NUMBERS).read_bytes()).arrays)

    def done(self) -> None:
        """The site has its model, or never will."""
        (self.folder / NUMBERS).unlink(missing_ok=True)


def unfinished(runs: Path) -> list[Path]:
    """The folders of runs whose delivery came and was not used yet."""
    return sorted(
        path.parent for path in runs.glob(f"*/{NUMBERS}") if (path.parent / CAME).is_file()
    )
