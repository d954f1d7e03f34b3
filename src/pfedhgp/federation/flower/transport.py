"""Messages over Flower: envelopes as Flower's records, the server's link to its sites, a site's reply.

All arrays of a message travel as one run of float64, with names and shapes beside it. Flower moves every
array with calls of its own, which would take most of a round's time. What masks send follows in the same run.
Eight random bytes end it: Flower stores equal content only once, and may drop it after the first message that
used it was read.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from pfedhgp.federation.envelope import Envelope, Refused, from_plain
from pfedhgp.federation.flower import reply_stream
from pfedhgp.federation.messages import layout_of
from pfedhgp.federation.schema import HELLO

if TYPE_CHECKING:
    from pfedhgp.federation.flower.site import Site

log = logging.getLogger("pfedhgp.server")
ABOUT, LAYOUT, ARRAYS, NUMBERS, SEALED = "about", "layout", "arrays", "numbers", "sealed"
MOST_ARRAYS, LONGEST_NAME, LONGEST_TEXT, MOST_AXES = 128, 200, 262_144, 4
RANDOM_BYTES = 8
LARGEST_REQUEST = 64 * 1024 * 1024
"""Bytes that a site unpacks at most, before it knows the plan."""
TRAIN = "train"
REFRESH, CALM_REFRESH = 0.5, 2.0
"""Seconds between two looks at which nodes are connected, at least: while one is awaited, and otherwise."""
SHARE = 0.1
"""The share of the time that may go into looking for nodes: with hundreds of sites it takes long."""


# ---------------------------------------------------------------------------------------- records


def to_records(envelope: Envelope) -> RecordDict:
    """Names and shapes as JSON, numbers as little-endian float64 in that order."""
    flat = [np.asarray(a, "<f8").reshape(-1) for a in envelope.arrays.values()]
    numbers = np.concatenate([*flat, np.zeros(0, "<f8")]).tobytes()
    padding = bytes(-len(envelope.sealed) % 8)
    data = numbers + envelope.sealed + padding + secrets.token_bytes(RANDOM_BYTES)
    packed = Array("float64", (len(data) // 8,), "raw", data)
    layout = json.dumps(layout_of(envelope.arrays))
    about = ConfigRecord({**envelope.plain(), LAYOUT: layout, SEALED: len(envelope.sealed)})
    return RecordDict({ABOUT: about, ARRAYS: ArrayRecord({NUMBERS: packed})})


def from_records(content: RecordDict, *, most_bytes: int) -> Envelope:
    """The inverse. Measures before it unpacks, refuses what is too large or of another form."""
    if set(content) != {ABOUT, ARRAYS}:
        raise Refused("malformed")
    about, records = content[ABOUT], content[ARRAYS]
    if not isinstance(about, ConfigRecord) or not isinstance(records, ArrayRecord):
        raise Refused("malformed")
    if set(records) != {NUMBERS}:
        raise Refused("malformed")
    texts = sum(len(value) for value in about.values() if isinstance(value, str | bytes | list))
    data = records[NUMBERS].data
    if texts > LONGEST_TEXT or len(data) > most_bytes:
        raise Refused("oversized")
    plain = dict(about)
    shapes, sealed = _shapes(plain.pop(LAYOUT, None)), plain.pop(SEALED, None)
    if type(sealed) is not int or not 0 <= sealed <= len(data):
        raise Refused("malformed")
    end = len(data) - RANDOM_BYTES - sealed - (-sealed % 8)
    if end < 0:
        raise Refused("malformed")
    return from_plain(plain, _unpacked(shapes, data[:end]), data[end : end + sealed])


def _shapes(text: Any) -> dict[str, tuple[int, ...]]:
    try:
        found = json.loads(text)
        shapes = {name: tuple(shape) for name, shape in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise Refused("malformed") from None
    if len(shapes) > MOST_ARRAYS:
        raise Refused("oversized")
    for name, shape in shapes.items():
        whole = all(type(size) is int and 0 <= size < 2**31 for size in shape)
        if not whole or len(shape) > MOST_AXES or len(name) > LONGEST_NAME:
            raise Refused("malformed")
    return shapes


def _unpacked(shapes: dict[str, tuple[int, ...]], data: bytes) -> dict[str, np.ndarray]:
    if 8 * sum(math.prod(shape) for shape in shapes.values()) != len(data):
        raise Refused("malformed")
    numbers, start, arrays = np.frombuffer(data, "<f8").astype(np.float64), 0, {}
    for name, shape in shapes.items():
        size = math.prod(shape)
        arrays[name] = numbers[start : start + size].reshape(shape)
        start += size
    return arrays


# ----------------------------------------------------------------------------------- at the site


def reply_to(message: Message, site: Site) -> Message:
    """A site's reply to a Flower message. Never raises: Flower would send the error's text."""
    try:
        request = from_records(message.content, most_bytes=LARGEST_REQUEST)
    except Refused as refused:
        return refusal_of(message, site.name, refused.code, audit=site.refuse(refused.code))
    return Message(to_records(site.answer(request)), reply_to=message)


def refusal_of(message: Message, name: str, code: str = "internal", *, audit: str = "") -> Message:
    """The reply of a site that could not read the message: a code, and no text."""
    about: dict[str, Any] = {"run": "", "exchange": 0, "kind": HELLO, "round": 0}
    refusal = Envelope(**about, sender=name, code=code, audit=audit)
    return Message(to_records(refusal), reply_to=message)


# --------------------------------------------------------------------------------- at the server


class Node(NamedTuple):
    """A site's node in Flower, and when it connected."""

    id: int
    since: str


@dataclass
class GridLink:
    """The exchange's `Link` over Flower's Grid.

    A node is the site whose registered key it signs with. Without `keys` (no authentication, or keys that
    somebody else registered) nodes are asked for their names. The first node that claims a name keeps it
    until the node is gone.
    """

    grid: Grid
    sites: tuple[str, ...]
    keys: Mapping[bytes, str] | None = None
    """The site of each registered public key."""
    clock: Callable[[], float] = time.monotonic
    most_bytes: int = 4096
    pending: dict[str, tuple[str, Node]] = field(default_factory=dict)
    """By id of each message that awaits a reply: the site and its node."""
    hellos: dict[str, int] = field(default_factory=dict)
    claimed: dict[int, str] = field(default_factory=dict)
    on_nodes: Callable[[tuple[str, ...]], None] = lambda sites: None
    """Gets the connected sites whenever they have changed."""
    on_limit: Callable[[int], None] = lambda most_bytes: None
    """Gets how large a reply may be, whenever that changes."""
    oversized: Callable[[], Iterable[bytes]] = tuple
    """The keys of sites whose replies were too large to be let in."""

    def __post_init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._looked, self._pause, self._awaits = -math.inf, 0.0, False
        self._refused: set[int] = set()
        self._returned: list[str] = []

    def expect(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.on_limit(most_bytes)

    def connected(self) -> Collection[str]:
        return self.nodes().keys()

    def push(self, name: str, request: Envelope, lifetime: float) -> bool:
        node = self.nodes().get(name)
        if node is None:
            self._awaits = True
            return False
        self.pending = {key: about for key, about in self.pending.items() if about[0] != name}
        found = self._send(to_records(request), node.id, lifetime, str(request.exchange))
        if found is None:
            return False
        self.pending[found] = (name, node)
        return True

    def pull(self) -> Iterator[tuple[str, Envelope | Refused]]:
        """The replies that have come; each is fetched when it is asked for."""
        if not self.pending:
            return
        for request, reply in reply_stream.replies(self.grid, list(self.pending), self.most_bytes):
            about = self.pending.pop(request, None)
            if about is None:
                continue
            if reply is None:
                self._returned.append(about[0])  # the node left with the message: ask again
                continue
            yield about[0], reply if isinstance(reply, Refused) else self._read(reply)
        for name in [(self.keys or {}).get(key) for key in self.oversized()]:
            waiting = [key for key, about in self.pending.items() if about[0] == name]
            for key in waiting:
                del self.pending[key]
                yield str(name), Refused("oversized")

    def lost(self) -> list[str]:
        """Sites whose node connected again after it was asked, and so has lost the question."""
        present = self.nodes()
        names, self._returned = self._returned, []
        for key, (name, node) in list(self.pending.items()):
            if name in present and present[name] != node:
                del self.pending[key]
                names.append(name)
        return names

    def nodes(self) -> dict[str, Node]:
        """By site. Looked up again now and then; less often if that takes long."""
        began = self.clock()
        least = REFRESH if self._awaits else CALM_REFRESH
        if began - self._looked < max(least, self._pause):
            return self._nodes
        nodes = list(self.grid.get_nodes())
        self._looked, self._pause, self._awaits = began, (self.clock() - began) / SHARE, False
        if self.keys is None:
            self._ask_names({node.node_id for node in nodes})
        found: dict[str, Node] = {}
        for node in sorted(nodes, key=lambda node: node.registered_at):
            by_name, by_key = self.claimed.get, self.keys
            name = by_name(node.node_id) if by_key is None else by_key.get(bytes(node.public_key))
            if name not in self.sites or name is None:
                continue
            if name in found:
                if node.node_id not in self._refused:
                    self._refused.add(node.node_id)
                    log.warning("refused a second site with a name that is already taken")
                continue
            found[name] = Node(node.node_id, node.last_activated_at)
        if set(found) != set(self._nodes):
            self.on_nodes(tuple(found))
        self._nodes = found
        return found

    def _read(self, message: Message) -> Envelope | Refused:
        if message.has_error():
            return Refused("flower")
        try:
            return from_records(message.content, most_bytes=self.most_bytes)
        except Refused as refused:
            return refused

    def _send(self, content: RecordDict, node: int, lifetime: float, group: str) -> str | None:
        message = Message(content, node, TRAIN, ttl=max(lifetime, 1.0), group_id=group)
        ids = list(self.grid.push_messages([message]))
        return ids[0] if ids and ids[0] else None

    def _ask_names(self, online: set[int]) -> None:
        asked = set(self.hellos.values()) | set(self.claimed)
        for node in sorted(online - asked):
            hello = Envelope(run="", exchange=0, kind=HELLO, round=0, sender="server")
            key = self._send(to_records(hello), node, 60.0, HELLO)
            if key is not None:
                self.hellos[key] = node
        if self.hellos:
            for message in self.grid.pull_messages(list(self.hellos)):
                node_id = self.hellos.pop(message.metadata.reply_to_message_id, None)
                reply = self._read(message)
                if node_id is not None and isinstance(reply, Envelope):
                    self.claimed[node_id] = reply.sender
