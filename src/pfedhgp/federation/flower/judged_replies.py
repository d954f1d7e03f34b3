"""Replies of sites on other machines: refused if no rows can have made them, excluded if they do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pfedhgp.federation.envelope import Envelope, Refused
from pfedhgp.federation.messages import Message
from pfedhgp.federation.robust.limits import Inadmissible
from pfedhgp.federation.server import Server


def admit(server: Server, reply: Envelope) -> None:
    """Refuses what no rows can have made, so that nothing that one site sends ends the run."""
    try:
        server.admit(reply.message())
    except Inadmissible as error:
        raise Refused("inadmissible", str(error)) from None


def kept_replies(
    server: Server, replies: Mapping[str, Message], entry: dict[str, Any]
) -> list[Message]:
    """The replies that fit each other. `entry`, of the participation log, says why others are excluded."""
    judged = server.judge(replies[name] for name in entry["counted"])
    if judged.left_out:
        entry["excluded"] = {name: about["why"] for name, about in judged.left_out.items()}
        entry["p_values"] = {n: about["p"] for n, about in judged.left_out.items() if "p" in about}
        entry["counted"] = [name for name in entry["counted"] if name not in judged.left_out]
    if judged.clipped:
        entry["clipped"] = dict(judged.clipped)
    return judged.kept
