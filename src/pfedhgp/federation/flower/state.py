"""What a federation remembers on disk: the folders of sites, a site's answers, the server's list of sites.

A site's home; it is never sent, and Flower never sees it:

    HOME/runs/<run>/agreement.json          columns and model, as the server first sent them
    HOME/runs/<run>/000007/                 after exchange 7
        index.json                          what was asked, and the SHA-256 of the other two files
        state.safetensors                   the client's block, its optimiser, its last sums
        reply.safetensors                   the reply, to be sent again if it was lost

An exchange is written as a whole or not at all. Four are kept: if the last reply did not reach the server,
or the server goes on from an older checkpoint, the site goes back to the exchange that the server remembers.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pfedhgp.base.atomic_files import numbered_folders, write_bytes
from pfedhgp.errors import ModelFileError, warn
from pfedhgp.federation.checkpoint import (
    INDEX,
    KEPT,
    decode,
    encode,
    newest_sound,
    read_index,
    read_part,
    write_parts,
)
from pfedhgp.inference.arrays import State, below
from pfedhgp.model.run_folder import naming

SITES = "sites"
FORMAT, VERSION = "pfedhgp-site", 2
RUN_ID = re.compile(r"[0-9a-f]{32}")
STATE, REPLY, AGREEMENT = "state.safetensors", "reply.safetensors", "agreement.json"
ROSTER = "the sites of a federation"


# ------------------------------------------------------------------------------ folders of sites


def site_hash(name: str) -> str:
    """sha256(name)[:16]: a site's name never becomes part of a path."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def homes_of(run: Path) -> list[Path]:
    """The sites' homes in RUN/sites, which only a `federate` run has."""
    folder = run / SITES
    return sorted(p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []


# --------------------------------------------------------------------------------- a site's runs


@dataclass(frozen=True)
class AnsweredExchange:
    """An exchange that the site has answered, and its state after it."""

    exchange: int
    kind: str
    round: int
    block: str
    state: State
    reply: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class RunStore:
    """The folder of one run in a site's home."""

    folder: Path

    def agreement(self) -> str | None:
        path = self.folder / AGREEMENT
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def save_agreement(self, text: str) -> None:
        write_bytes(self.folder / AGREEMENT, text.encode("utf-8"))

    def save(self, answered: AnsweredExchange) -> None:
        """Adds an exchange; as many older ones stay as the server may go back."""
        older = numbered_folders(self.folder)
        reply = State(dict(answered.reply), {})
        asked = {name: getattr(answered, name) for name in ("exchange", "kind", "round", "block")}
        about = {"format": FORMAT, "version": VERSION, **asked}
        parts = [(STATE, encode(answered.state)), (REPLY, encode(reply))]
        write_parts(self.folder / f"{answered.exchange:06d}", about, parts)
        for old in older[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)

    def newest(self) -> AnsweredExchange | None:
        """The newest that can be read. If there is none any more, the site begins again."""
        kept = numbered_folders(self.folder)
        try:
            return _read_exchange(newest_sound(kept)) if kept else None
        except ModelFileError as error:
            warn(f"{error}: nothing of this run can be read: the site begins again")
            self.drop_all()
            return None

    def exchanges(self) -> list[int]:
        return [int(path.name) for path in numbered_folders(self.folder)]

    def drop_after(self, exchange: int) -> None:
        """Removes later exchanges, whose replies were not counted."""
        for path in numbered_folders(self.folder):
            if int(path.name) > exchange:
                shutil.rmtree(path)

    def drop_all(self) -> None:
        self.drop_after(0)


def _read_exchange(folder: Path) -> AnsweredExchange:
    index = read_index(folder, FORMAT, VERSION)
    with naming(folder / INDEX):
        state, reply = (decode(read_part(folder, name, index)) for name in (STATE, REPLY))
        asked = int(index["exchange"]), str(index["kind"]), int(index["round"]), str(index["block"])
        return AnsweredExchange(*asked, state, reply.arrays)


# -------------------------------------------------------------------------------- at the server


@dataclass
class Roster:
    """The sites as the server remembers them: part of its checkpoint."""

    sites: tuple[str, ...]
    agreement: str
    run: str = field(default_factory=lambda: secrets.token_hex(16))
    counted: dict[str, int] = field(default_factory=dict)
    """By site: the last exchange in which its reply was counted."""
    knows: dict[str, list[int]] = field(default_factory=dict)
    """By site: the attempts (restarts) whose start request it has received."""
    last_round: dict[int, list[str]] = field(default_factory=dict)
    """By attempt: the sites whose replies are in the sums of its last exchange."""
    setup: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    """The requests that a late site needs: `cycles`, and `start 0`, `start 1`… by attempt."""
    log: list[dict[str, Any]] = field(default_factory=list)
    """The participation log."""
    delivered: list[str] = field(default_factory=list)
    """Sites that have the model. Kept in a file beside the checkpoint: it changes between two of them."""
    changes: dict[str, list[str]] = field(default_factory=dict)
    """Sites `withdrawn` from the list or `joined` since the last exchange, for the log's next entry."""
    names: tuple[str, ...] = (ROSTER,)

    def state(self) -> State:
        arrays: dict[str, np.ndarray] = {}
        for kind, request in self.setup.items():
            arrays |= below(kind, request)
        kept = ("sites", "agreement", "run", "counted", "knows", "last_round", "setup", "log")
        plain = {name: getattr(self, name) for name in kept}
        plain["last_round"] = {str(k): v for k, v in self.last_round.items()}
        return State(arrays, plain | {"sites": list(self.sites), "setup": list(self.setup)})

    def restore(self, state: State) -> None:
        """Puts `state` back, except for the list of sites: that stays today's, and changes are noted."""
        plain = state.plain
        before = plain["sites"]
        changes = {
            "withdrawn": [name for name in before if name not in self.sites],
            "joined": [name for name in self.sites if name not in before],
        }
        self.changes = {what: names for what, names in changes.items() if names}
        self.run = plain["run"]
        self.counted = {name: int(n) for name, n in plain["counted"].items()}
        self.knows = {name: list(attempts) for name, attempts in plain["knows"].items()}
        self.last_round = {int(k): list(v) for k, v in plain["last_round"].items()}
        self.setup = {kind: state.part(kind) for kind in plain["setup"]}
        self.log = list(plain["log"])
