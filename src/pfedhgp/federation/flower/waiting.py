"""How long an exchange waits for its sites, what the server says meanwhile, and who refused at the end.

`--timeout` counts from the first answer of an exchange: all sites may have to compile first. Until then an
exchange waits as long as a site that was asked is connected, MOST_TIMEOUTS times the timeout at most. If
nobody is connected, it counts from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pfedhgp.base.checks import short
from pfedhgp.errors import PFedHGPError
from pfedhgp.federation.envelope import CODES, Envelope

MOST_TIMEOUTS = 10.0
"""How many timeouts an exchange waits for its first answer."""
TELL_EVERY = 30.0
"""Seconds between two lines while nothing happens."""
MOST_NAMES = 5


class QuorumError(PFedHGPError):
    """Too few sites answered. Training can go on from the checkpoint."""


@dataclass(frozen=True)
class Patience:
    """How long the server waits, and for how many sites."""

    timeout: float = 600.0
    """Seconds that an exchange waits for sites, from its first answer on."""
    quorum: int = 1
    """The fewest replies with which an exchange counts."""
    grace: float = 5.0
    """Seconds that a site that was missing gets at least, once the others have answered."""
    last_grace: float = 15.0
    """The same for the delivery, which is repeated only when the server is started again."""
    pause: float = 0.25
    """Seconds between two calls of the link's `pull`."""


class Limits(NamedTuple):
    """Of one trip with masks: seconds, replies without which nobody is given up, and enough of them."""

    most: float | None = None
    least: int | None = None
    enough: int | None = None


Accept = Callable[[str, Envelope], None]
"""Takes a reply that belongs to its request, or raises `Refused`."""


@dataclass
class Deadline:
    """When the time of an exchange is up. All times are those of one clock."""

    began: float
    timeout: float
    first_answer: float | None = None
    limit: float = field(init=False)
    """An earlier end, if only sites are waited for that were missing before."""

    def __post_init__(self) -> None:
        self.limit = self.began + MOST_TIMEOUTS * self.timeout

    def answered(self, now: float) -> None:
        if self.first_answer is None:
            self.first_answer = now

    def end(self, connected: bool) -> float:
        """`connected`: whether a site that has not answered is there."""
        if self.first_answer is not None:
            return min(self.first_answer + self.timeout, self.limit)
        return self.limit if connected else min(self.began + self.timeout, self.limit)

    @property
    def lifetime(self) -> float:
        """Seconds that a request may be answered, at most."""
        return (MOST_TIMEOUTS + 1.0) * self.timeout


@dataclass
class WaitingLines:
    """What there is to say while an exchange waits: who came and went, and whom it waits for."""

    about: str
    """Exchange and kind."""
    told: float
    """When the last line was said."""

    def lines(
        self,
        now: float,
        deadline: Deadline,
        waiting: Collection[str],
        connected: Collection[str],
    ) -> list[str]:
        if not waiting or now - self.told < TELL_EVERY:
            return []
        self.told = now
        here = [name for name in sorted(waiting) if name in connected]
        away = [name for name in sorted(waiting) if name not in connected]
        parts = [
            f"{listed(names)} {what}"
            for names, what in ((here, "connected, no answer yet"), (away, "not connected"))
            if names
        ]
        if deadline.first_answer is None and here:
            until = "the time starts with the first answer"
        else:
            until = f"{max(deadline.end(bool(here)) - now, 0.0):.0f} s left"
        waited = f"waiting for {now - deadline.began:.0f} s"
        return [f"{self.about}: {waited}: {'; '.join(parts)}; {until}"]


def changes(before: Collection[str], now: Collection[str], sites: Sequence[str]) -> list[str]:
    """Lines for sites that connected, or left, since `before`."""
    came = [f"{short(name)} connected" for name in sites if name in now and name not in before]
    left = [f"{short(name)} disconnected" for name in sites if name in before and name not in now]
    count = sum(name in now for name in sites)
    return [f"{text}: {count} of {len(sites)} sites are connected" for text in (*came, *left)]


def listed(names: Sequence[str]) -> str:
    """A, B and 3 others"""
    some = [short(name) for name in names[:MOST_NAMES]]
    more = len(names) - len(some)
    return ", ".join(some) + (f" and {more} other{'s' if more > 1 else ''}" if more else "")


def too_few(
    kind: str, counted: int, missing: Mapping[str, str], quorum: int, timeout: float
) -> str:
    """Why an exchange cannot count: who refused and why, and who did not answer.

    >>> too_few("census", 0, {"A": "config", "B": "config", "C": "no-answer"}, 2, 600.0)
    "0 of 3 sites answered the census request, and the quorum is 2: A, B: the site does not accept the \
server's settings (columns, model); C: no answer in time (600 s); the same command goes on from here"
    """
    reasons = "; ".join(reasons_of(missing, timeout))
    return (
        f"{counted} of {counted + len(missing)} sites answered the {kind} request, and the quorum is "
        f"{quorum}: {reasons}; the same command goes on from here"
    )


def reasons_of(missing: Mapping[str, str], timeout: float) -> list[str]:
    """Sites by the reason why they are missing."""
    by_code: dict[str, list[str]] = {}
    for name, code in missing.items():
        by_code.setdefault(code, []).append(name)
    return [
        f"{listed(names)}: {CODES[code]}" + (f" ({timeout:g} s)" if code == "no-answer" else "")
        for code, names in by_code.items()
    ]
