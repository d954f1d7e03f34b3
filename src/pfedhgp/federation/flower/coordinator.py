"""The server of a federation: settings in, a RUN folder out, checkpoints in between.

RUN/checkpoint/             the server's state after each exchange; stays until every site has the model
RUN/participation.jsonl     by exchange: who was counted, who was not and why; who joined, who was withdrawn
RUN/audit.jsonl             what was sent and received, hash-chained
RUN/spec.json …             the model when done: the shared block, and no client's
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedhgp.base.atomic_files import write_bytes
from pfedhgp.data.table import short
from pfedhgp.errors import InputError
from pfedhgp.federation.flower.certs import read_sites
from pfedhgp.model.run_folder import SPEC, check_target, naming, parse_json

if TYPE_CHECKING:
    from pfedhgp.federation.agreement import Agreement
    from pfedhgp.federation.flower.engine import Link

PARTICIPATION, DELIVERED = "participation.jsonl", "delivered.json"
log = logging.getLogger("pfedhgp.server")


@dataclass
class Coordinator:
    """Settings that were checked; `run` needs a link to the sites."""

    agreement: Agreement
    sites: tuple[str, ...]
    keys: dict[str, str]
    out: Path
    timeout: float
    quorum: int
    resume: bool
    callbacks: Sequence[Callable[[dict[str, Any]], bool | None]] = ()
    tell: Callable[[dict[str, Any]], None] | None = None
    waiting: Callable[[], None] = lambda: None
    """Called once the server listens."""
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
        from pfedhgp.federation.agreement import Agreement, warn_of_unused
        from pfedhgp.settings import config as configs

        checked = configs.read(config, rounds=rounds)
        agreement = Agreement.of(checked)
        warn_of_unused(checked, config)
        known = read_sites(sites, keys=keys)
        names = tuple(known)
        least = max(1, -(-len(names) // 2)) if quorum is None else quorum
        if not 1 <= least <= len(names):
            raise InputError(f"--quorum must be from 1 to {len(names)}, the sites, got {quorum}")
        if not timeout > 0:
            raise InputError(f"--timeout must be positive, got {timeout:g}")
        stopped = out / "checkpoint"
        resume = not overwrite and any(
            p.name.isdigit() for p in (stopped.iterdir() if stopped.is_dir() else ())
        )
        check_target(out, overwrite=overwrite or resume)
        return Coordinator(agreement, names, known, out, timeout, least, resume)

    def run(self, link: Link) -> dict[str, Any]:
        """Trains over `link` and writes RUN; goes on from the checkpoint where there is one."""
        from pfedhgp.base.numerics import numerics
        from pfedhgp.federation.checkpoint import Checkpoint
        from pfedhgp.federation.flower.audit import AuditLog
        from pfedhgp.federation.flower.engine import Engine, Patience
        from pfedhgp.federation.flower.roster import Roster
        from pfedhgp.federation.messages import Message
        from pfedhgp.federation.server import Server
        from pfedhgp.model import files

        with numerics():
            server = Server(self.agreement.plan())
            roster = Roster(self.sites, self.agreement.to_json())
            kept, messages = Checkpoint(self.out / "checkpoint"), []
            if self.resume:
                messages = kept.restore(server, [roster])
                self._tell_changes(roster.changes)
                roster.delivered = self._delivered()
                if (self.out / SPEC).is_file():  # trained: there are sites to deliver it to
                    messages = list(files.load(self.out).messages)
                log.info("going on after exchange %d", server.exchanges)
            else:
                kept.clear()
                (kept.folder / DELIVERED).unlink(missing_ok=True)
                for name in ("audit.jsonl", "audit.head", PARTICIPATION):
                    (self.out / name).unlink(missing_ok=True)
            audit = AuditLog(self.out)

            def record(message: Message, receiver: str) -> None:
                messages.append(message.log_entry(receiver))
                direction = "received" if receiver == "server" else "sent"
                audit.append(
                    direction,
                    run=roster.run,
                    exchange=server.exchanges + 1,
                    kind=message.kind,
                    arrays=message.arrays,
                )

            def keep() -> None:
                kept.save(server, [roster], messages)
                self._write_log(roster.log)

            engine = Engine(
                server,
                roster,
                link,
                Patience(timeout=self.timeout, quorum=self.quorum),
                record=record,
                keep=keep,
                tell=self.tell,
                receipt=lambda name: self._note_delivery(roster.delivered),
                callbacks=self.callbacks,
            )
            self.missing = engine.run()
            self._write_log(roster.log)
            summary = json.loads(engine.summary())
            self._save(server, messages, summary)
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

    def _tell_changes(self, changes: dict[str, list[str]]) -> None:
        """Who is in sites.toml no more, or for the first time, since the server stopped."""
        for name in changes.get("withdrawn", []):
            log.warning(
                "%s was withdrawn: it is not asked, and not waited for, any more", short(name)
            )
        for name in changes.get("joined", []):
            log.warning("%s has joined: it is asked from the next exchange on", short(name))

    def _delivered(self) -> list[str]:
        """Who had the model when the server ended."""
        path = self.out / "checkpoint" / DELIVERED
        if not path.is_file():
            return []
        with naming(path):
            found = parse_json(path.read_bytes())
            if not isinstance(found, list):
                raise ValueError("not a list of this run's sites")
            return [name for name in found if name in self.sites]  # others were withdrawn

    def _note_delivery(self, names: Sequence[str]) -> None:
        write_bytes(self.out / "checkpoint" / DELIVERED, json.dumps(list(names)).encode("ascii"))

    def _write_log(self, entries: Sequence[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(entry) + "\n" for entry in entries)
        write_bytes(self.out / PARTICIPATION, lines.encode("ascii"))

    def _save(self, server: Any, messages: list[dict[str, Any]], summary: dict[str, Any]) -> None:
        from pfedhgp.federation.flower.model import server_model
        from pfedhgp.model import files

        columns = self.agreement.columns
        model = server_model(
            server,
            names=(columns.input_names, columns.outputs),
            settings={**self.agreement.settings(), **summary},
            messages=messages,
            metrics={"holdout": None},
        )
        # Who has not got the model gets it when the same command is given again.
        files.save(model, self.out, overwrite=True, stay=("checkpoint",) if self.missing else ())
