"""Small runs in one process, with every message that was sent."""

from __future__ import annotations

import numpy as np

from pfedhgp.data.rows import ClientRows
from pfedhgp.data.tables import whole_cycles_of
from pfedhgp.federation import inprocess
from pfedhgp.federation.grouping import group_clients
from pfedhgp.federation.messages import Message
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.server import Server
from pfedhgp.gp.kernels import RBF, Kernel
from pfedhgp.model.spec import build_spec


def clients(
    count: int = 3, seed: int = 0, outputs: int = 1, *, rows: int = 12, waves: float = 1.0
) -> list[ClientRows]:
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        X = rng.uniform(0.0, 5.0, (rows + 5 * i, 1))
        shared = np.sin(waves * X) + 0.3 * np.cos(X + i)
        Y = shared + 0.1 * rng.normal(size=(len(X), outputs))
        made.append(ClientRows(f"client {i}", X, Y))
    return made


def cycles(count: int, *, outputs: int = 1, missing: bool = False) -> list[ClientRows]:
    """Four cycles a client on nine inputs."""
    rng = np.random.default_rng(1)
    grid = np.linspace(0.0, 5.0, 9)[:, None]
    made = []
    for i in range(count):
        values = rng.normal(size=(4, 9, outputs)) + np.sin(grid)
        if missing:
            values[1, 2 + i, 0] = np.nan
        made.append(whole_cycles_of(f"client {i}", grid, values))
    return made


def plan(
    inference, *, outputs: int = 1, kernel: Kernel | None = None, spec: dict | None = None, **kwargs
) -> Plan:
    """`spec` changes what the model is."""
    usual = {
        "kernel": RBF() if kernel is None else kernel,
        "local_kernel": RBF(),
        "layers": ("global", "deviation", "local"),
        "latents": None,
        "local_latents": None,
        "noise": "auto",
    }
    spec = build_spec(inputs=1, outputs=outputs, **(usual | (spec or {})))
    return Plan(spec, inference, **{"inducing": 8, "local_inducing": 6, **kwargs})


def recorded(inference, rows, *, batch: bool = True, **kwargs):
    """(server, groups, messages down, messages up) of a whole run."""
    chosen = plan(inference, outputs=rows[0].Y.shape[1], **kwargs)
    server, down, up = Server(chosen), [], []
    groups = group_clients(chosen, rows, batch=batch)

    def record(message: Message, receiver: str) -> None:
        (up if receiver == "server" else down).append(message)

    inprocess.run(server, groups, record=record)
    return server, groups, down, up
