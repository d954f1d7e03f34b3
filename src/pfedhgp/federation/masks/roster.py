"""Who takes part, and what sites tell each other through the server: cards, adverts, masked replies.

A roster is pinned by its hash: else the server could be everybody. Everything that a site signs names the
roster, the run and what it is for, so that no signature can be used anywhere else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from pfedhgp.errors import InputError, MessageError
from pfedhgp.federation.masks import keys
from pfedhgp.federation.masks.keys import Identity, framed

FEWEST, MOST = 3, 100
PROTOCOL = "pfedhgp masks 1"


def refuse_with(masks: bool, what: str) -> None:
    """Refuses `what`, if there are masks: it needs more than totals."""
    if masks:
        raise InputError(
            f"{what} needs numbers of single clients, which `masks` hide: leave one of them out"
        )


def check_count(sites: int) -> None:
    """Refuses masks among too few or too many."""
    if sites < FEWEST:
        raise InputError(
            f"masks need at least {FEWEST} sites, there are {sites}: of two, each learns the other's "
            "numbers from the total and its own"
        )
    if sites > MOST:
        raise InputError(
            f"masks are for at most {MOST} sites, there are {sites}: every pair has a key"
        )


def threshold_of(sites: int) -> int:
    """t = ⌊2T/3⌋ + 1: how many of T sites can open masks. ⌊(T − 1)/3⌋ may be missing."""
    return 2 * sites // 3 + 1


def unmasking(sites: int) -> int:
    """2t − T: so many sites and a server that lies can unmask another site.

    The server tells half of the honest sites that it dropped out, and the others that it did not. Each half
    opens one of its two secrets, if with those that collude it has t sites.
    """
    return 2 * threshold_of(sites) - sites


class MaskError(MessageError):
    """Something that an honest party of the protocol does not ask for, or not enough to go on with."""


@dataclass(frozen=True)
class Roster:
    """The sites of a run by name, each with its public signing key (DER)."""

    sites: Mapping[str, bytes]

    def __post_init__(self) -> None:
        check_count(len(self.sites))
        if len(set(self.sites.values())) < len(self.sites):
            raise InputError("masks: two sites have the same key")

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.sites))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of names and keys: what sites agree on before the first message."""
        parts = [part for name in self.names for part in (name, self.sites[name])]
        return hashlib.sha256(framed(PROTOCOL, "roster", *parts)).digest()

    @property
    def threshold(self) -> int:
        """t: how many sites an exchange needs to its end."""
        return threshold_of(len(self.sites))

    def place(self, name: str) -> int:
        """Where a site's shares lie."""
        return self.names.index(name) + 1

    def is_signed(self, name: str, statement: bytes, signature: bytes) -> bool:
        """Whether a site of this roster signed the statement."""
        known = self.sites.get(name)
        return known is not None and keys.is_signed(known, statement, signature)


@dataclass(frozen=True)
class Scope:
    """A run of a roster: it is part of every signature and of every derived key."""

    roster: Roster
    run: str

    def statement(self, what: str, *parts: bytes | str | int) -> bytes:
        return framed(PROTOCOL, what, self.roster.digest, self.run, *parts)

    def card(self, name: str, public: bytes) -> bytes:
        return self.statement("card", name, public)

    def advert(self, name: str, exchange: int, public: bytes) -> bytes:
        return self.statement("advert", name, exchange, public)

    def survivors(self, exchange: int, asked: bytes, names: Iterable[str]) -> bytes:
        """What survivors sign: who is summed in which exchange, of those who were asked what."""
        return self.statement("survivors", exchange, asked, *sorted(names))

    def box(self, purpose: str, exchange: int, sender: str, receiver: str) -> bytes:
        return self.statement("box", purpose, exchange, sender, receiver)


@dataclass(frozen=True)
class Card:
    """A site's public X25519 key of a run, for sealed shares, with the site's signature."""

    name: str
    public: bytes
    signature: bytes

    @staticmethod
    def signed(scope: Scope, name: str, public: bytes, identity: Identity) -> Card:
        return Card(name, public, identity.sign(scope.card(name, public)))

    def is_genuine(self, scope: Scope) -> bool:
        return scope.roster.is_signed(self.name, scope.card(self.name, self.public), self.signature)


@dataclass(frozen=True)
class Advert:
    """A site's public mask key of an exchange, and sealed shares of the secret one by receiver."""

    name: str
    exchange: int
    public: bytes
    signature: bytes
    boxes: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def is_genuine(self, scope: Scope) -> bool:
        statement = scope.advert(self.name, self.exchange, self.public)
        return scope.roster.is_signed(self.name, statement, self.signature)

    @property
    def nbytes(self) -> int:
        boxes = sum(len(box) for box in self.boxes.values())
        return len(self.public) + len(self.signature) + boxes


@dataclass(frozen=True)
class Question:
    """What the server asks in an exchange: the request by its hash, and those who are asked, with their keys.

    `digest` is the same at all sites that were told the same.
    """

    exchange: int
    about: str
    """Kind and round of the request, and the hash of its arrays"""
    publics: Mapping[str, bytes]

    @property
    def digest(self) -> bytes:
        parts = [part for name in sorted(self.publics) for part in (name, self.publics[name])]
        return hashlib.sha256(framed(PROTOCOL, self.exchange, self.about, *parts)).digest()


@dataclass(frozen=True)
class MaskedReply:
    """A reply as the server sees it, with sealed shares of its own mask, and the next exchange's advert."""

    name: str
    exchange: int
    values: np.ndarray = field(repr=False)
    commitment: bytes
    """SHA-256 of the own mask's seed: tells the server whether the shares that it gets are right"""
    boxes: Mapping[str, bytes] = field(repr=False)
    advert: Advert

    @property
    def nbytes(self) -> int:
        boxes = sum(len(box) for box in self.boxes.values())
        return self.values.nbytes + boxes + len(self.commitment) + self.advert.nbytes

    def to_bytes(self) -> bytes:
        """One spelling: a reply that is sent again is the same to the last byte."""
        boxes = [part for name in sorted(self.boxes) for part in (name, self.boxes[name])]
        advert = self.advert
        sealed = [part for name in sorted(advert.boxes) for part in (name, advert.boxes[name])]
        return framed(
            self.name,
            self.exchange,
            self.values.astype("<u8").tobytes(),
            self.commitment,
            framed(*boxes),
            advert.exchange,
            advert.public,
            advert.signature,
            framed(*sealed),
        )


@dataclass(frozen=True)
class Revealed:
    """One site's shares after the survivors are agreed: of own masks of survivors, of keys of the others."""

    name: str
    own: Mapping[str, bytes]
    keys: Mapping[str, bytes]

    @property
    def nbytes(self) -> int:
        return sum(len(share) for share in (*self.own.values(), *self.keys.values()))
