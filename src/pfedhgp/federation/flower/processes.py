"""SuperLink and SuperNode as child processes that do not outlive their parent, and the locks of folders.

The children are Flower's own commands, started through two small modules of ours (`superlink`, `supernode`).
"""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pfedhgp.errors import InputError, PFedHGPError, PFedHGPWarning

LOOPBACK = ("127.0.0.1", "::1", "localhost")
PARENT, READY = "PFEDHGP_PARENT", "PFEDHGP_READY"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Flower calls nobody but the server, and installs nothing."""
OURS = {"lock", "audit.jsonl", "site.json", "flower"}
"""By which a site's home and a server's checkpoint are known."""


class FlowerError(PFedHGPError):
    """Flower's process ended, or did not come up."""


@dataclass
class Child:
    """A running child and where it logs."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def stop(self, patience: float = 10.0) -> None:
        """Asks it to end, and ends it."""
        if self.running:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    def tail(self, size: int = 4000) -> str:
        content = self.log.read_bytes() if self.log.exists() else b""
        return content[-size:].decode("utf-8", "replace")


def start(module: str, arguments: Sequence[str], *, folder: Path, lock: IO[bytes]) -> Child:
    """`python -m pfedhgp.federation.flower.<module>`; its log and Flower's own files are in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{module}.log"
    own = {
        "FLWR_HOME": str(folder / "home"),
        READY: str(folder / "ready"),
        PARENT: str(os.getpid()),
    }
    environment = {**os.environ, **QUIET, **own}
    with open(log, "ab") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", f"pfedhgp.federation.flower.{module}", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C is ours to handle
            pass_fds=(lock.fileno(),),  # the folder stays locked until the child has gone, too
        )
    return Child(process, log)


def follow_parent() -> None:
    """In a child: ends it when its parent is gone, however that came to be."""
    parent = int(os.environ[PARENT])

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5.0)  # sooner than whoever comes next gives up on the lock
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def locked(folder: Path, what: str, *, wait: float = 30.0) -> Iterator[IO[bytes]]:
    """Holds `folder` for this process and its children; a process that was killed frees it by itself."""
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + wait
    with open(folder / "lock", "ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise InputError(f"{folder} is in use by another {what}") from None
                time.sleep(0.2)
        yield file


def free_port() -> int:
    """A port of the loopback interface that nobody has just now.

    Below those that systems hand out for connections: one of these could be gone before it is listened on.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def private_folder(folder: Path, option: str) -> None:
    """A folder that its owner alone may look into; one that holds strange files already is not changed."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        there = {path.name for path in folder.iterdir()}
        if stat.S_IMODE(folder.stat().st_mode) & 0o077:
            if there & OURS or not there:
                folder.chmod(0o700)
            else:
                text = f"{option} {folder} can be read by other users of this machine: chmod 700 it"
                warnings.warn(text, PFedHGPWarning, stacklevel=2)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"{option} {folder}: nothing can be written there ({why})") from None


def secret_file(path: Path) -> bytes:
    """A fresh secret, readable by its owner alone: what may fetch work from the process beside us."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    secret = secrets.token_bytes(32)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secret)
    return secret


def split_address(text: str, option: str) -> tuple[str, int]:
    """HOST:PORT, or [IPv6]:PORT."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536 or not host.strip("[]"):
        raise InputError(f"{option} must be HOST:PORT, got {text!r}")
    return host.strip("[]"), int(port)


def require_loopback(host: str, option: str) -> None:
    """Without TLS nothing leaves the machine."""
    if host not in LOOPBACK:
        raise InputError(f"--insecure is for this machine alone: {option} must be 127.0.0.1")
