"""Whether a reply answers this request, before anything in it is looked at."""

from __future__ import annotations

from pfedhgp.federation import message_checks
from pfedhgp.federation.envelope import CODES, Envelope, Refused
from pfedhgp.federation.message_checks import Expected


def check_reply(
    name: str, reply: Envelope, asked: Envelope | None, expected: Expected, *, there: bool
) -> None:
    """Raises unless the reply belongs to this request, comes from this site and has the right form."""
    if asked is None or reply.sender != name:
        raise Refused("name" if asked is not None and reply.code == "name" else "other-request")
    if reply.run == asked.run and reply.exchange < asked.exchange:
        raise Refused("stale")
    for part in ("run", "exchange", "kind", "round", "block", "trip"):
        if getattr(reply, part) != getattr(asked, part):
            raise Refused("other-request")
    if there:
        raise Refused("duplicate")
    if reply.code:
        raise Refused(reply.code if reply.code in CODES else "internal")
    message_checks.check_arrays(reply.arrays, expected)
