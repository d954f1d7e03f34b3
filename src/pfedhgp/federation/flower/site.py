"""A site: takes a request, answers it from its own rows, and remembers on its own disk. No Flower in here.

Each request is taken once. It names the run, the exchange, and the last exchange of this site that was
counted; so a reply that was lost is sent again without another step, a reply that came too late is taken
back, and an old or a foreign request changes nothing. Whatever goes wrong leaves as a code.
"""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pfedhgp.base.atomic_files import write_bytes
from pfedhgp.base.numerics import with_numerics
from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError, MessageError, ModelFileError, NumericsError
from pfedhgp.federation import message_checks
from pfedhgp.federation.clients import Cohort
from pfedhgp.federation.flower.audit import AuditLog
from pfedhgp.federation.flower.envelope import CODES, Envelope, Refused
from pfedhgp.federation.flower.store import RUN_ID, Answered, Store
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.schema import DELIVER, HELLO

log = logging.getLogger("pfedhgp.site")
LONGEST_AGREEMENT, OWNER = 65_536, "site.json"


@dataclass(frozen=True)
class Terms:
    """What a run's agreement means here: the plan, and this site's rows."""

    plan: Plan
    rows: ClientRows


@dataclass
class Participation:
    """One run at this site, in memory."""

    store: Store
    terms: Terms
    cohort: Cohort
    last: Answered | None


@dataclass
class Site:
    """`answer` is all that it does.

    `read` turns an agreement into terms (and refuses what the site does not take part in); `keep` gets the
    cohort after the delivery and writes the model that the site predicts with.
    """

    home: Path
    name: str
    read: Callable[[str], Terms]
    keep: Callable[[Terms, Cohort, Envelope], None]

    def __post_init__(self) -> None:
        self._check_owner()
        self.audit = AuditLog(self.home)
        self._runs: dict[str, Participation] = {}

    @with_numerics
    def answer(self, request: Envelope) -> Envelope:
        """The reply, or the code of a refusal. Never raises for what a message or the rows did."""
        began = time.monotonic()
        blank: dict[str, Any] = {"arrays": {}, "agreement": "", "summary": "", "receiver": ""}
        mine = replace(request, sender=self.name, counted=0, lapsed=False, **blank)
        about: dict[str, Any] = {"exchange": request.exchange, "kind": request.kind}
        about["run"] = request.run if RUN_ID.fullmatch(request.run) else ""
        try:
            self.audit.append("received", **about, arrays=request.arrays)
            arrays = self._answered(request)
        except Exception as error:
            self._runs.pop(
                request.run, None
            )  # half a step may have been taken: the disk has the truth
            code = code_of(error)
            said = (request.exchange, request.kind, CODES[code], reason(error))
            log.warning("exchange %d, %s: refused: %s%s", *said)
            digest = self.audit.append("refused", **about, code=code)
            return replace(mine, code=code, audit=digest)
        digest = self.audit.append("sent", **about, arrays=arrays)
        spent = time.monotonic() - began
        log.info("exchange %d, %s: answered in %.1f s", request.exchange, request.kind, spent)
        return replace(mine, arrays=arrays, audit=digest, seconds=spent)

    def refuse(self, code: str) -> str:
        """Notes a message that could not even be read; returns the audit log's hash."""
        log.warning("a message was refused: %s", CODES[code])
        return self.audit.append("refused", code=code)

    def _answered(self, request: Envelope) -> Mapping[str, np.ndarray]:
        if request.receiver not in ("", self.name):
            raise Refused("name")
        if request.kind == HELLO:
            return {}
        here = self._open(request)
        message_checks.check_kind(request, here.terms.plan)
        if request.nbytes > message_checks.largest_request(here.terms.plan, request.kind):
            raise Refused("oversized")
        last = here.last
        begun = last is not None and last.kind not in message_checks.SETUP
        past = (last.exchange, last.round) if begun else None  # type: ignore[union-attr]
        message_checks.check_request(request, here.terms.plan, past)
        if request.kind == DELIVER:
            self._deliver(here, request)
            return {}
        if last is not None and request.exchange <= last.exchange:
            same = (request.exchange, request.kind, request.round, request.block)
            if same != (last.exchange, last.kind, last.round, last.block):
                raise Refused("stale")
            return last.reply
        self._agree_on_past(here, request)
        replies = self._cohort_for(here, request).answer(request.message())
        arrays = dict(replies[0].arrays) if replies else {}
        if not all(np.all(np.isfinite(a)) for a in arrays.values()):
            raise Refused("numerics")
        about = (request.exchange, request.kind, request.round, request.block)
        answered = Answered(*about, here.cohort.state(), arrays)
        here.store.save(answered)
        here.last = answered
        return arrays

    def _deliver(self, here: Participation, request: Envelope) -> None:
        """The final global block: what this site predicts with from now on."""
        if request.exchange < (here.last.exchange if here.last else 0):
            raise Refused("stale")
        self._agree_on_past(here, request)
        self.keep(here.terms, self._cohort_for(here, request), request)
        self._runs.pop(request.run)

    def _cohort_for(self, here: Participation, request: Envelope) -> Cohort:
        here.cohort.catch_up(request.missed())
        if request.lapsed:
            attempt = request.arrays.get("attempt")
            here.cohort.forget_last_reply(here.cohort.attempt if attempt is None else int(attempt))
        return here.cohort

    def _agree_on_past(self, here: Participation, request: Envelope) -> None:
        """The site's past is what the server counted; a reply that was not counted is taken back."""
        done = here.last.exchange if here.last else 0
        if request.counted == done:
            return
        if done < request.counted:  # a new disk, or one from a backup that is older than that
            raise Refused("forgotten")
        past = [0, *here.store.exchanges()]
        if request.counted == 0 and len(past) > 2:  # the server has heard that this site forgot
            here.store.forget()
        elif len(past) < 2 or request.counted != past[-2]:
            raise Refused("forked")
        else:
            here.store.take_back()
        here.last = here.store.newest()
        here.cohort = self._restored(here)

    # ------------------------------------------------------------------------------------- state

    def _open(self, request: Envelope) -> Participation:
        """The run, from memory or from disk; a run that is new here has its terms checked and kept."""
        if not RUN_ID.fullmatch(request.run) or len(request.agreement) > LONGEST_AGREEMENT:
            raise Refused("malformed")
        store = Store(self.home / "runs" / request.run)
        known = store.agreement()
        if known is not None and known != request.agreement:
            raise Refused("config")
        if request.run not in self._runs:
            terms = self.read(request.agreement)
            if known is None:
                self._claim_home()
                store.agree(request.agreement)
            here = Participation(store, terms, Cohort(terms.plan, [terms.rows]), store.newest())
            here.cohort = self._restored(here)
            self._runs = {request.run: here}  # the run before is over, or will be read from disk
        return self._runs[request.run]

    def _restored(self, here: Participation) -> Cohort:
        """A cohort as it was after the last exchange that stands."""
        cohort = Cohort(here.terms.plan, [here.terms.rows])
        if here.last is not None:
            try:
                cohort.restore(here.last.state)
            except ModelFileError:
                raise
            except InputError:
                raise Refused("rows-changed") from None
        return cohort

    def _check_owner(self) -> None:
        """A home is one site's, from its first run on."""
        path = self.home / OWNER
        if not path.is_file():
            return
        try:
            owner = json.loads(path.read_bytes())["name"]
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path}: not a site's: choose another --home") from None
        if owner != self.name:
            raise InputError(f"{self.home} is the home of another site: choose another --home")

    def _claim_home(self) -> None:
        if not (self.home / OWNER).is_file():
            write_bytes(self.home / OWNER, json.dumps({"name": self.name}).encode("ascii"))


def code_of(error: Exception) -> str:
    """What the server is told."""
    if isinstance(error, Refused):
        return error.code
    if isinstance(error, MessageError):
        return "malformed"
    if isinstance(error, NumericsError | FloatingPointError):
        return "numerics"
    if isinstance(error, ModelFileError):
        return "internal"
    return "data" if isinstance(error, InputError) else "internal"


def reason(error: Exception) -> str:
    """For this machine's own log: what a refusal says, or of an error where it was."""
    if isinstance(error, Refused):
        return f" ({error.why})" if error.why else ""
    return f" ({where(error)})"


def where(error: Exception) -> str:
    """The kind of error and the line of code: no text, for that may quote a row."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    place = "" if last is None else f" at {Path(last.filename).name}:{last.lineno}"
    return f"{type(error).__name__}{place}"
