"""Watches a site's SuperNode from outside: is it connected, is it stuck, how often was it started in vain.

The SuperNode marks each call to the server that succeeds (`connection.ProgressMark`). No mark for SILENCE
seconds: the user is told. No mark for STALL seconds although the server is there: it is started again.
Starts in vain come at growing intervals, and after MOST_STARTS of them the site ends with a line.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

SILENCE = 30.0
"""Seconds without a successful call after which a connection counts as interrupted. The server keeps a
question for 20 s (`long_polls`)."""
STALL = 90.0
"""Seconds without one, with the server there, after which the SuperNode is stuck. A call of Flower's may take
30 s until it counts as failed, and the pause before it is tried again up to 20 s."""
STABLE = 60.0
"""Seconds that a SuperNode has to live to count as a good start."""
MOST_STARTS = 12
"""Starts in vain, one after the other, after which the site ends."""
LONGEST_PAUSE = 60.0
TELL_EVERY = 30.0
"""Seconds between two lines for the user, while nothing happens."""


@dataclass
class Watchdog:
    """What the marks of one SuperNode say. `reachable` asks whether the server is there now."""

    reachable: Callable[[], bool]
    clock: Callable[[], float] = time.monotonic
    mark: str = ""
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.began = self.since = self.clock()
        """since when there is no new mark, and the server is there"""
        self.last_mark = self.began

    def see(self, mark: str) -> float | None:
        """Takes the newest mark. Returns how long the connection was interrupted, if it is back now."""
        if mark == self.mark:
            return None
        now = self.clock()
        was_away, away = self.interrupted, now - self.last_mark
        self.mark, self.since, self.last_mark, self.interrupted = mark, now, now, False
        return away if was_away else None

    def busy(self) -> None:
        """The site was at work on an answer: the SuperNode waited for it."""
        self.since = self.last_mark = self.clock()

    def silent(self) -> float:
        """Seconds since the last sign of the connection."""
        silence = self.clock() - self.last_mark
        self.interrupted = self.interrupted or (silence >= SILENCE and bool(self.mark))
        return silence

    def stuck(self) -> bool:
        """Whether the SuperNode has to be started again. While the server is away, it only has to wait."""
        if self.clock() - self.since < STALL:
            return False
        if self.reachable():
            return True
        self.since = self.clock()
        return False

    @property
    def lived(self) -> float:
        return self.clock() - self.began


@dataclass
class Starts:
    """Counts starts in vain: of a SuperNode that ended or got stuck soon after its start."""

    count: int = 0

    def add(self, *, lived: float, answered: bool) -> bool:
        """Whether to go on after a SuperNode that lived so long, and did or did not bring a message."""
        self.count = 1 if answered or lived >= STABLE + STALL else self.count + 1
        return self.count < MOST_STARTS

    @property
    def pause(self) -> float:
        """Seconds before the next start: 1, 2, 4, … 60."""
        return min(2.0 ** max(self.count - 1, 0), LONGEST_PAUSE)


@contextmanager
def at_work(say: Callable[[str], None], text: str, every: float = TELL_EVERY) -> Iterator[None]:
    """Says `text` and the seconds while the block runs: first after a third of `every`, then at its pace."""
    began, done = time.monotonic(), threading.Event()

    def tell() -> None:
        pause = every / 3.0
        while not done.wait(pause):
            say(f"{text}: at work for {time.monotonic() - began:.0f} s")
            pause = every

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@dataclass
class Ticker:
    """Says something at most every `every` seconds."""

    every: float = TELL_EVERY
    clock: Callable[[], float] = time.monotonic
    last: float = field(init=False)

    def __post_init__(self) -> None:
        self.last = self.clock()

    def due(self) -> bool:
        if self.clock() - self.last < self.every:
            return False
        self.last = self.clock()
        return True

    def reset(self) -> None:
        self.last = self.clock()
