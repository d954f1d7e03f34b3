"""A site answers each request from its own rows and keeps its state on its own disk. No Flower in here.

A request names the run, the exchange, and the last exchange in which this site was counted. So a lost reply
is sent again without another training step, the step of a reply that came too late is undone, and an old or
foreign request changes nothing. Of an error, only a code leaves the site.
"""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from pfedhgp.base.atomic_files import write_bytes
from pfedhgp.base.numerics import with_numerics
from pfedhgp.data.rows import ClientRows
from pfedhgp.diagnosis.federated.party import Party
from pfedhgp.diagnosis.federated.terms import SiteCycles
from pfedhgp.diagnosis.of_model import with_classifier
from pfedhgp.diagnosis.training import Training
from pfedhgp.errors import InputError, MessageError, ModelFileError, NumericsError
from pfedhgp.federation import message_checks
from pfedhgp.federation.agreement import Agreement, difference, same
from pfedhgp.federation.clients import ClientGroup
from pfedhgp.federation.diagnosing import from_delivery
from pfedhgp.federation.envelope import CODES, Envelope, Refused
from pfedhgp.federation.flower.audit import AuditLog
from pfedhgp.federation.flower.state import RUN_ID, AnsweredExchange, RunStore
from pfedhgp.federation.messages import Message
from pfedhgp.federation.opening import shared_kernels
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.schema import DELIVER, HELLO
from pfedhgp.inference.adoption import adopt
from pfedhgp.inference.arrays import State, block_from_arrays
from pfedhgp.inference.cycles.exchange import layer_from_arrays
from pfedhgp.inference.structured.averaging import Averaging
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.model import files
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.global_posterior import from_arrays
from pfedhgp.model.posterior import Population

log = logging.getLogger("pfedhgp.site")
LONGEST_AGREEMENT, OWNER, MODEL = 65_536, "site.json", "model"


@dataclass(frozen=True)
class AgreedRows:
    """The agreement of a run, and this site's rows as it describes them."""

    agreement: Agreement
    rows: ClientRows
    cycles: SiteCycles | None = None
    """for a diagnosis"""

    @property
    def plan(self) -> Plan:
        return self.agreement.plan

    def group(self) -> ClientGroup:
        """The site as a group of one client."""
        terms, own = self.plan.diagnosis, self.cycles
        parties = [] if terms is None or own is None else [Party(terms, own)]
        return ClientGroup(self.plan, [self.rows], diagnosis=parties)


@dataclass
class OpenRun:
    """A run that this site takes part in, in memory."""

    store: RunStore
    agreed: AgreedRows
    group: ClientGroup
    last: AnsweredExchange | None


@dataclass
class Site:
    """`answer` is all that it does.

    `read` makes agreement and rows from a text, or refuses it. `save_model` gets the group after the
    delivery, and writes the model that the site predicts with.
    """

    home: Path
    name: str
    read: Callable[[str], AgreedRows]
    save_model: Callable[[AgreedRows, ClientGroup, Envelope], None]

    def __post_init__(self) -> None:
        self._check_owner()
        self.audit = AuditLog(self.home)
        self.open_runs: dict[str, OpenRun] = {}

    @with_numerics
    def answer(self, request: Envelope) -> Envelope:
        """The reply, or the code of a refusal. No message and no row makes it raise."""
        began = time.monotonic()
        blank: dict[str, Any] = {"arrays": {}, "agreement": "", "summary": "", "receiver": ""}
        mine = replace(request, sender=self.name, counted=0, left_out=False, **blank)
        about: dict[str, Any] = {"exchange": request.exchange, "kind": request.kind}
        about["run"] = request.run if RUN_ID.fullmatch(request.run) else ""
        try:
            self.audit.append("received", **about, arrays=request.arrays)
            arrays = self._arrays_for(request)
        except Exception as error:
            # A step may be half done: the run is read from disk again.
            self.open_runs.pop(request.run, None)
            code = code_of(error)
            about_it = (request.exchange, request.kind, CODES[code], reason(error))
            log.warning("exchange %d, %s: refused: %s%s", *about_it)
            digest = self.audit.append("refused", **about, code=code)
            return replace(mine, code=code, audit=digest)
        digest = self.audit.append("sent", **about, arrays=arrays)
        spent = time.monotonic() - began
        log.info("exchange %d, %s: answered in %.1f s", request.exchange, request.kind, spent)
        return replace(mine, arrays=arrays, audit=digest, seconds=float(round(spent)))

    def refuse(self, code: str) -> str:
        """Logs a message that could not be read; returns the hash of the audit log's line."""
        log.warning("a message was refused: %s", CODES[code])
        return self.audit.append("refused", code=code)

    def _arrays_for(self, request: Envelope) -> Mapping[str, np.ndarray]:
        if request.receiver not in ("", self.name):
            raise Refused("name")
        if request.kind == HELLO:
            return {}
        here = self._open(request)
        message_checks.check_kind(request, here.agreed.plan)
        if request.nbytes > message_checks.largest_request(here.agreed.plan, request.kind):
            raise Refused("oversized")
        last = here.last
        begun = last is not None and last.kind not in message_checks.SETUP
        past = (last.exchange, last.round) if begun else None  # type: ignore[union-attr]
        message_checks.check_request(request, here.agreed.plan, past)
        if request.kind == DELIVER:
            self._deliver(here, request)
            return {}
        if last is not None and request.exchange <= last.exchange:
            same = (request.exchange, request.kind, request.round, request.block)
            if same != (last.exchange, last.kind, last.round, last.block):
                raise Refused("stale")
            return last.reply
        self._match_history(here, request)
        replies = self._group_for(here, request).answer(request.message())
        arrays = dict(replies[0].arrays) if replies else {}
        if not all(np.all(np.isfinite(a)) for a in arrays.values()):
            raise Refused("numerics")
        about = (request.exchange, request.kind, request.round, request.block)
        here.last = AnsweredExchange(*about, here.group.state(), arrays)
        here.store.save(here.last)
        return arrays

    def _deliver(self, here: OpenRun, request: Envelope) -> None:
        """Takes the final global block, which this site predicts with from now on."""
        if request.exchange < (here.last.exchange if here.last else 0):
            raise Refused("stale")
        self._match_history(here, request)
        self.save_model(here.agreed, self._group_for(here, request), request)
        self.open_runs.pop(request.run)

    def _group_for(self, here: OpenRun, request: Envelope) -> ClientGroup:
        here.group.catch_up(request.missed())
        if request.left_out:
            attempt = request.arrays.get("attempt")
            here.group.forget_last_reply(here.group.attempt if attempt is None else int(attempt))
        return here.group

    def _match_history(self, here: OpenRun, request: Envelope) -> None:
        """Goes back to the exchange that the server counted last: undoes a step that was not counted."""
        done = here.last.exchange if here.last else 0
        if request.counted == done:
            return
        if done < request.counted:  # a new disk, or an older backup
            raise Refused("forgotten")
        past = [0, *here.store.exchanges()]
        if request.counted == 0 and len(past) > 2:  # the server knows that this site forgot
            here.store.drop_all()
        elif len(past) < 2 or request.counted != past[-2]:
            raise Refused("forked")
        else:
            here.store.drop_newest()
        here.last = here.store.newest()
        here.group = self._restored(here)

    # ------------------------------------------------------------------------------------- state

    def _open(self, request: Envelope) -> OpenRun:
        """The run, from memory or from disk. The agreement of a new run is checked and kept."""
        if not RUN_ID.fullmatch(request.run) or len(request.agreement) > LONGEST_AGREEMENT:
            raise Refused("malformed")
        store = RunStore(self.home / "runs" / request.run)
        known = store.agreement()
        if known is not None and not same(known, request.agreement):
            raise Refused("config")
        if request.run not in self.open_runs:
            agreed = self.read(request.agreement)
            if known is None:
                self._claim_home()
                store.save_agreement(request.agreement)
            here = OpenRun(store, agreed, agreed.group(), store.newest())
            here.group = self._restored(here)
            # An earlier run is over, or is read from disk again.
            self.open_runs = {request.run: here}
        return self.open_runs[request.run]

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


def code_of(error: Exception) -> str:
    """The code that is sent to the server."""
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
    """For this site's own log: why it refused, or where an error was raised."""
    if isinstance(error, Refused):
        return f" ({error.why})" if error.why else ""
    return f" ({place_of(error)})"


def place_of(error: Exception) -> str:
    """The type of an error and its line of code. Not its text, which may quote a row."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    place = "" if last is None else f" at {Path(last.filename).name}:{last.lineno}"
    return f"{type(error).__name__}{place}"


def site_from_files(
    *,
    home: Path,
    name: str,
    data: Sequence[Path],
    delimiter: str | None = None,
    least_rows: int = 5,
    expected: str | None = None,
) -> Site:
    """A site that reads its rows from files. If `expected` is given, it refuses any other agreement."""

    def read(text: str) -> AgreedRows:
        try:
            agreement = Agreement.from_json(text)
            _ = agreement.plan  # what cannot be planned is refused here
        except InputError:
            raise Refused("config") from None
        if expected is not None and text != expected:
            raise Refused("config", difference(expected, text))
        rows, cycles = agreement.read(data, name, delimiter=delimiter, least_rows=least_rows)
        return AgreedRows(agreement, rows, cycles)

    def save_model(agreed: AgreedRows, group: ClientGroup, request: Envelope) -> None:
        files.save(site_model(agreed, group, request), home / MODEL, overwrite=True)

    return Site(home, name, read, save_model)


def site_model(agreed: AgreedRows, group: ClientGroup, request: Envelope) -> FittedModel:
    """From the delivery and the site's own state. A site that did not train fits its own block now."""
    try:
        summary = json.loads(request.summary)
        training = {key: summary[key] for key in ("exchanges", "bound", "starting_scales")}
        training |= {"choice": summary["choice"]} if "choice" in summary else {}
        diagnosis = _delivered_diagnosis(agreed, request, summary)
    except (ValueError, KeyError, TypeError, IndexError):
        raise Refused("malformed") from None
    columns, plan, rows = agreed.agreement.columns, agreed.plan, agreed.rows
    delivered = request.message()
    population = State(delivered.arrays).part("population")
    more = ("population.", "diagnosis.")
    finish = {k: v for k, v in delivered.arrays.items() if not k.startswith(more)}
    attempt = int(finish["attempt"])
    spec, scaling = group.spec_of(finish), group.scaling
    assert scaling is not None
    block = block_from_arrays(finish, shared_kernels(spec, scaling))
    model = FittedModel(
        structure=spec.structure,
        inference=plan.inference.name,
        kernel=spec.kernel,
        local_kernel=spec.local_kernel,
        shared=from_arrays(block, finish, float(finish["jitter"])),
        clients={},
        population=Population(**{name: jnp.asarray(array) for name, array in population.items()}),
        scaling=scaling,
        input_names=columns.input_names,
        output_names=columns.outputs,
        jitter=float(finish["jitter"]),
        scalar_output=spec.outputs == 1,
        settings={**agreed.agreement.settings(), **training},
        cycle_layer=layer_from_arrays(group.starts[attempt]) if plan.cycles is not None else None,
        client_layers=group.own_layers,
    )
    if not any(missed.kind == "start" for missed in request.missed()):
        group.answer(Message("finish", delivered.round, "server", finish))
        posterior, own_jitter = group.posteriors[rows.name], group.parties[attempt].jitter[0]
    else:
        averages = getattr(plan.inference, "averaging", None)
        solver = Structured(averaging=Averaging() if averages is True else averages or None)
        posterior, own_jitter = adopt(
            model,
            rows,
            noise=spec.noise,
            settings=solver,
            local_inducing=plan.local_inducing,
            local_latents=spec.local_latents,
        )
    model = replace(
        model, clients={rows.name: posterior}, client_jitter={rows.name: float(own_jitter)}
    )
    if diagnosis is None:
        return model
    return with_classifier(model, diagnosis.classifier, diagnosis.facts)


def _delivered_diagnosis(
    agreed: AgreedRows, request: Envelope, summary: Mapping[str, Any]
) -> Training | None:
    """The classifier that sites trained together; it must be of the agreed classes."""
    terms = agreed.plan.diagnosis
    if terms is None:
        return None
    found = from_delivery(request.message().arrays, summary["diagnosis"])
    if found.classifier.classes != terms.classes:
        raise ValueError("other classes than the agreed ones")
    return found
