"""What clients' rows say of their traits: `client_step.trait_sites` on the host, for a batch."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from pfedhgp.inference.structured.host.objective import Objective
from pfedhgp.inference.structured.host.parameters import Parameters
from pfedhgp.inference.structured.host.search import gradients, kernel_count, quickest
from pfedhgp.inference.structured.traits import TRAIT_STEP, sites

Array = np.ndarray


def trait_sites(
    objective: Objective, at: Parameters, *, kernels_free: bool
) -> Float[Array, "c 5 t"]:
    """The five numbers of each client, from slopes at ψ and at a small step in each trait."""
    structure, rows = objective.structure, at.rows()
    where = at.places(structure)
    size, step = len(where), TRAIT_STEP
    points = np.repeat(rows[:, None], 1 + size, axis=1)
    at_each = 1 + np.arange(size), where
    shifts = step / at.turns(structure)
    if structure.tied:  # B_l² times exp(step)
        B = slice(kernel_count(at), size - at.noise.levels().shape[1])
        shifts[:, B] = np.expm1(0.5 * step) * rows[:, where[B]]
    points[:, *at_each] += shifts
    turns = at.from_rows(points.reshape(-1, rows.shape[1])).turns(structure)
    slopes = gradients(quickest(objective), points)[..., where]
    slopes = slopes / turns.reshape(slopes.shape)
    hessian = (slopes[:, 1:] - slopes[:, :1]) / step
    free = (np.arange(size) >= (0 if kernels_free else kernel_count(at))).astype(np.float64)
    return sites(objective.prior.expected, at.traits(structure), slopes[:, 0], hessian, free)
