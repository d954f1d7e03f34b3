"""A site's answer to one of Flower's messages."""

from __future__ import annotations

from flwr.app import Message

from pfedhgp.federation.flower import wire
from pfedhgp.federation.flower.envelope import Envelope, Refused
from pfedhgp.federation.flower.site import Site
from pfedhgp.federation.schema import HELLO

FIRST_BYTES = 64 * 1024 * 1024
"""The most that a site unpacks before it knows the plan."""


def failed(message: Message, name: str) -> Message:
    """The reply of a site that could not even begin to answer: a code, and no text."""
    reply = Envelope(run="", exchange=0, kind=HELLO, round=0, sender=name, code="internal")
    return Message(wire.to_records(reply), reply_to=message)


def answer(message: Message, site: Site) -> Message:
    """A site's reply to a Flower message; never an exception, whose text Flower would send."""
    try:
        request = wire.from_records(message.content, most_bytes=FIRST_BYTES)
    except Refused as refused:
        digest = site.refuse(refused.code)
        blank = Envelope(run="", exchange=0, kind=HELLO, round=0, sender=site.name)
        reply = Envelope(**{**blank.plain(), "code": refused.code, "audit": digest})
        return Message(wire.to_records(reply), reply_to=message)
    return Message(wire.to_records(site.answer(request)), reply_to=message)
