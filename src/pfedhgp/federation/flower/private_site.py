"""A site of a private run, with its own ledger and ceiling: one release, or answers to questions (totals).

    HOME/ledger/        what was released of this site's rows, in all runs, and what it cost

Only the release depends on rows. The same request gets the same release again, at no cost. No Flower in here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from pfedhgp.base.choices import LOCAL_PRIVACY
from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError
from pfedhgp.federation import message_checks
from pfedhgp.federation.agreement import Agreement
from pfedhgp.federation.envelope import Envelope, Refused
from pfedhgp.federation.flower.kept_delivery import KeptDelivery
from pfedhgp.federation.flower.refusal_codes import reason
from pfedhgp.federation.flower.row_epochs import RowEpochs
from pfedhgp.federation.flower.state import RunStore
from pfedhgp.federation.flower.totals_site import TotalsSite
from pfedhgp.federation.message_checks import Expected
from pfedhgp.federation.private_fit import (
    Promise,
    frame,
    own_layers,
    public_scaling,
    release_request,
    released,
)
from pfedhgp.federation.private_messages import (
    Shapes,
    read_delivery,
    release_arrays,
)
from pfedhgp.federation.schema import RELEASE
from pfedhgp.model import files
from pfedhgp.model.fitted import FittedModel
from pfedhgp.privacy.ledger import Ledger, Limit

FOLDER = "ledger"
CEILING = Limit(epsilon=1.0, delta=1e-6)
"""What all releases of a site may cost, if its owner says nothing."""
Arrays = Mapping[str, np.ndarray]


class Agreed(Protocol):
    """What a site reads from the terms of a run."""

    @property
    def agreement(self) -> Agreement: ...

    @property
    def rows(self) -> ClientRows: ...


class Here(NamedTuple):
    """One run at a site: its terms, the site's rows, and the run's folder in the site's home."""

    agreement: Agreement
    rows: ClientRows
    folder: Path

    @property
    def run(self) -> str:
        return self.folder.name

    @property
    def promise(self) -> Promise:
        assert self.agreement.promise is not None
        return self.agreement.promise


@dataclass
class PrivateSite:
    """What a site does in private runs; `ceiling` is what its rows may cost in all.

    `new_rows`: the next run that begins draws and pays for a new release.
    """

    home: Path
    ceiling: Limit = CEILING
    new_rows: bool = False

    @cached_property
    def epochs(self) -> RowEpochs:
        return RowEpochs(self.home / FOLDER, self.new_rows)

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.home / FOLDER)

    def check_ceiling(self, promise: Promise) -> None:
        """Refuses terms that may cost more than this site's owner allows."""
        epsilon, delta = promise.epsilon, promise.delta
        if delta > self.ceiling.delta:
            why = f"δ = {delta:g} is above this site's --delta-ceiling {self.ceiling.delta:g}"
            raise Refused("delta", why)
        if epsilon > self.ceiling.epsilon:
            why = f"ε = {epsilon:g} is above this site's --epsilon-ceiling {self.ceiling.epsilon:g}"
            raise Refused("budget", why)

    def limit(self, promise: Promise) -> Limit:
        """Of all runs together, at the smaller δ."""
        return Limit(self.ceiling.epsilon, min(self.ceiling.delta, promise.delta))

    def part(self, here: Here) -> ReleasePart | TotalsSite:
        """The site's part in a run."""
        promise = here.promise
        epoch, limit = self.epochs.of(here.run), self.limit(promise)
        about = (here.agreement, here.rows, self.ledger, limit, epoch)
        if here.agreement.model_settings.privacy == LOCAL_PRIVACY:
            return ReleasePart(*about)
        return TotalsSite(*about, here.folder)

    def totals(self, here: Here) -> TotalsSite | None:
        """The same, if the run is by totals."""
        part = self.part(here)
        return part if isinstance(part, TotalsSite) else None

    def release(self, here: Here, request: Envelope) -> Arrays:
        """With "local": the release of these terms, new or as it was."""
        part = self.part(here)
        assert isinstance(part, ReleasePart)
        check_asked(request)
        with self._charging(here):
            return part.release()

    def asked(
        self, here: Here, request: Envelope, sites: int, among: str
    ) -> tuple[Arrays, Expected]:
        """With totals: the answer to a question over `sites` sites, with noise for `among` alone."""
        part = self.part(here)
        assert isinstance(part, TotalsSite)
        with self._charging(here):
            return part.answer(request, sites, among)

    def keep_delivery(self, here: Here, request: Envelope) -> Arrays:
        """On disk, for `finish`. The answer is nothing, whatever the site's own rows make of it."""
        part, kept = self.part(here), KeptDelivery(here.folder)
        if request.exchange != part.deliver_at:
            raise Refused("malformed")
        part.check_delivery(request.arrays)
        if not part.has_released:
            raise Refused("malformed", "a delivery before this site has released anything")
        kept.keep(request.arrays)
        return {}

    @contextmanager
    def _charging(self, here: Here) -> Iterator[None]:
        """Within the ceiling; the run's epoch is on disk before anything is drawn."""
        self.check_ceiling(here.promise)
        self.epochs.begin(here.run)
        try:
            yield
        except Refused as refused:
            if refused.code == "budget":
                self.epochs.withdraw(here.run)
            raise
        self.epochs.tell(here.run, here.rows)


def finish(private: PrivateSite, folder: Path, read: Callable[[str], Agreed], target: Path) -> None:
    """The site's model by the delivery that was kept, at `target`; raises if its rows do not allow one."""
    kept = KeptDelivery(folder)
    try:
        agreed = read(RunStore(folder).agreement() or "")
        part = private.part(Here(agreed.agreement, agreed.rows, folder))
        files.save(part.model(kept.arrays()), target, overwrite=True)
    except OSError:  # a full disk: the same command tries again
        raise
    except Exception as error:
        kept.done()
        why = f" ({error})" if isinstance(error, InputError) else reason(error)
        raise InputError(
            "the shared function came, but this site's own layers could not be fitted to its rows"
            f"{why}. The server does not know"
        ) from None
    kept.done()


@dataclass(frozen=True)
class ReleasePart:
    """One site in one run with privacy="local"."""

    agreement: Agreement
    rows: ClientRows
    ledger: Ledger
    limit: Limit
    epoch: str
    deliver_at = 2

    @property
    def promise(self) -> Promise:
        assert self.agreement.promise is not None
        return self.agreement.promise

    @property
    def has_released(self) -> bool:
        """Whether anything of this site is in what the server knows."""
        public = self.agreement.public
        return self.ledger.has(release_request(self.promise, public, self.rows, self.epoch))

    def release(self) -> Arrays:
        """The one release of these terms in this epoch."""
        try:
            found = released(
                self.promise,
                self.agreement.public,
                public_scaling(self.promise).rows(self.rows),
                ledger=self.ledger,
                limit=self.limit,
                epoch=self.epoch,
            )
        except InputError as error:  # it names the ledger and what it cost, and no value
            raise Refused("budget", str(error)) from None
        return release_arrays(found)

    def check_delivery(self, arrays: Arrays) -> None:
        """Refuses numbers that no honest server sends; by these numbers alone."""
        public, outputs = self.agreement.public, len(self.agreement.columns.outputs)
        message_checks.check_arrays(arrays, Shapes(public, outputs).of_delivery())
        for prefix in ("", "others."):
            read_delivery(public, arrays, prefix)

    def model(self, arrays: Arrays) -> FittedModel:
        """The delivered shared function, with this site's own layers: at home, on its own rows."""
        agreement, columns = self.agreement, self.agreement.columns
        settings, public = agreement.model_settings, agreement.public
        names = (columns.input_names, columns.outputs)
        shared = read_delivery(public, arrays)
        others = read_delivery(public, arrays, "others.").posterior()
        model = frame(settings, self.promise, names, shared, int(arrays["clients"]))
        posterior, jitter = own_layers(settings, model, others, self.rows)
        return replace(
            model,
            settings={**model.settings, **agreement.settings()},
            clients={self.rows.name: posterior},
            client_jitter={self.rows.name: float(jitter)},
        )


def check_asked(request: Envelope) -> None:
    """With "local" there is one question, without any number."""
    if request.kind != RELEASE or request.arrays or request.exchange != 1:
        raise Refused("malformed", "a private run asks for one release")
