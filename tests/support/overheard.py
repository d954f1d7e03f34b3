"""What the operator of a server has before the first round, and the rows to compare it with."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pfedhgp.attacks import reconstruction
from pfedhgp.base.numerics import numerics
from pfedhgp.data.rows import ClientRows
from pfedhgp.federation import inprocess
from pfedhgp.federation.clients import ClientGroup
from pfedhgp.federation.messages import Message
from pfedhgp.federation.planning import make_plan
from pfedhgp.federation.server import Server
from pfedhgp.settings.table import ModelSettings


def wavy_rows(count: int, rows: int, outputs: int, seed: int = 0) -> list[ClientRows]:
    """Clients with waves in common and waves of their own, at random inputs."""
    rng = np.random.default_rng([seed, rows, outputs])
    weights, phases = rng.normal(size=(6, outputs)), rng.uniform(0.0, 6.0, 6)
    found = []
    for i in range(count):
        x = rng.uniform(0.0, 10.0, (rows, 1))
        shared = sum(np.sin(0.6 * (k + 1) * x + phases[k]) * weights[k] / (k + 1) for k in range(6))
        own = 0.3 * np.sin(1.3 * x + rng.uniform(0.0, 6.0, outputs))
        own = own + 0.4 * np.sin(4.0 * x + rng.uniform(0.0, 6.0, outputs))
        noise = 0.1 * rng.normal(size=(rows, outputs))
        found.append(ClientRows(f"client {i}", x, np.asarray(shared) + own + noise))
    return found


class Overheard(NamedTuple):
    """One client: the starts that it answered, where its histogram has its rows, and the rows themselves."""

    answers: list[reconstruction.Answered]
    places: np.ndarray
    x: np.ndarray
    y: np.ndarray


def overhear(rows: list[ClientRows], **settings) -> list[Overheard]:
    """Runs a federation up to its start, and listens at the server."""
    one = rows[0]
    plan = make_plan(ModelSettings(**settings), one.X.shape[1], one.Y.shape[1])
    server, groups = Server(plan), [ClientGroup(plan, [row]) for row in rows]
    heard: dict[str, tuple[Message, list[Message]]] = {}
    with numerics():
        while "start" not in heard:
            request = server.request()
            assert request is not None
            replies = list(inprocess.answers(request, groups, None))
            heard[request.kind] = (request, replies)
            server.gather(replies)
    found = []
    for i, group in enumerate(groups):
        scaling = group.scaling
        assert scaling is not None
        asked, told = (heard["start"][0], heard["start"][1][i])
        answers = reconstruction.answers_at_start(
            plan, plan.spec, asked.arrays, told.arrays, scaling.extent
        )
        extent, reply = heard["extent"][0].arrays, heard["extent"][1][i].arrays
        box = (float(scaling.lower[0]), float(scaling.upper[0]))
        places = reconstruction.places_of_histogram(reply["histogram"], extent, *box)
        found.append(Overheard(answers, places, group.scaled[0].X[:, 0], group.scaled[0].Y))
    return found
