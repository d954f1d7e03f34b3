"""Processes on one machine: Flower's SuperLink and SuperNode beside ours, folders, ports, `federate`'s trial.

The children are Flower's own commands, started through two small modules of ours (`superlink`, `supernode`).
No child outlives its parent.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pfedhgp.errors import InputError, PFedHGPError, warn

LOOPBACK = ("127.0.0.1", "::1", "localhost")
PARENT, READY, PROGRESS = "PFEDHGP_PARENT", "PFEDHGP_READY", "PFEDHGP_PROGRESS"
LARGEST, OVERSIZED = "largest", "oversized"
"""Files by which a server tells its SuperLink how large a reply may be, and is told whose was larger."""
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PULLS": "1",
    "FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES": "1",
}
"""Flower connects to the server only, installs nothing, and moves the few parts of a message one by one: side
by side they need a second connection with a handshake of its own.
"""
OWN_FILES = {"lock", "audit.jsonl", "site.json", "flower", "checkpoint", "spec.json", "run.json"}
"""A folder with one of these is a site's home, a server's RUN or its checkpoint."""
ACQUIRE_TASK = frozenset({"/flwr.proto.Runtime/AcquireTask"})
"""The call that fetches work from a Flower process. It needs the secret of that process."""


class FlowerError(PFedHGPError):
    """A Flower process ended, or did not start."""


# ------------------------------------------------------------------------------ child processes


@dataclass
class Child:
    """A running child and its log."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        stop_process(self.process, patience=10.0)

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
        PROGRESS: str(folder / "progress"),
        PARENT: str(os.getpid()),
    }
    environment = {**os.environ, **OFFLINE, **own}
    with open(log, "ab") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", f"pfedhgp.federation.flower.{module}", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C is ours to handle
            pass_fds=(lock.fileno(),),  # the folder stays locked until the child has ended, too
        )
    return Child(process, log)


def stop_process(process: subprocess.Popen[bytes], *, patience: float) -> None:
    """Asks a process to end, and kills it after `patience` seconds."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def end_with_parent() -> None:
    """In a child: ends this process as soon as its parent is gone, even if that was killed."""
    parent = int(os.environ[PARENT])

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5.0)  # less than the next process waits for the lock
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


@dataclass(frozen=True)
class Address:
    """Where a Flower process on this machine listens; without `ca` it speaks without TLS."""

    text: str
    ca: Path | None = None

    def client(self, kind: Callable[..., Any], *interceptors: Any) -> Any:
        """One of Flower's HTTP clients, connected to the process."""
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        return kind.from_server_address(  # type: ignore[attr-defined]
            server_address=self.text,
            insecure=self.ca is None,
            root_certificates=None if self.ca is None else self.ca.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="pfedhgp"), *interceptors],
        )


def heartbeat_of(client: Any) -> Any:
    """Flower's heartbeat sender for a task, which goes on if the task is over."""
    import httpx
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http

    send = make_task_heartbeat_fn_http(client)

    def beat() -> bool:
        try:
            return send()
        except httpx.HTTPStatusError:  # it would end the sender's thread with a traceback
            return False

    return HeartbeatSender(beat)


# ---------------------------------------------------------------------------- folders and ports


@contextmanager
def locked(folder: Path, what: str, *, wait: float = 30.0) -> Iterator[IO[bytes]]:
    """Locks `folder` for this process and its children. A process that is killed loses the lock."""
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
    """A free port of the loopback interface.

    It is below the range from which systems take ports for connections: one of those could be taken before
    anybody listens on it.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def private_folder(folder: Path, option: str) -> None:
    """Makes a folder that only its owner can read. Warns if it exists and holds files of others."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        there = {path.name for path in folder.iterdir()}
        if stat.S_IMODE(folder.stat().st_mode) & 0o077:
            if there & OWN_FILES or not there:
                folder.chmod(0o700)
            else:
                text = f"{option} {folder} can be read by other users of this machine: chmod 700 it"
                warn(text)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"{option} {folder}: nothing can be written there ({why})") from None


def write_secret(path: Path, content: bytes) -> None:
    """Writes a new file that only its owner can read, from the first byte on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def secret_file(path: Path) -> bytes:
    """Writes a new secret; who knows it can fetch work from the Flower process beside us."""
    path.unlink(missing_ok=True)
    secret = secrets.token_bytes(32)
    write_secret(path, secret)
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


# -------------------------------------------------------------- a whole federation on one machine


@dataclass(frozen=True)
class LocalSite:
    """A site on this machine: its name, its rows, its key and its home."""

    name: str
    data: Path
    key: Path
    home: Path


OWN_LAYERS = 600.0
"""Seconds for own layers in a private run: the server does not wait for them."""


@dataclass(frozen=True)
class LocalFederation:
    """`pfedhgp server` and a `pfedhgp client` for every site; `command` is how to start `pfedhgp`."""

    command: tuple[str, ...]
    config: Path
    certificates: Path
    out: Path
    sites: tuple[LocalSite, ...]
    policy: Path
    """What the sites allow the server."""
    overwrite: bool = False
    timeout: float = 600.0
    masks: bool = False
    i_know: bool = False
    """Whether sites answer even what their rows could be computed from."""
    epsilon: float | None = None
    delta: float = 1e-6
    """With differential privacy: every site's ceilings."""
    zones: int | None = None
    """Groups that the server finds among the sites when they have the model."""

    def run(self, *, quiet: bool = False) -> None:
        """Until the server has written RUN and the sites have their models."""
        port = free_port()
        sink = subprocess.DEVNULL if quiet else None
        server = self._start(self.server_arguments(port), sink)
        clients = []
        try:
            for site in self.sites:
                private_folder(site.home, "the home")
                with open(site.home / "site.log", "ab") as log:
                    clients.append(self._start(self.client_arguments(site, port), log))
            while server.poll() is None:
                failed = next((c for c in clients if c.poll() not in (None, 0)), None)
                if failed is not None:
                    place = self.sites[clients.index(failed)].home / "site.log"
                    raise FlowerError(f"a site ended with an error: see {place}")
                time.sleep(0.2)
            if server.returncode == 2:
                raise InputError("the server refused the settings: see above")
            if server.returncode:
                raise FlowerError("the server ended with an error: see above")
            end = time.monotonic() + (30.0 if self.epsilon is None else OWN_LAYERS)
            while any(c.poll() is None for c in clients) and time.monotonic() < end:
                time.sleep(0.2)
        finally:
            for process in (server, *clients):
                stop_process(process, patience=15.0)

    def server_arguments(self, port: int) -> list[str]:
        return [
            "server",
            *("--config", str(self.config), "--sites", str(self.certificates / "sites.toml")),
            *("--certs", str(self.certificates), "--listen", f"127.0.0.1:{port}"),
            *("--out", str(self.out), "--timeout", str(self.timeout)),
            *(["--overwrite"] if self.overwrite else []),
            *([] if self.zones is None else ["--zones", str(self.zones)]),
        ]

    def client_arguments(self, site: LocalSite, port: int) -> list[str]:
        return [
            "client",
            *("--data", str(site.data), "--name", site.name, "--home", str(site.home)),
            *("--server", f"127.0.0.1:{port}", "--ca", str(self.certificates / "ca.crt")),
            *("--key", str(site.key), "--least-rows", "1"),
            *([] if self.epsilon is None else self._ceilings()),
            *(["--roster", str(self.certificates / "sites.toml")] if self.masks else []),
            *(["--i-know"] if self.i_know else []),
            *("--config", str(self.config), "--policy", str(self.policy)),
            *([] if self.zones is None else ["--reveal", "1"]),
        ]

    def _ceilings(self) -> list[str]:
        return ["--epsilon-ceiling", str(self.epsilon), "--delta-ceiling", str(self.delta)]

    def _start(self, arguments: list[str], sink: IO[bytes] | int | None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env={**os.environ, PARENT: str(os.getpid())},
        )
