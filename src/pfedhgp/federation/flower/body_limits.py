"""How much the SuperLink reads of a request: little of a stranger's, and of a site no more than a reply has.

Flower reads the body of every request before it looks at who sent it. Here a request of a site says how long
its body is, in its header, and a longer one than allowed is refused unread: SMALL bytes for any request, and
LARGE for one that brings an object of a message and is signed, now, by a registered key. All objects of one
message may have as many bytes together as the server expects of a reply; a site that brings more is named in
a file, so that the server can say so and go on.

`BodyLimits` is an ASGI middleware in front of Flower's. The server's own process is not limited.
"""

from __future__ import annotations

import binascii
import datetime
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from flwr.common.constant import (
    FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
)
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

FLEET, PUSH_OBJECT, PUSH_MESSAGE = "/v1/fleet/", "/v1/fleet/push-object", "/v1/fleet/push-messages"
SMALL = 64 * 1024
LARGE = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE + SMALL
"""Bytes of a request with one object: Flower cuts arrays into pieces."""
BESIDES = 1024 * 1024
"""Bytes of a message besides its arrays, at most."""
LENGTH_REQUIRED, TOO_LARGE = 411, 413


class BodyLimits:
    """`ready` has the registered keys, a line each (none: everybody may write, which is for loopback alone).

    `largest` has the bytes that a reply may have, and `oversized` gets the keys of sites that sent more.
    """

    def __init__(self, app: App, *, ready: Path, largest: Path, oversized: Path) -> None:
        self.app, self.ready, self.largest, self.oversized = app, ready, largest, oversized
        self.left: dict[str, int] = {}
        """By key: bytes that its current message may still have."""
        self._keys: tuple[int, frozenset[str]] = (0, frozenset())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(FLEET):
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        status = self.refusal(scope["path"], headers)
        if status:
            closing = [(b"connection", b"close")]
            await send({"type": "http.response.start", "status": status, "headers": closing})
            await send({"type": "http.response.body", "body": b""})
            return
        await self.app(scope, receive, send)
        if scope["path"] == PUSH_OBJECT:  # it came whole
            self._count(headers)

    def refusal(self, path: str, headers: Mapping[bytes, bytes]) -> int:
        """The status with which a request is refused unread, or 0."""
        length = headers.get(b"content-length", b"")
        if not length.isdigit():
            return LENGTH_REQUIRED
        size, key = int(length), _text(headers, FLEET_HTTP_PUBLIC_KEY_HEADER)
        if path != PUSH_OBJECT:
            if path == PUSH_MESSAGE and self._is_listed(key):
                self.left[key] = self._most()
            return TOO_LARGE if size > SMALL else 0
        if size <= SMALL and not self._is_listed(key):
            return 0  # Flower refuses it
        if size > LARGE or not (self._is_listed(key) and self._is_signed(headers)):
            return TOO_LARGE
        if self.left.setdefault(key, self._most()) >= size:
            return 0
        with open(self.oversized, "a", encoding="ascii") as file:
            file.write(f"{key}\n")
        return TOO_LARGE

    def _count(self, headers: Mapping[bytes, bytes]) -> None:
        key = _text(headers, FLEET_HTTP_PUBLIC_KEY_HEADER)
        if key in self.left:
            self.left[key] -= int(headers[b"content-length"])

    def _most(self) -> int:
        try:
            return int(self.largest.read_text(encoding="ascii")) + BESIDES
        except (OSError, ValueError):
            return BESIDES

    def _listed(self) -> frozenset[str]:
        """The registered keys; read again when the file is another."""
        try:
            changed = self.ready.stat().st_mtime_ns
            if changed != self._keys[0]:
                self._keys = (changed, frozenset(self.ready.read_text(encoding="ascii").split()))
        except OSError:
            return frozenset()
        return self._keys[1]

    def _is_listed(self, key: str) -> bool:
        return not self._listed() or key in self._listed()

    def _is_signed(self, headers: Mapping[bytes, bytes]) -> bool:
        return not self._listed() or is_signed(headers)


def is_signed(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the signature is that of the key over the time, and the time is now: as Flower checks it."""
    try:
        key = b64decode(_text(headers, FLEET_HTTP_PUBLIC_KEY_HEADER), validate=True)
        signature = b64decode(_text(headers, FLEET_HTTP_SIGNATURE_HEADER), validate=True)
        when = _text(headers, TIMESTAMP_HEADER)
        age = (now() - datetime.datetime.fromisoformat(when)).total_seconds()
        if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
            return False
        return bool(verify_signature(bytes_to_public_key(key), when.encode("ascii"), signature))
    except (ValueError, TypeError, UnicodeError, binascii.Error):
        return False


def _text(headers: Mapping[bytes, bytes], name: str) -> str:
    return headers.get(name.lower().encode("ascii"), b"").decode("latin-1")


class OversizedKeys:
    """At the server: which sites `BodyLimits` has named since the last look."""

    def __init__(self, path: Path) -> None:
        self.path, self.read = path, 0

    def __call__(self) -> list[bytes]:
        """Their public keys."""
        try:
            if self.path.stat().st_size <= self.read:
                return []
            content = self.path.read_bytes()[self.read :]
        except OSError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self.read += len(whole)
        return [b64decode(line) for line in dict.fromkeys(whole.split())]
