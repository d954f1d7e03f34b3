"""A site of a run with masks: what it keeps on its disk, and its answer to each trip of an exchange.

    HOME/runs/<run>/masks.json      keys and shares of this run; on disk before what needs them leaves

The list of sites is pinned: by the site's own copy of sites.toml, or by its hash. In the protocol sites are
called by the hash of their names, so that no site's files have another's name. No Flower in here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pfedhgp.base.atomic_files import write_bytes
from pfedhgp.federation import message_checks
from pfedhgp.federation.envelope import ANSWER, CARD, KEY, SIGN, Envelope, Refused
from pfedhgp.federation.flower.state import site_hash
from pfedhgp.federation.masks import wire
from pfedhgp.federation.masks.fixed_point import encoded
from pfedhgp.federation.masks.keys import Identity
from pfedhgp.federation.masks.roster import MaskError, Question, Scope
from pfedhgp.federation.masks.site import MaskedSite
from pfedhgp.federation.message_checks import Expected
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.schema import DELIVER
from pfedhgp.model.run_folder import naming

STATE = "masks.json"
Arrays = Mapping[str, np.ndarray]
Reply = Callable[[str], tuple[Arrays, Expected]]
"""From the question, by its hash, to the site's reply and what it has to look like. Every exchange of every
run has its own hash, which also names those who are asked."""


@dataclass(frozen=True)
class MaskKeys:
    """What a site's owner brings for masks: the site's own key, and the hash of the list of sites."""

    identity: Identity
    pinned: bytes


def check_trip(request: Envelope, plan: Plan, keys: MaskKeys | None) -> None:
    """With masks every request but the delivery is a trip, and without them none is."""
    if keys is not None and not plan.masks:
        raise Refused("config", "--roster asks for masks, and the server's settings have none")
    if not plan.masks or request.kind == DELIVER:
        if request.trip:
            raise Refused("malformed", "a trip of masks, where there are none")
        return
    if keys is None:
        raise Refused("config", "the server's settings have masks: give --roster and --key")
    if not request.trip:
        raise Refused("malformed", "a request without masks, where they were agreed on")
    if request.trip != ANSWER and request.arrays:
        raise Refused("malformed", "numbers in a trip that has none")


def about(request: Envelope) -> str:
    """Which question this is: a site answers it in one exchange and in no other."""
    return f"{request.kind} {request.round} {request.block}"


@dataclass
class MaskedRun:
    """One site in one run with masks."""

    folder: Path
    name: str
    keys: MaskKeys
    fewest: Callable[[int], int] = lambda sites: 0
    """From the number of sites to how many must be in a sum, if that is more than masks need"""
    site: MaskedSite | None = field(default=None, repr=False)

    @property
    def path(self) -> Path:
        return self.folder / STATE

    @property
    def together(self) -> int:
        """How many sites are in a total at least."""
        return 1 if self.site is None else self.site.scope.roster.threshold

    @property
    def sites(self) -> int:
        """How many sites the pinned list has."""
        return len(self._known().scope.roster.sites)

    def answer(self, request: Envelope, reply: Reply) -> bytes:
        """What leaves in this trip; `reply` computes the site's reply, if it comes to that."""
        try:
            if request.trip == CARD:
                return self._card(request)
            site = self._known()
            if request.trip == KEY:
                site.meet(wire.read_cards(request.sealed))
                return wire.advert_bytes(site.advertise(request.exchange))
            if request.trip == ANSWER:
                return self._masked(site, request, reply)
            if request.trip == SIGN:
                return site.sign(request.exchange, wire.read_survivors(request.sealed))
            survivors, signatures, boxes = wire.read_opening(request.sealed)
            site.sign(request.exchange, survivors)  # the trip before may not have come
            return wire.revealed_bytes(site.reveal(request.exchange, survivors, signatures, boxes))
        except MaskError as error:
            self.site = None  # what was half done is read from disk again
            raise Refused("masks", str(error)) from None

    def _masked(self, site: MaskedSite, request: Envelope, reply: Reply) -> bytes:
        cards, adverts = wire.read_question(request.sealed)
        if cards:
            site.meet(cards)
        given = site.given(request.exchange, about(request), adverts)  # before any row is used
        if given is None:
            publics = {advert.name: advert.public for advert in adverts}
            question = Question(request.exchange, about(request), publics)
            arrays, asked = reply(question.digest.hex())
            message_checks.check_arrays(arrays, asked)
            shapes = {name: sent.shape for name, sent in asked.items()}
            values = encoded(arrays, shapes, len(site.scope.roster.sites))
            given = site.answer(request.exchange, about(request), adverts, values)
        return given.to_bytes()

    def _card(self, request: Envelope) -> bytes:
        if self._read() is None:
            scope = Scope(wire.read_roster(request.sealed), request.run)
            self.site = self._joining(scope)
        assert self.site is not None
        return wire.card_bytes(self.site.card())

    def _known(self) -> MaskedSite:
        """The site as it was; a run whose keys are lost goes on without it."""
        if self._read() is None:
            raise Refused("forgotten")
        assert self.site is not None
        return self.site

    def _joining(self, scope: Scope) -> MaskedSite:
        own, pinned = site_hash(self.name), self.keys.pinned
        more = {"fewest": self.fewest(len(scope.roster.sites)), "save": self._saver(scope)}
        return MaskedSite.joining(own, self.keys.identity, scope, pinned, **more)

    def _saver(self, scope: Scope) -> Callable[[dict[str, Any]], None]:
        kept = {"roster": wire.roster_bytes(scope.roster).hex(), "run": scope.run}

        def save(state: dict[str, Any]) -> None:
            write_bytes(self.path, json.dumps({**kept, "site": state}).encode("ascii"))

        return save

    def _read(self) -> MaskedSite | None:
        if self.site is None and self.path.is_file():
            with naming(self.path):
                kept = json.loads(self.path.read_bytes())
                scope = Scope(wire.read_roster(bytes.fromhex(kept["roster"])), kept["run"])
                site = self._joining(scope)
                site.restore(kept["site"])
            self.site = site
        return self.site
