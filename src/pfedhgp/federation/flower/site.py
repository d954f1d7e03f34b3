"""A site answers each request from its own rows and keeps its state on its own disk. No Flower in here.

A request names the run, the exchange, and the last exchange in which this site was counted. So a lost reply
is sent again without another training step, the step of a reply that came too late is undone, and an old or
foreign request changes nothing. Of an error, only a code leaves the site.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from pfedhgp.base.atomic_files import write_bytes
from pfedhgp.base.numerics import with_numerics
from pfedhgp.data.rows import ClientRows, digest_of
from pfedhgp.diagnosis.federated.party import Party
from pfedhgp.diagnosis.federated.terms import SiteCycles
from pfedhgp.errors import InputError, ModelFileError
from pfedhgp.federation import message_checks
from pfedhgp.federation.agreement import Agreement, same
from pfedhgp.federation.clients import ClientGroup
from pfedhgp.federation.envelope import CODES, Envelope, Refused
from pfedhgp.federation.flower.audit import AuditLog
from pfedhgp.federation.flower.kept_delivery import unfinished
from pfedhgp.federation.flower.masked_site import MaskedRun, MaskKeys, check_trip
from pfedhgp.federation.flower.own_check import OwnCheck, check_delivery
from pfedhgp.federation.flower.private_site import Here, PrivateSite, finish
from pfedhgp.federation.flower.refusal_codes import code_of, reason
from pfedhgp.federation.flower.site_model import site_model
from pfedhgp.federation.flower.state import RUN_ID, AnsweredExchange, RunStore
from pfedhgp.federation.message_checks import Expected
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.policy.book import Book
from pfedhgp.federation.policy.consent import Approve, Consent
from pfedhgp.federation.policy.guard import Guard
from pfedhgp.federation.policy.settings import Policy
from pfedhgp.federation.schema import ALARM, DELIVER, HELLO
from pfedhgp.model import files
from pfedhgp.privacy.ledger import request_of

log = logging.getLogger("pfedhgp.site")
MOVED = 2.0
"""Seconds for which a home may be away."""
LONGEST_AGREEMENT, ZONES = 65_536, "zones"
OWNER, MODEL, DELIVERED, RUNS = "site.json", "model", "delivered", "runs"


@dataclass(frozen=True)
class AgreedRows:
    """The agreement of a run, and this site's rows as it describes them."""

    agreement: Agreement
    rows: ClientRows
    cycles: SiteCycles | None = None
    """for a diagnosis"""
    answers_all: bool = False
    """the site's own word: it answers even what its rows could be computed from"""

    @property
    def plan(self) -> Plan:
        return self.agreement.plan

    def group(self) -> ClientGroup:
        """The site as a group of one client."""
        terms, own = self.plan.diagnosis, self.cycles
        parties = [] if terms is None or own is None else [Party(terms, own)]
        return ClientGroup(self.plan, [self.rows], diagnosis=parties, answers_all=self.answers_all)


@dataclass
class OpenRun:
    """A run that this site takes part in, in memory."""

    store: RunStore
    agreed: AgreedRows
    group: ClientGroup
    last: AnsweredExchange | None
    masked: MaskedRun | None = None

    @property
    def private(self) -> Here:
        """With differential privacy: what the site's part in this run goes by."""
        return Here(self.agreed.agreement, self.agreed.rows, self.store.folder)


@dataclass
class Site:
    """`answer` is all that it does.

    `read` makes agreement and rows from a text, or refuses it. `save_model` gets the group after the
    delivery, and writes the model that the site predicts with.
    """

    home: Path
    name: str
    read: Callable[[str], AgreedRows]
    save_model: Callable[[AgreedRows, ClientGroup, Envelope], OwnCheck | None]
    masks: MaskKeys | None = None
    guard: Guard | None = None
    """The site's policy; None: every request of the right form is answered."""
    answer_zones: Callable[[AgreedRows, Envelope], Mapping[str, np.ndarray]] | None = None
    """Answers the requests of zones, after the delivery; None: they are refused."""
    awaits_zones: bool = False  # the delivery said that zones come next
    checked: OwnCheck | None = None  # what the site's own rows say about the delivered model

    def __post_init__(self) -> None:
        self._check_owner()
        self.private = PrivateSite(self.home)
        self.audit = AuditLog(self.home)
        self.open_runs: dict[str, OpenRun] = {}

    @with_numerics
    def answer(self, request: Envelope) -> Envelope:
        """The reply, or the code of a refusal. No message and no row makes it raise."""
        began = time.monotonic()
        blank: dict[str, Any] = {"arrays": {}, "sealed": b"", "agreement": "", "summary": ""}
        mine = replace(request, sender=self.name, receiver="", counted=0, left_out=False, **blank)
        about: dict[str, Any] = {"exchange": request.exchange, "kind": request.kind}
        about["run"] = request.run if RUN_ID.fullmatch(request.run) else ""
        try:
            self.audit.append("received", **about, arrays=request.content())
            arrays, sealed = self._content_for(request)
        except Exception as error:
            check_home(self.home)
            # A step may be half done: the run is read from disk again.
            self.open_runs.pop(request.run, None)
            code = code_of(error)
            about_it = (request.exchange, request.kind, CODES[code], reason(error))
            log.warning("exchange %d, %s: refused: %s%s", *about_it)
            digest = self.audit.append("refused", **about, code=code)
            return replace(mine, code=code, audit=digest)
        mine = replace(mine, arrays=arrays, sealed=sealed)
        digest = self.audit.append("sent", **about, arrays=mine.content())
        spent = time.monotonic() - began
        log.info("exchange %d, %s: answered in %.1f s", request.exchange, request.kind, spent)
        told = 0.0 if self._is_private(request) else float(round(spent))
        return replace(mine, audit=digest, seconds=told)

    def unfinished(self) -> list[Path]:
        """The folders of private runs whose delivery came, and whose model was not made yet."""
        return unfinished(self.home / RUNS)

    @with_numerics
    def finish(self) -> None:
        """Makes the model of a private run's delivery; nobody waits for it. Raises if that cannot be done."""
        for folder in self.unfinished():
            finish(self.private, folder, self.read, self.home / MODEL)

    def refuse(self, code: str) -> str:
        """Logs a message that could not be read; returns the hash of the audit log's line."""
        log.warning("a message was refused: %s", CODES[code])
        return self.audit.append("refused", code=code)

    def _content_for(self, request: Envelope) -> tuple[Mapping[str, np.ndarray], bytes]:
        """The reply's arrays; with masks, what leaves instead of them."""
        if request.kind == HELLO or request.receiver not in ("", self.name):
            return self._arrays_for(request), b""
        here = self._open(request)
        check_trip(request, here.agreed.plan, self.masks)
        private = here.agreed.agreement.promise is not None
        if self.masks is None or not request.trip:
            return (self._private_for(here, request) if private else self._arrays_for(request)), b""
        if private:
            masked = self._masked_run(here)
            return {}, masked.answer(
                request, lambda n: self.private.asked(here.private, request, masked.sites, n)
            )
        message_checks.check_kind(request, here.agreed.plan)

        def reply(question: str) -> tuple[Mapping[str, np.ndarray], Expected]:
            found = self._arrays_for(request)
            own = request.parts()[0]
            return found, message_checks.of_reply(here.agreed.plan, request.kind, own)

        return {}, self._masked_run(here).answer(request, reply)

    def _masked_run(self, here: OpenRun) -> MaskedRun:
        """The run's part of masks, by the rules that its terms set for who must be in a sum."""
        assert self.masks is not None
        if here.masked is None:
            private = here.agreed.agreement.promise is not None
            totals = self.private.totals(here.private) if private else None
            fewest = (lambda sites: 0) if totals is None else totals.fewest
            here.masked = MaskedRun(here.store.folder, self.name, self.masks, fewest)
        return here.masked

    def _is_private(self, request: Envelope) -> bool:
        here = self.open_runs.get(request.run)
        return here is not None and here.agreed.agreement.promise is not None

    def _private_for(self, here: OpenRun, request: Envelope) -> Mapping[str, np.ndarray]:
        """With differential privacy: releases; then the delivery, which is answered with nothing."""
        if request.kind == DELIVER:
            return self.private.keep_delivery(here.private, request)
        if self.private.totals(here.private) is None:
            return self.private.release(here.private, request)
        among = request_of({"run": request.run, "exchange": request.exchange})
        return self.private.asked(here.private, request, 0, among)[0]

    def _arrays_for(self, request: Envelope) -> Mapping[str, np.ndarray]:
        if request.receiver not in ("", self.name):
            raise Refused("name")
        if request.kind == HELLO:
            return {}
        here = self._open(request)
        if request.kind.startswith(ZONES) and self.answer_zones is not None:
            return self.answer_zones(here.agreed, request)
        message_checks.check_kind(request, here.agreed.plan)
        if request.nbytes > message_checks.largest_request(here.agreed.plan, request.kind):
            raise Refused("oversized")
        last = here.last
        begun = last is not None and last.kind not in message_checks.SETUP
        past = (last.exchange, last.round) if begun else None  # type: ignore[union-attr]
        message_checks.check_request(request, here.agreed.plan, past)
        if request.kind == DELIVER:
            return self._deliver(here, request)
        if last is not None and request.exchange <= last.exchange:
            same = (request.exchange, request.kind, request.round, request.block)
            if same != (last.exchange, last.kind, last.round, last.block):
                raise Refused("stale")
            return last.reply
        self._match_history(here, request)
        group = self._group_for(here, request)
        if here.masked is not None:
            group.hide_among(here.masked.together)
        if self.guard is not None:
            self.guard.check(request, here.agreed, group)
        replies = group.answer(request.message())
        arrays = dict(replies[0].arrays) if replies else {}
        if not all(np.all(np.isfinite(a)) for a in arrays.values()):
            raise Refused("numerics")
        about = (request.exchange, request.kind, request.round, request.block)
        here.last = AnsweredExchange(*about, here.group.state(), arrays)
        here.store.save(here.last)
        return arrays

    def _deliver(self, here: OpenRun, request: Envelope) -> Mapping[str, np.ndarray]:
        """Takes the final global block, which this site predicts with from now on.

        The answer says whether the site's own rows speak against it.
        """
        if request.exchange < (here.last.exchange if here.last else 0):
            raise Refused("stale")
        self._match_history(here, request)
        checked = self.save_model(here.agreed, self._group_for(here, request), request)
        write_bytes(self.home / DELIVERED, request.run.encode("ascii"))
        self.awaits_zones = bool(json.loads(request.summary).get(ZONES))
        self.open_runs.pop(request.run)
        if checked is not None:
            log.log(logging.WARNING if checked.alarm else logging.INFO, checked.line)
        self.checked = checked
        return {ALARM: np.array([float(checked is not None and checked.alarm)])}

    def _group_for(self, here: OpenRun, request: Envelope) -> ClientGroup:
        here.group.catch_up(request.missed())
        if request.left_out:
            attempt = request.arrays.get("attempt")
            here.group.forget_last_reply(here.group.attempt if attempt is None else int(attempt))
        return here.group

    def _match_history(self, here: OpenRun, request: Envelope) -> None:
        """Goes back to the exchange that the server counted last: undoes steps that were not counted."""
        done = here.last.exchange if here.last else 0
        if request.counted == done:
            return
        if done < request.counted:  # a new disk, or an older backup
            raise Refused("forgotten")
        if request.counted not in (0, *here.store.exchanges()):
            raise Refused("forked")
        here.store.drop_after(request.counted)  # 0: the server knows that this site forgot
        here.last = here.store.newest()
        here.group = self._restored(here)

    # ------------------------------------------------------------------------------------- state

    def _open(self, request: Envelope) -> OpenRun:
        """The run, from memory or from disk. The agreement of a new run is checked and kept."""
        if not RUN_ID.fullmatch(request.run) or len(request.agreement) > LONGEST_AGREEMENT:
            raise Refused("malformed")
        store = RunStore(self.home / RUNS / request.run)
        known = store.agreement()
        if known is not None and not same(known, request.agreement):
            raise Refused("config")
        if request.run not in self.open_runs:
            agreed = self.read(request.agreement)
            if self.guard is not None:
                self.guard.open(
                    request.run, request.agreement, agreed, self._rows_key(request, agreed)
                )
            if known is None:
                self._claim_home()
                store.save_agreement(request.agreement)
            here = OpenRun(store, agreed, agreed.group(), store.newest())
            here.group = self._restored(here)
            # An earlier run is over, or is read from disk again.
            self.open_runs = {request.run: here}
        return self.open_runs[request.run]

    def _rows_key(self, request: Envelope, agreed: AgreedRows) -> str:
        """By what the policy counts runs on the same rows: in private runs not by what the rows are."""
        private = agreed.agreement.promise is not None
        return self.private.epochs.of(request.run) if private else digest_of([agreed.rows])

    def _restored(self, here: OpenRun) -> ClientGroup:
        """The group as it was after the last exchange."""
        group = here.agreed.group()
        if here.last is not None:
            try:
                group.restore(here.last.state)
            except ModelFileError:
                raise
            except InputError:
                raise Refused("rows-changed") from None
        return group

    def _check_owner(self) -> None:
        """From its first run on, a home belongs to one site."""
        path = self.home / OWNER
        if not path.is_file():
            return
        try:
            owner = json.loads(path.read_bytes())["name"]
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f"{path}: does not name the home's site: choose another --home"
            ) from None
        if owner != self.name:
            raise InputError(f"{self.home} is the home of another site: choose another --home")

    def _claim_home(self) -> None:
        if not (self.home / OWNER).is_file():
            write_bytes(self.home / OWNER, json.dumps({"name": self.name}).encode("ascii"))


def check_home(home: Path, lock: IO[bytes] | None = None) -> None:
    """Raises if the home was removed, or replaced by another, while the site runs.

    `federate` has homes in RUN, and moves them for a moment when it writes the model there.
    """
    replaced = lock is not None and os.fstat(lock.fileno()).st_nlink == 0
    until = time.monotonic() + MOVED
    while not replaced and not home.is_dir() and time.monotonic() < until:
        time.sleep(0.05)
    if replaced or not home.is_dir():
        raise InputError(
            f"{home} was removed while the site was running: put it back from a backup, or start with "
            "an empty --home (the site then begins again)"
        )


def site_from_files(
    *,
    home: Path,
    name: str,
    data: Sequence[Path],
    delimiter: str | None = None,
    least_rows: int = 5,
    expected: str | None = None,
    masks: MaskKeys | None = None,
    answers_all: bool = False,
    policy: Policy | None = None,
    approve: Approve | None = None,
) -> Site:
    """A site that reads its rows from files, with its `policy` (None: the strict one).

    It takes part on the `expected` terms, or on those that a person approves: `approve` shows a text and
    returns whether the answer was yes. With `answers_all` it answers even what its rows could be computed
    from.
    """
    allowed = Policy() if policy is None else policy
    consent = Consent(home, expected, approve, required=allowed.agreed_terms)

    def read(text: str) -> AgreedRows:
        try:
            agreement = Agreement.from_json(text)
            _ = agreement.plan  # what cannot be planned is refused here
        except InputError:
            raise Refused("config") from None
        consent.check(text)
        rows, cycles = agreement.read(data, name, delimiter=delimiter, least_rows=least_rows)
        return AgreedRows(agreement, rows, cycles, answers_all)

    def save_model(agreed: AgreedRows, group: ClientGroup, request: Envelope) -> OwnCheck | None:
        model = site_model(agreed, group, request)
        files.save(model, home / MODEL, overwrite=True)
        return check_delivery(agreed.plan, agreed.rows, group, request, model)

    guard = Guard(allowed, Book(home), consent)
    return Site(home, name, read, save_model, masks, guard=guard)
