"""The linear algebra that everything shares: a relative jitter, solves, and a Gaussian integral.

LAPACK keeps matrices by columns and XLA by rows. If a transposed problem is solved here, its operands
need no copy between the two. A solve from the right is also faster in OpenBLAS.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

LOG_2PI = float(np.log(2.0 * np.pi))
LEAF = 64
"""Triangles larger than this are inverted by halves."""


def add_jitter(K: Float[Array, "*b m m"], jitter: Array | float) -> Float[Array, "*b m m"]:
    """K + jitter · mean(diag K) · I"""
    if K.shape[-1] == 0:
        return K
    scale = jitter * jnp.mean(jnp.diagonal(K, axis1=-2, axis2=-1), axis=-1)
    return K + scale[..., None, None] * _eye_like(K)


def factorise(K: Float[Array, "*b m m"]) -> Float[Array, "*b m m"]:
    """L with L Lᵀ = K, which must be symmetric; NaN if it is not positive definite."""
    return lax.linalg.cholesky(jnp.swapaxes(K, -1, -2), symmetrize_input=False)


def solve_lower(
    L: Float[Array, "*b m m"], B: Float[Array, "*b m k"], *, transpose: bool = False
) -> Array:
    """L⁻¹B, or L⁻ᵀB."""
    turned = jnp.swapaxes(B, -1, -2)
    solved = lax.linalg.triangular_solve(L, turned, lower=True, transpose_a=not transpose)
    return jnp.swapaxes(solved, -1, -2)


@jax.custom_jvp
def whiten(
    K: Float[Array, "*b m m"], L: Float[Array, "*b m m"], B: Float[Array, "*b m k"]
) -> Float[Array, "*b m k"]:
    """A = L⁻¹B, with L the factor of K.

    Derivatives go straight through K, dA = L⁻¹dB − Φ(L⁻¹ dK L⁻ᵀ) A with Φ the lower triangle, its diagonal
    halved: by way of dL they would take one more solve and one more product.
    """
    return solve_lower(L, B)


@whiten.defjvp
def _whiten_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (_, L, B), (dK, _, dB) = primals, tangents
    A = solve_lower(L, B)
    inner = solve_lower(L, jnp.swapaxes(solve_lower(L, dK), -1, -2))
    lower = jnp.tril(inner) - 0.5 * inner * _eye_like(inner)
    return A, solve_lower(L, dB) - lower @ A


class Moments(NamedTuple):
    """Mean and covariance of weights."""

    mean: Float[Array, " k"]
    covariance: Float[Array, "k k"]

    @property
    def second(self) -> Float[Array, "k k"]:
        """E[wwᵀ] = S + mmᵀ"""
        return self.covariance + self.mean[:, None] * self.mean[None, :]


def posterior_moments(precision: Float[Array, "k k"], linear: Float[Array, " k"]) -> Moments:
    """Mean and covariance of w under N(w; 0, I) exp(ηᵀw − ½ wᵀΛw): S = (I+Λ)⁻¹ and S η."""
    return _integrate(precision, linear)[1]


@jax.custom_jvp
def log_partition(precision: Float[Array, "k k"], linear: Float[Array, " k"]) -> Array:
    """log ∫ N(w; 0, I) exp(ηᵀw − ½ wᵀΛw) dw = ½ ηᵀ(I+Λ)⁻¹η − ½ log|I+Λ|.

    Its derivatives are the posterior's moments (in η the mean, in Λ −½ E[wwᵀ]), so one Cholesky
    factor serves the value and the gradient.
    """
    return _integrate(precision, linear)[0]


@log_partition.defjvp
def _log_partition_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    d_precision, d_linear = tangents
    value, found = _integrate(*primals)
    return value, jnp.dot(found.mean, d_linear) - 0.5 * jnp.sum(found.second * d_precision)


def _integrate(precision: Array, linear: Array) -> tuple[Array, Moments]:
    """The integral's logarithm, and the moments under it (jit drops what is not used)."""
    U = factorise(precision + _eye_like(precision)).T
    white = solve_triangular(U, linear, trans=1)
    value = 0.5 * jnp.dot(white, white) - jnp.sum(jnp.log(jnp.diagonal(U)))
    V = _inverse_upper(U)
    return value, Moments(V @ white, _square_upper(V))


def _inverse_upper(U: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """U⁻¹ by halves, so that products, which are faster than substitution, do most of the work."""
    size = U.shape[0]
    if size <= LEAF:
        eye = jnp.asarray(np.eye(size), U.dtype)
        return lax.linalg.triangular_solve(U.T, eye, lower=True).T
    half = size // 2
    first, last = _inverse_upper(U[:half, :half]), _inverse_upper(U[half:, half:])
    corner = -first @ (U[:half, half:] @ last)
    return jnp.block([[first, corner], [jnp.zeros_like(corner.T), last]])


def _square_upper(V: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """V Vᵀ, leaving out the quarter of V that is zero."""
    half = V.shape[0] // 2
    first, last = V[:half] @ V[:half].T, V[:, half:] @ V[half:, half:].T
    return jnp.block([[first, last[:half]], [last[:half].T, last[half:]]])


def _eye_like(K: Array) -> Array:
    """The identity, with as many axes as K."""
    return jnp.eye(K.shape[-1], dtype=K.dtype).reshape((1,) * (K.ndim - 2) + K.shape[-2:])
