"""The default engine: server and clients in one process, exchanging only messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from pfedhgp.errors import InputError
from pfedhgp.federation.clients import ClientGroup
from pfedhgp.federation.forecast import Forecast
from pfedhgp.federation.masks.in_process import MaskedClients
from pfedhgp.federation.messages import Message
from pfedhgp.federation.server import Server

Callback = Callable[[dict[str, Any]], bool | None]


class Exchange(NamedTuple):
    """A request, and all clients' replies to it."""

    server: Server
    groups: Sequence[ClientGroup]
    request: Message
    replies: Sequence[Message]


def run(
    server: Server,
    groups: Sequence[ClientGroup],
    *,
    callbacks: Sequence[Callback] = (),
    record: Callable[[Message, str], None] | None = None,
    keep: Callable[[], None] | None = None,
    tamper: Callable[[Message, list[Message]], list[Message]] | None = None,
) -> None:
    """Carries messages until the server is done. A callback that returns True ends training early.

    A callback may have more functions. `phase` gets the kind of each request before it goes out, `expect`
    what that begins and may take long ("compiling" or "fitting", with seconds), `step` how many of the groups
    have answered, and `replied` the whole `Exchange` before the server takes it. `keep` is called between
    exchanges, when all parties' states belong together. `tamper` may change replies, for a rehearsal.
    """
    masked = _masked(server, groups, callbacks) if server.plan.masks else None
    asked = any(hasattr(callback, "expect") for callback in callbacks)
    forecast = Forecast(server.plan, groups) if asked else None
    while (request := server.request()) is not None:
        _tell(callbacks, "phase", request.kind)
        for what, seconds in forecast.before(request) if forecast is not None else ():
            _tell(callbacks, "expect", what, seconds)
        replies: Iterable[Message]
        seen = record if masked is None else None
        asked_groups = groups_for(request, server, groups)
        replies = answers(request, asked_groups, seen, partial(_tell, callbacks, "step"))
        if any(hasattr(callback, "replied") for callback in callbacks):
            replies = list(replies)
            _tell(callbacks, "replied", Exchange(server, groups, request, replies))
        if masked is None:
            attempt = server.attempt
            left_out: Collection[str] = ()
            if tamper is not None:
                replies = tamper(request, list(replies))
            if server.plan.robust != "off":
                replies, left_out, _ = server.judge(replies, admit=True)
            entry = server.gather(replies)
            for group in groups if left_out and request.kind in ("start", "round") else ():
                group.leave_out(attempt, left_out)
        else:
            entry = server.take(*masked.total(request, replies, record))
        if entry is not None and any([callback(entry) is True for callback in callbacks]):
            server.stop()
        if keep is not None and server.phase is not None:
            keep()


def groups_for(
    request: Message, server: Server, groups: Sequence[ClientGroup]
) -> list[ClientGroup]:
    """Those that are asked: in training, not clients that have too few rows (privacy="sums")."""
    if request.kind not in ("start", "round", "finish"):
        return list(groups)
    return [group for group in groups if not set(group.names) <= set(server.unable)]


def _masked(
    server: Server, groups: Sequence[ClientGroup], callbacks: Sequence[Callback]
) -> MaskedClients:
    """The clients' side of secure aggregation, and the server's."""
    if any(hasattr(callback, "replied") for callback in callbacks):
        raise InputError(
            "a callback with `replied` sees each client's reply, which masks hide: leave one of them out"
        )
    return MaskedClients(server.plan, [name for group in groups for name in group.names])


def _tell(callbacks: Sequence[Callback], name: str, *what: Any) -> None:
    """Calls the function `name` of the callbacks that have one."""
    for callback in callbacks:
        if (function := getattr(callback, name, None)) is not None:
            function(*what)


def answers(
    request: Message,
    groups: Sequence[ClientGroup],
    record: Callable[[Message, str], None] | None,
    answered: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Message]:
    """All clients' replies to a request, one at a time."""
    for done, group in enumerate(groups):
        answered(done, len(groups))
        if record is not None:
            for name in group.names:
                record(request, name)
        for reply in group.answer(request):
            if record is not None:
                record(reply, "server")
            yield reply
