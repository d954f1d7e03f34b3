"""What travels between server and site: a message, with the run and the exchange that it belongs to."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_type_hints

import numpy as np

from pfedhgp.errors import MessageError
from pfedhgp.federation.messages import SCHEMA, Message, bytes_of, logged
from pfedhgp.federation.schema import DELIVER, EXCHANGES

MISSED = "missed"
"""missed/start/<array>: an earlier request that a late site needs for its setup, and does not answer."""

CARD, KEY, ANSWER, SIGN, REVEAL = "card", "key", "answer", "sign", "reveal"
TRIPS = ("", CARD, KEY, ANSWER, SIGN, REVEAL)
"""With masks, an exchange has several trips: see `federation.flower.masked_exchange`."""

IN_BYTES = ("arrays", "sealed")
"""Fields of an envelope that are not plain."""

HASH = re.compile(r"|[0-9a-f]{64}")
"""SHA-256, or nothing."""

CODES = {
    "schema": "the two sides run different versions of pfedhgp",
    "malformed": "the message is not one of ours: a kind, name, shape, type, round or hash is wrong",
    "oversized": "the message is more than four times as large as expected",
    "not-finite": "a number in the message is NaN or infinite",
    "out-of-range": "a count, a flag or a variance in the message has a value that it cannot have",
    "inadmissible": "no rows can have made this reply: a sum in it contradicts the model or the census",
    "stale": "the message belongs to an exchange that is over",
    "duplicate": "the site has replied to this request already",
    "other-request": "the reply belongs to another run, request or site",
    "forked": "server and site remember different exchanges: start the run again",
    "forgotten": "the site has lost its state of the run, or its last steps, and begins again",
    "name": "the site's name is not the one that the server's sites.toml has for its key",
    "config": "the site does not accept the server's settings (columns, model)",
    "masks": "the site does not accept this list of sites, a key, or a set of survivors (masks)",
    "budget": "the site's privacy budget does not allow this release",
    "delta": "δ of the server's settings is above what the site allows (--delta-ceiling)",
    "policy": "the site's policy does not allow it",
    "reveal": "what zones ask for would reveal more of the site's rows than it allows (--reveal)",
    "data": "the site's rows do not fit the columns, or are too few",
    "closed": "the request asks for more than the site tells of its rows",
    "few-rows": "the site has too few rows to be asked; it gets the model in the end",
    "rows-changed": "the site's rows have changed since the run began",
    "numerics": "a factorisation failed, or a sum was not finite, at the site",
    "internal": "the site failed; its own log says where",
    "no-answer": "no answer in time",
    "flower": "Flower returned an error instead of an answer",
}


class Refused(MessageError):
    """A message that is refused. Only the code leaves the machine.

    `why` is for this machine's own log: names of columns and settings, never a value of a row.
    """

    def __init__(self, code: str, why: str = "") -> None:
        assert code in CODES
        super().__init__(CODES[code])
        self.code, self.why = code, why


@dataclass(frozen=True)
class Envelope:
    """A request or a reply. A reply repeats the request's run, exchange, kind, round and block."""

    run: str
    """Identifier of the run."""
    exchange: int
    """Number of the exchange in the run, from 1."""
    kind: str
    """Name of the exchange."""
    round: int
    """Number of the round; 0 before training."""
    sender: str
    """Who sends it: "server", or the site's name."""
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    """The message itself."""
    block: str = ""
    """SHA-256 of the request's arrays; empty in the delivery."""
    schema: int = SCHEMA
    """Version of the messages."""
    receiver: str = ""
    """In a request: the name of the site that it is for."""
    counted: int = 0
    """In a request: the last exchange in which the receiver's reply was counted."""
    left_out: bool = False
    """In a request: whether the receiver's last sums are left out of the totals."""
    agreement: str = ""
    """In a request: columns and model, as JSON."""
    summary: str = ""
    """In the delivery: exchanges, bound and starting scales of the training, as JSON."""
    code: str = ""
    """In a reply: why the site refused, or nothing."""
    audit: str = ""
    """In a reply: the last hash of the site's audit log."""
    trip: str = ""
    """With masks: which trip of the exchange this is."""
    sealed: bytes = field(default=b"", repr=False)
    """With masks: keys, sealed shares, signatures, and the masked reply."""
    seconds: float = 0.0
    """In a reply: how long the site worked, in whole seconds: finer times would tell of its machine."""

    def message(self) -> Message:
        """The message without what a federation adds to it."""
        kind = "finish" if self.kind == DELIVER else self.kind.partition(":")[0]
        return Message(kind, self.round, self.sender, self.parts()[0], self.block, self.schema)

    def missed(self) -> list[Message]:
        """The requests that the site has not received, in the order of their use."""
        missed = self.parts()[1]
        kinds = [kind for kind in ("cycles", "start") if kind in missed]
        return [Message(kind, self.round, self.sender, missed[kind]) for kind in kinds]

    def parts(self) -> tuple[Mapping[str, np.ndarray], dict[str, dict[str, np.ndarray]]]:
        """The arrays of the message itself, and by kind those of the requests that were missed."""
        if not any(name.startswith(f"{MISSED}/") for name in self.arrays):
            return self.arrays, {}  # they may be on disk: none is looked at here
        own: dict[str, np.ndarray] = {}
        missed: dict[str, dict[str, np.ndarray]] = {}
        for name, array in self.arrays.items():
            first, *rest = name.split("/", 2)
            if first == MISSED and len(rest) == 2:
                missed.setdefault(rest[0], {})[rest[1]] = array
            else:
                own[name] = array
        return own, missed

    def plain(self) -> dict[str, Any]:
        """All but what travels as bytes."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in IN_BYTES}

    @property
    def nbytes(self) -> int:
        return bytes_of(self.arrays) + len(self.sealed)

    def shown(self) -> Envelope:
        """As logs show it: what is sealed is one more array."""
        return replace(self, arrays=self.content(), sealed=b"")

    def log_entry(self, receiver: str) -> dict[str, Any]:
        """What the message log keeps."""
        return logged(self.kind, self.round, (self.sender, receiver), self.arrays)

    def content(self) -> dict[str, np.ndarray]:
        """The arrays, and what is sealed as one more: for logs."""
        if not self.sealed:
            return dict(self.arrays)
        return {**self.arrays, f"masks: {self.trip}": np.frombuffer(self.sealed, np.uint8)}


def missed_arrays(kind: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A request as part of a later one."""
    return {f"{MISSED}/{kind}/{name}": array for name, array in arrays.items()}


def from_plain(
    plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray], sealed: bytes = b""
) -> Envelope:
    """The inverse of `plain`; every field has to be there, and of its type."""
    types = {name: kind for name, kind in get_type_hints(Envelope).items() if name not in IN_BYTES}
    if plain.get("schema") != SCHEMA:
        raise Refused("schema")
    if set(plain) != set(types):
        raise Refused("malformed")
    for name, kind in types.items():
        if type(plain[name]) is not kind:
            raise Refused("malformed")
    if plain["kind"] not in EXCHANGES or min(plain["exchange"], plain["round"]) < 0:
        raise Refused("malformed")
    if plain["trip"] not in TRIPS or bool(sealed) > bool(plain["trip"]):
        raise Refused("malformed")
    if not HASH.fullmatch(plain["audit"]):  # it is kept: no room for text
        raise Refused("malformed")
    if not (math.isfinite(plain["seconds"]) and plain["seconds"] >= 0.0):
        raise Refused("not-finite")
    return Envelope(arrays=arrays, sealed=sealed, **plain)
