"""Whether a message from another machine is one of ours: checked before anything in it is used.

Both sides compare run, exchange and hash, and look for exactly the arrays that the schema expects, of their
shapes and within their ranges. Size is limited: a reply may have four times the bytes that are expected, a
request four times those of the largest of its kind that the settings allow. The round of a request follows
from its exchange.
"""

from __future__ import annotations

import numpy as np

from pfedhgp.errors import MessageError
from pfedhgp.federation import message_sizes
from pfedhgp.federation.envelope import MISSED, Envelope, Refused
from pfedhgp.federation.message_sizes import Arrays, Case
from pfedhgp.federation.messages import hash_arrays
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.schema import DELIVER, EXCHANGES, Expected

SLACK = 4
"""A message may be this many times as large as expected before it is refused unread."""
HEADER = 256
"""Bytes that an array takes beside its numbers, at most."""
SETUP = tuple(each.name for each in EXCHANGES.values() if each.setup)
"""Requests before the first start, all of round 0."""


def check_arrays(arrays: Arrays, expected: Expected) -> None:
    """The names, shapes and dtypes of `expected`, and nothing else; finite, and within their ranges."""
    if set(arrays) != set(expected):
        lacking, more = sorted(set(expected) - set(arrays)), len(set(arrays) - set(expected))
        raise Refused("malformed", f"it lacks {lacking or 'no array'}, and has {more} unknown")
    for name, array in arrays.items():
        if array.dtype != np.float64 or array.shape != expected[name].shape:
            shapes = f"{array.shape} of {array.dtype} and not {expected[name].shape} of float64"
            raise Refused("malformed", f"`{name}` is {shapes}")
    for name, array in arrays.items():
        if not np.all(np.isfinite(array)):
            raise Refused("not-finite", f"`{name}`")
        if not expected[name].range.holds(array):
            raise Refused("out-of-range", f"`{name}` must be: {expected[name].range.words}")


def size_of(expected: Expected) -> int:
    """Bytes on the wire, about."""
    return sum(8 * int(np.prod(sent.shape)) + HEADER for sent in expected.values())


def largest_reply(expected: Expected) -> int:
    """Bytes from which a reply is refused unread."""
    return SLACK * max(size_of(expected), HEADER)


def largest_request(plan: Plan, kind: str) -> int:
    """Bytes from which a request is refused; a site that was away is told earlier requests with it."""
    parts = [kind, *(each for each in EXCHANGES[kind].missed if _is_asked(plan, each))]
    sizes = (size_of(message_sizes.largest_request(plan, each)) for each in parts)
    return SLACK * (HEADER + sum(sizes))


def finish_is_answered(plan: Plan) -> bool:
    """Whether clients reply to the last request; if so, the delivery is an exchange of its own."""
    return bool(message_sizes.of_reply(plan, "finish", {}))


def check_request(request: Envelope, plan: Plan, last: tuple[int, int] | None = None) -> None:
    """At the site: what the server asks, and the requests that it says were missed.

    `last` is exchange and round of the last request that the site has answered, if that was after the setup.
    """
    check_kind(request, plan)
    own: dict[str, np.ndarray] = {}
    missed: dict[str, dict[str, np.ndarray]] = {}
    for name, array in request.arrays.items():
        words = name.split("/", 2)
        if words[0] == MISSED and len(words) == 3:
            missed.setdefault(words[1], {})[words[2]] = array
        else:
            own[name] = array
    allowed = [each for each in EXCHANGES[request.kind].missed if _is_asked(plan, each)]
    if not set(missed) <= set(allowed):
        raise Refused("malformed", f"of earlier requests it may have {allowed or 'none'}")
    for kind, arrays in ((request.kind, own), *missed.items()):
        try:
            expected = message_sizes.of_request(plan, kind, arrays)
        except MessageError as error:
            raise Refused("malformed", str(error)) from None
        check_arrays(arrays, expected)
    # The delivery is no server's request and has no hash: nothing is answered to it.
    if request.block != ("" if request.kind == DELIVER else hash_arrays(own)):
        raise Refused("malformed", "the hash is not that of the arrays")
    _check_round(request, plan, last)


def check_kind(request: Envelope, plan: Plan) -> None:
    """Whether a federation on these terms asks such a thing at all."""
    if not _is_asked(plan, request.kind):
        raise Refused("malformed", "a federation on these terms has no such request")


def _is_asked(plan: Plan, kind: str) -> bool:
    exchange = EXCHANGES.get(kind)
    return exchange is not None and exchange.federated and exchange.only.holds(Case(plan, {}))


def _check_round(request: Envelope, plan: Plan, last: tuple[int, int] | None) -> None:
    """Rounds and exchanges go on together from the first start, the round 0, through all restarts.

    So a round follows from its exchange. A cycle layer may be asked for more than once: then the round lies
    within a bound, and follows from the last round that was answered.
    """
    cycles = plan.cycles is not None
    setup = 1 + (plan.domain is None) + cycles
    if request.kind in SETUP:
        first = {"census": 1, "extent": 2, "cycles": setup}[request.kind]
        again = request.kind == "cycles" and request.exchange > first
        good = request.round == 0 and (request.exchange == first or again)
    else:
        # If `finish` is answered, the delivery is one exchange more in the same round.
        more = request.kind == DELIVER and finish_is_answered(plan)
        before = request.exchange - request.round - more
        if cycles and last is not None:
            good = before == last[0] - last[1]
        else:
            good = before == setup + 1 or (cycles and before > setup + 1)
    if not good:
        raise Refused("malformed", "the round does not belong to the exchange")
