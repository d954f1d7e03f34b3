"""How well a fit would have predicted if it had stopped after each round."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pfedhgp.federation import inprocess, planning
from pfedhgp.federation.clients import ClientGroup
from pfedhgp.federation.messages import Message
from pfedhgp.federation.opening import Opening
from pfedhgp.federation.server import Server
from pfedhgp.federation.training import Rounds
from pfedhgp.inference.protocols import ClientParty
from pfedhgp.inference.structured.settings import StructuredClients
from pfedhgp.model.fitted import FittedModel

Point = tuple[int, int, float]
"""Exchanges so far, bytes so far (the final delivery included), and the score."""


class RoundScores:
    """A callback of `FederatedGP` that keeps a point of the curve for every round but the last.

    The replies of each round also go to a copy of the server that is told to stop there. So the curve comes
    from the protocol's own ending, and the training itself is not affected.
    """

    def __init__(self, score: Callable[[FittedModel], float]) -> None:
        self.score = score
        self.points: list[Point] = []
        self._sent = 0
        self._stopped: tuple[Server, inprocess.Exchange] | None = None

    def replied(self, exchange: inprocess.Exchange) -> None:
        """Takes a copy of the server before it gets the replies to a round."""
        replies = exchange.replies
        self._sent += exchange.request.nbytes * len(replies) + sum(r.nbytes for r in replies)
        rounds = exchange.server.current
        if isinstance(rounds, Rounds):
            self._stopped = _copy(exchange.server, rounds), exchange

    def __call__(self, record: dict[str, Any]) -> None:
        if self._stopped is not None and "ended" not in record:
            server, exchange = self._stopped
            extra, fitted = _ended(server, exchange.groups, exchange.replies)
            self.points.append((server.exchanges, self._sent + extra, self.score(fitted)))
        self._stopped = None


def _copy(server: Server, rounds: Rounds) -> Server:
    """Arrays are never changed in place, so lists and parties are all that has to be copied."""
    other = copy.copy(server)
    other.run = replace(server.run, history=list(server.run.history), stop_asked=True)
    other.current = replace(rounds, run=other.run, running=[_copied(o) for o in rounds.running])
    return other


def _copied(opening: Opening) -> Opening:
    party = copy.copy(opening.party)
    party.bounds = list(opening.party.bounds)
    return replace(opening, party=party)


def _plug_in(party: ClientParty) -> ClientParty:
    """Without averaging over parameters, which costs as much as two rounds and moves a point by 0.03 nats."""
    if isinstance(party, StructuredClients):
        party.settings = replace(party.settings, averaging=None)
    return party


def _ended(
    server: Server, groups: Sequence[ClientGroup], replies: Sequence[Message]
) -> tuple[int, FittedModel]:
    """Ends training on copies with these replies; returns the bytes of the ending and the model."""
    server.gather(replies)
    copies = [copy.copy(group) for group in groups]
    for group in copies:
        group.parties = {k: _plug_in(copy.copy(party)) for k, party in group.parties.items()}
    extra = 0

    def count(message: Message, receiver: str) -> None:
        nonlocal extra
        extra += message.nbytes

    inprocess.run(server, copies, record=count)
    rows = [client for group in copies for client in group.clients]
    d, outputs = rows[0].X.shape[1], rows[0].Y.shape[1]
    fitted = planning.fitted_model(
        server.plan,
        server,
        copies,
        rows,
        input_names=tuple(f"x{j}" for j in range(d)),
        output_names=tuple(f"y{q}" for q in range(outputs)),
        settings={},
        messages=[],
    )
    return extra, fitted
