"""The paper's mean field: its bound, eq. elbo_explicit_decomp, and what follows from it.

    q = q(v_g) Π q(v_δ,i) q(v_l,i),  u_g = L_g v_g,  δ_i = L_g v_δ,i,  u_i = L_i v_l,i
    ELBO = Σ_i [E_q log p(y_i | v_g, v_δ,i, v_l,i) − KL_δ,i − KL_l,i] − KL_g

whitened with priors N(0, I) of v_g and v_l and N(0, φI) of v_δ: φ is in the prior and not in the mean, so
that eq. phi_gradient_explicit holds. A client's rows enter by the sums Λ and η of `grams` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag
from jaxtyping import Array, Float

from pfedhgp.gp.features import Basis
from pfedhgp.gp.kernels import Kernel
from pfedhgp.gp.noise import DiagonalNoise, Noise
from pfedhgp.inference.grams import Design, Grams, accumulate, residual_of
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows, Structure
from pfedhgp.model.posterior import ClientPosterior, GlobalPosterior

Tree = TypeVar("Tree")

JITTER = 1e-6
"""The paper's, relative to the mean of a kernel matrix's diagonal."""


class MeanFieldOptions(NamedTuple):
    """What is fixed when a step is compiled; the defaults are the paper's.

    Without `learn_inputs`, all inducing inputs stay where they are, the clients' and the shared ones.
    """

    structure: Structure
    local_steps: int = 80
    local_rate: float = 0.1
    server_rate: float = 0.1
    server_optimizer: Literal["adam", "sgd"] = "adam"
    learn_inputs: bool = True
    chunk: int = 4096


class Factor(eqx.Module):
    """q(v) = N(mean, L Lᵀ): L is lower triangular, with softplus on its diagonal."""

    mean: Float[Array, " K"]
    raw: Float[Array, "K K"]

    @staticmethod
    def isotropic(size: int, sd: Array | float) -> Factor:
        """N(0, sd² I)"""
        diagonal = inverse_softplus(jnp.asarray(sd, jnp.float64)) * jnp.ones(size)
        return Factor(jnp.zeros(size), jnp.diag(diagonal))

    @property
    def root(self) -> Float[Array, "K K"]:
        """L"""
        return jnp.tril(self.raw, -1) + jnp.diag(jax.nn.softplus(jnp.diagonal(self.raw)))

    @property
    def covariance(self) -> Float[Array, "K K"]:
        """L Lᵀ"""
        return self.root @ self.root.T

    def kl(self, variance: Array | float) -> Array:
        """KL(q ‖ N(0, φI)) = ½ [(tr S + |m|²)/φ − K + K log φ − log|S|] with φ = `variance`."""
        root, size = self.root, self.mean.shape[0]
        power = jnp.sum(root**2) + jnp.sum(self.mean**2)
        log_ratio = size * jnp.log(variance) - 2.0 * jnp.sum(jnp.log(jnp.diagonal(root)))
        return 0.5 * (power / variance - size + log_ratio)


class GlobalState(eqx.Module):
    """Θ_global in coordinates that may take any value: what is broadcast, and what S̃_i looks like."""

    kernels: Kernel
    inputs: Float[Array, "M d"]
    loadings: Float[Array, "Q R"]
    phi: Float[Array, ""]
    q: Factor


class ClientCoordinates(eqx.Module):
    """Θ_i,local in coordinates that may take any value; `deviation` is B_δ,i, without √φ.

    `active`, and what a model does not use, have gradient zero, so that Adam leaves them alone.
    """

    kernels: Kernel
    inputs: Float[Array, "Mi d"]
    active: Float[Array, " Mi"]
    deviation: Float[Array, "Q R"]
    loadings: Float[Array, "Q Rl"]
    noise: Noise
    q_dev: Factor
    q_loc: Factor


class Shared(NamedTuple):
    """The global state in natural values, and its factorised basis."""

    block: GlobalBlock
    basis: Basis
    q: Factor


def inverse_softplus(value: Array) -> Array:
    """s with log(1 + eˢ) = value"""
    return value + jnp.log(-jnp.expm1(-value))


def _strong(tree: Tree) -> Tree:
    """float64 leaves: a weakly typed one, like jnp.asarray(1.0), would have every step compiled twice."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), tree)


def global_coordinates(options: MeanFieldOptions, block: GlobalBlock) -> GlobalState:
    """Where the server starts: q(v_g) is the prior."""
    block = _strong(block)
    return GlobalState(
        kernels=jax.tree.map(inverse_softplus, block.kernels),
        inputs=block.inputs,
        loadings=inverse_softplus(block.loadings) if options.structure.tied else block.loadings,
        phi=inverse_softplus(block.phi),
        q=Factor.isotropic(block.loadings.shape[1] * block.inputs.shape[0], 1.0),
    )


def client_coordinates(
    options: MeanFieldOptions, block: ClientBlock, shared: GlobalBlock
) -> ClientCoordinates:
    """Where a client starts: q(v_δ) and q(v_l) are the priors, and B_δ = B̃/√φ."""
    structure, block, shared = options.structure, _strong(block), _strong(shared)
    width = shared.loadings.shape[1] * shared.inputs.shape[0] if structure.deviation else 0
    return ClientCoordinates(
        kernels=jax.tree.map(inverse_softplus, block.kernels),
        inputs=block.inputs,
        active=block.active,
        deviation=block.deviation[:, : 0 if structure.tied else None] / jnp.sqrt(shared.phi),
        loadings=inverse_softplus(block.loadings) if structure.tied else block.loadings,
        noise=_map_variance(lambda v: inverse_softplus(jnp.exp(v)), block.noise),
        q_dev=Factor.isotropic(width, jnp.sqrt(shared.phi)),
        q_loc=Factor.isotropic(block.loadings.shape[1] * block.inputs.shape[0], 1.0),
    )


def global_block(options: MeanFieldOptions, state: GlobalState) -> GlobalBlock:
    """The inverse of `global_coordinates`, without q(v_g)."""
    return GlobalBlock(
        kernels=jax.tree.map(jax.nn.softplus, state.kernels),
        inputs=_learned(options, state.inputs),
        loadings=_loadings(options, state.loadings),
        phi=jax.nn.softplus(state.phi),
    )


def client_block(
    options: MeanFieldOptions, client: ClientCoordinates, shared: GlobalBlock
) -> ClientBlock:
    """The inverse of `client_coordinates`, without its factors: `deviation` is B̃ = √φ B_δ again."""
    return ClientBlock(
        kernels=jax.tree.map(jax.nn.softplus, client.kernels),
        inputs=_learned(options, client.inputs),
        active=jax.lax.stop_gradient(client.active),
        deviation=jnp.sqrt(shared.phi) * client.deviation,
        loadings=_loadings(options, client.loadings),
        noise=_map_variance(lambda s: jnp.log(jax.nn.softplus(s)), client.noise),
    )


def _loadings(options: MeanFieldOptions, raw: Array) -> Array:
    """A model without loadings has standard deviations in their place."""
    return jax.nn.softplus(raw) if options.structure.tied else raw


def _learned(options: MeanFieldOptions, inputs: Array) -> Array:
    return inputs if options.learn_inputs else jax.lax.stop_gradient(inputs)


def _map_variance(change: Any, noise: Noise) -> Noise:
    """σ² goes through softplus; a full Σ keeps coordinates of its own."""
    if not isinstance(noise, DiagonalNoise):
        return noise
    return eqx.tree_at(lambda n: n.log_variance, noise, change(noise.log_variance))


def open_global(options: MeanFieldOptions, state: GlobalState, jitter: Array | float) -> Shared:
    """Natural values and the basis, once for as many evaluations as follow."""
    block = global_block(options, state)
    return Shared(block, block.basis(jitter), state.q)


def unit_deviation(structure: Structure, B_g: Array, B_dev: Array) -> Float[Array, "Q Rd"]:
    """B_δ,i: the client's own, or B_g in a model without loadings; no columns without the layer."""
    if not structure.deviation:
        return B_g[:, :0]
    return B_g if structure.tied else B_dev


def expected_log_likelihood(
    grams: Grams, factors: Sequence[Factor], B_dev: Float[Array, "Q Rd"], phi: Array
) -> Array:
    """E_q log p(y | v), eq. closed_form_ll: constant − ½ res + ηᵀμ − ½ tr Λ(S + μμᵀ).

    S is block-diagonal, one block a factor, in the order of the Grams' weights. The Grams are those of
    B_δ, and the deviation's residual is φ times theirs: k_δ = φ k_g.
    """
    residual = grams.residual + (phi - 1.0) * residual_of(grams.shared_residual, B_dev)
    mean = jnp.concatenate([factor.mean for factor in factors])
    ends = np.cumsum([0, *(factor.mean.shape[0] for factor in factors)])
    spread = jnp.zeros(())
    for factor, (start, end) in zip(factors, pairwise(ends), strict=True):
        root = factor.root
        spread += jnp.sum((grams.precision[start:end, start:end] @ root) * root)
    fit = jnp.dot(grams.linear, mean) - 0.5 * jnp.dot(mean, grams.precision @ mean)
    return grams.constant - 0.5 * residual + fit - 0.5 * spread


def client_bound(
    options: MeanFieldOptions,
    shared: Shared,
    client: ClientCoordinates,
    rows: Rows,
    jitter: Array | float,
) -> Array:
    """E_q log p(y_i | ·) − KL(q(v_δ) ‖ N(0, φI)) − KL(q(v_l) ‖ N(0, I)): all client i's terms of the ELBO.

    The terms that eq. local_elbo_new leaves out depend on σ², which is learned, so they stay in.
    """
    block = client_block(options, client, shared.block)
    B_dev = unit_deviation(options.structure, shared.block.loadings, client.deviation)
    design = Design(
        shared=shared.basis,
        local=block.basis(jitter),
        B_g=shared.block.loadings,
        B_dev=B_dev,
        B_loc=block.loadings,
        noise=block.noise,
    )
    grams = accumulate(rows, design, chunk=options.chunk)
    factors = (shared.q, client.q_dev, client.q_loc)
    fit = expected_log_likelihood(grams, factors, B_dev, shared.block.phi)
    return fit - client.q_dev.kl(shared.block.phi) - client.q_loc.kl(1.0)


def elbo(client_terms: Array, q: Factor) -> Array:
    """ELBO = Σ_i [E_q log p(y_i | v_g, v_δ,i, v_l,i) − KL_δ,i − KL_l,i] − KL(q(v_g) ‖ N(0, I)).

    Eq. elbo_explicit_decomp. `client_terms` has the bracket of each client, `client_bound`. Training never
    knows its value: the server has only the brackets' gradients, Σ S̃_i, and takes the slope of this function
    in each parameter of Θ_global (`global_gradient`). Tests compute the value.
    """
    return jnp.sum(client_terms) - q.kl(1.0)


def global_posterior(options: MeanFieldOptions, state: GlobalState) -> GlobalPosterior:
    """q(v_g) and the block that it belongs to."""
    return GlobalPosterior(global_block(options, state), state.q.mean, state.q.covariance)


def client_posterior(
    options: MeanFieldOptions, client: ClientCoordinates, shared: GlobalBlock
) -> ClientPosterior:
    """q(v_δ/√φ) q(v_l): weights of prior N(0, I) for loadings B̃ = √φ B_δ; G is 0."""
    scale = jnp.sqrt(shared.phi)
    offset = jnp.concatenate([client.q_dev.mean / scale, client.q_loc.mean])
    covariance = block_diag(client.q_dev.covariance / scale**2, client.q_loc.covariance)
    width = shared.loadings.shape[1] * shared.inputs.shape[0]
    return ClientPosterior(
        block=client_block(options, client, shared),
        offset=offset,
        G=jnp.zeros((offset.shape[0], width)),
        covariance=covariance,
    )
