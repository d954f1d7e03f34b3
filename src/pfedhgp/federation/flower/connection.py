"""A SuperNode's connection to the server that outlasts cut, lost, garbled and duplicated bytes.

Flower (1.41) gives up for good on any error whose text has "ssl", "tls" or "certificate" in it, a handshake
that takes too long among them. Its main thread then returns, and its HTTP thread keeps the process alive. It
also loses a message whose answer from the server was cut off: the server has marked it as delivered.

Here every failure of the transport is tried again. If a message may have been lost on the way, the node signs
off and on again: the server sees that, and asks again. Each call that succeeds leaves a mark in a file,
by which the site's process sees that the connection lives (`watchdog`). What still fails ends the process.

Some of the names below are not public in Flower: `flwr>=1.41,<1.43`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""Failures after which the server cannot have seen the request."""
BEAT = 0.5
"""Seconds between two marks at least."""


class ProgressMark:
    """A file that changes with each success. It can be read from another process."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self.clock = path, clock
        self.count, self.written = 0, -BEAT

    def __call__(self) -> None:
        self.count += 1
        if self.clock() - self.written >= BEAT:
            self.written = self.clock()
            self.path.write_text(f"{os.getpid()} {self.count}")


def read_mark(path: Path) -> str:
    """What `ProgressMark` wrote last, or nothing."""
    try:
        return path.read_text()
    except OSError:
        return ""


def lasting_client(client: type[Any], mark: Callable[[], None]) -> type[Any]:
    """Flower's client of the server, which signs off and on again if a message may have been lost."""

    class LastingClient(client):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.activation: Any = None
            self.in_doubt = False
            """whether a message may have been lost between the server and here"""
            current.append(self)

        def ActivateNode(self, request: Any) -> Any:
            found = super().ActivateNode(request)
            self.activation = request
            mark()
            return found

        def PullMessages(self, request: Any) -> Any:
            if self.in_doubt and self.activation is not None:
                self._sign_on_again(request.node.node_id)
            try:
                found = super().PullMessages(request)
            except NEVER_SENT:
                raise
            except httpx.TransportError:
                self.in_doubt = True
                raise
            mark()
            return found

        def _sign_on_again(self, node: int) -> None:
            from flwr.proto.fleet_pb2 import DeactivateNodeRequest

            with suppress(httpx.HTTPStatusError):  # it was off already
                super().DeactivateNode(DeactivateNodeRequest(node_id=node))
            super().ActivateNode(self.activation)
            self.in_doubt = False

    for name in ("PushMessages", "PushObject", "PullObject", "ConfirmMessageReceived", "GetFab"):
        setattr(LastingClient, name, _marked(getattr(client, name), mark))
    return LastingClient


current: list[Any] = []
"""The client of this process, once it is connected."""


def doubt() -> None:
    """A message or its answer may be lost: before the next look for messages the node signs on again."""
    for client in current:
        client.in_doubt = True


def _marked(call: Callable[..., Any], mark: Callable[[], None]) -> Callable[..., Any]:
    def marked(self: Any, request: Any) -> Any:
        found = call(self, request)
        mark()
        return found

    return marked


def never_giving_up(make_invoker: Callable[[], Any]) -> Callable[[], Any]:
    """Flower's maker of retries, which go on after any failure of the transport.

    A wrong certificate is found by the site's own process, which says so and ends.
    """

    def make() -> Any:
        invoker = make_invoker()
        usual = invoker.should_giveup

        def gives_up(error: Exception) -> bool:
            if isinstance(error, httpx.TransportError):
                return False
            return bool(usual(error))

        invoker.should_giveup = gives_up
        invoker.recoverable_exceptions = (httpx.TransportError, httpx.HTTPStatusError)
        return invoker

    return make


def ending_with_heartbeat(sender: type[Any], end: Callable[[], None]) -> type[Any]:
    """Flower's heartbeat sender. If its thread fails, the server takes the node for gone: `end` it."""

    class LastingHeartbeat(sender):
        def _run(self) -> None:
            try:
                super()._run()
            except Exception as error:
                print(f"pfedhgp: the heartbeat failed: {type(error).__name__}", flush=True)
                end()

    return LastingHeartbeat


def end_process(code: int = 1) -> None:
    """Ends this process now: threads of Flower's would keep it alive."""
    os._exit(code)


def install(mark: Callable[[], None]) -> None:
    """Puts all of it into Flower's module."""
    from flwr.supernode import fleet_http_connection as flower

    flower.FleetHttpClient = lasting_client(flower.FleetHttpClient, mark)
    flower.make_simple_http_retry_invoker = never_giving_up(flower.make_simple_http_retry_invoker)
    flower.HeartbeatSender = ending_with_heartbeat(flower.HeartbeatSender, end_process)


def main_ends_process(main: Callable[[], None]) -> None:
    """Runs `main`; whatever becomes of it, the process ends with it."""
    code = 1
    try:
        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:
        print(f"pfedhgp: the SuperNode failed: {type(error).__name__}: {error}", flush=True)
    finally:
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join(1.0)
        end_process(code)
