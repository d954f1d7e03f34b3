"""A site of a private run by totals: what it answers to four questions, and its own layers at the end.

    HOME/ledger/                     what was released of this site's rows, in all runs, and what it cost
    HOME/runs/<run>/questions.json   the question of each exchange

An exchange has one question. It is on disk before the ledger is charged, and the ledger is charged before
anything leaves. The same question gets the same answer again, at no cost. Every exchange of every run draws
noise of its own: with the same noise, two totals over different sites would differ by one site's part. No
Flower in here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pfedhgp.base.atomic_files import write_bytes
from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError
from pfedhgp.federation import message_checks
from pfedhgp.federation.agreement import Agreement
from pfedhgp.federation.envelope import Envelope, Refused
from pfedhgp.federation.message_checks import Expected
from pfedhgp.federation.messages import hash_arrays
from pfedhgp.federation.private_fit import frame, own_layers, public_scaling
from pfedhgp.federation.schema import RELEASE
from pfedhgp.federation.totals_fit import TOTALS, Learned, Terms, TotalsClient
from pfedhgp.federation.totals_messages import (
    DELIVERY,
    QUESTIONS,
    ROUNDING,
    Shapes,
    read_delivery,
)
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.run_folder import naming
from pfedhgp.privacy.accounting import mu_for
from pfedhgp.privacy.ledger import Ledger, Limit

FILE = "questions.json"
LARGEST = 1e12
"""Of a number in a question: with larger ones, whether a sum over rows is finite would depend on rows."""
Arrays = Mapping[str, np.ndarray]
log = logging.getLogger("pfedhgp.site")


@dataclass(frozen=True)
class TotalsSite:
    """One site in one run: `folder` is the run's, `limit` what its rows may cost in all runs."""

    agreement: Agreement
    rows: ClientRows
    ledger: Ledger
    limit: Limit
    epoch: str
    folder: Path
    deliver_at = DELIVERY

    def answer(
        self, request: Envelope, sites: int, among: str
    ) -> tuple[Mapping[str, np.ndarray], Expected]:
        """The site's part of a total over `sites` sites, with noise that is drawn for `among` alone."""
        terms = self.terms(sites)
        question = question_of(request, terms)
        client, mu = self._client(terms, among), _mu(terms)
        before = self._asked()
        self._pin(request, before)
        try:
            if question == TOTALS and (unpaid := client.unpaid(mu)):
                self.ledger.check(unpaid, self.limit)  # of the whole run, before it begins
            found = client.answer(question, request.arrays, mu)
        except InputError as error:  # it names the ledger and what it cost, and no value
            self._keep(before)
            raise Refused("budget", str(error)) from None
        if not all(np.all(np.isfinite(array)) for array in found.values()):
            raise Refused("numerics")
        return found, Shapes(terms).of_answer(question)

    @property
    def has_released(self) -> bool:
        """Whether anything of this site is in what the server knows."""
        return bool(self._asked())

    def check_delivery(self, arrays: Arrays) -> None:
        """Refuses numbers that no honest server sends; by these numbers alone."""
        assert self.agreement.promise is not None
        shapes = Shapes(Terms(self.agreement.promise, self.agreement.public, 0, 0))
        message_checks.check_arrays(arrays, shapes.of_delivery())
        terms = self.terms(int(arrays["sites"]))
        read_delivery(terms, _mu(terms), arrays)

    def model(self, arrays: Arrays) -> FittedModel:
        """The delivered shared function, with this site's own layers: at home, on its own rows.

        Raises if the totals do not hold what this site sent.
        """
        terms = self.terms(int(arrays["sites"]))
        found = read_delivery(terms, _mu(terms), arrays)
        shared = others = found.learned.shared()
        client = self._client(terms, "")
        if found.within and client.has_own:
            _check_part(found.learned, client)
            others = found.learned.without(client)
        elif found.within:
            log.warning("this site's part in the totals is lost: it counts its own rows twice")
        agreement, columns = self.agreement, self.agreement.columns
        names = (columns.input_names, columns.outputs)
        settings = agreement.model_settings
        model = frame(
            settings,
            terms.promise,
            names,
            shared,
            found.clients,
            exchanges=len(QUESTIONS),
            missing=terms.missing,
            at_server=terms.at_server,
        )
        posterior, jitter = own_layers(settings, model, others.posterior(), self.rows)
        return replace(
            model,
            settings={**model.settings, **agreement.settings()},
            clients={self.rows.name: posterior},
            client_jitter={self.rows.name: float(jitter)},
        )

    def fewest(self, sites: int) -> int:
        """How many of so many sites must be in a total, so that its noise is enough."""
        terms = self.terms(sites)
        return terms.clients - terms.missing

    def terms(self, sites: int) -> Terms:
        """What these settings say of a run with so many sites."""
        try:
            found = self.agreement.totals(sites)
        except InputError as error:
            raise Refused("config", str(error)) from None
        assert found is not None
        return found

    def _client(self, terms: Terms, among: str) -> TotalsClient:
        rows = public_scaling(terms.promise).rows(self.rows)
        return TotalsClient(terms, rows, self.ledger, self.limit, among=among, epoch=self.epoch)

    def _pin(self, request: Envelope, before: dict[str, str]) -> None:
        """Puts the question of an exchange on disk; refuses another one."""
        number = str(request.exchange)
        if before.get(number, request.block) != request.block:
            raise Refused("stale", f"exchange {number} had another question before")
        self._keep({**before, number: request.block})

    def _keep(self, asked: dict[str, str]) -> None:
        write_bytes(self.folder / FILE, json.dumps({"asked": asked}).encode("ascii"))

    def _asked(self) -> dict[str, str]:
        """By exchange, the hash of its question."""
        path = self.folder / FILE
        if not path.is_file():
            return {}
        with naming(path):
            return dict(json.loads(path.read_bytes())["asked"])


def question_of(request: Envelope, terms: Terms) -> str:
    """Which question a request is, by its exchange; raises unless it has the right form."""
    number = request.exchange
    if request.kind != RELEASE or request.round != number or not 0 < number <= len(QUESTIONS):
        raise Refused("malformed", "a private run by totals has no such request")
    question = QUESTIONS[number - 1]
    message_checks.check_arrays(request.arrays, Shapes(terms).of_question(question))
    if request.block != hash_arrays(request.arrays):
        raise Refused("malformed", "the hash is not that of the arrays")
    if any(np.max(np.abs(array), initial=0.0) > LARGEST for array in request.arrays.values()):
        raise Refused("out-of-range", "a number is so large that sums over rows would overflow")
    return question


def _check_part(learned: Learned, client: TotalsClient) -> None:
    """Totals hold what this site sent: what is left without it is positive semi-definite."""
    for one, part in zip(learned.outputs, client.part(learned.mu), strict=True):
        left = np.linalg.eigvalsh(one.without(*part).noise)
        if left[0] < -ROUNDING * max(float(np.trace(one.noise)), 1.0):
            raise InputError("the totals that came do not hold what this site sent")


def _mu(terms: Terms) -> float:
    return mu_for(terms.promise.epsilon, terms.promise.delta)
