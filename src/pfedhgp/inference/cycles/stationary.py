"""The stationary cycle layer, Ψ = Γ ⊗ L⁻¹ k_θ(Z_e, Z_e) L⁻ᵀ: its restricted likelihood, maximised.

In units of the noise and in an orthonormal basis Ω = I + K₁ ⊗ K₂ with K₁ = L⁻¹ΓL⁻ᵀ (Σ_ε = L Lᵀ) and
K₂ = Hᵀ R_θ H, so that log|Ω| and tr(Ω⁻¹T̃) come from the eigenvalues of a Q × Q and an r × r matrix.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from pfedhgp.gp import linalg
from pfedhgp.gp.kernels import RBF, Matern12, Matern32
from pfedhgp.inference.cycles.scatter import Orthonormal
from pfedhgp.model.cycle_layer import NOISE_FLOOR, CycleBasis, CycleLayer

StationaryKernel = type[Matern12] | type[Matern32] | type[RBF]
KERNELS: tuple[StationaryKernel, ...] = (Matern12, Matern32, RBF)
"""Shapes of the stationary form; the restricted likelihood chooses."""
SMALLEST_NOISE = 1e-6
"""The smallest noise, as a share of the variance within cycles: below it, rounding decides."""


class Sums(NamedTuple):
    """What the likelihood needs, as arrays."""

    Z: Array
    factor: Array
    H: Array
    T: Array
    outside: Array
    freedom: Array
    rows: Array


def fit_stationary(
    sums: Orthonormal, basis: CycleBasis, kernel: StationaryKernel, noise: str
) -> CycleLayer:
    """The maximum over log ℓ, Γ and Σ_ε ("scalar", "output" or "full"), by L-BFGS."""
    arrays = sums_of(sums, basis)
    d, Q = np.shape(basis.inputs)[1], len(sums.outside)
    variance = np.diagonal(sums.outside + np.einsum("qapa->qp", sums.T))
    variance = np.maximum(variance / (sums.freedom * sums.rows), 1e-12)
    outside = sums.noise_outside()
    quiet = 0.1 * variance if outside is None else np.diagonal(outside)
    quiet = np.clip(quiet, 1e-4 * variance, 0.9 * variance)
    spacing = 0.5 * float(np.mean(basis.lengthscale))
    free = (None, None)
    scales = [(np.log(0.5 * spacing), np.log(20.0))] * d
    floors = 0.5 * np.log(SMALLEST_NOISE * variance)
    at_least = _by_entry([(f, None) for f in floors], free)
    if noise == "full":
        part, limits = _packed(np.sqrt(quiet)), at_least
    elif noise == "output":
        part, limits = 0.5 * np.log(quiet), [(f, None) for f in floors]
    else:
        part, limits = 0.5 * np.log(quiet.mean(keepdims=True)), [(floors.max(), None)]

    def objective(vector: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = value_and_grad(kernel, noise, vector, arrays)
        return float(value), np.asarray(gradient, np.float64)

    from scipy.optimize import (
        minimize,  # a quarter of a second to import, for one form of the layer
    )

    found = minimize(
        objective,
        np.concatenate([np.full(d, np.log(4.0 * spacing)), _packed(np.sqrt(variance)), part]),
        jac=True,
        method="L-BFGS-B",
        bounds=[*scales, *at_least, *limits],
        options={"maxiter": 200},
    )
    scale, gamma, L = (np.asarray(v) for v in unpack(noise, found.x, Q, d))
    values = np.asarray(kernel(scale)(arrays.Z, arrays.Z))
    values, vectors = np.linalg.eigh(basis.weights_covariance(values))
    kept = values > 1e-10 * values[-1]
    root = vectors[:, kept] * np.sqrt(values[kept])
    return CycleLayer(basis, np.kron(gamma, root), L @ L.T + NOISE_FLOOR * np.eye(Q), "stationary")


def sums_of(sums: Orthonormal, basis: CycleBasis) -> Sums:
    """The sums, and the basis that they were made on."""
    numbers = (np.asarray(basis.inputs), basis.factor, sums.H, sums.T, sums.outside)
    return Sums(*(jnp.asarray(v) for v in (*numbers, sums.freedom, sums.rows)))


def unpack(noise: str, vector: Array, Q: int, d: int) -> tuple[Array, Array, Array]:
    """(ℓ, the factor of Γ, the factor of Σ_ε) of the vector that the search moves."""
    size = Q * (Q + 1) // 2
    rest = vector[d + size :]
    L = _unpacked(rest, Q) if noise == "full" else jnp.diag(jnp.broadcast_to(jnp.exp(rest), (Q,)))
    return jnp.exp(vector[:d]), _unpacked(vector[d : d + size], Q), L


def cost(kernel: StationaryKernel, noise: str, vector: Array, sums: Sums) -> Array:
    """−log p of the restricted likelihood, without its constants.

    The gradient of log|Ω| and tr(Ω⁻¹T̃) is that of the linear form around the present eigenvectors,
    which stays right if eigenvalues meet.
    """
    Q, d = sums.outside.shape[0], sums.Z.shape[1]
    scale, gamma, L = unpack(noise, vector, Q, d)
    values = linalg.solve_lower(sums.factor, kernel(scale)(sums.Z, sums.Z))
    R = linalg.solve_lower(sums.factor, values.T)
    K_2 = sums.H.T @ (0.5 * (R + R.T)) @ sums.H
    white = linalg.solve_lower(L, jnp.eye(Q, dtype=vector.dtype))
    K_1 = white @ gamma @ (white @ gamma).T
    (l_1, E_1), (l_2, E_2) = (jnp.linalg.eigh(lax.stop_gradient(K)) for K in (K_1, K_2))
    W = 1.0 / (1.0 + jnp.maximum(l_1, 0.0)[:, None] * jnp.maximum(l_2, 0.0)[None, :])
    rotation = E_1.T @ white
    half = jnp.einsum("ma,qmpl,lb->qapb", E_2, sums.T, E_2)
    fixed = lax.stop_gradient(rotation)
    T = jnp.einsum("xq,qapb,yp->xayb", fixed, half, fixed)
    T_diagonal = jnp.einsum("xq,qapa,xp->xa", rotation, half, rotation)
    slope = -W[:, :, None, None] * T * W[None, None]
    x, a = jnp.arange(Q)[:, None], jnp.arange(W.shape[1])[None, :]
    slope = lax.stop_gradient(slope.at[x, a, x, a].add(sums.freedom * W))
    in_K = jnp.einsum("xayb,xy,ab->", slope, E_1.T @ K_1 @ E_1, E_2.T @ K_2 @ E_2)
    linear = in_K + jnp.sum(W * T_diagonal)
    value = jnp.sum(W * T_diagonal) - sums.freedom * jnp.sum(jnp.log(W))
    bent = linear + lax.stop_gradient(value - linear)
    log_det = 2.0 * jnp.sum(jnp.log(jnp.diagonal(L)))
    flat = sums.freedom * sums.rows * log_det + jnp.sum((white @ sums.outside) * white)
    return 0.5 * (flat + bent)


@partial(jax.jit, static_argnums=(0, 1))
def value_and_grad(
    kernel: StationaryKernel, noise: str, vector: Array, sums: Sums
) -> tuple[Array, Array]:
    """`cost` and its gradient in the vector."""
    return jax.value_and_grad(lambda v: cost(kernel, noise, v, sums))(vector)


def _packed(diagonal: np.ndarray) -> np.ndarray:
    """A diagonal factor as the search has it: lower triangle by rows, logarithms on the diagonal."""
    return np.diag(np.log(diagonal))[np.tril_indices(len(diagonal))]


def _unpacked(vector: Array, Q: int) -> Array:
    raw = jnp.zeros((Q, Q), vector.dtype).at[np.tril_indices(Q)].set(vector)
    return jnp.tril(raw, -1) + jnp.diag(jnp.exp(jnp.diagonal(raw)))


def _by_entry(on_diagonal: list[tuple], elsewhere: tuple) -> list[tuple]:
    """One entry for each of a packed factor's."""
    pairs = zip(*np.tril_indices(len(on_diagonal)), strict=True)
    return [on_diagonal[i] if i == j else elsewhere for i, j in pairs]
