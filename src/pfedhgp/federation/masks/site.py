"""A site's part of secure aggregation: what it signs, seals, masks and reveals, and what it refuses.

Its rules, whatever the server says:
- the roster is the pinned one, and those who are asked are at least t of its sites, each with a signed key;
- a question is answered once: again in the same exchange byte for byte, in another exchange not at all;
- it signs one set of survivors an exchange, and reveals by that one set, once t of them have signed it;
- of one site and exchange it reveals a share of the own mask or of the key, never both.

`save` gets the state before anything that follows from it leaves the site. Secrets of an exchange are dropped
when the next one begins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pfedhgp.federation.masks import keys, shamir, stored
from pfedhgp.federation.masks.keys import Identity
from pfedhgp.federation.masks.masking import masked
from pfedhgp.federation.masks.roster import (
    Advert,
    Card,
    MaskedReply,
    MaskError,
    Question,
    Revealed,
    Scope,
)

OWN, KEY = "own mask", "mask key"
STATE = (
    *("sealing", "cards", "next", "next_secret", "question", "reply", "shares", "signed"),
    *("signature", "revealed", "answered"),
)
"""The fields that a site keeps on its disk."""


@dataclass
class MaskedSite:
    """One site in one run."""

    name: str
    identity: Identity
    scope: Scope
    save: Callable[[dict[str, Any]], None] = lambda state: None
    sealing: bytes = field(default_factory=keys.new_secret, repr=False)
    """The run's secret X25519 key, for boxes"""
    cards: dict[str, bytes] = field(default_factory=dict)
    """Others' public keys for boxes, by name"""
    next: Advert | None = None
    next_secret: bytes = field(default=b"", repr=False)
    """The mask key of the exchange that comes next, and what was said of it"""
    question: Question | None = None
    reply: MaskedReply | None = None
    shares: dict[str, bytes] = field(default_factory=dict, repr=False)
    """Shares of the others' mask keys of this exchange"""
    signed: tuple[str, ...] = ()
    """The survivors that were signed in this exchange"""
    signature: bytes = b""
    revealed: Revealed | None = None
    answered: dict[str, int] = field(default_factory=dict)
    """Every question that was answered, with its exchange"""
    fewest: int = 0
    """Sites that must be in a sum, if that is more than t: with fewer, noise in it would be too little"""

    @staticmethod
    def joining(
        name: str, identity: Identity, scope: Scope, pinned: bytes, **more: Any
    ) -> MaskedSite:
        """A site that enters a run; `pinned` is the hash of the roster that its owner agreed to."""
        if scope.roster.digest != pinned:
            raise MaskError("the server's list of sites is not the one that was agreed on")
        if scope.roster.sites.get(name) != identity.public:
            raise MaskError("the list of sites has another key for this site")
        return MaskedSite(name, identity, scope, **more)

    @property
    def least(self) -> int:
        """How many sites must be asked, and be in a sum."""
        return max(self.scope.roster.threshold, self.fewest)

    # --------------------------------------------------------------------------- before exchanges

    def card(self) -> Card:
        self._keep()
        return Card.signed(self.scope, self.name, keys.public_of(self.sealing), self.identity)

    def meet(self, cards: Iterable[Card]) -> None:
        """Takes the others' cards; a site has one card a run."""
        for card in cards:
            if not card.is_genuine(self.scope):
                raise MaskError(f"the card of {card.name!r} is not signed with its key")
            if self.cards.setdefault(card.name, card.public) != card.public:
                raise MaskError(f"{card.name!r} has two cards in one run")
        self._keep()

    def advertise(self, exchange: int) -> Advert:
        """The key of an exchange that is to come, with sealed shares of it for all whose cards are known.

        If a card came later, the same key is shared out anew: else too few could open it if this site drops
        out.
        """
        if self.question is not None and exchange <= self.question.exchange:
            raise MaskError(f"exchange {exchange} is over")
        if self.next is None or self.next.exchange != exchange:
            self._prepare(exchange)
            self._keep()
        elif not set(self.cards) <= set(self.next.boxes):
            boxes = self._sealed(KEY, exchange, self.next_secret, self.cards)
            self.next = replace(self.next, boxes=boxes)
            self._keep()
        assert self.next is not None
        return self.next

    def _prepare(self, exchange: int) -> None:
        self.next_secret = keys.new_secret()
        public = keys.public_of(self.next_secret)
        signature = self.identity.sign(self.scope.advert(self.name, exchange, public))
        boxes = self._sealed(KEY, exchange, self.next_secret, self.cards)
        self.next = Advert(self.name, exchange, public, signature, boxes)

    # ---------------------------------------------------------------------------- one exchange

    def answer(
        self, exchange: int, about: str, adverts: Sequence[Advert], values: np.ndarray
    ) -> MaskedReply:
        """The masked reply. `adverts` are of all that are asked, with the boxes for this site."""
        given = self.given(exchange, about, adverts)
        if given is not None:
            return given
        publics = {advert.name: advert.public for advert in adverts}
        question = Question(exchange, about, publics)
        assert self.next is not None
        secret, seed = self.next_secret, keys.new_secret()
        self.question, self.signed, self.signature, self.revealed = question, (), b"", None
        self.shares = self._opened(KEY, exchange, {a.name: a.boxes for a in adverts})
        self.answered[about] = exchange
        hidden = masked(self.scope, question, self.name, values, (secret, seed))
        boxes = self._sealed(OWN, exchange, seed, publics)
        self._prepare(exchange + 1)
        self.reply = MaskedReply(
            self.name, exchange, hidden, hashlib.sha256(seed).digest(), boxes, self.next
        )
        self._keep()
        return self.reply

    def given(self, exchange: int, about: str, adverts: Sequence[Advert]) -> MaskedReply | None:
        """The reply that this question has got already, or None; raises if it is to be refused."""
        publics = {advert.name: advert.public for advert in adverts}
        question, known = Question(exchange, about, publics), self.question
        if known is not None and exchange == known.exchange:
            if question.digest != known.digest or self.reply is None:
                raise MaskError(f"exchange {exchange} was asked for with something else before")
            return self.reply
        self._check_question(question, adverts)
        return None

    def _check_question(self, question: Question, adverts: Sequence[Advert]) -> None:
        exchange, publics = question.exchange, question.publics
        if self.question is not None and exchange < self.question.exchange:
            raise MaskError(f"exchange {exchange} is over")
        if question.about in self.answered:
            raise MaskError(
                "this question was answered in an earlier exchange: two sums over different sites would "
                "give the difference"
            )
        if self.next is None or self.next.exchange != exchange:
            raise MaskError(f"this site has no key for exchange {exchange}")
        if publics.get(self.name) != self.next.public or len(publics) != len(adverts):
            raise MaskError("the list of those who are asked is wrong about this site")
        if len(publics) < self.least:
            raise MaskError(f"{len(publics)} sites are asked, and {self.least} are needed")
        for advert in adverts:
            if advert.exchange != exchange or not advert.is_genuine(self.scope):
                raise MaskError(f"the mask key of {advert.name!r} is not signed for this exchange")

    def sign(self, exchange: int, survivors: Iterable[str]) -> bytes:
        """Signs that these sites are summed: one set an exchange."""
        names = tuple(sorted(set(survivors)))
        question = self._current(exchange)
        if self.signed and names != self.signed:
            raise MaskError(f"exchange {exchange}: another set of survivors was signed before")
        if not set(names) <= set(question.publics) or self.name not in names:
            raise MaskError("these survivors were not all asked, or this site is not among them")
        if len(names) < self.least:
            raise MaskError(f"{len(names)} sites have answered, and {self.least} are needed")
        if not self.signed:
            statement = self.scope.survivors(exchange, question.digest, names)
            self.signed, self.signature = names, self.identity.sign(statement)
            self._keep()
        return self.signature

    def reveal(
        self,
        exchange: int,
        survivors: Iterable[str],
        signatures: Mapping[str, bytes],
        boxes: Mapping[str, bytes],
    ) -> Revealed:
        """Shares of survivors' own masks (from `boxes`) and of the keys of those who dropped out."""
        names, question = tuple(sorted(set(survivors))), self._current(exchange)
        if not self.signed or names != self.signed:
            raise MaskError(f"exchange {exchange}: this set of survivors was not signed here")
        statement = self.scope.survivors(exchange, question.digest, names)
        roster = self.scope.roster
        good = [n for n in names if roster.is_signed(n, statement, signatures.get(n, b""))]
        if len(good) < roster.threshold:
            raise MaskError(f"{len(good)} survivors have signed, and {roster.threshold} are needed")
        if self.revealed is None:
            opened = self._opened(OWN, exchange, {n: {self.name: b} for n, b in boxes.items()})
            own = {name: opened[name] for name in names if name in opened}
            others = {n: share for n, share in self.shares.items() if n not in names}
            self.revealed = Revealed(self.name, own, others)
            self._keep()
        return self.revealed

    def _current(self, exchange: int) -> Question:
        if self.question is None or self.question.exchange != exchange:
            raise MaskError(f"exchange {exchange} is not the one that was answered last")
        return self.question

    # ------------------------------------------------------------------------------------- boxes

    def _sealed(
        self, purpose: str, exchange: int, secret: bytes, receivers: Iterable[str]
    ) -> dict[str, bytes]:
        """A share of the secret for each receiver, this site included."""
        roster = self.scope.roster
        there = sorted(name for name in receivers if name in self.cards)
        if len(there) < roster.threshold:
            raise MaskError(f"{len(there)} sites are known, and {roster.threshold} are needed")
        shares = shamir.split(secret, [roster.place(n) for n in there], roster.threshold)
        found = {}
        for name in there:
            about = self.scope.box(purpose, exchange, self.name, name)
            found[name] = keys.seal(self._box_key(name, about), shares[roster.place(name)], about)
        return found

    def _opened(
        self, purpose: str, exchange: int, boxes: Mapping[str, Mapping[str, bytes]]
    ) -> dict[str, bytes]:
        """What is in the boxes for this site, by sender; a box that cannot be opened counts as none."""
        found = {}
        for sender, sealed in boxes.items():
            if self.name not in sealed or sender not in self.cards:
                continue
            about = self.scope.box(purpose, exchange, sender, self.name)
            share = keys.unseal(self._box_key(sender, about), sealed[self.name], about)
            if share is not None and len(share) == shamir.SHARE_BYTES:
                found[sender] = share
        return found

    def _box_key(self, other: str, about: bytes) -> bytes:
        shared = keys.agreed(self.sealing, self.cards[other])
        return keys.hkdf(shared, salt=self.scope.roster.digest, info=about)

    # ------------------------------------------------------------------------------------- state

    def _keep(self) -> None:
        self.save(self.state())

    def state(self) -> dict[str, Any]:
        """All that the next answer depends on, as JSON. It has secrets: only this site's disk may."""
        return {name: stored.to_json(getattr(self, name)) for name in STATE}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Puts `state` back."""
        self.sealing = bytes.fromhex(state["sealing"])
        self.next_secret = bytes.fromhex(state["next_secret"])
        self.cards = stored.boxes_from(state["cards"])
        self.shares = stored.boxes_from(state["shares"])
        self.signed, self.answered = tuple(state["signed"]), dict(state["answered"])
        self.signature = bytes.fromhex(state["signature"])
        self.next = stored.advert_from(state["next"]) if state["next"] else None
        self.question = stored.question_from(state["question"]) if state["question"] else None
        self.reply = stored.reply_from(state["reply"]) if state["reply"] else None
        self.revealed = stored.revealed_from(state["revealed"]) if state["revealed"] else None
