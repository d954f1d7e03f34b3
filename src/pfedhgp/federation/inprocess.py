"""The default engine: server and clients in one process, exchanging only messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from pfedhgp.federation.clients import Cohort
from pfedhgp.federation.messages import Message
from pfedhgp.federation.server import Server

Callback = Callable[[dict[str, Any]], bool | None]


def run(
    server: Server,
    cohorts: Sequence[Cohort],
    *,
    callbacks: Sequence[Callback] = (),
    record: Callable[[Message, str], None] | None = None,
    keep: Callable[[], None] | None = None,
) -> None:
    """Carries messages until the server is done. A callback that returns True ends training early.

    A callback that has a function `phase` is told the kind of each request before it goes out, and one that
    has a function `step` how many of the cohorts have answered. `keep` is called between exchanges, when all
    parties' states belong together.
    """
    while (request := server.request()) is not None:
        for callback in callbacks:
            if (phase := getattr(callback, "phase", None)) is not None:
                phase(request.kind)
        replies = answers(request, cohorts, record, partial(_tell_step, callbacks))
        entry = server.gather(replies)
        if entry is not None and any([callback(entry) is True for callback in callbacks]):
            server.stop_asked = True
        if keep is not None and server.phase is not None:
            keep()


def _tell_step(callbacks: Sequence[Callback], done: int, total: int) -> None:
    for callback in callbacks:
        if (step := getattr(callback, "step", None)) is not None:
            step(done, total)


def answers(
    request: Message,
    cohorts: Sequence[Cohort],
    record: Callable[[Message, str], None] | None,
    answered: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Message]:
    """All clients' replies to a request, one at a time."""
    for done, cohort in enumerate(cohorts):
        answered(done, len(cohorts))
        if record is not None:
            for name in cohort.names:
                record(request, name)
        for reply in cohort.answer(request):
            if record is not None:
                record(reply, "server")
            yield reply
