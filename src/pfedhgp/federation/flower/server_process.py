"""`pfedhgp server`: a SuperLink beside this process, training over its Grid, a RUN folder as the result.

RUN/checkpoint/             the server's state after each exchange; stays until every site has the model
RUN/participation.jsonl     by exchange: whose reply was counted, whose not and why; who joined or withdrew
RUN/audit.jsonl             what was sent and received, hash-chained
RUN/spec.json …             the model at the end: the shared block, and no client's
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pfedhgp.base.atomic_files import numbered_folders, write_bytes
from pfedhgp.base.checks import short
from pfedhgp.base.numerics import numerics
from pfedhgp.diagnosis.of_model import with_classifier
from pfedhgp.errors import InputError
from pfedhgp.federation.agreement import Agreement, refuse_zones, warn_of_unused
from pfedhgp.federation.checkpoint import Checkpoint, Party, decode, encode
from pfedhgp.federation.envelope import Envelope
from pfedhgp.federation.flower import audit, processes, superlink
from pfedhgp.federation.flower.body_limits import OversizedKeys
from pfedhgp.federation.flower.certificates import (
    public_bytes,
    read_sites,
)
from pfedhgp.federation.flower.exchange import Engine, Link
from pfedhgp.federation.flower.finished_run import is_finished, reopen
from pfedhgp.federation.flower.listen_address import ListenAddress
from pfedhgp.federation.flower.masked_exchange import MaskedExchanges
from pfedhgp.federation.flower.pinned_roster import der_keys, roster_hash
from pfedhgp.federation.flower.private_exchange import PrivateRun, Releases
from pfedhgp.federation.flower.processes import LARGEST, OVERSIZED
from pfedhgp.federation.flower.spool import Spool
from pfedhgp.federation.flower.state import Roster
from pfedhgp.federation.flower.totals_exchange import NextQuestion, Totals, TotalsRun
from pfedhgp.federation.flower.transport import GridLink
from pfedhgp.federation.flower.waiting import Patience
from pfedhgp.federation.messages import Message
from pfedhgp.federation.planning import fitted_model
from pfedhgp.federation.private_fit import warn_of_few_clients
from pfedhgp.federation.server import Server
from pfedhgp.federation.watch import events, reports
from pfedhgp.inference.ending import in_words
from pfedhgp.model import files
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.run_folder import SPEC, check_target, naming, parse_json
from pfedhgp.settings import config as configs

CHECKPOINT, PARTICIPATION, DELIVERED = "checkpoint", "participation.jsonl", "delivered.json"
MASKS, QUESTION = "masks.safetensors", "question.safetensors"
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
    tell: Callable[[events.Event], None] = lambda event: None
    """Gets what happens, for those who watch."""
    say: Callable[[str], None] = lambda text: None
    """Gets lines while sites are waited for."""
    missing: dict[str, str] = field(default_factory=dict)
    """Sites that did not get the model, and why."""
    after_delivery: Callable[[Engine], None] | None = None
    """Asks the sites for something when they have the model: zones."""
    finished: bool = False  # RUN has the model already: only `after_delivery` is left

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
        zones: bool = False,
    ) -> Coordinator:
        """Reads and checks everything that can be checked before a site is asked."""
        checked = configs.read(config, rounds=rounds)
        if zones:
            refuse_zones(checked)
        agreement = Agreement.of(checked)
        warn_of_unused(checked, config)
        known = read_sites(sites, keys=keys or agreement.plan.masks)
        if agreement.plan.masks:
            roster_hash(known)  # too few sites are refused now
        names = tuple(known)
        agreement.totals(len(names))  # so are numbers of sites that the noise is not for
        least = max(1, -(-len(names) // 2)) if quorum is None else quorum
        if not 1 <= least <= len(names):
            raise InputError(
                f"--quorum must be from 1 to {len(names)}, the number of sites, got {quorum}"
            )
        if not timeout > 0:
            raise InputError(f"--timeout must be positive, got {timeout:g}")
        resume = not overwrite and bool(numbered_folders(out / CHECKPOINT))
        finished = zones and not (overwrite or resume) and is_finished(out)
        check_target(out, overwrite=overwrite or resume or finished)
        about = (names, known, out, timeout, least, resume)
        return Coordinator(agreement, *about, finished=finished)

    @property
    def roster_hash(self) -> str:
        """With masks: what sites pin."""
        return roster_hash(self.keys) if self.agreement.plan.masks else ""

    @property
    def checkpoint(self) -> Path:
        return self.out / CHECKPOINT

    def run(self, link: Link) -> dict[str, Any]:
        """Trains over `link` and writes RUN; goes on from the checkpoint if there is one."""
        with numerics():
            server = Server(self.agreement.plan)
            roster = Roster(self.sites, self.agreement.to_json())
            kept = Checkpoint(self.checkpoint)
            private = self._private_part()
            parties: list[Party] = [roster] if private is None else [roster, private]
            messages = self._begin(kept, server, roster, parties)
            audit_log = audit.AuditLog(self.out)
            masks = self._masks(roster)

            def record(message: Message | Envelope, receiver: str) -> None:
                messages.append(message.log_entry(receiver))
                audit_log.append(
                    "received" if receiver == "server" else "sent",
                    run=roster.run,
                    exchange=server.exchanges + 1,
                    kind=message.kind,
                    arrays=message.arrays,
                )

            def save_checkpoint() -> None:
                kept.save(server, parties, messages)
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
                tell=self.tell,
                spool=Spool(self.checkpoint / "replies"),
                say=self.say,
                masks=masks,
                announced={} if self.after_delivery is None else {"zones": True},
            )
            if isinstance(private, Totals) and not self.resume:
                save_checkpoint()  # the first answers cost ε: a run that stops there must go on
            if self.finished:
                model = files.load(self.out)
            elif private is not None:
                model = replace(self._private_run(engine, private), messages=messages)
            else:
                self.missing = engine.run()
                model = self._model(server, messages)
            if not self.finished:
                self._write_participation(roster.log)
                self._save_model(model)
            if self.after_delivery is not None:
                self.after_delivery(engine)
                self._write_participation(roster.log)
                if not self.missing:
                    shutil.rmtree(self.checkpoint, ignore_errors=True)
        return {
            "run": str(self.out),
            "sites": len(self.sites),
            "rounds": sum(1 for record in server.history if record["kind"] == "round"),
            "exchanges": server.exchanges,
            "bound": model.settings["bound"],
            "ended": in_words(server.history) if server.history else "",
            "without_model": self.missing,
            "zones_alone": self.finished,
            "bytes_up": sum(entry["bytes_up"] for entry in roster.log),
            "bytes_down": sum(entry["bytes_down"] for entry in roster.log),
        }

    def _private_part(self) -> Releases | Totals | None:
        """With differential privacy: what is known of sites so far, as part of the checkpoint."""
        if self.agreement.promise is None:
            return None
        return Releases() if self.agreement.totals(len(self.sites)) is None else Totals()

    def _private_run(self, engine: Engine, known: Releases | Totals) -> FittedModel:
        """The model of a run with differential privacy, which goes on from what is known."""
        run: PrivateRun | TotalsRun
        assert self.agreement.promise is not None
        warn_of_few_clients(self.agreement.promise, len(self.sites))
        if isinstance(known, Releases):
            run = PrivateRun(self.agreement, engine, known)
        else:
            terms = self.agreement.totals(len(self.sites))
            assert terms is not None
            asked = NextQuestion(self.checkpoint / QUESTION)
            run = TotalsRun(self.agreement, terms, engine, known, asked)
        model, self.missing = run.run()
        return replace(model, settings={**model.settings, **self.agreement.settings()})

    def _begin(
        self, kept: Checkpoint, server: Server, roster: Roster, parties: Sequence[Party]
    ) -> list[dict[str, Any]]:
        """Restores server and roster, or removes what an earlier run left. Returns the message log."""
        if self.finished:
            reopen(self.out, server, roster)
            return []
        if not self.resume:
            kept.clear()
            for name in (DELIVERED, MASKS, QUESTION):
                (self.checkpoint / name).unlink(missing_ok=True)
            for name in (audit.LOG, audit.HEAD, PARTICIPATION):
                (self.out / name).unlink(missing_ok=True)
            return []
        messages = kept.restore(server, parties)
        for name in roster.changes.get("withdrawn", []):
            log.warning("%s was withdrawn: the server does not ask it any more", short(name))
        for name in roster.changes.get("joined", []):
            log.warning("%s has joined: the server asks it from the next exchange on", short(name))
        roster.delivered = self._read_delivered()
        if (self.out / SPEC).is_file():  # training is done: some sites still need the model
            messages = list(files.load(self.out).messages)
        log.info("going on after exchange %d", server.exchanges)
        return messages

    def _masks(self, roster: Roster) -> MaskedExchanges | None:
        """With masks: the server's part, as it was when the server ended."""
        if not self.agreement.plan.masks:
            return None
        path = self.checkpoint / MASKS
        found = MaskedExchanges.of(
            der_keys(self.keys), roster.run, save=lambda state: write_bytes(path, encode(state))
        )
        if path.is_file():
            with naming(path):
                state = decode(path.read_bytes())
            found.restore(state)
        return found

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

    def _model(self, server: Server, messages: list[dict[str, Any]]) -> FittedModel:
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
        return model

    def _save_model(self, model: FittedModel) -> None:
        model = replace(model, metrics={"holdout": None})
        # A site that has not got the model gets it when the same command is given again.
        unfinished = self.missing or self.after_delivery is not None
        files.save(model, self.out, overwrite=True, stay=(CHECKPOINT,) if unfinished else ())


# ------------------------------------------------------------------------------------- listening


def serve(coordinator: Coordinator, listen: ListenAddress) -> dict[str, Any]:
    """Trains, writes RUN and ends. After a kill, the same call goes on from the checkpoint."""
    folder = coordinator.checkpoint / "flower"
    processes.private_folder(coordinator.out, "--out")
    processes.private_folder(coordinator.checkpoint, "--out")
    with processes.locked(coordinator.checkpoint, "server") as lock:
        listen.check()  # only now: a killed server keeps the lock until its port is free
        secret = processes.secret_file(folder / "secret")
        if not coordinator.resume:
            (folder / "state.db").unlink(missing_ok=True)
        for name in ("ready", LARGEST, OVERSIZED):
            (folder / name).unlink(missing_ok=True)
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
    listed = [b64encode(key).decode("ascii") for key in names or {}]
    write_bytes(folder / "ready", "\n".join(listed).encode("ascii"))
    coordinator.on_listening()
    coordinator.tell(
        reports.listening(
            f"{listen.host}:{listen.port}",
            coordinator.sites,
            coordinator.agreement.plan,
            resumed=coordinator.resume,
        )
    )
    run_file = folder / "run"
    before = int(run_file.read_text()) if coordinator.resume and run_file.is_file() else None
    run_id = superlink.start_run(address, before)
    run_file.write_text(str(run_id))
    with superlink.server_grid(address, secret, run_id) as grid:
        link = GridLink(grid, coordinator.sites, names)
        link.on_limit = lambda most: write_bytes(folder / LARGEST, str(most).encode("ascii"))
        link.oversized = OversizedKeys(folder / OVERSIZED)
        link.on_nodes = lambda sites: coordinator.tell(events.Connected(sites))
        return coordinator.run(link)
