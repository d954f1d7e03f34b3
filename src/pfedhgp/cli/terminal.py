"""What a command prints: results to stdout, the rest to stderr, warnings as single lines."""

from __future__ import annotations

import datetime
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pfedhgp.errors import PFedHGPWarning


def say(text: str, *, quiet: bool = False) -> None:
    """A line for the user, to stderr."""
    if not quiet:
        print(text, file=sys.stderr, flush=True)


def stamped(text: str, now: datetime.datetime | None = None) -> str:
    """A line of a process that runs for long, with its time (UTC, as in the audit log).

    >>> stamped("round 1", datetime.datetime(2026, 11, 18, 7, 5, 9))
    '2026-11-18 07:05:09Z round 1'
    """
    when = datetime.datetime.now(datetime.UTC) if now is None else now
    return f"{when:%Y-%m-%d %H:%M:%S}Z {text}"


def counted(number: int, thing: str) -> str:
    """ "1 round", "2 rounds" """
    return f"{number} {thing}{'' if number == 1 else 's'}"


def result(summary: dict[str, Any]) -> None:
    """One JSON object for programs, to stdout."""
    print(json.dumps(summary, indent=1, allow_nan=False), flush=True)


@contextmanager
def only_errors_logged() -> Iterator[None]:
    """Our log says nothing below an error inside; its level is what it was afterwards."""
    logger = logging.getLogger("pfedhgp")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def warnings_as_lines(
    words: Callable[[str], str] = str, show_line: Callable[[str], None] | None = None
) -> Iterator[list[str]]:
    """Prints each of our warnings once as `pfedhgp: warning: …`, rewritten by `words`; yields their list.

    `show_line` shows them otherwise.
    """
    seen: list[str] = []
    usual = warnings.showwarning

    def show(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
        if not issubclass(category, PFedHGPWarning):
            usual(message, category, *rest, **more)
            return
        text = words(" ".join(str(message).split()))
        if text not in seen:
            seen.append(text)
            if show_line is not None:
                show_line(text)
            else:
                print("pfedhgp: warning:", text, file=sys.stderr, flush=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", PFedHGPWarning)
        warnings.showwarning = show
        yield seen
