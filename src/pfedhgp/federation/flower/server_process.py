"""`pfedhgp server`: a SuperLink beside this process, training over its Grid, a RUN folder as the result.

RUN/checkpoint/             the server's state after each exchange; stays until every site has the model
RUN/participation.jsonl     by exchange: whose reply was counted, whose not and why; who joined or withdrew
RUN/audit.jsonl             what was sent and received, hash-chained
RUN/spec.json …             the model at the end: the shared block, and no client's
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pfedhgp.base.atomic_files import numbered_folders, write_bytes
from pfedhgp.base.checks import short
from pfedhgp.base.numerics import numerics
from pfedhgp.diagnosis.of_model import with_classifier
from pfedhgp.errors import InputError
from pfedhgp.federation.agreement import Agreement, warn_of_unused
from pfedhgp.federation.checkpoint import Checkpoint
from pfedhgp.federation.flower import audit, processes, superlink
from pfedhgp.federation.flower.certificates import (
    check_server_certificate,
    public_bytes,
    read_sites,
)
from pfedhgp.federation.flower.exchange import Engine, Link, Patience
from pfedhgp.federation.flower.state import Roster
from pfedhgp.federation.flower.transport import GridLink
from pfedhgp.federation.messages import Message
from pfedhgp.federation.planning import fitted_model
from pfedhgp.federation.server import Server
from pfedhgp.model import files
from pfedhgp.model.run_folder import SPEC, check_target, naming, parse_json
from pfedhgp.settings import config as configs

CHECKPOINT, PARTICIPATION, DELIVERED = "checkpoint", "participation.jsonl", "delivered.json"
log = logging.getLogger("pfedhgp.server")


# -------------------------------------------------------------------------------------- training


@dataclass
class Coordinator:
    """Checked settings of a server. `run` needs a link to the sites."""

    agreement: Agreement
    sites: tuple[str, ...]
    keys: dict[str, str]
    out: Path
    timeout: float
    quorum: int
    resume: bool
    callbacks: Sequence[Callable[[dict[str, Any]], bool | None]] = ()
    on_exchange: Callable[[dict[str, Any]], None] | None = None
    """Gets each entry of the participation log."""
    on_listening: Callable[[], None] = lambda: None
    missing: dict[str, str] = field(default_factory=dict)
    """Sites that did not get the model, and why."""

    @staticmethod
    def of(
        *,
        config: Path,
        sites: Path,
        out: Path,
        keys: bool = True,
        rounds: int | None = None,
        timeout: float = 600.0,
        quorum: int | None = None,
        overwrite: bool = False,
    ) -> Coordinator:
        """Reads and checks everything that can be checked before a site is asked."""
        checked = configs.read(config, rounds=rounds)
        agreement = Agreement.of(checked)
        warn_of_unused(checked, config)
        known = read_sites(sites, keys=keys)
        names = tuple(known)
        least = max(1, -(-len(names) // 2)) if quorum is None else quorum
        if not 1 <= least <= len(names):
            raise InputError(
                f"--quorum must be from 1 to {len(names)}, the number of sites, got {quorum}"
            )
        if not timeout > 0:
            raise InputError(f"--timeout must be positive, got {timeout:g}")
        resume = not overwrite and bool(numbered_folders(out / CHECKPOINT))
        check_target(out, overwrite=overwrite or resume)
        return Coordinator(agreement, names, known, out, timeout, least, resume)

    @property
    def checkpoint(self) -> Path:
        return self.out / CHECKPOINT

    def run(self, link: Link) -> dict[str, Any]:
        """Trains over `link` and writes RUN; goes on from the checkpoint if there is one."""
        with numerics():
            server = Server(self.agreement.plan)
            roster = Roster(self.sites, self.agreement.to_json())
            kept = Checkpoint(self.checkpoint)
            messages = self._begin(kept, server, roster)
            audit_log = audit.AuditLog(self.out)

            def record(message: Message, receiver: str) -> None:
                messages.append(message.log_entry(receiver))
                audit_log.append(
                    "received" if receiver == "server" else "sent",
                    run=roster.run,
                    exchange=server.exchanges + 1,
                    kind=message.kind,
                    arrays=message.arrays,
                )

            def save_checkpoint() -> None:
                kept.save(server, [roster], messages)
                self._write_participation(roster.log)

            engine = Engine(
                server,
                roster,
                link,
                Patience(timeout=self.timeout, quorum=self.quorum),
                record=record,
                save_checkpoint=save_checkpoint,
                on_exchange=self.on_exchange,
                on_delivery=lambda name: self._write_delivered(roster.delivered),
                callbacks=self.callbacks,
            )
            self.missing = engine.run()
            self._write_participation(roster.log)
            summary = server.summary()
            self._save_model(server, messages)
        return {
            "run": str(self.out),
            "sites": len(self.sites),
            "rounds": sum(1 for record in server.history if record["kind"] == "round"),
            "exchanges": server.exchanges,
            "bound": summary["bound"],
            "without_model": self.missing,
            "bytes_up": sum(entry["bytes_up"] for entry in roster.log),
            "bytes_down": sum(entry["bytes_down"] for entry in roster.log),
        }

    def _begin(self, kept: Checkpoint, server: Server, roster: Roster) -> list[dict[str, Any]]:
        """Restores server and roster, or removes what an earlier run left. Returns the message log."""
        if not self.resume:
            kept.clear()
            (self.checkpoint / DELIVERED).unlink(missing_ok=True)
            for name in (audit.LOG, audit.HEAD, PARTICIPATION):
                (self.out / name).unlink(missing_ok=True)
            return []
        messages = kept.restore(server, [roster])
        for name in roster.changes.get("withdrawn", []):
            log.warning("%s was withdrawn: the server does not ask it any more", short(name))
        for name in roster.changes.get("joined", []):
            log.warning("%s has joined: the server asks it from the next exchange on", short(name))
        roster.delivered = self._read_delivered()
        if (self.out / SPEC).is_file():  # training is done: some sites still need the model
            messages = list(files.load(self.out).messages)
        log.info("going on after exchange %d", server.exchanges)
        return messages

    def _read_delivered(self) -> list[str]:
        """The sites that had the model when the server ended."""
        path = self.checkpoint / DELIVERED
        if not path.is_file():
            return []
        with naming(path):
            found = parse_json(path.read_bytes())
            if not isinstance(found, list):
                raise ValueError("not a list of this run's sites")
            return [name for name in found if name in self.sites]  # others were withdrawn

    def _write_delivered(self, names: Sequence[str]) -> None:
        write_bytes(self.checkpoint / DELIVERED, json.dumps(list(names)).encode("ascii"))

    def _write_participation(self, entries: Sequence[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(entry) + "\n" for entry in entries)
        write_bytes(self.out / PARTICIPATION, lines.encode("ascii"))

    def _save_model(self, server: Server, messages: list[dict[str, Any]]) -> None:
        columns = self.agreement.columns
        model = fitted_model(
            server.plan,
            server,
            groups=(),  # no client's block: it predicts for a client that was never seen
            rows=(),
            input_names=columns.input_names,
            output_names=columns.outputs,
            settings={**self.agreement.settings(), **server.summary()},
            messages=messages,
        )
        if (found := server.run.diagnosis) is not None:
            model = with_classifier(model, found.classifier, found.facts)
        model = replace(model, metrics={"holdout": None})
        # A site that has not got the model gets it when the same command is given again.
        files.save(model, self.out, overwrite=True, stay=(CHECKPOINT,) if self.missing else ())


# ------------------------------------------------------------------------------------- listening


@dataclass(frozen=True)
class ListenAddress:
    """Where the server listens, and its certificates; None: without TLS, for this machine alone."""

    host: str
    port: int
    certificates: Path | None
    """A folder with ca.crt, server.crt and server.key."""

    def arguments(self) -> list[str]:
        """The options of `flower-superlink`."""
        where = ["--host", self.host, "--port", str(self.port)]
        if self.certificates is None:
            return ["--insecure", *where]
        named = {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}
        pairs = [(f"--ssl-{option}", self.certificates / name) for option, name in named.items()]
        return [*(str(each) for pair in pairs for each in pair), "--enable-supernode-auth", *where]

    def check(self) -> None:
        """Refuses an address or certificate with which Flower would fail."""
        where = f"--listen {self.host}:{self.port}"
        try:
            family, kind, _, _, address = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen()
        except OSError as error:
            busy = f"port {self.port} is in use by another program: choose another port"
            why = {errno.EADDRINUSE: busy, errno.EADDRNOTAVAIL: "not an address of this machine"}
            problem = why.get(error.errno or 0, error.strerror or str(error))
            raise InputError(f"{where}: {problem}") from None
        if self.certificates is not None:
            check_server_certificate(self.certificates, self.local_host)

    @property
    def local_host(self) -> str:
        """The name by which the server's own processes reach it."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "localhost", "127.0.0.1") else self.host
        return "::1" if self.host in ("::", "::1") else host

    @property
    def local(self) -> processes.Address:
        """The address for the server's own processes."""
        host = f"[{self.local_host}]" if ":" in self.local_host else self.local_host
        ca = None if self.certificates is None else self.certificates / "ca.crt"
        return processes.Address(f"{host}:{self.port}", ca)


def serve(coordinator: Coordinator, listen: ListenAddress) -> dict[str, Any]:
    """Trains, writes RUN and ends. After a kill, the same call goes on from the checkpoint."""
    folder = coordinator.checkpoint / "flower"
    processes.private_folder(coordinator.checkpoint, "--out")
    with processes.locked(coordinator.checkpoint, "server") as lock:
        listen.check()  # only now: a killed server keeps the lock until its port is free
        secret = processes.secret_file(folder / "secret")
        if not coordinator.resume:
            (folder / "state.db").unlink(missing_ok=True)
        (folder / "ready").unlink(missing_ok=True)
        child = processes.start(
            "superlink",
            [
                *listen.arguments(),
                *("--isolation", "process", "--superexec-auth-secret-file", str(folder / "secret")),
                *("--database", str(folder / "state.db")),
                "--disable-runtime-dependency-installation",
            ],
            folder=folder,
            lock=lock,
        )
        os.environ.update(processes.OFFLINE)
        try:
            return _train(coordinator, listen, secret, child)
        finally:
            child.stop()


def _train(
    coordinator: Coordinator, listen: ListenAddress, secret: bytes, child: processes.Child
) -> dict[str, Any]:
    address, names, folder = listen.local, None, child.log.parent
    superlink.wait_until_up(address, lambda: child.running, log=child.log)
    if listen.certificates is not None:
        names = {public_bytes(key, name): name for name, key in coordinator.keys.items()}
        superlink.register(address, names)
    (folder / "ready").touch()
    coordinator.on_listening()
    run_file = folder / "run"
    before = int(run_file.read_text()) if coordinator.resume and run_file.is_file() else None
    run_id = superlink.start_run(address, before)
    run_file.write_text(str(run_id))
    with superlink.server_grid(address, secret, run_id) as grid:
        return coordinator.run(GridLink(grid, coordinator.sites, names))
