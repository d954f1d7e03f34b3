"""What clients with few cells send at the start, when the others have said nothing.

With v_g ~ N(0, I) all layers have their priors, and the covariance of cells is all that is factorised:
    U = EᵀC⁻¹E, y = EᵀC⁻¹y           C = H_cH_cᵀ + Σ of the own layers and noise, E = I_Q ⊗ a_g
    E[wwᵀ] = I − H_cᵀ(C_t⁻¹ − ααᵀ)H_c     C_t = C + H_gH_gᵀ, α = C_t⁻¹y
C has n Q rows, where the weights may be several hundred. `statistics.statistics` is the same by weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from pfedhgp.inference.structured.bound import Statistics
from pfedhgp.inference.structured.host import cells as cells_
from pfedhgp.inference.structured.host.features import Features, features_of
from pfedhgp.inference.structured.host.few_cells import FewCells, GlobalCells
from pfedhgp.inference.structured.host.parameters import Parameters
from pfedhgp.inference.structured.host.statistics import GlobalLayer, no_derivatives

Array = np.ndarray


class CellSums(NamedTuple):
    """U and y in a form that is small where cells are few: a_g at the rows, C⁻¹ and C⁻¹y."""

    features: Float[Array, "c R M n"]
    inverse: Float[Array, "c Qn Qn"]
    """zero where a cell is missing"""
    alpha: Float[Array, "c Qn"]

    def U(self) -> Float[Array, "c RQM RQM"]:
        c, R, M, n = self.features.shape
        Q = self.alpha.shape[1] // n
        found = np.empty((c, R, Q, M, R, Q, M))
        for s in range(R):
            turned = np.swapaxes(self.features[:, s], 1, 2)
            half = (self.inverse.reshape(c, Q * n * Q, n) @ turned).reshape(c, Q, n, Q, M)
            half = np.swapaxes(half, 2, 3)  # (c, Q, Q, n, M)
            for r in range(R):
                block = self.features[:, r, None, None] @ half
                found[:, r, :, :, s] = np.swapaxes(block, 2, 3)
        return found.reshape(c, R * Q * M, R * Q * M)

    def y(self) -> Float[Array, "c RQM"]:
        c, _, _, n = self.features.shape
        alpha = self.alpha.reshape(c, 1, -1, n)
        return (alpha @ np.swapaxes(self.features, 2, 3)).reshape(c, -1)


def opening_sums(few: FewCells, at: Parameters, shared: GlobalLayer) -> tuple[Statistics, CellSums]:
    """What the clients send at ψ, and its large part in a small form."""
    few = replace(
        few, rows=None
    )  # local features at the inducing inputs, as `statistics` takes them
    objective = few.whole
    layout, cells = objective.layout, objective.cells
    c, n, Q = cells.Y.shape
    R, d = layout.latents, layout.deviations
    A = objective.shared.reshape(c, R, layout.size, n)
    nothing = GlobalCells(np.zeros((c, Q * Q, n * n)), few.observed)
    alone, whole = few.solved(at, inverse=True, layer=nothing), few.solved(at, inverse=True)
    assert alone.inverse is not None
    assert whole.inverse is not None
    there = few.mask[:, :, None] * few.mask[:, None, :]
    cell_sums = CellSums(A, alone.inverse * there, alone.alpha * few.mask)
    B_dev, B_loc = alone.every_B[..., R : R + d], alone.every_B[..., R + d :]
    power = B_dev @ np.swapaxes(B_dev, 1, 2)
    learned = (whole.inverse - whole.alpha[:, :, None] * whole.alpha[:, None, :]) * there
    learned = learned.reshape(c, Q, n, Q, n)
    dev_square, loc_square = power, B_loc @ np.swapaxes(B_loc, 1, 2)
    if d and not objective.structure.tied:
        every = np.broadcast_to(shared.factor[None, :d], (c, *shared.factor[:d].shape))
        dev_square = _square(every, None, A[:, :d], B_dev, learned)
    if objective.local_inputs is not None and layout.local:
        source = alone.local.source
        local = source if isinstance(source, Features) else None
        local = local or features_of(at.natural_kernels(), objective.local_inputs)
        active = objective.local_inputs.active
        loc_square = _square(local.factor, active, local.A, B_loc, learned)
    sums = Statistics(
        evidence=alone.value,
        U=cell_sums.U(),
        y=cell_sums.y(),
        shared_residual=np.einsum(
            "cgr,cgqp->crqp", objective.residuals[..., :R], alone.precision.matrix
        ),
        **no_derivatives(c, 0, layout.shared_weights)._asdict(),
        deviation_power=power,
        deviation_square=dev_square,
        local_square=loc_square,
        noise=cells_.covariance_of(at.noise, Q),
        clients=np.ones(c),
        residual=(alone.W * alone.residuals).sum((1, 2)),
    )
    return sums, cell_sums


def _square(
    factor: Float[Array, "c r M M"],
    active: Array | None,
    A: Float[Array, "c r M n"],
    B: Float[Array, "c Q r"],
    learned: Float[Array, "c Q n Q n"],
) -> Float[Array, "c Q Q"]:
    """E[f fᵀ] between outputs, mean over the inducing inputs: LLᵀ less what the cells took away."""
    c, r, M, _ = factor.shape
    share = np.full((1, M), 1.0 / max(M, 1)) if active is None else active[:, 0] / active.sum(2)
    values = factor @ A  # of k(Z, X)
    taken = np.einsum("cqa,cqnpm,cpb->cabnm", B, learned, B, optimize=True)
    C = np.empty((c, r, r))
    for a in range(r):
        for b in range(r):
            less = ((values[:, a] @ taken[:, a, b]) * values[:, b]).sum(2)
            before = (factor[:, a] ** 2).sum(2) if a == b else 0.0
            C[:, a, b] = (share * (before - less)).sum(1)
    return B @ C @ np.swapaxes(B, 1, 2)
