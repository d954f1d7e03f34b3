"""The clients' part of a checkpoint: their blocks and last statistics, never rows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError
from pfedhgp.federation.messages import Message
from pfedhgp.inference.arrays import State, below

if TYPE_CHECKING:
    from pfedhgp.federation.clients import ClientGroup


def state_of(group: ClientGroup) -> State:
    """The clients' part of a checkpoint: their blocks and last statistics, never rows."""
    arrays: dict[str, np.ndarray] = {}
    plain: dict[str, Any] = {
        "rows": digest_of(group.clients),
        "attempt": group.attempt,
        "trainers": {},
    }
    plain["heard"] = list(group.heard)
    for kind, heard in group.heard.items():
        arrays |= below(f"heard {kind}", heard)
    for attempt, party in group.parties.items():
        own = party.state()
        arrays |= below(f"start {attempt}", group.starts[attempt])
        arrays |= below(f"trainer {attempt}", own.arrays)
        plain["trainers"][str(attempt)] = dict(own.plain)
    for k, other in enumerate(group.other_parties):
        arrays |= below(f"other {k}", other.state().arrays)
    return State(arrays, plain)


def restore(group: ClientGroup, state: State) -> None:
    """Puts `state` back; refuses it if the rows have changed since."""
    if state.plain["rows"] != digest_of(group.clients):
        raise InputError(
            f"the rows of client {group.names[0]!r} (or of one grouped with it) are not those that "
            "the run began with: start it again"
        )
    for kind in state.plain["heard"]:  # what followed from a request follows from it again
        group.answer(Message(kind, 0, "server", state.part(f"heard {kind}")))
    for name, plain in state.plain["trainers"].items():
        group.prepare(state.part(f"start {name}"))
        group.parties[int(name)].restore(State(state.part(f"trainer {name}"), plain))
    for k, other in enumerate(group.other_parties):
        other.restore(State(state.part(f"other {k}"), {}))
    group.attempt = int(state.plain["attempt"])


def digest_of(clients: Sequence[ClientRows]) -> str:
    """SHA-256 of names and rows: tells whether they changed, and not what they are."""
    digest = hashlib.sha256()
    for client in clients:
        for field in fields(client):
            value = getattr(client, field.name)
            shown = value.shape if isinstance(value, np.ndarray) else value
            digest.update(f"{field.name} {shown!r}".encode())
            if isinstance(value, np.ndarray):
                digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()
