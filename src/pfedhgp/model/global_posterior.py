"""q(v_g) as it travels and is kept: its moments, or, with knots, the evidence that determines them.

Where evidence is separate at each inducing input (knots of the Markov solver), M R (R + 3)/2 numbers stand
for a covariance of (R M)²: J_v = LᵀJL and h_v = Lᵀh give q(v_g) = N((I + J_v)⁻¹h_v, (I + J_v)⁻¹).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from pfedhgp.base.numerics import with_numerics
from pfedhgp.gp import linalg
from pfedhgp.model.blocks import GlobalBlock
from pfedhgp.model.posterior import GlobalPosterior

MOMENTS, KNOTS = ("mean", "covariance"), ("knot_J", "knot_h")


@with_numerics
def from_knots(
    block: GlobalBlock,
    J: Float[np.ndarray, "M R R"],
    h: Float[np.ndarray, "M R"],
    jitter: float,
) -> GlobalPosterior:
    """q(v_g), weights ordered (function, knot)."""
    L = np.asarray(block.basis(jitter).factor)
    R, M, _ = L.shape
    loaded = np.empty((R, M, R, M))
    for r in range(R):
        for s in range(R):
            loaded[r, :, s] = L[r].T @ (J[:, r, s][:, None] * L[s])
    linear = np.einsum("rmk,mr->rk", L, h).reshape(-1)
    mean, covariance = linalg.posterior_moments(loaded.reshape(R * M, R * M), linear)
    return GlobalPosterior(block, mean, covariance, J, h)


def to_arrays(shared: GlobalPosterior) -> dict[str, np.ndarray]:
    """What determines q(v_g) beside its block; a symmetric J is sent and kept as one triangle."""
    if shared.knot_J is None or shared.knot_h is None:
        return {name: np.asarray(getattr(shared, name)) for name in MOMENTS}
    rows, columns = np.triu_indices(shared.knot_h.shape[1])
    return {"knot_J": np.asarray(shared.knot_J)[:, rows, columns], "knot_h": shared.knot_h}


def from_arrays(
    block: GlobalBlock, arrays: Mapping[str, np.ndarray], jitter: float
) -> GlobalPosterior:
    """The inverse."""
    if "knot_J" not in arrays:
        return GlobalPosterior(block, *(arrays[name] for name in MOMENTS))
    packed, h = (np.asarray(arrays[name]) for name in KNOTS)
    R = h.shape[1]
    rows, columns = np.triu_indices(R)
    J = np.zeros((len(packed), R, R))
    J[:, rows, columns] = J[:, columns, rows] = packed
    return from_knots(block, J, h, jitter)
