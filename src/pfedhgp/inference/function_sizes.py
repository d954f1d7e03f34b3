"""How large clients' own functions are: E[f fᵀ] between outputs, mean over the inducing inputs.

With the layer's weights' second moments V_rs = E[v_r v_sᵀ], u_r = L_r v_r at Z, and loadings B,
    (1/M) Σ_m E[f(z_m) f(z_m)ᵀ] = B C Bᵀ,   C_rs = (1/M) Σ_m (L_r V_rs L_sᵀ)_mm.
Without data C = I, and this is the prior's BBᵀ. With data it is not: the priors decide how much of a layer is
in its loadings and how much in its weights, and fitted loadings alone are too small.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from pfedhgp.gp.features import Basis
from pfedhgp.gp.linalg import Moments
from pfedhgp.inference.grams import Design
from pfedhgp.model.blocks import Structure
from pfedhgp.model.posterior import Population

Square = Float[Array, "Q Q"]


def squares(structure: Structure, design: Design, own: Moments) -> tuple[Square, Square]:
    """E[f fᵀ] of the deviation and of the local layer, from the moments of w = [v_δ | v_l].

    Without loadings a deviation's is φ B_g², which is learned as such; states of a local layer have no
    weights, and its square is the prior's.
    """
    B_dev, B_loc = design.B_dev, design.B_loc
    cut = B_dev.shape[1] * design.shared.factor.shape[1]
    deviation, local = B_dev @ B_dev.T, B_loc @ B_loc.T
    if not structure.tied and B_dev.shape[1]:
        deviation = _square(design.shared, B_dev, own.second[:cut, :cut])
    if design.local is not None and B_loc.shape[1]:
        local = _square(design.local, B_loc, own.second[cut:, cut:])
    return deviation, local


def _square(basis: Basis, B: Float[Array, "Q R"], second: Array) -> Square:
    R, M = B.shape[1], basis.factor.shape[1]
    L, share = basis.factor[:R], basis.active / jnp.sum(basis.active)
    V = second.reshape(R, M, R, M)
    C = jnp.einsum("x,rxm,rmsk,sxk->rs", share, L, V, L, optimize=True)
    return B @ C @ B.T


def population_of(
    structure: Structure, deviation: Array, local: Array, noise: Array, clients: Array
) -> Population:
    """What an unseen client is expected to look like, from sums over T clients.

    The fitted global layer takes the mean of the deviations with it, so that what is left of them has
    (T − 1)/T of their covariance P; and its own error is that mean's, P/T.
    """
    if structure.tied:
        power, division = deviation / clients, jnp.zeros_like(deviation)
    else:
        power = deviation / jnp.maximum(clients - 1.0, 1.0)
        division = power / clients
    return Population(power, local / clients, noise / clients, clients, division)
