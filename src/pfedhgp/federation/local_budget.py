"""How many local inducing inputs a client has: at the start, and more or fewer as training goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from pfedhgp.data.rows import ClientRows
from pfedhgp.data.scaling import Scaling
from pfedhgp.errors import BudgetWarning, warn_caller
from pfedhgp.federation.plan import Plan
from pfedhgp.gp.kernels import Kernel, unstack
from pfedhgp.inference.protocols import ClientParty
from pfedhgp.inference.starts import budget
from pfedhgp.inference.starts.candidates import Start
from pfedhgp.model.blocks import ClientBlock
from pfedhgp.model.spec import Spec, starting_kernels

IDLE = 0.2
"""Inputs that cost less than this part of what a start aims at are perhaps more than are needed."""
FEWER = 0.85
"""A client changes to fewer inputs if they are less than this part of those that it has."""


def starting_inputs(
    plan: Plan, spec: Spec, kernels: Kernel, client: ClientRows, start: Start, *, say: bool
) -> np.ndarray:
    """One client's, from its scaled rows; with `say`, warns if there are fewer than asked for."""
    X = client.X
    if spec.local_latents == 0 or spec.state_space:
        return X[:0]
    tolerance = budget.tolerance(start.noise_variance, start.local_variance, len(X) * spec.outputs)
    return budget.local_inputs(
        client.name,
        kernels,
        X,
        plan.local_inducing,
        tolerance=tolerance,
        largest=plan.largest_local_inducing,
        say=say,
    )


def allow_for_residual(
    plan: Plan, kernels: Kernel, start: Start, Z: np.ndarray, X: np.ndarray
) -> Start:
    """Starts the noise no smaller than what the local inducing inputs leave out."""
    if not len(Z) or len(Z) >= len(X):
        return start
    sample = X[:: -(-len(X) // 500)]
    left = budget.residual(kernels, Z, sample, plan.inference.jitter)
    noise = max(start.noise_variance, min(left * start.local_variance, 0.5))
    return replace(start, noise_variance=noise)


def local_kernels(spec: Spec, scaling: Scaling, start: Start) -> Kernel:
    return starting_kernels(
        spec.local_kernel, scale=start.local, count=spec.local_latents, extent=scaling.extent
    )


def pad_inputs(blocks: list[ClientBlock]) -> list[ClientBlock]:
    """Equal shapes for clients that compute together: the extra inducing inputs are inactive."""
    largest = max(len(block.active) for block in blocks)
    size = largest if all(len(b.active) == largest for b in blocks) else budget.round_up(largest)
    return [_padded(block, size) for block in blocks]


def _padded(block: ClientBlock, size: int) -> ClientBlock:
    """Adds inactive inducing inputs up to `size`."""
    extra = size - len(block.active)
    if not extra:
        return block
    mode: Literal["constant", "edge"] = "edge" if len(block.inputs) else "constant"
    return replace(
        block,
        inputs=np.pad(block.inputs, ((0, extra), (0, 0)), mode=mode),
        active=np.pad(block.active, (0, extra)),
    )


def grow(plan: Plan, party: ClientParty, clients: Sequence[ClientRows]) -> None:
    """Gives more inducing inputs to clients (scaled rows) whose local residual costs more than NATS."""
    nats = party.local_nats
    if plan.local_inducing != "auto" or nats is None or not np.any(nats > budget.NATS):
        return
    count = [int(np.asarray(party.blocks.active[i]).sum()) for i in range(len(clients))]
    inputs: list[np.ndarray | None] = []
    for i, client in enumerate(clients):
        cap = min(int(1.4 * count[i]) + 4, plan.largest_local_inducing)
        if nats[i] <= budget.NATS or cap <= count[i]:
            inputs.append(None)
            continue
        kernels = unstack(party.blocks.kernels, i)
        found = budget.greedy_rows(kernels, client.X, 0.0, cap)
        inputs.append(found if len(found) > count[i] else None)
    if any(Z is not None for Z in inputs):
        party.replace_inputs(inputs)


def shrink(plan: Plan, party: ClientParty, clients: Sequence[ClientRows]) -> None:
    """Takes back inducing inputs that the learned kernels do not need, if these vary less than the start's.

    What is left costs at most MARGIN · NATS, as at the start, and must be a good deal fewer.
    """
    nats, cost = party.local_nats, party.residual_cost()
    if plan.local_inducing != "auto" or nats is None or cost is None:
        return
    idle = (nats < IDLE * budget.MARGIN * budget.NATS) & np.isfinite(cost)
    inputs: list[np.ndarray | None] = [None] * len(clients)
    for i in (int(index) for index in np.flatnonzero(idle)):
        cap = int(FEWER * np.asarray(party.blocks.active[i]).sum())
        if cap < budget.ALL_ROWS:
            continue
        tolerance = budget.MARGIN * budget.NATS / max(cost[i], 1e-12)
        found = budget.greedy_rows(unstack(party.blocks.kernels, i), clients[i].X, tolerance, cap)
        if len(found) < budget.ALL_ROWS:  # a layer that is nearly flat may need more again
            found = _spaced(clients[i].X, budget.ALL_ROWS)
        inputs[i] = found if len(found) < cap else None
    if any(Z is not None for Z in inputs):
        party.replace_inputs(inputs)


def _spaced(X: np.ndarray, count: int) -> np.ndarray:
    """Every so many of the distinct rows, in order."""
    distinct = budget.distinct_rows(X)
    return distinct[np.unique(np.linspace(0, len(distinct) - 1, count).round().astype(int))]


def warn_of_cap(plan: Plan, spec: Spec, party: ClientParty, names: Sequence[str]) -> None:
    """Warns if automatic local inducing inputs ended at their largest number, and are too few."""
    largest, nats = plan.largest_local_inducing, party.local_nats
    if plan.local_inducing != "auto" or nats is None or not spec.local_latents:
        return
    count = np.asarray(party.blocks.active).sum(axis=1)
    short = [
        name
        for name, own, lost in zip(names, count, nats, strict=True)
        if own >= largest and lost > budget.NATS
    ]
    if short:
        warn_caller(
            f"{largest} local inducing inputs, the most allowed, are too few for {len(short)} of "
            f"{len(names)} clients, the first is {short[0]!r}: raise `largest_local_inducing`",
            BudgetWarning,
        )
