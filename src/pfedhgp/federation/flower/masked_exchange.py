"""The server's side of an exchange with masks: the total of the replies, and nothing of a single one.

    card, key       before a site's first exchange, and when it comes back: its keys
    answer          the request, with everybody's keys; masked replies come back
    sign            who is summed; the survivors sign that
    reveal          the signatures; shares come back that open the total

Who is asked, and who is summed, is on disk before anybody is told. A server that was killed goes on with the
same sites in the same exchange; it never asks a smaller set again. No Flower in here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedhgp.federation import message_checks
from pfedhgp.federation.envelope import ANSWER, CARD, KEY, REVEAL, SIGN, Envelope, Refused
from pfedhgp.federation.flower.state import site_hash
from pfedhgp.federation.flower.waiting import Limits, QuorumError, reasons_of
from pfedhgp.federation.masks import kept, wire
from pfedhgp.federation.masks.aggregator import Aggregator, check_count
from pfedhgp.federation.masks.fixed_point import decoded
from pfedhgp.federation.masks.roster import MaskError, Revealed, Roster, Scope
from pfedhgp.federation.message_checks import Expected
from pfedhgp.federation.messages import Message
from pfedhgp.inference.arrays import State

if TYPE_CHECKING:
    from pfedhgp.federation.flower.exchange import Engine

Take = Callable[[str, Envelope], None]


def masked_roster(keys: Mapping[str, bytes]) -> Roster:
    """The sites by the hashes of their names: no site's files have another's name."""
    return Roster({site_hash(name): key for name, key in keys.items()})


@dataclass
class Tally:
    """What one exchange has told so far: bytes, last replies, and why some sites are missing."""

    up: int = 0
    down: int = 0
    last: dict[str, Envelope] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


@dataclass
class MaskedExchanges:
    """Secure aggregation over an engine's link; `names` are the sites' by their hashes."""

    server: Aggregator
    names: dict[str, str]
    save: Callable[[State], None] = lambda state: None
    told: dict[str, set[str]] = field(default_factory=dict)
    """Whose cards a site has been sent, since this process began"""

    @staticmethod
    def of(keys: Mapping[str, bytes], run: str, **more: Any) -> MaskedExchanges:
        """`keys` are the sites' public keys (DER) by name."""
        server = Aggregator(Scope(masked_roster(keys), run))
        return MaskedExchanges(server, {site_hash(name): name for name in keys}, **more)

    def restore(self, state: State) -> None:
        kept.restore(self.server, state)

    def exchange(
        self, engine: Engine, request: Message
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The total over the survivors, and the entry of the participation log."""
        expected = message_checks.of_reply(engine.server.plan, request.kind, request.arrays)
        return self.total_of(engine, request, expected)

    def total_of(
        self, engine: Engine, request: Message, expected: Expected
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The same for replies that look as `expected`."""
        began, number, server = engine.clock(), engine.server.exchanges + 1, self.server
        shapes = {name: sent.shape for name, sent in expected.items()}
        shares = message_checks.SLACK * message_checks.LARGEST_SHARES
        engine.link.expect(message_checks.largest_reply(expected) + shares)
        tally = Tally()
        if server.question is None or server.question.exchange != number:
            self._introduce(engine, request, number, tally)
            here = sum(each.exchange == number for each in server.adverts.values())
            if here < (least := self._least(engine)):  # who is asked cannot be changed any more
                raise _too_few(engine, request, f"{here} sites came, {least} are needed")
        try:
            server.ask(number, f"{request.kind} {request.round} {request.block}")
        except MaskError as error:
            raise _too_few(engine, request, str(error)) from None
        self._keep()
        if not server.survivors:
            self._collect(engine, request, tally)
        told = self._open(engine, request, number, tally)
        sums = decoded(server.total(told), shapes, len(self.names))
        check_count(sums, len(server.survivors))
        return sums, self._entry(engine, request, number, tally, engine.clock() - began)

    # ------------------------------------------------------------------------------------- trips

    def _introduce(self, engine: Engine, request: Message, number: int, tally: Tally) -> None:
        """Cards and keys of those that lack them: all at first, later who is new or was away."""
        server = self.server
        roster = wire.roster_bytes(server.scope.roster)
        most = None if server.question is None else engine.patience.grace

        def take_card(name: str, reply: Envelope) -> None:
            card = wire.read_card(reply.sealed)
            self._check_sender(name, card.name)
            server.add_card(card)

        def take_key(name: str, reply: Envelope) -> None:
            advert = wire.read_advert(reply.sealed)
            self._check_sender(name, advert.name)
            server.add_advert(advert)

        strangers = [own for own in sorted(self.names) if own not in server.cards]
        self._trip(engine, request, CARD, dict.fromkeys(strangers, roster), take_card, tally, most)
        cards = wire.cards_bytes(each for _, each in sorted(server.cards.items()))
        keyless = [own for own in sorted(server.cards) if not self._has_key(own, number)]
        least = server.scope.roster.threshold
        if len(server.cards) < least:
            raise _too_few(engine, request, f"{len(server.cards)} sites came, {least} are needed")
        self._trip(engine, request, KEY, dict.fromkeys(keyless, cards), take_key, tally, most)
        self.told.update({own: set(server.cards) for own in keyless})

    def _collect(self, engine: Engine, request: Message, tally: Tally) -> None:
        """Masked replies, until the time is up; then the survivors are settled, on disk."""
        server, least = self.server, self._least(engine)

        def take(name: str, reply: Envelope) -> None:
            masked = wire.read_reply(reply.sealed)
            self._check_sender(name, masked.name)
            server.take(masked)

        told = {}
        for own in server.asked:
            new = [server.cards[n] for n in server.asked if n not in self.told.get(own, ())]
            told[own] = wire.question_bytes(new, server.adverts_for(own))
        self._trip(engine, request, ANSWER, told, take, tally, least=least)
        if len(server.replies) < least:
            short_of = f"{len(server.replies)} answered, {least} are needed"
            raise _too_few(engine, request, short_of, tally.missing)
        for own in server.asked:
            self.told.setdefault(own, set()).update(server.asked)
        server.settle()
        self._keep()

    def _open(self, engine: Engine, request: Message, number: int, tally: Tally) -> list[Revealed]:
        """Signatures of the survivors, then shares, of as many as it takes."""
        server, least = self.server, self.server.scope.roster.threshold
        survivors = server.survivors
        revealed: dict[str, Revealed] = {}

        def take_signature(name: str, reply: Envelope) -> None:
            server.add_signature(site_hash(name), reply.sealed)

        def take_shares(name: str, reply: Envelope) -> None:
            found = wire.read_revealed(reply.sealed)
            self._check_sender(name, found.name)
            revealed[found.name] = found

        told = dict.fromkeys(survivors, wire.survivors_bytes(survivors))
        self._trip(engine, request, SIGN, told, take_signature, tally, enough=least)
        if len(server.signatures) < least:
            found = len(server.signatures)
            raise _too_few(engine, request, f"{found} signed who is summed, {least} are needed")
        signed = dict(sorted(server.signatures.items())[:least])
        told = {
            own: wire.opening_bytes(survivors, signed, server.boxes_for(own)) for own in survivors
        }
        self._trip(engine, request, REVEAL, told, take_shares, tally, enough=least)
        if len(revealed) < least:
            raise _too_few(engine, request, f"{len(revealed)} revealed shares, {least} are needed")
        return [each for _, each in sorted(revealed.items())]

    def _trip(
        self,
        engine: Engine,
        request: Message,
        trip: str,
        told: Mapping[str, bytes],
        take: Take,
        tally: Tally,
        most: float | None = None,
        *,
        least: int | None = None,
        enough: int | None = None,
    ) -> None:
        if not told:
            return

        def accept(name: str, reply: Envelope) -> None:
            try:
                take(name, reply)
            except MaskError as error:
                raise Refused("masks", str(error)) from None

        sealed = {self.names[own]: content for own, content in told.items()}
        limits = Limits(most, least, enough)
        found, down = engine.trip(request, trip, sealed, accept, limits)
        tally.up += sum(reply.nbytes for reply in found.replies.values())
        tally.down += down
        tally.last |= found.replies
        tally.missing |= found.missing(sealed)

    # ------------------------------------------------------------------------------------- entry

    def _entry(
        self, engine: Engine, request: Message, number: int, tally: Tally, seconds: float
    ) -> dict[str, Any]:
        there = {self.names[own] for own in self.server.survivors}
        counted = [name for name in engine.roster.sites if name in there]
        last = {name: tally.last[name] for name in counted if name in tally.last}
        return {
            "exchange": number,
            "kind": request.kind,
            "round": request.round,
            "attempt": engine.server.attempt,
            "block": request.block,
            "counted": counted,
            "missing": {
                name: tally.missing.get(name, "no-answer")
                for name in engine.roster.sites
                if name not in there
            },
            "audit": {name: reply.audit for name, reply in last.items()},
            "seconds": round(seconds, 3),
            "site_seconds": {name: round(reply.seconds, 3) for name, reply in last.items()},
            "bytes_up": tally.up,
            "bytes_down": tally.down,
        }

    def _has_key(self, own: str, number: int) -> bool:
        """Whether a site has told its key of an exchange, with a share of it for all that are known."""
        advert = self.server.adverts.get(own)
        known = set(self.server.cards)
        return advert is not None and advert.exchange == number and known <= set(advert.boxes)

    def _least(self, engine: Engine) -> int:
        """How many sites must be in a total."""
        return max(self.server.scope.roster.threshold, engine.patience.quorum)

    def _check_sender(self, name: str, own: str) -> None:
        if self.names.get(own) != name:
            raise MaskError("it speaks for another site")

    def _keep(self) -> None:
        self.save(kept.state_of(self.server))


def _too_few(
    engine: Engine, request: Message, why: str, missing: Mapping[str, str] | None = None
) -> QuorumError:
    """For an exchange that cannot be completed now; `missing` has codes of refusals by site."""
    refused = {n: code for n, code in (missing or {}).items() if code != "no-answer"}
    about = "".join(f"; {reason}" for reason in reasons_of(refused, engine.patience.timeout))
    return QuorumError(
        f"the {request.kind} request (exchange {engine.server.exchanges + 1}): {why} with masks, within "
        f"{engine.patience.timeout:g} s{about}: the same command goes on from here, in the same exchange"
    )
