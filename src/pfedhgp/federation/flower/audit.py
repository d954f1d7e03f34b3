"""What left this machine: one line of JSON a message, each with the hash of the line before it.

    hash_n = SHA-256(hash_{n−1} ‖ the line without its hash, keys sorted)

A line that is changed, taken out or put in breaks the chain from there on. Lines cut off at the end leave the
chain whole: `audit.head` beside the log has the count and the last hash, and every reply takes the last hash
to the server, which keeps it.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pfedhgp.atomic import write_bytes
from pfedhgp.errors import InputError

LOG, HEAD = "audit.jsonl", "audit.head"
START = "0" * 64
DIRECTIONS = ("sent", "received", "refused", "note")


@dataclass(frozen=True)
class Finding:
    """How many lines are good, and the first bad one where there is one."""

    lines: int
    head: str
    bad_line: int | None = None
    problem: str = ""
    sent: int = 0
    bytes_sent: int = 0


class AuditLog:
    """Appends to a log; each line is on the disk before `append` returns."""

    def __init__(self, folder: Path) -> None:
        self.path, self.head_path = folder / LOG, folder / HEAD
        folder.mkdir(parents=True, exist_ok=True)
        self.count, self.head = 0, START
        torn = _drop_torn_line(self.path)
        if self.path.exists():
            found = check(folder, compare_head=False)
            if found.bad_line is not None:
                raise InputError(f"{self.path}: line {found.bad_line}: {found.problem}")
            self.count, self.head = found.lines, found.head
        if torn:
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
        """Writes a line: names, shapes and bytes, never values. Returns its hash."""
        assert direction in DIRECTIONS
        arrays = arrays or {}
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        entry = {
            "n": self.count + 1,
            "time": now,
            "direction": direction,
            "run": run,
            "exchange": exchange,
            "kind": kind,
            "bytes": sum(a.nbytes for a in arrays.values()),
            "arrays": {name: list(a.shape) for name, a in arrays.items()},
            "code": code,
        }
        digest = link(self.head, entry)
        line = json.dumps({**entry, "hash": digest}) + "\n"
        with open(self.path, "ab") as file:
            file.write(line.encode("ascii"))
            file.flush()
            os.fsync(file.fileno())
        self.count, self.head = self.count + 1, digest
        write_bytes(self.head_path, f"{self.count} {self.head}\n".encode("ascii"))
        return digest


def link(previous: str, entry: Mapping[str, Any]) -> str:
    """The hash of a line, given that of the one before."""
    text = json.dumps({k: v for k, v in entry.items() if k != "hash"}, sort_keys=True)
    return hashlib.sha256(f"{previous}{text}".encode("ascii")).hexdigest()


def check(folder: Path, *, compare_head: bool = True, known: str | None = None) -> Finding:
    """Follows the chain; `known` is a hash that must be in it, as the server kept it."""
    path = folder / LOG
    if not path.is_file():
        raise InputError(f"{folder}: no {LOG} here: name a site's home or a server's RUN")
    head, count, sent, size, seen = START, 0, 0, 0, {START}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        problem = ""
        try:
            entry = json.loads(line.decode("ascii"))
            if entry["n"] != number:
                problem = f"it says that it is line {entry['n']}"
            elif entry["hash"] != link(head, entry):
                problem = "its hash does not follow from the line before and its own content"
        except (ValueError, KeyError, TypeError):
            problem = "not a line of an audit log"
        if problem:
            return Finding(count, head, number, problem, sent, size)
        head, count = entry["hash"], number
        seen.add(head)
        if entry["direction"] == "sent":
            sent, size = sent + 1, size + int(entry["bytes"])
    problem = _after_the_end(folder / HEAD, count, head) if compare_head else ""
    if not problem and known is not None and known not in seen:
        problem = "a line that the server has the hash of is missing"
    return Finding(count, head, count + 1 if problem else None, problem, sent, size)


def _after_the_end(path: Path, count: int, head: str) -> str:
    try:
        number, digest = path.read_text(encoding="ascii").split()
        last = int(number)
    except (OSError, ValueError, UnicodeDecodeError):
        return f"{path.name}, which says where the log ends, is missing or unreadable"
    if last > count:
        return f"{last - count} lines are missing at the end"
    # The head is written after the line: it may lag by the one line that the machine stopped at.
    if last < count - 1 or (last == count and digest != head):
        return f"{path.name} is not that of this log"
    return ""


def _drop_torn_line(path: Path) -> bool:
    """Takes away what a stop in mid-write left behind the last whole line; that message never left."""
    if not path.exists():
        return False
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole == content:
        return False
    write_bytes(path, whole)
    return True
