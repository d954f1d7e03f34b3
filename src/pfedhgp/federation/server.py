"""The server: agrees on scales from sums, asks for rounds, and never sees a row.

It has two calls, so that any engine can drive it: `request()` says what to broadcast next (None when done),
`gather(replies)` takes the answers. What it asks for is up to its phase: see `preparation` and `training`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np

from pfedhgp.errors import MessageError
from pfedhgp.federation import server_state
from pfedhgp.federation.messages import Message, hash_arrays
from pfedhgp.federation.phases import Best, Phase, RunState
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.preparation import Census
from pfedhgp.inference.arrays import State
from pfedhgp.inference.starts import census

log = logging.getLogger("pfedhgp")


class Server:
    """Census, extent (without a domain), cycles (with a cycle layer), start, rounds, finish."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.run = RunState()
        self.current: Phase | None = Census(plan, self.run)
        self.asked: Message | None = None

    @property
    def phase(self) -> str | None:
        """The kind of the next request; None when done."""
        return None if self.current is None else self.current.kind

    @property
    def best(self) -> Best | None:
        return self.run.best

    @property
    def exchanges(self) -> int:
        return self.run.exchanges

    @property
    def attempt(self) -> int:
        return self.run.attempt

    @property
    def history(self) -> list[dict[str, Any]]:
        """A record of each round."""
        return self.run.history

    def stop(self) -> None:
        """Training ends with the next round."""
        self.run.stop_asked = True

    def request(self) -> Message | None:
        """What to broadcast now; the same until `gather` is called."""
        if self.current is None:
            return None
        arrays = self.current.request()
        kind, number = self.current.kind, self.run.round
        self.asked = Message(kind, number, "server", arrays, hash_arrays(arrays))
        return self.asked

    def gather(self, replies: Iterable[Message]) -> dict[str, Any] | None:
        """Takes the replies (each is summed and dropped) and moves on; returns the round's record."""
        asked, current, run = self.asked, self.current, self.run
        assert asked is not None
        assert current is not None
        total: dict[str, np.ndarray] = {}
        received, senders = 0, []
        for reply in replies:
            if (reply.kind, reply.round, reply.block) != (asked.kind, run.round, asked.block):
                raise MessageError(f"a reply from {reply.sender} belongs to another request")
            reply.check_finite()
            received += reply.nbytes
            senders.append(reply.sender)
            if not total:
                total = dict(reply.arrays)
            elif current.kind == "census":
                total = census.merged(total, dict(reply.arrays))
            else:
                total = {name: total[name] + array for name, array in reply.arrays.items()}
        if senders:
            run.exchanges += 1
        elif current.kind != "finish":
            raise MessageError(f"no client answered the {current.kind} request")
        self.current, record = current.take(total, senders)
        run.present = senders or run.present
        if record is not None:
            record |= {
                "clients": len(senders),
                "bytes_up": received,
                "bytes_down": asked.nbytes * len(senders),
            }
            run.history.append(record)
            log.info("round %d: bound %s", record["round"], record["bound"])
        return record

    def state(self) -> State:
        """The server's part of a checkpoint."""
        return server_state.state_of(self.plan, self.run, self.current)

    def restore(self, state: State) -> None:
        """Puts `state` back; refuses it if it was made with another plan."""
        self.run, self.current = server_state.restored(self.plan, state)
