"""How the server opens a training: the global block at a start, laid out in the agreed domain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from pfedhgp.base.choices import NO_PRIVACY
from pfedhgp.data.scaling import Scaling
from pfedhgp.errors import BudgetWarning, warn_caller
from pfedhgp.federation.local_budget import local_kernels
from pfedhgp.federation.phases import Prepared
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.telling import Asked, is_closed, smooth_enough
from pfedhgp.gp.kernels import Kernel
from pfedhgp.inference.protocols import Inference, ServerParty
from pfedhgp.inference.starts import budget, contest, ranks
from pfedhgp.inference.starts.candidates import Start, global_block
from pfedhgp.inference.structured.server import StructuredServer
from pfedhgp.model.blocks import GlobalBlock
from pfedhgp.model.spec import Spec, starting_kernels

MUCH_TOO_FEW = 1.0
"""Inducing inputs move if a given budget costs more than this, in nats per observed cell."""
LEAST_NOISE = 0.01
"""Starting noise may be far too small; here it counts as this, at least."""


@dataclass(frozen=True)
class Opening:
    """A start, the block that it gives, and the server's party that trains it."""

    start: Start
    block: GlobalBlock
    party: ServerParty
    prepared: Prepared
    """With the model that is trained"""
    number: int = 0
    """Which of the compared starts it is: clients know it by that"""

    def within(self, asked: Asked | None) -> Opening:
        """The same; with privacy="sums" its kernels stop where clients would not answer any more."""
        if asked is not None and isinstance(self.party, StructuredServer):
            self.party.affords = asked.affords
        return self

    def request(self) -> dict[str, np.ndarray]:
        return {**self.party.request(), **self.prepared.named}

    def score(self) -> float:
        """The last bound, less what its parameters cost: see `contest` and `ranks`."""
        parameters = sum(np.size(leaf) for leaf in jax.tree.leaves(self.block.kernels))
        cells = float(self.prepared.counted.cells.sum())
        price = ranks.price(self.prepared.spec, cells, self.prepared.counted.clients)
        return self.party.bounds[-1] - contest.penalty(parameters, cells) - price


def opened(prepared: Prepared, start: Start, *, seed: int | None, learn: bool) -> Opening:
    """Inducing inputs for the start's lengthscales, noise that allows for what they leave out, the block."""
    plan, spec = prepared.plan, prepared.spec
    inputs = inducing_inputs(prepared, start)
    if is_closed(plan) and len(inputs) == prepared.most_inducing:
        start = smooth_enough(start, inputs)
    start = allow_for_residual(prepared, start, inputs)
    extent = prepared.scaling.extent
    block = global_block(spec, start, prepared.moment, inputs, extent, seed)
    party = inference_of(plan, learn, prepared.cells).server(spec, block)
    return Opening(start, block, party, prepared)


def inference_of(plan: Plan, learn: bool, cells: int | None = None) -> Inference:
    """The plan's inference; inducing inputs that are "auto" move if `learn` says so.

    The server knows how many cells clients have in all, which a rate may follow.
    """
    settings: Any = plan.inference
    if cells is not None and hasattr(settings, "for_cells"):
        settings = settings.for_cells(cells)
    if plan.learn_inducing == "auto":
        settings = replace(settings, learn_inducing=learn)
    return settings


def shared_kernels(spec: Spec, scaling: Scaling, scale: float = 0.2) -> Kernel:
    """Stacked shared kernels at a scale; without one they are for reading a global block from arrays."""
    return starting_kernels(spec.kernel, scale=scale, count=spec.latents, extent=scaling.extent)


def left_out(prepared: Prepared, start: Start, inputs: np.ndarray) -> float:
    """The shared layer's mean variance that the inducing inputs do not carry."""
    kernels = shared_kernels(prepared.spec, prepared.scaling, start.shared)
    left = budget.box_residual(kernels, inputs, prepared.plan.inference.jitter)
    return left * start.shared_variance


def inducing_inputs(prepared: Prepared, start: Start) -> np.ndarray:
    """As many as were asked for, or as few as leave no variance that the noise would notice."""
    plan, spec = prepared.plan, prepared.spec
    if spec.latents == 0:
        return np.zeros((0, spec.inputs))
    if plan.inducing != "auto":
        most = (
            min(prepared.counted.rows, prepared.most_told)
            if is_closed(plan)
            else prepared.counted.rows
        )
        return budget.box_points(min(int(plan.inducing), most), spec.inputs)
    spare = budget.tolerance(
        start.noise_variance, start.shared_variance, prepared.counted.cells_a_client
    )
    kernels = shared_kernels(spec, prepared.scaling, start.shared)
    most, jitter = prepared.most_inducing, plan.inference.jitter
    return budget.domain_budget(kernels, spec.inputs, spare, most, jitter)


def wanted_inducing(prepared: Prepared, start: Start) -> int:
    """How many there would be with privacy="none"."""
    plan = replace(prepared.plan, privacy=NO_PRIVACY)
    return len(inducing_inputs(replace(prepared, plan=plan), start))


def warn_of_fewer(prepared: Prepared) -> None:
    """Warns, once for all starts, if there are fewer rows than global inducing inputs asked for."""
    wanted, rows = prepared.plan.inducing, prepared.counted.rows
    if prepared.spec.latents and wanted != "auto" and int(wanted) > rows:
        warn_caller(
            f"{rows} rows in all: {rows} global inducing inputs instead of {wanted}", BudgetWarning
        )


def allow_for_residual(prepared: Prepared, start: Start, inputs: np.ndarray) -> Start:
    """Starts the noise no smaller than what the inducing inputs leave out.

    The bound charges that variance in units of the noise. With less noise it would be best without loadings.
    """
    if not prepared.spec.latents:
        return start
    noise = max(start.noise_variance, min(left_out(prepared, start, inputs), 0.5))
    return replace(start, noise_variance=noise)


def too_few(prepared: Prepared, start: Start) -> bool:
    """Whether a budget that was given costs so much that its inputs had better move.

    The clients' own inputs are judged as if they filled the domain, since the server knows no better.
    """
    plan, spec = prepared.plan, prepared.spec
    lost, local = 0.0, plan.local_inducing
    if plan.inducing != "auto" and spec.latents:
        lost += left_out(prepared, start, inducing_inputs(prepared, start))
    rows = prepared.counted.cells_a_client / spec.outputs
    if local != "auto" and spec.local_latents and int(local) < rows:
        Z = budget.box_points(int(local), spec.inputs)
        kernels = local_kernels(spec, prepared.scaling, start)
        lost += budget.box_residual(kernels, Z, plan.inference.jitter) * start.local_variance
    return 0.5 * lost / max(start.noise_variance, LEAST_NOISE) > MUCH_TOO_FEW
