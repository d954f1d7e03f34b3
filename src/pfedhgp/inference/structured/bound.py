"""The structured solver's ELBO: each client's own weights are integrated out exactly.

Given v_g, y_i ~ N(H_g v_g, C_i) with C_i = H_c H_cᵀ + Σ_i. So a client is summed up by
    J_i = H_gᵀ C_i⁻¹ H_g,  h_i = H_gᵀ C_i⁻¹ y_i,  c_i = log N(y_i; 0, C_i) − ½ Σ res/σ²
and   ELBO = Σ c_i + ½ hᵀ S h − ½ log|I + Σ J_i|,  S⁻¹ = I + Σ J_i,  h = Σ h_i.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float

from pfedhgp.base.arrays_of import Array, namespace
from pfedhgp.gp import linalg
from pfedhgp.gp.features import Basis
from pfedhgp.inference.grams import Design, Grams, accumulate
from pfedhgp.inference.own_weights import OwnWeights, condition
from pfedhgp.model.blocks import (
    ClientBlock,
    GlobalBlock,
    Rows,
    Structure,
    deviation_loadings,
    global_loadings,
)


class GlobalEvidence(NamedTuple):
    """exp(hᵀv_g − ½ v_gᵀ J v_g): what rows say about the global weights. It adds up over clients."""

    J: Float[Array, "RM RM"]
    h: Float[Array, " RM"]


class ClientSummary(NamedTuple):
    """(c_i, h_i, J_i): all that the ELBO needs of a client."""

    c: Array
    h: Float[Array, " RM"]
    J: Float[Array, "RM RM"]


class Statistics(eqx.Module):
    """What a client sends after its step, at the broadcast θ_g; sums over clients mean the same.

    `U` and `y` are EᵀC⁻¹E and EᵀC⁻¹y with E = I_Q ⊗ a_g, ordered (latent, output, inducing input). J and h
    follow from them for any B_g. Derivatives are in θ_g, with the shared function's values at Z_g held fixed.
    """

    evidence: Array
    """c_i"""
    U: Float[Array, "RVM RVM"]
    y: Float[Array, " RVM"]
    shared_residual: Float[Array, "R Q Q"]
    d_evidence: Float[Array, " P"]
    d_h: Float[Array, "P RM"]
    d_J: Float[Array, "P RM RM"]
    curvature: Float[Array, "P P"]
    deviation_power: Float[Array, "Q Q"]
    """B̃B̃ᵀ, from which φ follows"""
    deviation_square: Float[Array, "Q Q"]
    local_square: Float[Array, "Q Q"]
    """E[f fᵀ] of both layers, mean over their inducing inputs"""
    noise: Float[Array, "Q Q"]
    clients: Array
    residual: Array
    d_inputs: Float[Array, "M d"] | None = None
    """∂/∂Z_g of the client's part at its q(v_g), weights held; only if Z_g is learned"""
    client_loadings: Float[Array, "Q R"] | None = None
    """B_g,i, raveled below; only with client loadings, and then U and y are J and h"""
    client_loadings_square: Float[Array, "QR QR"] | None = None
    """E[b bᵀ], b = vec B_g,i, with the spread that its rows leave"""
    traits: Float[Array, "5 t"] | None = None
    """What its rows say of its traits, see `traits`; None in checkpoints of earlier versions"""


class ClientModel(eqx.Module):
    """One client's rows, its own block and the global block: everything that its sums depend on."""

    structure: Structure = eqx.field(static=True)
    shared: GlobalBlock
    basis: Basis
    """of the global layer, `shared.basis(shared_jitter)`"""
    client: ClientBlock
    rows: Rows
    jitter: Array | float
    """of the client's own k(Z_i, Z_i)"""
    shared_jitter: Array | float
    chunk: int = eqx.field(static=True)

    def at(self, shared: GlobalBlock) -> ClientModel:
        """The same client beside another global block."""
        return replace(self, shared=shared, basis=shared.basis(self.shared_jitter))

    def design(self, residual_draws: Array | None = None) -> Design:
        """H_g and H_c at the current parameters."""
        return design_of(
            self.structure, self.shared, self.basis, self.client, self.jitter, residual_draws
        )

    def grams(self, design: Design | None = None) -> Grams:
        """Λ and η over all weights."""
        design = self.design() if design is None else design
        return accumulate(self.rows, design, chunk=self.chunk)

    def summary(self, design: Design | None = None) -> ClientSummary:
        """(c, h, J) of the client."""
        latents, size = self.basis.factor.shape[:2]
        return summary(self.grams(design), latents * size)


def design_of(
    structure: Structure,
    shared: GlobalBlock,
    basis: Basis,
    client: ClientBlock,
    jitter: Array | float,
    residual_draws: Array | None = None,
) -> Design:
    """The client's linear model at the current parameters."""
    return Design(
        shared=basis,
        local=None if structure.state_space else replace(client.basis(jitter), turned=True),
        B_g=global_loadings(shared, client),
        B_dev=deviation_loadings(structure, shared, client),
        B_loc=client.loadings,
        noise=client.noise,
        exact=client.kernels if structure.state_space else None,
        residual_draws=residual_draws,
    )


def elbo(evidence: Array, total: GlobalEvidence) -> Array:
    """ELBO = Σ c_i + ½ hᵀ S h − ½ log|I + Σ J_i| with S⁻¹ = I + Σ J_i.

    `evidence` is Σ c_i, and `total` has Σ J_i and h = Σ h_i. The server maximises it (`Surrogate`). A client
    maximises it with the others' part fixed, as one integral (`cavity_bound`).
    """
    return evidence + linalg.log_partition(total.J, total.h)


def cavity_bound(grams: Grams, J_others: Array, h_others: Array) -> Array:
    """The ELBO as one client sees it: elbo(c_i, (ΣJ, Σh)) with the others' J and h fixed, less their c.

    It is one integral over the client's own and the global weights together, so that one factorisation
    gives its value and its gradient.
    """
    k = J_others.shape[0]
    precision = grams.precision.at[:k, :k].add(J_others)
    linear = grams.linear.at[:k].add(h_others)
    return grams.constant - 0.5 * grams.residual + linalg.log_partition(precision, linear)


def summary(grams: Grams, k: int) -> ClientSummary:
    """(c, h, J) of one client from its Grams; the first `k` weights are the global layer's."""
    return summary_given(grams, condition(grams, k))


def summary_given(grams: Grams, own: OwnWeights) -> ClientSummary:
    """The same with W = I + Λ_cc already factorised: J = Λ_gg − Λ_gc W⁻¹ Λ_cg, and so on."""
    (cross, linear), k = own.whitened(), own.cross.shape[1]
    J = grams.precision[:k, :k] - cross.T @ cross
    h = grams.linear[:k] - cross.T @ linear
    log_evidence = 0.5 * jnp.dot(linear, linear) - 0.5 * own.log_determinant
    return ClientSummary(grams.constant - 0.5 * grams.residual + log_evidence, h, J)


def apply_loadings(U: Array, y: Array, B: Float[Array, "Q R"], latents: int) -> GlobalEvidence:
    """J and h for loadings B from the unloaded U and y, which may have leading axes."""
    outputs, lead = B.shape[0], y.shape[:-1]
    M = y.shape[-1] // max(latents * outputs, 1)
    einsum = namespace(U, y, B).einsum
    half = einsum("qr,...rqmz->...rmz", B, U.reshape(*lead, latents, outputs, M, U.shape[-1]))
    half = half.reshape(*lead, latents * M, latents, outputs, M)
    J = einsum("ps,...zspk->...zsk", B, half).reshape(*lead, latents * M, latents * M)
    h = einsum("qr,...rqm->...rm", B, y.reshape(*lead, latents, outputs, M))
    return GlobalEvidence(J, h.reshape(*lead, latents * M))
