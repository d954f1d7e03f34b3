"""Secure aggregation between clients and server of one process: from replies to their total.

Each client has keys of its own and answers every trip of the protocol. What the server's side gets are
masked replies, signatures and shares; `total` is all that it can make of them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pfedhgp.errors import MessageError
from pfedhgp.federation import message_checks
from pfedhgp.federation.masks.aggregator import Aggregator, check_count
from pfedhgp.federation.masks.fixed_point import Shapes, decoded, encoded
from pfedhgp.federation.masks.keys import Identity
from pfedhgp.federation.masks.roster import Roster, Scope
from pfedhgp.federation.masks.site import MaskedSite
from pfedhgp.federation.messages import Message
from pfedhgp.federation.plan import Plan

Record = Callable[[Any, str], None]


@dataclass(frozen=True)
class Trip:
    """What a masked exchange's log keeps of a message to the server: names, sizes and bytes."""

    kind: str
    round: int
    sender: str
    arrays: Mapping[str, Sequence[int]]
    nbytes: int

    def log_entry(self, receiver: str) -> dict[str, Any]:
        arrays = {name: list(shape) for name, shape in self.arrays.items()}
        return {
            "round": self.round,
            "kind": self.kind,
            "from": self.sender,
            "to": receiver,
            "bytes": self.nbytes,
            "arrays": arrays,
        }


class MaskedClients:
    """All clients of a fit as sites of a roster, and the server that adds them up."""

    def __init__(self, plan: Plan | None, names: Sequence[str]) -> None:
        self.plan, self.number = plan, 0
        identities = {name: Identity.new() for name in names}
        roster = Roster({name: own.public for name, own in identities.items()})
        scope = Scope(roster, secrets.token_hex(16))
        self.server = Aggregator(scope)
        self.sites = {
            name: MaskedSite.joining(name, own, scope, roster.digest)
            for name, own in identities.items()
        }
        for site in self.sites.values():
            self.server.add_card(site.card())
        for site in self.sites.values():
            site.meet(self.server.cards.values())
        for site in self.sites.values():
            self.server.add_advert(site.advertise(1))

    def total(
        self, request: Message, replies: Iterable[Message], record: Record | None = None
    ) -> tuple[dict[str, np.ndarray], list[str], int]:
        """The sum of the replies, the clients in it, and how many bytes went to the server."""
        assert self.plan is not None
        expected = message_checks.of_reply(self.plan, request.kind, request.arrays)
        shapes = {name: sent.shape for name, sent in expected.items()}
        values = {reply.sender: self._encoded(reply, shapes) for reply in replies}
        if not values:  # a finish that nobody answers
            return {}, [], 0
        sums, survivors = self.sum_of(request, values, shapes, record)
        check_count(sums, len(survivors))
        return sums, survivors, self.server.received

    def sum_of(
        self,
        request: Message,
        values: Mapping[str, np.ndarray],
        shapes: Shapes,
        record: Record | None = None,
    ) -> tuple[dict[str, np.ndarray], list[str]]:
        """The sum of encoded replies, and the clients in it: all trips of one exchange."""
        self.number += 1
        number, server, say = self.number, self.server, record or (lambda message, receiver: None)
        about = f"{request.kind} {request.round} {request.block}"
        for name in server.ask(number, about):
            say(request, name)
            reply = self.sites[name].answer(number, about, server.adverts_for(name), values[name])
            server.take(reply)
            sealed = len(reply.boxes) + len(reply.advert.boxes)
            sizes = {"masked": [reply.values.size], "sealed shares": [sealed]}
            say(Trip(request.kind, request.round, name, sizes, reply.nbytes), "server")
        survivors = server.settle()
        for name in survivors:
            signature = self.sites[name].sign(number, survivors)
            server.add_signature(name, signature)
            sizes = {"signature": [len(signature)]}
            say(Trip(request.kind, request.round, name, sizes, len(signature)), "server")
        told = []
        for name in survivors:
            boxes = server.boxes_for(name)
            told.append(self.sites[name].reveal(number, survivors, server.signatures, boxes))
            sizes = {"shares": [len(told[-1].own) + len(told[-1].keys)]}
            say(Trip(request.kind, request.round, name, sizes, told[-1].nbytes), "server")
        return decoded(server.total(told), shapes, len(self.sites)), list(survivors)

    def _encoded(self, reply: Message, shapes: Shapes) -> np.ndarray:
        """At the client: what the server cannot check any more is checked here."""
        reply.check_finite()
        if {name: array.shape for name, array in reply.arrays.items()} != dict(shapes):
            raise MessageError(
                f"the {reply.kind} reply of {reply.sender} has not the agreed arrays"
            )
        return encoded(reply.arrays, shapes, len(self.sites))
