"""Ctrl-C and a polite request to end (SIGTERM) unwind alike, so that nothing half written is left behind.

Python raises in a handler wherever it happens to be. Inside a callback of the garbage collector, of which
compiling runs many, the exception is printed and dropped: so what came is also remembered, and
`raise_pending_signal` raises it at the next step of the work.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any


class Terminated(BaseException):
    """SIGTERM came; not an `Exception`, so that nothing takes it for an error of its own."""


INTERRUPTED, TERMINATED = 130, 143
AT_WORK = "pfedhgp at work"
"""How the names begin of threads that may be inside a compilation when the process ends."""

RAISES: dict[int, type[BaseException]] = {
    signal.SIGINT: KeyboardInterrupt,
    signal.SIGTERM: Terminated,
}
_came: list[type[BaseException]] = []


def _stop(number: int, frame: FrameType | None) -> None:
    _came.append(RAISES[number])
    raise RAISES[number]


def raise_pending_signal() -> None:
    """Raises the exception of a signal that was lost."""
    if _came:
        raise _came[-1]


class SignalCallback:
    """A callback of `FederatedGP` that ends a fit whose signal was lost."""

    def __call__(self, record: dict[str, Any]) -> None:
        raise_pending_signal()

    def phase(self, name: str) -> None:
        """Before each request of the server's."""
        raise_pending_signal()


@contextmanager
def terminable() -> Iterator[None]:
    """Signals raise and are remembered inside the block; the handlers that were there come back after it."""
    _came.clear()
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = {number: signal.signal(number, _stop) for number in RAISES}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _came.clear()


def leave(code: int) -> int:
    """The exit code; after a signal, with threads still at work, the process ends here.

    Python would take those threads away while they are inside compiled code, and the process would abort
    instead of ending with the code. What they were doing is lost either way, and done again when resumed.
    """
    if code in (INTERRUPTED, TERMINATED) and any(
        thread.name.startswith(AT_WORK) for thread in threading.enumerate()
    ):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    return code


@contextmanager
def resumable() -> Iterator[None]:
    """Says, when a signal ends the block, that nothing finished is lost."""
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        print("\nstopped: the same command goes on from what is done", file=sys.stderr, flush=True)
        raise
