"""What left this machine: a line of JSON for each message, chained by hashes.

    hash_n = SHA-256(hash_{n−1} ‖ the line without its hash, keys sorted)

A line that is changed, removed or inserted breaks the chain from there on. Removing the last lines does not:
so `audit.head` beside the log has the count and the last hash, and every reply carries the last hash to the
server, which keeps it. If the end of a log does not fit its head when the log is opened, a line of direction
`break` says so, and the log counts as broken from then on.

A full disk leaves a log that verifies: what was written of a line is taken back, and no line is added before
the head of the last one is on the disk, so the head is never more than one line behind.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pfedhgp.base.atomic_files import write_bytes
from pfedhgp.errors import InputError
from pfedhgp.federation.messages import bytes_of, layout_of

LOG, HEAD = "audit.jsonl", "audit.head"
START = "0" * 64
BREAK = "break"
DIRECTIONS = ("sent", "received", "refused", "note", BREAK)


@dataclass(frozen=True)
class Finding:
    """How many lines are good, and the first bad one if there is one."""

    lines: int
    head: str
    bad_line: int | None = None
    problem: str = ""
    sent: int = 0
    bytes_sent: int = 0


class AuditLog:
    """Appends to a log; each line is on the disk before `append` returns. One process at a time."""

    def __init__(self, folder: Path) -> None:
        self.path, self.head_path = folder / LOG, folder / HEAD
        folder.mkdir(parents=True, exist_ok=True)
        self.count, self.head = 0, START
        self.head_is_behind = False
        self.on_append: Callable[[Mapping[str, Any]], None] = lambda entry: None
        """Gets each new line, for those who watch."""
        partial = _drop_partial_line(self.path)
        missing = ""
        if self.path.exists() or self.head_path.exists():
            chain = _read_chain(self.path)
            if chain.problem:
                line = chain.count + 1
                raise InputError(
                    f"{self.path}: line {line}: {chain.problem}: choose another folder"
                )
            self.count, self.head = chain.count, chain.head
            missing = _problem_at_end(self.head_path, chain)
        if missing:
            self.append(BREAK, code=f"before this line, at the start of the program: {missing}")
        if partial:
            self.append("note", code="a line that was half written when the machine stopped")

    def append(
        self,
        direction: str,
        *,
        run: str = "",
        exchange: int = 0,
        kind: str = "",
        arrays: Mapping[str, np.ndarray] | None = None,
        code: str = "",
    ) -> str:
        """Writes a line: names, shapes and bytes, never values. Returns its hash.

        Raises `OSError`, which names the file, if the disk does not take it: then nothing may leave.
        """
        assert direction in DIRECTIONS
        if self.head_is_behind:
            self._write_head()
        arrays = arrays or {}
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        entry = {
            "n": self.count + 1,
            "time": now,
            "direction": direction,
            "run": run,
            "exchange": exchange,
            "kind": kind,
            "bytes": bytes_of(arrays),
            "arrays": layout_of(arrays),
            "code": code,
        }
        digest = link(self.head, entry)
        line = json.dumps({**entry, "hash": digest}) + "\n"
        _append_whole(self.path, line.encode("ascii"))
        self.count, self.head, self.head_is_behind = self.count + 1, digest, True
        self._write_head()
        self.on_append(entry)
        return digest

    def _write_head(self) -> None:
        try:
            write_bytes(self.head_path, f"{self.count} {self.head}\n".encode("ascii"))
        except OSError as error:
            raise _named(error, self.head_path) from None
        self.head_is_behind = False


def _append_whole(path: Path, line: bytes) -> None:
    """Adds a line and makes it durable; if that fails, the file is as it was."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        before = os.fstat(handle).st_size
        try:
            written = 0
            while written < len(line):
                written += os.write(handle, line[written:])
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, before)
            raise
    except OSError as error:
        raise _named(error, path) from None
    finally:
        os.close(handle)


def _named(error: OSError, path: Path) -> OSError:
    """The error with the name of the file, which errors of writing lack."""
    return OSError(error.errno, error.strerror, str(path))


def link(previous: str, entry: Mapping[str, Any]) -> str:
    """The hash of a line, from the hash of the line before."""
    text = json.dumps({k: v for k, v in entry.items() if k != "hash"}, sort_keys=True)
    return hashlib.sha256(f"{previous}{text}".encode("ascii")).hexdigest()


def check(folder: Path, *, known: Sequence[tuple[int, str]] = ()) -> Finding:
    """Reads the whole chain. `known` are exchanges and hashes that it must contain, in this order."""
    path = folder / LOG
    if not path.is_file():
        raise InputError(f"{folder}: no {LOG} here: name a site's home or a server's RUN")
    chain = _read_chain(path)
    found = [(chain.count + 1, chain.problem)] if chain.problem else list(chain.breaks)
    if not found and (missing := _problem_at_end(folder / HEAD, chain)):
        found.append((chain.count + 1, missing))
    before = 0
    for exchange, digest in known:
        if digest not in chain.lines:
            text = f"the line of exchange {exchange}, whose hash the server has, is missing"
            found.append((before + 1, text))
            break
        before = chain.lines[digest]
    bad, problem = min(found, default=(None, ""))
    return Finding(chain.count, chain.head, bad, problem, chain.sent, chain.bytes_sent)


@dataclass
class _Chain:
    """The good lines of a log: their number and hashes, and the `problem` of the line after them."""

    count: int = 0
    head: str = START
    before: str = START
    lines: dict[str, int] = field(default_factory=dict)
    breaks: list[tuple[int, str]] = field(default_factory=list)
    sent: int = 0
    bytes_sent: int = 0
    problem: str = ""


def _read_chain(path: Path) -> _Chain:
    """Reads line by line, up to the first that does not fit the lines before it.

    The rest after the last line break is a line that was only half written: its message never left.
    """
    chain = _Chain()
    content = path.read_bytes() if path.exists() else b""
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        try:
            entry = json.loads(line.decode("ascii"))
            if entry["n"] != chain.count + 1:
                chain.problem = f"it says that it is line {entry['n']}"
            elif entry["hash"] != link(chain.head, entry):
                chain.problem = "its hash does not fit its content and the line before"
            elif entry["direction"] == "sent":
                chain.bytes_sent += int(entry["bytes"])
                chain.sent += 1
            elif entry["direction"] == BREAK:
                chain.breaks.append((chain.count + 1, str(entry["code"])))
        except (ValueError, KeyError, TypeError):
            chain.problem = "not a line of an audit log"
        if chain.problem:
            break
        chain.before, chain.head, chain.count = chain.head, entry["hash"], chain.count + 1
        chain.lines[chain.head] = chain.count
    return chain


def _problem_at_end(path: Path, chain: _Chain) -> str:
    """What is wrong at the end of a log whose lines are good, or nothing."""
    try:
        number, digest = path.read_text(encoding="ascii").split()
        last = int(number)
    except (OSError, ValueError, UnicodeDecodeError):
        if not path.exists() and chain.count <= 1:
            return ""  # the machine stopped between the first line and its head
        return f"{path.name}, which says where the log ends, is missing or unreadable"
    if last > chain.count:
        lines = f"{last - chain.count} lines are" if last > chain.count + 1 else "a line is"
        return f"{lines} missing at the end"
    # The head is written after the line: if the machine stopped in between, it is one line behind.
    if (last, digest) in ((chain.count, chain.head), (chain.count - 1, chain.before)):
        return ""
    return f"{path.name} belongs to another log"


def _drop_partial_line(path: Path) -> bool:
    """Removes a line that was only half written; its message never left."""
    if not path.exists():
        return False
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole == len(content):
        return False
    os.truncate(path, whole)  # needs no room, on a disk that may be full
    return True
