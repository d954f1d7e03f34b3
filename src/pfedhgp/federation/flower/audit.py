"""What left this machine: one line of JSON a message, each with the hash of the line before it.

    hash_n = SHA-256(hash_{n−1} ‖ the line without its hash, keys sorted)

A line that is changed, taken out or put in breaks the chain from there on. Lines cut off at the end leave the
chain whole: `audit.head` beside the log has the count and the last hash, and every reply takes the last hash
to the server, which keeps it. Whoever opens a log whose end is not where its head says writes a line that
says so, of direction `break`: from then on the log is a broken one, whatever follows.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
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
    """How many lines are good, and the first bad one where there is one."""

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
        torn = _drop_torn_line(self.path)
        missing = ""
        if self.path.exists() or self.head_path.exists():
            chain = _follow(self.path)
            if chain.problem:
                line = chain.count + 1
                raise InputError(
                    f"{self.path}: line {line}: {chain.problem}: choose another folder"
                )
            self.count, self.head = chain.count, chain.head
            missing = _after_the_end(self.head_path, chain)
        if missing:
            self.append(BREAK, code=f"before this line, at the start of the program: {missing}")
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
            "bytes": bytes_of(arrays),
            "arrays": layout_of(arrays),
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


def check(folder: Path, *, known: Sequence[tuple[int, str]] = ()) -> Finding:
    """Follows the chain to its end; `known` are exchanges and hashes that must be in it, in their order."""
    path = folder / LOG
    if not path.is_file():
        raise InputError(f"{folder}: no {LOG} here: name a site's home or a server's RUN")
    chain = _follow(path)
    found = [(chain.count + 1, chain.problem)] if chain.problem else list(chain.breaks)
    if not found and (missing := _after_the_end(folder / HEAD, chain)):
        found.append((chain.count + 1, missing))
    before = 0
    for exchange, digest in known:
        if digest not in chain.lines:
            text = f"the line of exchange {exchange}, which the server has the hash of, is missing"
            found.append((before + 1, text))
            break
        before = chain.lines[digest]
    bad, problem = min(found, default=(None, ""))
    return Finding(chain.count, chain.head, bad, problem, chain.sent, chain.bytes_sent)


@dataclass
class _Chain:
    """The good lines of a log: how many, the hash of each and of the last, and what `problem` comes next."""

    count: int = 0
    head: str = START
    before: str = START
    lines: dict[str, int] = field(default_factory=dict)
    breaks: list[tuple[int, str]] = field(default_factory=list)
    sent: int = 0
    bytes_sent: int = 0
    problem: str = ""


def _follow(path: Path) -> _Chain:
    """Line by line, until one does not follow from those before."""
    chain = _Chain()
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            entry = json.loads(line.decode("ascii"))
            if entry["n"] != chain.count + 1:
                chain.problem = f"it says that it is line {entry['n']}"
            elif entry["hash"] != link(chain.head, entry):
                chain.problem = "its hash does not follow from the line before and its own content"
            elif entry["direction"] == "sent":
                chain.sent, chain.bytes_sent = (
                    chain.sent + 1,
                    chain.bytes_sent + int(entry["bytes"]),
                )
            elif entry["direction"] == BREAK:
                chain.breaks.append((chain.count + 1, str(entry["code"])))
        except (ValueError, KeyError, TypeError):
            chain.problem = "not a line of an audit log"
        if chain.problem:
            break
        chain.before, chain.head, chain.count = chain.head, entry["hash"], chain.count + 1
        chain.lines[chain.head] = chain.count
    return chain


def _after_the_end(path: Path, chain: _Chain) -> str:
    """What is wrong with the end of a log whose lines are good."""
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
    # The head is written after the line: it may lag by the one line that the machine stopped at.
    if (last, digest) in ((chain.count, chain.head), (chain.count - 1, chain.before)):
        return ""
    return f"{path.name} is not that of this log"


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
