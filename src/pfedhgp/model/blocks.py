"""What the server owns, what a client owns, and what a client observes.

Scalar models and models with loadings are one case. With loadings, each client learns its own
B̃_i = √φ B_δ,i. Without them (`tied`), a loading is the layer's standard deviation: B_g = [[τ]], and
B̃_i = √φ_i τ, which is k_δ,i = φ_i k_g. There a client learns √(φ_i/φ).

With client loadings, a client has its own B_g,i too: it mixes the shared functions in its own way, and B_g is
the mean of its population, B_g,i ~ N(B_g, Σ_B).

With a deviation kernel, the first half of the latents are the global layer's and the others the deviations'.
B_g is zero in the second half and B̃_i in the first, so that each layer has its own kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import equinox as eqx
import numpy as np
from jaxtyping import Float

from pfedhgp.base.arrays_of import Array, namespace
from pfedhgp.base.trees import map_arrays, ravel
from pfedhgp.gp.features import Basis
from pfedhgp.gp.kernels import Kernel, Stacks
from pfedhgp.gp.noise import Noise


@dataclass(frozen=True)
class Structure:
    """What a compiled function may branch on; the number of latents is in the arrays' shapes."""

    deviation: bool = True
    tied: bool = False
    state_space: bool = False
    """Local layers are exact: one function an output, integrated out by a Kalman filter, no Z_i."""
    client_loadings: bool = False
    """Clients have loadings B_g,i of their own on the shared functions."""


class GlobalBlock(eqx.Module):
    """Kernel hyperparameters, inducing inputs, loadings and φ: what all clients share."""

    kernels: Kernel
    inputs: Float[Array, "M d"]
    loadings: Float[Array, "Q R"]
    phi: Float[Array, ""]
    loadings_covariance: Float[Array, "QR QR"] | None = None
    """Σ_B of clients' own loadings around B_g, raveled output by output; None: all have B_g"""
    noise_levels: Float[Array, " 2"] | None = None
    """γ of noise that depends on the level (see `noise_level`)"""

    def basis(self, jitter: Array | float) -> Basis:
        return Basis.build(self.kernels, self.inputs, jitter)


class ClientBlock(eqx.Module):
    """The client's own: loadings, local kernels and inputs, noise.

    Four summaries of it leave the client, for φ and for other clients: the noise variance, B̃B̃ᵀ, the mean
    squares of its functions between outputs, and what its rows say of its traits.
    """

    kernels: Kernel
    inputs: Float[Array, "Mi d"]
    active: Float[Array, " Mi"]
    deviation: Float[Array, "Q R"]
    """B̃_i; in a model without loadings √(φ_i/φ), or no columns: φ_i is everybody's φ"""
    loadings: Float[Array, "Q Rl"]
    noise: Noise
    global_loadings: Float[Array, "Q R"] | None = None
    """B_g,i; None: those of the global block are everybody's"""

    def basis(self, jitter: Array | float) -> Basis:
        return Basis.build(self.kernels, self.inputs, jitter, self.active)


class CycleTerm(eqx.Module):
    """What a cycle layer changes in the sums of white cycles, its Ψ and Σ_ε being fixed.

    For one pattern of observed cells with c cycles, P their white precision and E = A_eᵀF,
    Σ_e⁻¹ = P − UᵀU with U = L⁻¹EᵀP, L Lᵀ = I + EᵀPE: so Λ = c HᵀPH − c HᵀUᵀU H, and so on. Patterns are
    stacked along k.
    """

    weights: Float[Array, "n Q k"]
    """√c U, cell by cell"""
    means: Float[Array, " k"]
    """√c U ȳ"""
    constant: Array
    """−½ Σ_c (log|I + EᵀPE| + (y_c − ȳ)ᵀP(y_c − ȳ) − |U y_c|²)"""


class Rows(eqx.Module):
    """A client's observations; `mask` is 1 for an observed cell, and Y is 0 for a missing one.

    If a cell was observed c times at the same input (replicates, cycles on one grid), Y is the mean, `mask`
    is c, and `scatter` is the sum over cells and replicates of (y − ȳ)(y − ȳ)ᵀ. These are sufficient.
    There is one such sum per pattern of observed cells, `scatter_seen`; with diagonal noise one is enough.
    With a cycle layer, `cycles` holds what correlation within cycles changes, and replaces the scatter.
    """

    X: Float[Array, "n d"]
    Y: Float[Array, "n Q"]
    mask: Float[Array, "n Q"]
    scatter: Float[Array, "G Q Q"] | None = None
    cycles: CycleTerm | None = None
    scatter_seen: Float[Array, "G Q"] | None = None


def global_loadings(shared: GlobalBlock, client: ClientBlock) -> Float[Array, "Q R"]:
    """B_g as the client has it: its own, or everybody's."""
    return shared.loadings if client.global_loadings is None else client.global_loadings


def deviation_loadings(
    structure: Structure, shared: GlobalBlock, client: ClientBlock
) -> Float[Array, "Q R"]:
    """B̃_i: the client's own, or √φ_i B_g in a model without loadings; no columns without the layer."""
    if not structure.deviation:
        return shared.loadings[..., :0]
    if not structure.tied:
        return client.deviation
    everybodys = namespace(shared.phi).sqrt(shared.phi) * shared.loadings
    return everybodys * client.deviation if client.deviation.shape[-1] else everybodys


def to_free(block: ClientBlock) -> ClientBlock:
    """The block in coordinates that may take any value: logarithms of kernel parameters."""
    return replace(block, kernels=map_arrays("log", block.kernels))


def from_free(free: ClientBlock) -> ClientBlock:
    """The inverse of `to_free`."""
    return replace(free, kernels=map_arrays("exp", free.kernels))


UNUSED = 1e-6
"""The prior variance of loadings that a layer has on latents of another one, in units of those on its own:
small enough that an average over them does not move a prediction, and no smaller, for eigenvalues' sake."""


def of_global(block: GlobalBlock) -> Float[Array, " R"]:
    """1 for the latents that B_g may load: not for those of deviations with a kernel of their own."""
    R = block.loadings.shape[-1]
    if not isinstance(block.kernels, Stacks):
        return np.ones(R)
    return np.where(np.arange(R) < R // 2, 1.0, 0.0)


def deviation_variances(block: GlobalBlock) -> Float[Array, " R"]:
    """The prior variance of each column of B̃: φ, and next to nothing for latents that are global alone."""
    if not isinstance(block.kernels, Stacks):
        return block.phi * np.ones(block.loadings.shape[-1])
    return block.phi * np.where(of_global(block) > 0, UNUSED, 1.0)


Theta = Float[Array, " P"]


def theta_of(structure: Structure, block: GlobalBlock) -> Theta:
    """log of each kernel parameter [, log τ, log φ]"""
    kernels, _ = ravel(block.kernels)
    xp = namespace(kernels, block.loadings, block.phi)
    if not structure.tied:
        return xp.log(kernels)
    return xp.log(xp.concatenate([kernels, block.loadings.reshape(-1), block.phi[None]]))


def with_theta(structure: Structure, block: GlobalBlock, theta: Theta) -> GlobalBlock:
    """The block with `theta` in place of its own."""
    flat, unravel = ravel(block.kernels)
    size, values = flat.shape[0], namespace(theta).exp(theta)
    kernels = unravel(values[:size])
    if not structure.tied:
        return replace(block, kernels=kernels)
    tau = values[size:-1].reshape(block.loadings.shape)
    return replace(block, kernels=kernels, loadings=tau, phi=values[-1])
