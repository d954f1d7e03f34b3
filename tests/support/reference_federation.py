"""A federation's run repeated in one process from its participation log; and sites without a network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pfedhgp.base.numerics import numerics
from pfedhgp.data.rows import ClientRows
from pfedhgp.federation.agreement import Agreement
from pfedhgp.federation.clients import ClientGroup
from pfedhgp.federation.envelope import Envelope, Refused
from pfedhgp.federation.flower.masked_site import MaskKeys
from pfedhgp.federation.flower.site import AgreedRows, Site
from pfedhgp.federation.masks.fixed_point import decoded, encoded
from pfedhgp.federation.messages import Message
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.server import Server
from pfedhgp.settings import config as configs

ROWS = 16


def rows_of(names: Sequence[str], *, rows: int = ROWS, seed: int = 0) -> list[ClientRows]:
    """Sites with equal numbers of rows, so that one compilation serves all."""
    found = []
    for i, name in enumerate(names):
        rng = np.random.default_rng([seed, i])
        X = np.sort(rng.uniform(0.0, 5.0, (rows, 1)), axis=0)
        Y = np.sin(X) + 0.3 * np.cos(X + i) + 0.1 * rng.normal(size=(rows, 1))
        found.append(ClientRows(name, X, Y))
    return found


def agreement(**tables: Mapping[str, Any]) -> Agreement:
    """Small models: 5 global and 5 local inducing inputs. Sites of 16 rows answer only if they know."""
    base: dict[str, dict[str, Any]] = {
        "data": {"inputs": ["x"], "outputs": ["y"]},
        "model": {"inducing": 5, "local_inducing": 5},
        "inference": {"rounds": 2},
        "run": {"privacy": "none"},
    }
    for name, table in tables.items():
        base[name] = {**base.get(name, {}), **table}
    return Agreement.of(configs.check(base))


def replay(plan: Plan, rows: Sequence[ClientRows], log: Sequence[Mapping[str, Any]]) -> Server:
    """The naive twin: only those who were counted compute, in order, in this process."""
    server = Server(plan)
    clients = {row.name: ClientGroup(plan, [row]) for row in rows}
    starts: dict[int, Message] = {}
    last: dict[int, list[str]] = {}
    with numerics():
        for entry in log:
            request = server.request()
            assert request is not None
            assert (request.kind, request.round) == (entry["kind"], entry["round"])
            attempt, replies = server.attempt, []
            if request.kind == "start":
                starts[attempt] = request
            for name in (*entry["counted"], *entry.get("excluded", ())):
                client = clients[name]
                if request.kind == "round":
                    if attempt not in client.parties:
                        client.catch_up([starts[attempt]])
                    if name not in last[attempt]:
                        client.forget_last_reply(attempt)
                found = client.answer(request)
                replies += found if name in entry["counted"] else []
            if request.kind in ("start", "round"):
                last[attempt] = list(entry["counted"])
            if plan.masks:
                total = masked_total(replies, len(rows))
                server.take(total, entry["counted"], 0)
            else:
                server.gather(replies)
        if server.phase == "finish":
            server.request()
            server.gather([])
    return server


def masked_total(replies: Sequence[Message], sites: int) -> dict[str, np.ndarray]:
    """What masks have to give: the sum in fixed point, which is the plain sum to 1e-6."""
    shapes = {name: array.shape for name, array in replies[0].arrays.items()}
    parts = [encoded(reply.arrays, shapes, sites) for reply in replies]
    total = decoded(np.sum(parts, axis=0, dtype=np.uint64), shapes, sites)
    for name, array in total.items():
        plain = np.sum([reply.arrays[name] for reply in replies], axis=0)
        np.testing.assert_allclose(array, plain, rtol=0.0, atol=1e-6)
    return total


def global_leaves(server: Server) -> list[np.ndarray]:
    """Every number of the final global block, q(v_g) and the population."""
    assert server.best is not None
    return [
        np.asarray(leaf) for leaf in jax.tree.leaves((server.best.shared, server.best.population))
    ]


def assert_same(found: Server, expected: Server, tolerance: float = 1e-10) -> None:
    """The global block of every round by its bound, and the last one number by number."""
    for one, two in zip(global_leaves(found), global_leaves(expected), strict=True):
        np.testing.assert_allclose(one, two, rtol=tolerance, atol=tolerance)
    bounds = [[record["bound"] for record in server.history] for server in (found, expected)]
    assert len(bounds[0]) == len(bounds[1])
    for one, two in zip(*bounds, strict=True):
        assert one == two or abs(one - two) <= tolerance * max(1.0, abs(two))


def site_of(
    home: Path,
    row: ClientRows,
    delivered: dict[str, Any] | None = None,
    masks: MaskKeys | None = None,
    *,
    answers_all: bool = True,
) -> Site:
    """A site whose rows are in memory instead of in a file."""

    def read(text: str) -> AgreedRows:
        return AgreedRows(Agreement.from_json(text), row, answers_all=answers_all)

    def save_model(agreed: AgreedRows, group: ClientGroup, request: Envelope) -> None:
        if delivered is not None:
            delivered[row.name] = (agreed, group, request)

    return Site(home, row.name, read, save_model, masks)


@dataclass
class LocalLink:
    """A `Link` to sites in this process; `change` may alter, drop or delay what a site answers."""

    sites: dict[str, Site]
    change: Callable[[str, Envelope, Envelope], Envelope | Refused | None] = lambda n, q, a: a
    inbox: list[tuple[str, Envelope | Refused]] = field(default_factory=list)
    seen: list[tuple[str, Envelope]] = field(default_factory=list)
    answered: list[tuple[str, Envelope, Envelope]] = field(default_factory=list)
    most_bytes: int = 0

    def push(self, name: str, request: Envelope, lifetime: float) -> bool:
        if name not in self.sites:
            return False
        self.seen.append((name, request))
        answer = self.sites[name].answer(request)
        self.sites[name].finish()
        self.answered.append((name, request, answer))
        reply = self.change(name, request, answer)
        if reply is not None:
            self.inbox.append((name, reply))
        return True

    def pull(self) -> list[tuple[str, Envelope | Refused]]:
        found, self.inbox = self.inbox, []
        return [(name, self._measured(reply)) for name, reply in found]

    def _measured(self, reply: Envelope | Refused) -> Envelope | Refused:
        """What is too large is not looked into, as in `transport.from_records`."""
        large = isinstance(reply, Envelope) and reply.nbytes > self.most_bytes
        return Refused("oversized") if large else reply

    def lost(self) -> list[str]:
        return []

    def expect(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes

    def connected(self) -> Collection[str]:
        return self.sites.keys()


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def with_nan(reply: Envelope) -> Envelope:
    """The reply of a site whose numbers are broken."""
    name = next(iter(reply.arrays))
    return replace(reply, arrays={**reply.arrays, name: np.full_like(reply.arrays[name], np.nan)})
