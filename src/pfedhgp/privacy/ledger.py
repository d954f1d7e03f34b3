"""μ² = Σ μ_k² on disk: what a site has released of its rows, and how much of its budget is left.

A folder holds `ledger.jsonl`, a line for each release with a hash over the line before; `ledger.head`, the
number of lines and the hash of the last one; and the releases themselves. A release is written first, then
its line, then the head, and only then may it leave: if the process is killed between any two of these,
nothing has left that the ledger does not know. A line beyond the head is of a process that was killed there,
and counts. With fewer lines than the head says the ledger is refused. The same request is answered with the
same bytes again, at no further cost. Releases of one folder count as releases of the same rows.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from pfedhgp.base import atomic_files
from pfedhgp.errors import InputError
from pfedhgp.privacy.accounting import composed, epsilon_of, mu_for, shown

FILE, HEAD, FOLDER, LOCK = "ledger.jsonl", "ledger.head", "releases", ".lock"
KEY = "choice.key"
FIRST = "0" * 64
SMALLEST = 1e-3
"""What must be left of μ for a release, as a share of the limit: with less it would be noise alone."""
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Entry:
    """One line: what was asked, what it cost, and the hash of what was released."""

    request: str
    """SHA-256 of what was asked for"""
    purpose: str
    mu: float
    content: str
    """SHA-256 of the release's file"""
    before: str
    """SHA-256 of the line before"""


@dataclass(frozen=True)
class Limit:
    """The most that all releases together may cost."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Ledger:
    """The ledger in a folder, which is made when something is released."""

    folder: Path

    def entries(self) -> list[Entry]:
        """All lines, checked against each other and the head."""
        return [entry for entry, _ in self._lines()]

    def mu(self) -> float:
        """μ of all that was released."""
        return composed(entry.mu for entry in self.entries())

    def epsilon(self, delta: float) -> float:
        """ε of all that was released, at δ."""
        return epsilon_of(self.mu(), delta)

    def release(
        self,
        request: str,
        *,
        purpose: str,
        limit: Limit,
        make: Callable[[float], Arrays],
        mu: float | None = None,
        share: float = 1.0,
    ) -> dict[str, np.ndarray]:
        """The release for `request`: the one that is there, or `make(μ)` if the budget allows it.

        Without `mu` it gets this share of all that is left of the limit, counted in μ².
        """
        with self._alone():
            known = self._lines()
            self._write_head(known)
            for entry, _ in known:
                if entry.request == request:
                    return self._kept(entry)
            mu = self._allowed(composed(e.mu for e, _ in known), limit, mu, share)
            content = save({name: np.array(a, order="C") for name, a in make(mu).items()})
            digest = hashlib.sha256(content).hexdigest()
            atomic_files.write_bytes(self._path(request), content)
            before = known[-1][1] if known else FIRST
            self._append(Entry(request, purpose, mu, digest, before), [line for line, _ in known])
            self._write_head(self._lines())
            return dict(load(content))

    def key(self) -> bytes:
        """32 random bytes that stay here, by which rows are chosen if not all of them may be used."""
        path = self.folder / KEY
        if not path.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            atomic_files.write_bytes(path, secrets.token_bytes(32))
        return path.read_bytes()

    def has(self, request: str) -> bool:
        """Whether there is a release for `request`, which costs nothing more."""
        return any(entry.request == request for entry in self.entries())

    def check(self, mu: float, limit: Limit) -> None:
        """Raises unless the limit leaves so much μ, for several releases to come."""
        self._allowed(self.mu(), limit, mu, 1.0)

    def _allowed(self, spent: float, limit: Limit, mu: float | None, share: float) -> float:
        """μ of a release, or this share of all that is left; raises if that is too little."""
        most = mu_for(limit.epsilon, limit.delta)
        left = math.sqrt(max(most**2 - spent**2, 0.0))
        mu = left * math.sqrt(share) if mu is None else composed([mu])
        if mu > left * (1 + 1e-9) or left < SMALLEST * most:
            raise InputError(
                f"{self.folder}: the privacy budget does not allow another release: rows may cost "
                f"ε = {limit.epsilon:g} in all (δ = {limit.delta:g}), and earlier releases cost "
                f"{shown(epsilon_of(spent, limit.delta))}"
            )
        return mu

    def _append(self, entry: Entry, known: list[Entry]) -> None:
        """All lines written anew, so that no cut-off line stays in the way; whole or not at all."""
        lines = [json.dumps(asdict(each), sort_keys=True) + "\n" for each in (*known, entry)]
        atomic_files.write_bytes(self.folder / FILE, "".join(lines).encode("ascii"))

    def _lines(self) -> list[tuple[Entry, str]]:
        """Each entry with the hash of its line."""
        path, head = self.folder / FILE, self._head()  # first: another process may add lines
        content = path.read_bytes() if path.exists() else b""
        if not content.endswith(b"\n") and content:
            raise InputError(f"{path}: its last line was cut off: put it back from a backup")
        found: list[tuple[Entry, str]] = []
        before = FIRST
        for number, line in enumerate(content.split(b"\n")[:-1], 1):
            try:
                entry = Entry(**json.loads(line))
                composed([entry.mu])
            except (ValueError, TypeError, InputError):
                raise InputError(f"{path}: line {number} cannot be read: it was altered") from None
            if entry.before != before:
                raise InputError(f"{path}: a line before line {number} was altered or removed")
            before = hashlib.sha256(line).hexdigest()
            found.append((entry, before))
        self._check_end(found, head)
        return found

    def _check_end(self, found: list[tuple[Entry, str]], head: tuple[int, str] | None) -> None:
        """Whether the lines go as far as is known of them, so that nothing spent comes back."""
        path = self.folder / FILE
        if head is None:  # of an earlier version, or nothing was released yet
            kept = len(list((self.folder / FOLDER).glob("*.safetensors")))
            if kept > len(found) + bool(found):  # one was killed before its line
                raise InputError(
                    f"{path}: {kept} releases are in {self.folder / FOLDER}, and {len(found)} lines are "
                    "here: put it back from a backup"
                )
            return
        count, last = head
        if len(found) < count:
            raise InputError(
                f"{path}: it has {len(found)} of {count} lines: put it back from a backup"
            )
        if (found[count - 1][1] if count else FIRST) != last:
            raise InputError(f"{path}: line {count} was altered: put it back from a backup")

    def _head(self) -> tuple[int, str] | None:
        path = self.folder / HEAD
        try:
            kept = json.loads(path.read_bytes())
            return int(kept["lines"]), str(kept["last"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path}: cannot be read: put it back from a backup") from None

    def _write_head(self, found: list[tuple[Entry, str]]) -> None:
        """Before a release it moves to the last line, after it to the new one."""
        head = (len(found), found[-1][1] if found else FIRST)
        if self._head() != head:
            content = json.dumps({"lines": head[0], "last": head[1]})
            atomic_files.write_bytes(self.folder / HEAD, content.encode("ascii"))

    def _kept(self, entry: Entry) -> dict[str, np.ndarray]:
        path = self._path(entry.request)
        try:
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() != entry.content:
                raise InputError(f"{path}: this release was altered; it cannot be sent again")
            return dict(load(content))
        except (OSError, SafetensorError):
            raise InputError(
                f"{path}: this release cannot be read; it cannot be sent again"
            ) from None

    def _path(self, request: str) -> Path:
        return self.folder / FOLDER / f"{request[:32]}.safetensors"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process releases from this folder at the same time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def ledger_of(folder: str | None, name: str) -> Ledger | None:
    """Each client's ledger has a folder of its own, named by a hash of the client's name."""
    if folder is None:
        return None
    return Ledger(Path(folder) / hashlib.sha256(name.encode()).hexdigest()[:16])


def request_of(parts: Mapping[str, object]) -> str:
    """SHA-256 over names and values; arrays by their bytes."""
    digest = hashlib.sha256()
    for name in sorted(parts):
        value = parts[name]
        digest.update(f"{name}\0".encode())
        if isinstance(value, np.ndarray):
            digest.update(f"{value.shape}{value.dtype}\0".encode())
            digest.update(np.ascontiguousarray(value).tobytes())
        else:
            digest.update(f"{value!r}\0".encode())
    return digest.hexdigest()
