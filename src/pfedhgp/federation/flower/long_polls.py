"""Sites wait for their next message instead of asking for it again and again.

A SuperNode asks its SuperLink for messages, gets none, sleeps and asks again. Each question costs the server
a signature check and a few database queries: 30 sites that ask twice a second keep half a core busy while
nothing happens. Here the SuperLink keeps a question until there is a message for that node, HOLD seconds at
most. A site that has nothing to do then costs one question every HOLD seconds, and a message reaches it at
once. The server's own process asks for replies in the same way.

`LongPolls` is an ASGI middleware in front of Flower's. `Mailboxes` knows for which nodes there may be mail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from flwr.proto.fleet_pb2 import PullMessagesRequest
from google.protobuf.message import DecodeError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PULL, REPLIES = "/v1/fleet/pull-messages", "/v1/runtime/pull-messages"
"""A site's question for messages, and the server's for replies."""
HOLD, HOLD_REPLIES = 20.0, 1.0
"""Seconds that a question is kept. Flower's client waits 30 for an answer; the server has more to do."""
SERVER = -1
"""The server's own mailbox. Nodes have numbers from 1 on."""
UPLOAD = 0.1
"""Seconds between the news of a message and its answer: its content is still on its way to the SuperLink."""
LONGEST_QUESTION, LONGEST_LIST = 4096, 1 << 20
MOST_DUE = 4
"""The server gets all replies that there are at once, and a site has hardly ever two messages."""
MOST_NODES = 10_000
"""Nodes that are remembered. Questions are kept before they are authenticated, so there has to be a limit."""


class Mailboxes:
    """How many questions of each node are answered at once; the others wait for news.

    A node's first two questions are answered at once: there may be messages from before. Each new message
    adds two, because Flower hands out one message a time. All calls but `post` are made in the event loop.
    """

    def __init__(self) -> None:
        self.due: dict[int, int] = {}
        self.waiting: dict[int, asyncio.Future[bool]] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        self.closed = False

    def post(self, node: int) -> None:
        """There is a message for `node`. From any thread."""
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self._post, node)

    def _post(self, node: int) -> None:
        self.due[node] = min(self.due.get(node, 0) + 2, MOST_DUE)
        self._wake(node, True)

    def _wake(self, node: int, ask: bool) -> None:
        future = self.waiting.get(node)
        if future is not None and not future.done():
            future.set_result(ask)

    def close(self) -> None:
        """The SuperLink is about to end: nobody waits any more. From any thread."""
        self.closed = True
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self._wake_all)

    def _wake_all(self) -> None:
        for node in self.waiting:
            self._wake(node, True)

    async def news(self, node: int, gone: Callable[[], Awaitable[None]], hold: float) -> bool:
        """Waits for mail of `node`. False if the question is void: its sender is gone, or has asked again.

        Only a live question may be passed on: Flower gives a message to the first that asks, once.
        """
        self.loop = asyncio.get_running_loop()
        self._wake(node, False)  # one node asks one question a time
        if len(self.due) >= MOST_NODES:
            self.due.clear()
        left = self.due.setdefault(node, 2)
        if left or self.closed:
            self.due[node] = max(left - 1, 0)
            return True
        future: asyncio.Future[bool] = self.loop.create_future()
        self.waiting[node] = future
        leaving = asyncio.ensure_future(gone())
        try:
            both: set[asyncio.Future[Any]] = {future, leaving}
            await asyncio.wait(both, timeout=hold, return_when="FIRST_COMPLETED")
            if not future.done():
                return not leaving.done()
            if future.result() and not self.closed:
                self.due[node] = max(self.due.get(node, 0) - 1, 0)
                await asyncio.sleep(UPLOAD)
            return future.result()
        finally:
            leaving.cancel()
            if self.waiting.get(node) is future:
                del self.waiting[node]


class LongPolls:
    """Keeps questions for messages until `mail` has news; hands everything else through."""

    def __init__(self, app: App, mail: Mailboxes, hold: float = HOLD) -> None:
        self.app, self.mail, self.hold = app, mail, hold

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _is_question(scope):
            await self.app(scope, receive, send)
            return
        body = await _body(receive)
        of_server = scope["path"] == REPLIES
        node = SERVER if of_server else None if body is None else _node_of(body)
        hold = min(self.hold, HOLD_REPLIES) if of_server else self.hold
        if body is None or (
            node is not None and not await self.mail.news(node, partial(_gone, receive), hold)
        ):
            await send({"type": "http.response.start", "status": 503, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        unread = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> MutableMapping[str, Any]:
            return unread.pop() if unread else await receive()

        await self.app(scope, again, send)


def _is_question(scope: Scope) -> bool:
    """A question for messages that is short, or comes from the server's process and names many messages."""
    if scope["path"] not in (PULL, REPLIES):
        return False
    length = dict(scope["headers"]).get(b"content-length", b"")
    most = LONGEST_LIST if scope["path"] == REPLIES else LONGEST_QUESTION
    return bool(length.isdigit()) and int(length) <= most


async def _body(receive: Receive) -> bytes | None:
    """The request's body; None if the sender has gone."""
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _node_of(body: bytes) -> int | None:
    """Who asks; None for what is no question, which Flower refuses."""
    try:
        return int(PullMessagesRequest.FromString(body).node.node_id)
    except DecodeError:
        return None


def tell_of_messages(state: Any, mail: Mailboxes) -> None:
    """`state` is Flower's class for what a SuperLink knows: from now on `mail` learns of new messages."""
    store = state.store_message_and_object_tree

    def stored(self: Any, message: Any, *rest: Any, **more: Any) -> Any:
        found = store(self, message, *rest, **more)
        is_reply = bool(message.metadata.reply_to_message_id)
        mail.post(SERVER if is_reply else message.metadata.dst_node_id)
        return found

    state.store_message_and_object_tree = stored


def release_at_exit(server: Any, mail: Mailboxes) -> None:
    """`server` is uvicorn's class: it waits for open requests when it ends, so those are let go first."""
    ask_to_exit = server.handle_exit

    def asked(self: Any, *rest: Any) -> Any:
        mail.close()
        return ask_to_exit(self, *rest)

    server.handle_exit = asked
