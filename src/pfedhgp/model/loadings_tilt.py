"""How a client's layers move with loadings on the shared functions that are not known, C = P + P K columns.

The shared layer is cᵀg, c and g independent. δcᵀE[g] moves it, and a local layer of states leans on that.
δcᵀδg moves it too, with a covariance of Σ_p F_pᵀ Cov(g) F_p: as many columns as g has weights for each p.
(What the local layer takes back of this last and smallest part is left out.)
"""

from __future__ import annotations

from jaxtyping import Float

from pfedhgp.base.arrays_of import Array, namespace
from pfedhgp.gp.features import Basis
from pfedhgp.model import local_states
from pfedhgp.model.blocks import ClientBlock
from pfedhgp.model.posterior import LocalStates


def tilt(
    basis: Basis,
    weights: Float[Array, "RM 1+K"],
    half: Float[Array, "Q R P"],
    own: tuple[LocalStates, ClientBlock, Float[Array, "Q Q"]] | None,
    X: Float[Array, "n d"],
) -> Float[Array, "n 3 Q C"]:
    """The three layers' columns, from the mean and a factor of the covariance of g's weights."""
    xp = namespace(X)
    R, M = basis.factor.shape[:2]
    each = weights.reshape(R, M, weights.shape[1])
    g = xp.swapaxes(xp.swapaxes(basis.features(X), 1, 2) @ each, 0, 1)
    first = xp.einsum("nr,qrp->nqp", g[:, :, 0], half)
    second = xp.einsum("nrk,qrp->nqpk", g[:, :, 1:], half, optimize=True)
    second = second.reshape(*first.shape[:2], -1)
    local = xp.zeros_like(first)
    if own is not None:
        there = xp.einsum("rmn,rm->nr", basis.features(own[0].times[:, None]), each[:, :, 0])
        local = local_states.leaning(*own, xp.einsum("nr,qrp->qnp", there, half), X)
    shared = xp.concatenate([first, second], axis=2)
    local = xp.concatenate([local, xp.zeros_like(second)], axis=2)
    return xp.stack([shared, xp.zeros_like(shared), local], axis=1)
