"""Checkpoints: after each exchange the state of every party, so that a run can go on where it stopped.

    checkpoint/000007/                      after seven exchanges; the newest sound one counts
        index.json                          format, and the SHA-256 of every other file and its own
        server.safetensors                  the server's part
        clients/<hash>.safetensors          one group's part (a client alone is a group of one);
                                            what a server remembers of clients on other machines
        messages.jsonl                      names, shapes and bytes of what has crossed so far

A part is named arrays, and plain JSON in the file's header. Server and clients have separate files because
they may be on separate machines. No rows are in them, and nothing is pickled. A folder is written beside,
made durable and renamed, so the newest folder is always whole. The last three are kept: if a disk has damaged
the newest, a run goes on from the one before.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import safetensors.numpy

from pfedhgp.base.atomic_files import numbered_folders, write_new_folder
from pfedhgp.errors import InputError, ModelFileError, warn
from pfedhgp.federation.server import Server
from pfedhgp.inference.arrays import State
from pfedhgp.model.codec import plain_json
from pfedhgp.model.run_folder import naming, parse_json, seal

FORMAT, VERSION = "pfedhgp-checkpoint", 3
INDEX, SERVER, MESSAGES = "index.json", "server.safetensors", "messages.jsonl"
KEPT = 3
"""Checkpoints of a run that are kept."""
DAMAGED = "damaged-"
"""How the name of a folder begins that could not be read."""


class Party(Protocol):
    """Whatever has a part besides the server: a group of clients, or a federation's roster."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


@dataclass(frozen=True)
class Checkpoint:
    """The folder of a run's checkpoints."""

    folder: Path

    def save(self, server: Server, groups: Sequence[Party], messages: list[dict[str, Any]]) -> None:
        """Writes the parties' states; the oldest goes when the new one is whole."""
        before = numbered_folders(self.folder)
        target = self.folder / f"{server.exchanges:06d}"
        about = {"format": FORMAT, "version": VERSION}
        write_parts(target, about, self._files(server, groups, messages))
        for old in before[: 1 - KEPT]:
            shutil.rmtree(old, ignore_errors=True)

    def clear(self) -> None:
        """Forgets what an earlier run left, so that it is not taken for this one's."""
        for old in (*numbered_folders(self.folder), *self.folder.glob(f"{DAMAGED}*")):
            shutil.rmtree(old)

    def restore(self, server: Server, groups: Sequence[Party]) -> list[dict[str, Any]]:
        """Puts the newest sound states back and returns the messages until then."""
        kept = numbered_folders(self.folder)
        if not kept:
            raise InputError(f"{self.folder}: no checkpoint to go on from: start the run again")
        found = newest_sound(kept)
        index = read_index(found, FORMAT, VERSION)
        wanted = {SERVER, MESSAGES, *(group_file(group) for group in groups)}
        with naming(found / INDEX):
            if set(index["files"]) != wanted:
                raise ValueError("the clients are not those that the run began with")
        content = {name: read_part(found, name, index) for name in wanted}
        parts = {}
        for name in sorted(wanted - {MESSAGES}):
            with naming(found / name):
                parts[name] = decode(content[name])
        server.restore(parts[SERVER])
        for group in groups:
            group.restore(parts[group_file(group)])
        with naming(found / MESSAGES):
            return [parse_json(line) for line in content[MESSAGES].splitlines()]

    def _files(
        self, server: Server, groups: Sequence[Party], messages: list[dict[str, Any]]
    ) -> Iterator[tuple[str, bytes]]:
        yield SERVER, encode(server.state())
        for group in groups:
            yield group_file(group), encode(group.state())
        plain = plain_json(messages, "messages", strict=False)
        lines = "".join(json.dumps(each, allow_nan=False) + "\n" for each in plain)
        yield MESSAGES, lines.encode("ascii")


def newest_sound(folders: Sequence[Path]) -> Path:
    """The last of `folders` whose files are those of its index. Later ones are set aside, with a warning.

    If none is sound, the error is that of the newest.
    """
    problems: dict[Path, ModelFileError] = {}
    for folder in reversed(folders):
        try:
            check_parts(folder)
        except ModelFileError as error:
            problems[folder] = error
            continue
        for damaged, problem in problems.items():
            aside = damaged.with_name(DAMAGED + damaged.name)
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(damaged, aside)
            warn(f"{problem}: skipped; going on from {folder.name}, the one before")
        return folder
    raise next(iter(problems.values()))


def group_file(group: Party) -> str:
    """clients/<sha256(names)[:16]>.safetensors: names never reach a path."""
    digest = hashlib.sha256(json.dumps(group.names).encode("ascii")).hexdigest()
    return f"clients/{digest[:16]}.safetensors"


def encode(state: State) -> bytes:
    """One part as a file's content."""
    arrays = {name: np.array(array, order="C") for name, array in state.arrays.items()}
    plain = json.dumps(plain_json(dict(state.plain), "state", strict=True), allow_nan=False)
    return safetensors.numpy.save(arrays, metadata={"state": plain})


def decode(content: bytes) -> State:
    """The inverse of `encode`."""
    arrays = safetensors.numpy.load(content)
    size = int.from_bytes(content[:8], "little")  # a safetensors file begins with its JSON header
    header = parse_json(content[8 : 8 + size])
    return State(arrays, parse_json(header["__metadata__"]["state"].encode("utf-8")))


def write_parts(target: Path, about: Mapping[str, Any], parts: Iterable[tuple[str, bytes]]) -> None:
    """A new folder of parts; its index has what is said `about` them, and the SHA-256 of each."""
    digests: dict[str, str] = {}

    def files() -> Iterator[tuple[str, bytes]]:
        for name, content in parts:
            digests[name] = hashlib.sha256(content).hexdigest()
            yield name, content
        index = {**about, "files": digests}
        yield INDEX, json.dumps({**index, "sha256": seal(index)}, indent=1).encode("ascii")

    write_new_folder(target, files())


def check_parts(folder: Path) -> None:
    """Raises unless the index can be read and every part has the SHA-256 that the index says."""
    with naming(folder / INDEX):
        index = parse_json((folder / INDEX).read_bytes())
        names = list(index["files"])
        if index.get("sha256", seal(index)) != seal(index):  # older versions wrote none
            raise ValueError("corrupted: its SHA-256 is not the one in it")
    for name in names:
        read_part(folder, name, index)


def read_index(folder: Path, format: str, version: int) -> dict[str, Any]:
    """What `write_parts` wrote about the parts."""
    with naming(folder / INDEX):
        index: dict[str, Any] = parse_json((folder / INDEX).read_bytes())
        if index["format"] != format or index["version"] != version:
            raise ValueError("written by another version of pfedhgp: start the run again")
        return index


def read_part(folder: Path, name: str, index: Mapping[str, Any]) -> bytes:
    """The content of one part, if its SHA-256 is the index's."""
    with naming(folder / name):
        content = (folder / name).read_bytes()
        if hashlib.sha256(content).hexdigest() != index["files"][name]:
            raise ValueError(f"corrupted: its SHA-256 is not the one in {INDEX}")
        return content
