"""The current state, for the thread that changes it and those that show it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from pfedhgp.federation.watch.events import Event

S = TypeVar("S")


class Watch(Generic[S]):
    """`tell` takes an event from any thread; `state` is never half changed."""

    def __init__(
        self,
        state: S,
        after: Callable[[S, Event, float], S],
        *,
        log: Callable[[Event, float], None] = lambda event, now: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.state, self.clock = state, clock
        self._after, self._log, self._lock = after, log, threading.Lock()

    def tell(self, event: Event) -> None:
        now = self.clock()
        with self._lock:
            self.state = self._after(self.state, event, now)
            self._log(event, now)
