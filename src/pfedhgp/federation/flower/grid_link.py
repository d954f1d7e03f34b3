"""The engine's `Link` over Flower's Grid: which node is which site, what is sent, what has come."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from pfedhgp.federation.flower import wire
from pfedhgp.federation.flower.envelope import Envelope, Refused
from pfedhgp.federation.schema import HELLO

log = logging.getLogger("pfedhgp.server")
TRAIN = "train"
REFRESH = 0.5
"""Seconds between two looks at which nodes are there."""
GONE = (
    ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
)
"""What Flower answers in place of a node that has gone."""


class Directory(Protocol):
    """Which node is which site."""

    def site_of(self, node: Any) -> str | None: ...


@dataclass(frozen=True)
class ByKey:
    """By the public keys that were registered: a node is who it can sign as."""

    names: Mapping[bytes, str]

    def site_of(self, node: Any) -> str | None:
        return self.names.get(bytes(node.public_key))


@dataclass
class GridLink:
    """The engine's `Link` over Flower's Grid.

    Without a directory (no authentication, or keys that somebody else registered) nodes are asked who they
    are; the first one of a name has it until it is gone.
    """

    grid: Grid
    sites: tuple[str, ...]
    directory: Directory | None = None
    clock: Callable[[], float] = time.monotonic
    most_bytes: int = 4096
    pending: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    """Message ids that are waited for: site, node and when the node had come."""
    hellos: dict[str, int] = field(default_factory=dict)
    claimed: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._nodes: dict[str, tuple[int, str]] = {}
        self._looked = -REFRESH
        self._refused: set[int] = set()
        self._returned: list[str] = []

    def expect(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes

    def push(self, name: str, request: Envelope, lifetime: float) -> bool:
        node = self._present().get(name)
        if node is None:
            return False
        self.pending = {key: about for key, about in self.pending.items() if about[0] != name}
        found = self._send(wire.to_records(request), node[0], lifetime, str(request.exchange))
        if found is None:
            return False
        self.pending[found] = (name, *node)
        return True

    def pull(self) -> list[tuple[str, Envelope | Refused]]:
        found: list[tuple[str, Envelope | Refused]] = []
        if not self.pending:
            return found
        for message in self.grid.pull_messages(list(self.pending)):
            about = self.pending.pop(message.metadata.reply_to_message_id, None)
            if about is None:
                continue
            if message.has_error() and message.error.code in GONE:
                self._returned.append(about[0])  # the node went away with it: it is asked again
                continue
            found.append((about[0], self._read(message)))
        return found

    def lost(self) -> list[str]:
        """Nodes that have come anew since they were asked have nothing left of the question."""
        present = self._present()
        names, self._returned = self._returned, []
        for key, (name, node, since) in list(self.pending.items()):
            if name in present and present[name] != (node, since):
                del self.pending[key]
                names.append(name)
        return names

    def _read(self, message: Message) -> Envelope | Refused:
        if message.has_error():
            return Refused("flower")
        try:
            return wire.from_records(message.content, most_bytes=self.most_bytes)
        except Refused as refused:
            return refused

    def _send(self, content: RecordDict, node: int, lifetime: float, group: str) -> str | None:
        message = Message(content, node, TRAIN, ttl=max(lifetime, 1.0), group_id=group)
        ids = list(self.grid.push_messages([message]))
        return ids[0] if ids and ids[0] else None

    # --------------------------------------------------------------------------------- who is who

    def _present(self) -> dict[str, tuple[int, str]]:
        """Node and the time of its coming, by site; looked up anew now and then."""
        if self.clock() - self._looked < REFRESH:
            return self._nodes
        self._looked = self.clock()
        nodes = list(self.grid.get_nodes())
        if self.directory is None:
            self._ask_names({node.node_id for node in nodes})
        found: dict[str, tuple[int, str]] = {}
        for node in sorted(nodes, key=lambda node: node.registered_at):
            name = (
                self.directory.site_of(node) if self.directory else self.claimed.get(node.node_id)
            )
            if name not in self.sites or name is None:
                continue
            if name in found:
                if node.node_id not in self._refused:
                    self._refused.add(node.node_id)
                    log.warning("a second site of one name was refused")
                continue
            found[name] = (node.node_id, node.last_activated_at)
        self._nodes = found
        return found

    def _ask_names(self, online: set[int]) -> None:
        asked = set(self.hellos.values()) | set(self.claimed)
        for node in sorted(online - asked):
            hello = Envelope(run="", exchange=0, kind=HELLO, round=0, sender="server")
            key = self._send(wire.to_records(hello), node, 60.0, HELLO)
            if key is not None:
                self.hellos[key] = node
        if self.hellos:
            for message in self.grid.pull_messages(list(self.hellos)):
                node_id = self.hellos.pop(message.metadata.reply_to_message_id, None)
                reply = self._read(message)
                if node_id is not None and isinstance(reply, Envelope):
                    self.claimed[node_id] = reply.sender
