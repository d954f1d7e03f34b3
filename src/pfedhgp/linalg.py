"""The two pieces of linear algebra that everything shares: a relative jitter and a Gaussian integral."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float


def cholesky(K: Float[Array, "*b m m"], jitter: Array | float) -> Float[Array, "*b m m"]:
    """L with L Lᵀ = K + jitter · mean(diag K) · I; NaN where that is not positive definite."""
    size = K.shape[-1]
    if size == 0:
        return K
    scale = jitter * jnp.mean(jnp.diagonal(K, axis1=-2, axis2=-1), axis=-1)
    return jnp.linalg.cholesky(K + scale[..., None, None] * _eye_like(K))


def solve_lower(
    L: Float[Array, "*b m m"], B: Float[Array, "*b m k"], *, transpose: bool = False
) -> Array:
    """L⁻¹B, or L⁻ᵀB."""
    return solve_triangular(L, B, lower=True, trans=1 if transpose else 0)


def posterior_moments(
    precision: Float[Array, "k k"], linear: Float[Array, " k"]
) -> tuple[Float[Array, " k"], Float[Array, "k k"]]:
    """Mean and covariance of w under N(w; 0, I) exp(ηᵀw − ½ wᵀΛw): S = (I+Λ)⁻¹ and S η."""
    factor = _factor(precision)
    covariance = cho_solve((factor, True), _eye_like(precision))
    return covariance @ linear, covariance


@jax.custom_jvp
def log_partition(precision: Float[Array, "k k"], linear: Float[Array, " k"]) -> Array:
    """log ∫ N(w; 0, I) exp(ηᵀw − ½ wᵀΛw) dw = ½ ηᵀ(I+Λ)⁻¹η − ½ log|I+Λ|.

    Its derivatives are the posterior's moments (in η the mean, in Λ −½ E[wwᵀ]), so one Cholesky
    factor serves the value and the gradient.
    """
    factor = _factor(precision)
    white = solve_triangular(factor, linear, lower=True)
    return 0.5 * jnp.dot(white, white) - jnp.sum(jnp.log(jnp.diagonal(factor)))


@log_partition.defjvp
def _log_partition_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (precision, linear), (d_precision, d_linear) = primals, tangents
    factor = _factor(precision)
    white = solve_triangular(factor, linear, lower=True)
    value = 0.5 * jnp.dot(white, white) - jnp.sum(jnp.log(jnp.diagonal(factor)))
    covariance = cho_solve((factor, True), _eye_like(precision))
    mean = covariance @ linear
    second_moment = covariance + mean[:, None] * mean[None, :]
    return value, jnp.dot(mean, d_linear) - 0.5 * jnp.sum(second_moment * d_precision)


def _factor(precision: Array) -> Array:
    return jnp.linalg.cholesky(precision + _eye_like(precision))


def _eye_like(K: Array) -> Array:
    """The identity, with as many axes as K."""
    return jnp.eye(K.shape[-1], dtype=K.dtype).reshape((1,) * (K.ndim - 2) + K.shape[-2:])
