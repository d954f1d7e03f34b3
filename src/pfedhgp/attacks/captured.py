"""What a server has of each client before the first round: the run's own messages, made again from the rows.

A RUN folder keeps names and shapes of messages, not their contents: those would be the rows of small clients.
Whoever audits a run has its rows, and so can repeat what was asked and answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pfedhgp.base.numerics import numerics, on_device
from pfedhgp.data.rows import ClientRows
from pfedhgp.data.scaling import Scaling
from pfedhgp.errors import InputError
from pfedhgp.federation import inprocess
from pfedhgp.federation.clients import ClientGroup
from pfedhgp.federation.messages import Message
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.server import Server
from pfedhgp.model.spec import Spec


@dataclass(frozen=True)
class Captured:
    """The requests up to the start, and what each client answered to them."""

    plan: Plan
    spec: Spec
    scaling: Scaling
    requests: Mapping[str, Message]
    replies: Mapping[str, Mapping[str, Message]]
    """By kind and client; in the start those that have too few rows are missing"""

    @property
    def start(self) -> Message:
        return self.requests["start"]

    def answer(self, rows: ClientRows) -> Message:
        """What a client with other rows, in the data's units, would have answered to the first start."""
        group = ClientGroup(self.plan, [rows], answers_all=True)
        with numerics(), on_device("cpu"):
            (found,) = group.answer(replace(self.start, arrays=without_others(self.start.arrays)))
        return found


def captured(plan: Plan, rows: Sequence[ClientRows]) -> Captured:
    """The first messages of a run on this plan. With masks, as clients make them before they are masked."""
    if plan.inference.name != "structured" or plan.cycles is not None:
        raise InputError("attacks know structured inference without a cycle layer")
    masked, plan = plan.masks, replace(plan, masks=False)
    server = Server(plan)
    groups = [ClientGroup(plan, [client], answers_all=masked or None) for client in rows]
    requests: dict[str, Message] = {}
    replies: dict[str, dict[str, Message]] = {}
    with numerics(), on_device("cpu"):
        while "start" not in requests:
            request = server.request()
            assert request is not None
            asked = inprocess.groups_for(request, server, groups)
            found = list(inprocess.answers(request, asked, None))
            requests[request.kind] = request
            replies[request.kind] = {reply.sender: reply for reply in found}
            server.gather(found)
    able = next(group for group in groups if group.names[0] in replies["start"])
    assert able.scaling is not None
    spec = able.spec_of(requests["start"].arrays)
    return Captured(plan, spec, able.scaling, requests, replies)


def captured_at_home(plan: Plan, rows: ClientRows, start: Mapping[str, np.ndarray]) -> Captured:
    """What one site answered to a start request that it has kept."""
    group = ClientGroup(plan, [rows], answers_all=True)
    request = Message("start", 0, "server", start)
    with numerics(), on_device("cpu"):
        (reply,) = group.answer(request)
    assert group.scaling is not None
    spec, name = group.spec_of(start), rows.name
    return Captured(plan, spec, group.scaling, {"start": request}, {"start": {name: reply}})


def without_others(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of the first start, of those that are compared."""
    return {name: array for name, array in arrays.items() if not name.startswith("other ")}


def vector(message: Message) -> np.ndarray:
    """All numbers of a message, in the order of their names."""
    return np.concatenate([np.ravel(message.arrays[name]) for name in sorted(message.arrays)])
