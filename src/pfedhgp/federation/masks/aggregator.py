"""The server's part of secure aggregation: passes messages on, and unmasks the total of the survivors.

    Σ_{i∈S} x_i = Σ_{i∈S} reply_i − Σ_{i∈S} PRG(b_i) − Σ_{i∈S, j∉S} ± PRG(k_ij)   mod 2⁶⁴

It gets the seeds b_i of survivors and the mask keys of those who dropped out from t shares each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from pfedhgp.federation.masks import keys, shamir
from pfedhgp.federation.masks.masking import own_mask, pair_mask
from pfedhgp.federation.masks.roster import (
    Advert,
    Card,
    MaskedReply,
    MaskError,
    Question,
    Revealed,
    Scope,
)


@dataclass
class Aggregator:
    """The server in one run: cards, then exchange by exchange `ask`, `take`, `settle`, `total`."""

    scope: Scope
    cards: dict[str, Card] = field(default_factory=dict)
    adverts: dict[str, Advert] = field(default_factory=dict)
    """Of the exchange that comes next"""
    question: Question | None = None
    asked: dict[str, Advert] = field(default_factory=dict)
    replies: dict[str, MaskedReply] = field(default_factory=dict)
    survivors: tuple[str, ...] = ()
    signatures: dict[str, bytes] = field(default_factory=dict)
    received: int = 0
    """Bytes of this exchange so far"""

    def add_card(self, card: Card) -> None:
        if not card.is_genuine(self.scope):
            raise MaskError(f"the card of {card.name!r} is not signed with its key")
        self.cards[card.name] = card

    def add_advert(self, advert: Advert) -> None:
        """Of a site that begins, or comes back after it was missing."""
        if not advert.is_genuine(self.scope):
            raise MaskError(f"the mask key of {advert.name!r} is not signed with its key")
        self.adverts[advert.name] = advert

    def ask(self, exchange: int, about: str) -> tuple[str, ...]:
        """Begins an exchange with all that have a key for it; the set stays as it is. Returns their names."""
        if self.question is not None and self.question.exchange == exchange:
            if about != self.question.about:
                raise MaskError(f"exchange {exchange} has begun with another request")
            return tuple(sorted(self.asked))
        there = {n: a for n, a in self.adverts.items() if a.exchange == exchange}
        if len(there) < self.scope.roster.threshold:
            raise MaskError(
                f"{len(there)} sites can take part, and {self.scope.roster.threshold} are needed"
            )
        self.question = Question(exchange, about, {n: a.public for n, a in there.items()})
        self.asked, self.replies, self.adverts = there, {}, {}
        self.survivors, self.signatures, self.received = (), {}, 0
        return tuple(sorted(there))

    def adverts_for(self, name: str) -> list[Advert]:
        """What a site is told of the others: their keys, and the boxes for it."""
        return [_for_receiver(advert, name) for _, advert in sorted(self.asked.items())]

    def take(self, reply: MaskedReply) -> None:
        """A masked reply, until the survivors are settled."""
        question = self._question()
        if reply.name not in self.asked or reply.exchange != question.exchange:
            raise MaskError(f"a reply of {reply.name!r} belongs to another exchange")
        if self.survivors and reply.name not in self.survivors:
            raise MaskError(f"the reply of {reply.name!r} came too late")
        sizes = {each.values.size for each in self.replies.values()}
        if sizes and reply.values.size not in sizes:
            raise MaskError(f"the reply of {reply.name!r} has another size than the others'")
        self.replies[reply.name] = reply
        self.received += reply.nbytes
        self.add_advert(reply.advert)

    def settle(self) -> tuple[str, ...]:
        """The survivors: all whose replies have come. They stay what they are from now on."""
        if not self.survivors:
            if len(self.replies) < self.scope.roster.threshold:
                raise MaskError(
                    f"{len(self.replies)} sites have answered, and {self.scope.roster.threshold} are "
                    "needed: wait for more in this same exchange"
                )
            self.survivors = tuple(sorted(self.replies))
        return self.survivors

    def add_signature(self, name: str, signature: bytes) -> None:
        question = self._question()
        statement = self.scope.survivors(question.exchange, question.digest, self.survivors)
        if name not in self.survivors or not self.scope.roster.is_signed(
            name, statement, signature
        ):
            raise MaskError(f"{name!r} did not sign these survivors")
        self.signatures[name] = signature
        self.received += len(signature)

    def boxes_for(self, name: str) -> dict[str, bytes]:
        """The sealed shares of survivors' own masks for a site."""
        boxes = {n: self.replies[n].boxes for n in self.survivors}
        return {n: sealed[name] for n, sealed in boxes.items() if name in sealed}

    def total(self, revealed: Iterable[Revealed]) -> np.ndarray:
        """The survivors' sum, unmasked."""
        question, threshold = self._question(), self.scope.roster.threshold
        told = list(revealed)
        if len(told) < threshold:
            raise MaskError(f"{len(told)} sites revealed shares, and {threshold} are needed")
        self.received += sum(each.nbytes for each in told)
        replies = [self.replies[name].values for name in self.survivors]
        total: np.ndarray = np.asarray(np.sum(np.stack(replies), axis=0, dtype=np.uint64))
        for name in self.survivors:
            seed = self._secret(name, {each.name: each.own for each in told})
            if hashlib.sha256(seed).digest() != self.replies[name].commitment:
                raise MaskError(f"shares of the own mask of {name!r} are wrong")
            total -= own_mask(self.scope, question, name, seed, total.size)
        for name in sorted(set(self.asked) - set(self.survivors)):
            secret = self._secret(name, {each.name: each.keys for each in told})
            if keys.public_of(secret) != question.publics[name]:
                raise MaskError(f"shares of the mask key of {name!r} are wrong")
            for (
                other
            ) in self.survivors:  # what the survivor added is what this one would have taken off
                total += pair_mask(self.scope, question, secret, (name, other), total.size)
        return total

    def _secret(self, name: str, told: Mapping[str, Mapping[str, bytes]]) -> bytes:
        """What `name` shared, from t of those who told a share of it."""
        roster = self.scope.roster
        shares = {roster.place(who): own[name] for who, own in told.items() if name in own}
        try:
            return shamir.combine(shares, roster.threshold)
        except ValueError as error:
            raise MaskError(f"the secret of {name!r} cannot be found: {error}") from None

    def _question(self) -> Question:
        if self.question is None:
            raise MaskError("no exchange has begun")
        return self.question


def _for_receiver(advert: Advert, name: str) -> Advert:
    """Without the boxes of others."""
    return replace(advert, boxes={n: box for n, box in advert.boxes.items() if n == name})


def check_count(sums: Mapping[str, np.ndarray], survivors: int) -> None:
    """Σ clients is the number of those who are summed: all that a server can check of masked replies."""
    if "clients" in sums and float(sums["clients"]) != survivors:
        raise MaskError(f"{survivors} clients are summed, and they count {sums['clients']}")
