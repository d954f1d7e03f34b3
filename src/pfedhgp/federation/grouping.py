"""Which clients compute together: those of like sizes, as many as memory allows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pfedhgp.base.batching import on_host
from pfedhgp.base.numerics import device_memory
from pfedhgp.data.rows import ClientRows
from pfedhgp.federation.clients import KEPT_TOGETHER, ClientGroup
from pfedhgp.federation.compiling import compiled_part
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.telling import Limit, is_closed, masked_together

LONG = 20_000
"""A client with more rows is a group of its own."""
TOGETHER = 2**25
"""The most numbers (rows × outputs × global weights) that a group holds: 256 MiB of them."""
USUAL_INPUTS, COPIES = 64, 24
"""On a device with memory of its own: inducing inputs a layer where their number is open, and how many arrays
of rows × weights and weights × weights a client's step has at once."""
LEAST_ROWS, PADDING = 16, 2**18
"""The first size of the ladder to which rows are padded, and the most rows that joining a longer size may
add: compiling another program takes longer than computing on so many."""


def group_clients(
    plan: Plan, clients: Sequence[ClientRows], *, batch: bool, largest: int = 64
) -> list[ClientGroup]:
    """Groups clients by size: the largest of a group has at most about 1.4 times the rows of the smallest.

    Where steps are compiled, all clients of a group are padded to a size of a short ladder, and groups are as
    few as memory and work allow: a program takes seconds to compile, and another size is another program.
    """
    groups = _grouped(plan, clients, batch=batch, largest=largest)
    for group in groups:
        group.most_kept = KEPT_TOGETHER // max(len(clients), 1)
    return groups


def _grouped(
    plan: Plan, clients: Sequence[ClientRows], *, batch: bool, largest: int
) -> list[ClientGroup]:
    among = masked_together(len(clients)) if plan.masks else 1
    if not batch:
        return [ClientGroup(plan, [client], among=among) for client in clients]
    compiled = compiled_part(plan, clients) is not None
    if not on_host():
        largest = len(clients)
    groups = []
    for limited in _by_limit(plan, clients):
        for longest, alike in (_by_ladder if compiled else _by_size)(limited):
            most = min(largest, _most_together(plan, longest, alike[0].Y.shape[-1]))
            for part in np.array_split(np.arange(len(alike)), -(-len(alike) // most)):
                some = [alike[i] for i in part]
                groups.append(ClientGroup(plan, some, longest, among=among))
    return groups


def _by_limit(plan: Plan, clients: Sequence[ClientRows]) -> list[list[ClientRows]]:
    """With privacy="sums", those that answer as much as each other: all of a group are asked, or none."""
    if not is_closed(plan):
        return [list(clients)]
    found: dict[int, list[ClientRows]] = {}
    for client in clients:
        found.setdefault(Limit.of(client, plan.spec, 1).most, []).append(client)
    return list(found.values())


Sized = tuple[int, list[ClientRows]]


def _by_size(clients: Sequence[ClientRows]) -> list[Sized]:
    """Clients of like sizes, with the rows of the longest."""
    by_size: dict[int, list[ClientRows]] = {}
    for client in clients:
        bucket = int(np.ceil(2.0 * np.log2(max(len(client.X), 1))))
        by_size.setdefault(bucket, []).append(client)
    return [(max(len(c.X) for c in alike), alike) for alike in by_size.values()]


def _by_ladder(clients: Sequence[ClientRows]) -> list[Sized]:
    """Clients by the sizes 16, 32, 64, …; they join those of a longer one if that adds few rows in all."""
    by_rung: dict[int, list[ClientRows]] = {}
    for client in clients:
        rung = max(LEAST_ROWS, 1 << (len(client.X) - 1).bit_length())
        by_rung.setdefault(rung, []).append(client)
    found: list[Sized] = []
    for rung in sorted(by_rung, reverse=True):
        alike = by_rung[rung]
        if found and len(alike) * (found[-1][0] - rung) <= PADDING:
            found[-1][1].extend(alike)
        else:
            found.append((rung, alike))
    return found


def _most_together(plan: Plan, longest: int, outputs: int) -> int:
    """The most clients of a group: each needs about n Q R M numbers, in several copies."""
    if longest > LONG:
        return 1
    inputs = plan.inducing if isinstance(plan.inducing, int) else 1
    latents = max(1, *(spec.latents for spec in plan.candidates))
    features = longest * outputs * latents * inputs
    room = device_memory()
    if room is None:
        return max(1, TOGETHER // features)
    usual = plan.inducing if isinstance(plan.inducing, int) else USUAL_INPUTS
    weights = 3 * latents * usual  # of the three layers
    return max(1, int(room / (8 * COPIES * (longest * outputs * weights + weights**2))))
