"""How the server opens a training: the global block at a start, laid out in the agreed domain."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np

from pfedhgp.data.scaling import Scaling
from pfedhgp.errors import BudgetWarning
from pfedhgp.federation.plan import Plan
from pfedhgp.gp.kernels import Kernel
from pfedhgp.inference.protocols import ServerParty
from pfedhgp.inference.starts import budget, initial_values
from pfedhgp.inference.starts.candidates import Start
from pfedhgp.model.blocks import GlobalBlock
from pfedhgp.model.spec import Spec, starting_kernels

MUCH_TOO_FEW = 1.0
"""Given budgets that cost more than so many nats an observed cell are helped by moving their inputs."""
LEAST_NOISE = 0.01
"""Starting noise may be far too small; here it counts as this, at least."""


@dataclass(frozen=True)
class Frame:
    """What the server knows of the data before training, from sums."""

    extent: np.ndarray
    moment: np.ndarray
    """E[yyᵀ] of the scaled outputs"""
    cells: float
    """Observed cells a client, in the mean"""
    most: int
    """The most global inducing inputs that the rows and the plan allow"""
    rows: int


@dataclass(frozen=True)
class Opening:
    """A start, the block that it gives, and the server's party that trains it."""

    start: Start
    block: GlobalBlock
    party: ServerParty


def opened(
    plan: Plan, spec: Spec, frame: Frame, start: Start, *, seed: int | None, learn: bool
) -> Opening:
    """Inducing inputs for the start's lengthscales, noise that allows for what they leave out, the block."""
    inputs = inducing_inputs(plan, spec, frame, start)
    start = allow_for_residual(plan, spec, frame, start, inputs)
    block = initial_values.global_block(spec, start, frame.moment, inputs, frame.extent, seed)
    cells = frame.rows * spec.outputs
    return Opening(start, block, inference_of(plan, learn, cells).server(spec, block))


def inference_of(plan: Plan, learn: bool, cells: int | None = None):  # type: ignore[no-untyped-def]
    """The plan's inference, with inducing inputs that move where it was decided so.

    The server knows how many cells clients have in all, which a rate may follow.
    """
    settings = plan.inference
    if cells is not None and hasattr(settings, "for_cells"):
        settings = settings.for_cells(cells)
    if getattr(settings, "learn_inducing", False) != "auto":
        return settings
    return replace(settings, learn_inducing=learn)  # type: ignore[type-var]


def kernels_like(spec: Spec, scaling: Scaling) -> Kernel:
    """Stacked shared kernels of the right form, for reading a global block back from arrays."""
    return starting_kernels(spec.kernel, scale=0.2, count=spec.latents, extent=scaling.extent)


def shared_kernels(spec: Spec, frame: Frame, start: Start) -> Kernel:
    return starting_kernels(
        spec.kernel, scale=start.shared, count=spec.latents, extent=frame.extent
    )


def inducing_inputs(plan: Plan, spec: Spec, frame: Frame, start: Start) -> np.ndarray:
    """As many as were asked for, or as few as leave no variance that the noise would notice."""
    if spec.latents == 0:
        return np.zeros((0, spec.inputs))
    if plan.inducing != "auto":
        return budget.box_points(min(int(plan.inducing), frame.rows), spec.inputs)
    spare = budget.tolerance(start.noise_variance, start.shared_variance, frame.cells)
    kernels = shared_kernels(spec, frame, start)
    return budget.domain_budget(kernels, spec.inputs, spare, frame.most, plan.inference.jitter)


def warn_of_fewer(plan: Plan, spec: Spec, frame: Frame) -> None:
    """Says so, once for all starts, where there are fewer rows than global inducing inputs asked for."""
    if spec.latents and plan.inducing != "auto" and int(plan.inducing) > frame.rows:
        warnings.warn(
            f"{frame.rows} rows in all: {frame.rows} global inducing inputs instead of {plan.inducing}",
            BudgetWarning,
            stacklevel=2,
        )


def allow_for_residual(
    plan: Plan, spec: Spec, frame: Frame, start: Start, inputs: np.ndarray
) -> Start:
    """Starts the noise no smaller than what the inducing inputs leave out.

    The bound charges that variance in units of the noise, and would else be best with no loadings at all.
    """
    if not spec.latents:
        return start
    left = budget.box_residual(shared_kernels(spec, frame, start), inputs, plan.inference.jitter)
    noise = max(start.noise_variance, min(left * start.shared_variance, 0.5))
    return replace(start, noise_variance=noise)


def too_few(plan: Plan, spec: Spec, frame: Frame, start: Start) -> bool:
    """Whether a budget that was given costs so much that its inputs had better move.

    The clients' own inputs are judged as if they filled the domain, since the server knows no better.
    """
    shared, local = plan.inducing, plan.local_inducing
    jitter = plan.inference.jitter
    left_out = 0.0
    if shared != "auto" and spec.latents:
        Z = budget.box_points(min(int(shared), frame.rows), spec.inputs)
        left = budget.box_residual(shared_kernels(spec, frame, start), Z, jitter)
        left_out += left * start.shared_variance
    if local != "auto" and spec.local_latents and int(local) < frame.cells / spec.outputs:
        Z = budget.box_points(int(local), spec.inputs)
        kernels = starting_kernels(
            spec.local_kernel, scale=start.local, count=spec.local_latents, extent=frame.extent
        )
        left_out += budget.box_residual(kernels, Z, jitter) * start.local_variance
    return 0.5 * left_out / max(start.noise_variance, LEAST_NOISE) > MUCH_TOO_FEW
