"""Flower's SuperLink, open to sites for Flower's Fleet API alone.

Since Flower 1.4x the Fleet, Control and Runtime APIs share one port, and without an account plugin the
Control API asks for no credentials: whoever reached the port could register a key, or start a run with code
of his own at every stock SuperNode. Here everything but the Fleet API answers to this machine only.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

FLEET = "/v1/fleet/"
LOCAL = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


def may_pass(path: str, peer: str | None, here: str | None = None) -> bool:
    """Sites use the Fleet API; all else is for the server's own processes.

    Where it listens on one interface, they come from that interface's own address, `here`.
    """
    return path.startswith(FLEET) or peer in LOCAL or (peer is not None and peer == here)


class FleetOnly:
    """ASGI middleware, outermost. Sites are asked to come again until the file `ready` is there.

    Before that the server may not have registered their keys, and Flower's SuperNode gives up for good when
    its key is unknown.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], ready: Path) -> None:
        self.app, self.ready, self.open = app, ready, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        self.open = self.open or self.ready.exists()
        client, here = scope.get("client"), scope.get("server")
        addresses = (end[0] if end else None for end in (client, here))
        if not may_pass(scope["path"], *addresses):
            await _refuse(scope, send, 404)
        elif scope["path"].startswith(FLEET) and not self.open:
            await _refuse(scope, send, 503)
        else:
            await self.app(scope, receive, send)


async def _refuse(scope: Scope, send: Send, status: int) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})
    else:
        await send({"type": "websocket.close", "code": 1008})


def main() -> None:
    """`flower-superlink` with the gate in front."""
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    from pfedhgp.federation.flower.processes import READY, follow_parent

    others, ready = extensions.get_middleware, Path(os.environ[READY])
    extensions.get_middleware = lambda: (Middleware(FleetOnly, ready=ready), *others())
    follow_parent()
    flower_superlink()


if __name__ == "__main__":
    main()
