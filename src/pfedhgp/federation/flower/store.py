"""A site's state on its own disk: whole or not at all, after every exchange; never sent, never in Flower.

    HOME/runs/<run>/agreement.json          columns and model, as the server first said them
    HOME/runs/<run>/000007/                 after exchange 7
        index.json                          what was asked, and the SHA-256 of the other two
        state.safetensors                   the client's block, its optimiser, its last sums
        reply.safetensors                   what was answered, to be sent again where it was lost

Two exchanges are kept: where the last reply did not reach the server, the site goes back to the one before.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pfedhgp.base.atomic_files import write_bytes, write_new_folder
from pfedhgp.errors import ModelFileError
from pfedhgp.federation.checkpoint import decode, encode
from pfedhgp.inference.state import State
from pfedhgp.model.run_folder import naming, parse_json

FORMAT, VERSION = "pfedhgp-site", 2
RUN_ID = re.compile(r"[0-9a-f]{32}")
INDEX, STATE, REPLY, AGREEMENT = (
    "index.json",
    "state.safetensors",
    "reply.safetensors",
    "agreement.json",
)


@dataclass(frozen=True)
class Answered:
    """An exchange that the site has answered, and its state thereafter."""

    exchange: int
    kind: str
    round: int
    block: str
    state: State
    reply: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Store:
    """The folder of one run in a site's home."""

    folder: Path

    def agreement(self) -> str | None:
        path = self.folder / AGREEMENT
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def agree(self, text: str) -> None:
        write_bytes(self.folder / AGREEMENT, text.encode("utf-8"))

    def save(self, answered: Answered) -> None:
        """Adds an exchange; of the older ones the newest stays."""
        older = self._kept()
        parts = {
            STATE: encode(answered.state),
            REPLY: encode(State(dict(answered.reply), {})),
        }
        digests = {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()}
        index = {
            "format": FORMAT,
            "version": VERSION,
            "exchange": answered.exchange,
            "kind": answered.kind,
            "round": answered.round,
            "block": answered.block,
            "files": digests,
        }
        target = self.folder / f"{answered.exchange:06d}"
        content = json.dumps(index, indent=1).encode("ascii")
        write_new_folder(target, [*parts.items(), (INDEX, content)])
        for old in older[:-1]:
            shutil.rmtree(old, ignore_errors=True)

    def newest(self) -> Answered | None:
        kept = self._kept()
        return _read(kept[-1]) if kept else None

    def exchanges(self) -> list[int]:
        return [int(path.name) for path in self._kept()]

    def take_back(self) -> None:
        """Forgets the newest exchange: its reply was not counted."""
        shutil.rmtree(self._kept()[-1])

    def forget(self) -> None:
        """Forgets all exchanges."""
        for path in self._kept():
            shutil.rmtree(path)

    def _kept(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted(p for p in self.folder.iterdir() if p.name.isdigit() and p.is_dir())


def _read(folder: Path) -> Answered:
    with naming(folder / INDEX):
        index = parse_json((folder / INDEX).read_bytes())
        if index["format"] != FORMAT or index["version"] != VERSION:
            raise ValueError("written by another version of pfedhgp: start the run again")
        parts = {}
        for name in (STATE, REPLY):
            content = (folder / name).read_bytes()
            if hashlib.sha256(content).hexdigest() != index["files"][name]:
                raise ModelFileError(f"{folder / name}: corrupted: its SHA-256 is another")
            parts[name] = decode(content)
        return Answered(
            int(index["exchange"]),
            str(index["kind"]),
            int(index["round"]),
            str(index["block"]),
            parts[STATE],
            parts[REPLY].arrays,
        )
