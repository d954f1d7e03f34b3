"""A deployment's training in this process, to compare with: `batch=False`, the same rows and seed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from pfedhgp.base.numerics import numerics
from pfedhgp.federation import inprocess
from pfedhgp.federation.agreement import Agreement
from pfedhgp.federation.clients import ClientGroup
from pfedhgp.federation.grouping import group_clients
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.server import Server
from pfedhgp.model import files
from pfedhgp.settings import config as configs
from support.flower_processes import Deployment


class Trained(NamedTuple):
    """The server, the clients, and the hash of every request by kind and round."""

    server: Server
    groups: list[ClientGroup]
    hashes: dict[tuple[str, int], str]


def plan_of(deployed: Deployment) -> Plan:
    return Agreement.of(configs.check(deployed.config)).plan


def in_process(deployed: Deployment) -> Trained:
    """Trains. Done before the processes start, it leaves its compiled code for them."""
    plan = plan_of(deployed)
    server, hashes = Server(plan), {}
    groups = group_clients(plan, deployed.rows, batch=False)

    def record(message, receiver):
        if message.sender == "server":
            hashes[message.kind, message.round] = message.block

    with numerics():
        inprocess.run(server, groups, record=record)
    return Trained(server, groups, hashes)


def assert_every_round_agrees(deployed: Deployment, expected: Trained) -> None:
    """The hash is of all that is broadcast: the global block after each round is the same, bit for bit."""
    log = deployed.participation()
    assert [entry["missing"] for entry in log] == [{}] * len(log)
    asked = {(e["kind"], e["round"]): e["block"] for e in log}
    wanted = {key: value for key, value in expected.hashes.items() if key in asked}
    assert asked == wanted
    assert set(expected.hashes) - set(asked) <= {
        key for key in expected.hashes if key[0] == "finish"
    }


def assert_global_blocks_agree(run: Path, server: Server) -> None:
    found, expected = files.load(run), server.best
    pairs = zip(
        jax.tree.leaves((found.shared, found.population)),
        jax.tree.leaves((expected.shared, expected.population)),
        strict=True,
    )
    for one, two in pairs:
        np.testing.assert_allclose(np.asarray(one), np.asarray(two), rtol=1e-10, atol=1e-10)
    bounds = [
        [record["bound"] for record in history] for history in (found.history, server.history)
    ]
    assert len(bounds[0]) == len(bounds[1])
    if None not in bounds[1]:
        np.testing.assert_allclose(*bounds, rtol=1e-10)
