"""The linear algebra that everything shares: a relative jitter, solves, and a Gaussian integral.

All of it takes leading axes, and runs in NumPy and LAPACK or in JAX, as its arrays are. A matrix that is
not positive definite gives NaN in both.

LAPACK keeps matrices by columns, NumPy and XLA by rows. If a transposed problem is solved here, its
operands need no copy between the two. A solve from the right is also faster in OpenBLAS.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float
from scipy.linalg import blas, lapack

from pfedhgp.base.arrays_of import Array, namespace
from pfedhgp.gp import lapack as unlocked

LOG_2PI = float(np.log(2.0 * np.pi))
LARGE = 128
"""From so many rows on, matrices are computed without Python's lock; below, taking it back costs more."""
SMALL, MANY = 24, 8
"""Up to so many rows, and from so many matrices on, NumPy's own loop over matrices is faster than ours."""
LEAF = 64
"""JAX inverts triangles larger than this by halves; NumPy mirrors them in strips of so many rows."""


def add_jitter(K: Float[Array, "*b m m"], jitter: Array | float) -> Float[Array, "*b m m"]:
    """K + jitter · mean(diag K) · I"""
    if K.shape[-1] == 0:
        return K
    xp = namespace(K, jitter)
    scale = jitter * xp.mean(xp.diagonal(K, axis1=-2, axis2=-1), axis=-1)
    if xp is not np:
        return K + scale[..., None, None] * _eye_like(K)
    return _plus_on_diagonal(K, scale[..., None])


def factorise(K: Float[Array, "*b m m"]) -> Float[Array, "*b m m"]:
    """L with L Lᵀ = K, which must be symmetric; NaN if it is not positive definite."""
    if namespace(K) is not np:
        return lax.linalg.cholesky(jnp.swapaxes(K, -1, -2), symmetrize_input=False)
    small = _small_factors(K)
    if small is not None:
        return small
    factors = _copied(K)
    if not factors.size:
        return factors
    for at in np.ndindex(K.shape[:-2]):
        L = factors[at]
        if _factorise_in_place(L):
            _clear_upper(L)
        else:
            L[...] = np.nan
    return factors


def solve_lower(
    L: Float[Array, "*b m m"], B: Float[Array, "*b m k"], *, transpose: bool = False
) -> Float[Array, "*b m k"]:
    """L⁻¹B, or L⁻ᵀB."""
    xp = namespace(L, B)
    if L.shape[:-2] != B.shape[:-2]:
        lead = np.broadcast_shapes(L.shape[:-2], B.shape[:-2])
        L, B = (xp.broadcast_to(A, (*lead, *A.shape[-2:])) for A in (L, B))
    if xp is not np:
        turned = jnp.swapaxes(B, -1, -2)
        solved = lax.linalg.triangular_solve(L, turned, lower=True, transpose_a=not transpose)
        return jnp.swapaxes(solved, -1, -2)
    found = _copied(B)
    if found.size:
        for at in np.ndindex(B.shape[:-2]):
            if L.shape[-1] >= LARGE:
                unlocked.solve(np.ascontiguousarray(L[at]), found[at], transpose=transpose)
            else:
                blas.dtrsm(1.0, L[at].T, found[at].T, 1, 0, int(transpose), overwrite_b=1)
    return found


def whiten(
    K: Float[Array, "*b m m"], L: Float[Array, "*b m m"], B: Float[Array, "*b m k"]
) -> Float[Array, "*b m k"]:
    """A = L⁻¹B, with L the factor of K.

    JAX's derivatives go straight through K, dA = L⁻¹dB − Φ(L⁻¹ dK L⁻ᵀ) A with Φ the lower triangle, its
    diagonal halved: by way of dL they would take one more solve and one more product.
    """
    return solve_lower(L, B) if namespace(K, L, B) is np else _whiten(K, L, B)


@jax.custom_jvp
def whiten_turned(K: Array, L: Array, B: Array) -> Array:
    """A = L⁻¹B for JAX, where only AᵀA matters: derivatives are right up to a rotation of A's rows.

    dA = L⁻¹(dB − ½ dK K⁻¹B) gives the same d(AᵀA) as the factor's own derivative. That one has the rounding
    of L⁻¹ dK L⁻ᵀ, which for a nearly singular K is 10⁴ times larger, and takes a solve more.
    """
    return solve_lower(L, B)


@whiten_turned.defjvp
def _whiten_turned_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (_, L, B), (dK, _, dB) = primals, tangents
    A = solve_lower(L, B)
    return A, solve_lower(L, dB - 0.5 * (dK @ solve_lower(L, A, transpose=True)))


@jax.custom_jvp
def interpolate(K: Array, L: Array, B: Array) -> Array:
    """K⁻¹B for JAX, with L the factor of K: dX = K⁻¹(dB − dK X)."""
    return solve_lower(L, solve_lower(L, B), transpose=True)


@interpolate.defjvp
def _interpolate_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (_, L, B), (dK, _, dB) = primals, tangents
    X = solve_lower(L, solve_lower(L, B), transpose=True)
    return X, solve_lower(L, solve_lower(L, dB - dK @ X), transpose=True)


@jax.custom_jvp
def _whiten(K: Array, L: Array, B: Array) -> Array:
    return solve_lower(L, B)


@_whiten.defjvp
def _whiten_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (_, L, B), (dK, _, dB) = primals, tangents
    A = solve_lower(L, B)
    inner = solve_lower(L, jnp.swapaxes(solve_lower(L, dK), -1, -2))
    lower = jnp.tril(inner) - 0.5 * inner * _eye_like(inner)
    return A, solve_lower(L, dB) - lower @ A


class Moments(NamedTuple):
    """Mean and covariance of weights."""

    mean: Float[Array, "*b k"]
    covariance: Float[Array, "*b k k"]

    @property
    def second(self) -> Float[Array, "*b k k"]:
        """E[wwᵀ] = S + mmᵀ"""
        return self.covariance + self.mean[..., :, None] * self.mean[..., None, :]


def posterior_moments(precision: Float[Array, "*b k k"], linear: Float[Array, "*b k"]) -> Moments:
    """Mean and covariance of w under N(w; 0, I) exp(ηᵀw − ½ wᵀΛw): S = (I+Λ)⁻¹ and S η."""
    return integrate(precision, linear)[1]


def log_partition(
    precision: Float[Array, "*b k k"], linear: Float[Array, "*b k"]
) -> Float[Array, "*b"]:
    """log ∫ N(w; 0, I) exp(ηᵀw − ½ wᵀΛw) dw = ½ ηᵀ(I+Λ)⁻¹η − ½ log|I+Λ|.

    Its derivatives are the posterior's moments (in η the mean, in Λ −½ E[wwᵀ]), so one Cholesky
    factor serves the value and the gradient.
    """
    if namespace(precision, linear) is np:
        return log_partition_and_mean(precision, linear)[0]
    return _log_partition(precision, linear)


def log_partition_and_mean(
    precision: Float[np.ndarray, "*b k k"], linear: Float[np.ndarray, "*b k"]
) -> tuple[Float[np.ndarray, "*b"], Float[np.ndarray, "*b k"]]:
    """The same with S η, in NumPy: a third of the work of `integrate`, which inverts."""
    value, moments = _integrate_on_host(precision, linear, covariance=False)
    return value, moments.mean


@jax.custom_jvp
def _log_partition(precision: Array, linear: Array) -> Array:
    return integrate(precision, linear)[0]


@_log_partition.defjvp
def _log_partition_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    d_precision, d_linear = tangents
    value, found = integrate(*primals)
    by_linear = jnp.sum(found.mean * d_linear, axis=-1)
    return value, by_linear - 0.5 * jnp.sum(found.second * d_precision, axis=(-2, -1))


def integrate(
    precision: Float[Array, "*b k k"], linear: Float[Array, "*b k"]
) -> tuple[Float[Array, "*b"], Moments]:
    """(`log_partition`, `posterior_moments`) from one factorisation (jit drops what is not used)."""
    if namespace(precision, linear) is np:
        return _integrate_on_host(precision, linear, covariance=True)
    U = jnp.swapaxes(factorise(precision + _eye_like(precision)), -1, -2)
    white = lax.linalg.triangular_solve(U, linear[..., None, :])[..., 0, :]
    logs = jnp.log(jnp.diagonal(U, axis1=-2, axis2=-1))
    value = 0.5 * jnp.sum(white * white, axis=-1) - jnp.sum(logs, axis=-1)
    V = _inverse_upper(U)
    return value, Moments((V @ white[..., None])[..., 0], _square_upper(V))


def _integrate_on_host(precision: Any, linear: Any, *, covariance: bool) -> tuple[Any, Moments]:
    """The same by dpotrf and dpotri, in place in one copy; `covariance`: whether it is wanted."""
    work = _plus_on_diagonal(precision, 1.0)
    small = _small_factors(work)
    if small is not None:
        found = _solved_by(small, work, linear, inverse=covariance)
        left = work if found.inverse is None else found.inverse
        return 0.5 * found.quadratic - found.logs, Moments(found.solved, left)
    mean, value = _copied(linear), np.zeros(linear.shape[:-1])
    if not linear.shape[-1]:
        return value[()], Moments(mean, work)
    for at in np.ndindex(value.shape):
        quadratic, logs = _solve_in_place(work[at], mean[at], inverse=covariance)
        value[at] = 0.5 * quadratic - logs
    return value[()], Moments(mean, work)


def _solve_in_place(S: np.ndarray, x: np.ndarray, *, inverse: bool = True) -> tuple[float, float]:
    """xᵀS⁻¹x and ½ log|S|; leaves S⁻¹ in S and S⁻¹x in x. NaN in all if S is not positive definite.

    Without `inverse`, what is left in S is of no use.
    """
    if not _factorise_in_place(S):
        x[...], S[...] = np.nan, np.nan
        return np.nan, np.nan
    U = S.T
    blas.dtrsv(U, x, trans=1, overwrite_x=1)
    found = float(x @ x), float(np.log(U.diagonal()).sum())
    blas.dtrsv(U, x, overwrite_x=1)
    if inverse:
        _invert_in_place(S)
    return found


def _small_factors(K: np.ndarray) -> np.ndarray | None:
    """L of many small matrices together; None if they are few or large, or one is not positive definite."""
    if not 0 < K.shape[-1] <= SMALL or K.ndim < 3 or K[..., 0, 0].size < MANY:
        return None
    try:
        found = np.linalg.cholesky(K)
    except np.linalg.LinAlgError:
        return None
    return found if np.isfinite(found).all() else None


class _Solved(NamedTuple):
    """xᵀS⁻¹x, ½ log|S|, S⁻¹x and, if it is wanted, S⁻¹."""

    quadratic: np.ndarray
    logs: np.ndarray
    solved: np.ndarray
    inverse: np.ndarray | None


def _solved_by(L: np.ndarray, S: np.ndarray, x: np.ndarray, *, inverse: bool) -> _Solved:
    """For small matrices S = L Lᵀ; S⁻¹ is L⁻ᵀL⁻¹."""
    logs = np.log(np.diagonal(L, axis1=-2, axis2=-1)).sum(-1)
    if not inverse:
        solved = np.linalg.solve(S, x[..., None])[..., 0]
        return _Solved((x * solved).sum(-1), logs, solved, None)
    half = np.linalg.inv(L)
    turned = np.swapaxes(half, -1, -2)
    white = half @ x[..., None]
    return _Solved((white**2).sum((-1, -2)), logs, (turned @ white)[..., 0], turned @ half)


def _factorise_in_place(K: np.ndarray) -> bool:
    """L in the lower triangle of K; False if K is not positive definite."""
    if len(K) >= LARGE:
        return unlocked.factorise(K)
    return not lapack.dpotrf(K.T, lower=0, clean=0, overwrite_a=1)[1]


def _invert_in_place(L: np.ndarray) -> None:
    """(L Lᵀ)⁻¹ instead of a factor L."""
    if len(L) >= LARGE:
        unlocked.invert(L)
    else:
        lapack.dpotri(L.T, lower=0, overwrite_c=1)
    _mirror_lower(L)


def inverse_by_factor(L: Float[np.ndarray, "*b m m"]) -> Float[np.ndarray, "*b m m"]:
    """(L Lᵀ)⁻¹, in NumPy."""
    found = _copied(L)
    if found.size:
        for at in np.ndindex(L.shape[:-2]):
            _invert_in_place(found[at])
    return found


class LogNormal(NamedTuple):
    """log N(r; 0, C), C⁻¹r and, if it is wanted, C⁻¹."""

    value: np.ndarray
    solved: np.ndarray
    inverse: np.ndarray | None


def log_normal(
    C: Float[np.ndarray, "*b k k"], r: Float[np.ndarray, "*b k"], *, inverse: bool = True
) -> LogNormal:
    """log N(r; 0, C) with what its gradient needs, in NumPy; NaN where C is not positive definite."""
    small = _small_factors(C)
    if small is not None:
        found = _solved_by(small, C, r, inverse=inverse)
        log = -0.5 * (r.shape[-1] * LOG_2PI + found.quadratic) - found.logs
        return LogNormal(log, found.solved, found.inverse)
    work, solved = _copied(C), _copied(r)
    value = np.full(r.shape[:-1], -0.5 * r.shape[-1] * LOG_2PI)
    for at in np.ndindex(value.shape):
        quadratic, logs = _solve_in_place(work[at], solved[at], inverse=inverse)
        value[at] -= 0.5 * quadratic + logs
    return LogNormal(value, solved, work if inverse else None)


def _mirror_lower(S: np.ndarray) -> None:
    """Copies the lower triangle to the upper one, in place."""
    for start in range(0, len(S), LEAF):
        strip = S[start : start + LEAF, : start + LEAF]
        S[:start, start : start + LEAF] = strip[:, :start].T
        corner = strip[:, start:]
        np.copyto(corner, corner.T, where=_above(len(corner)))


def _clear_upper(S: np.ndarray) -> None:
    """Zeroes above the diagonal, in place."""
    for start in range(0, len(S), LEAF):
        rows = S[start : start + LEAF]
        rows[:, start + LEAF :] = 0.0
        corner = rows[:, start : start + LEAF]
        np.copyto(corner, 0.0, where=_above(len(corner)))


@functools.cache
def _above(size: int) -> np.ndarray:
    """True above the diagonal."""
    return np.triu(np.ones((size, size), bool), 1)


def _inverse_upper(U: Float[Array, "*b k k"]) -> Float[Array, "*b k k"]:
    """U⁻¹ by halves, so that products, which are faster than substitution, do most of the work."""
    size = U.shape[-1]
    if size <= LEAF:
        eye = jnp.broadcast_to(_eye_like(U), U.shape)
        turned = lax.linalg.triangular_solve(jnp.swapaxes(U, -1, -2), eye, lower=True)
        return jnp.swapaxes(turned, -1, -2)
    half = size // 2
    first, last = _inverse_upper(U[..., :half, :half]), _inverse_upper(U[..., half:, half:])
    corner = -first @ (U[..., :half, half:] @ last)
    return jnp.block([[first, corner], [jnp.zeros_like(jnp.swapaxes(corner, -1, -2)), last]])


def _square_upper(V: Float[Array, "*b k k"]) -> Float[Array, "*b k k"]:
    """V Vᵀ, leaving out the quarter of V that is zero."""
    half = V.shape[-1] // 2
    turned = jnp.swapaxes(V, -1, -2)
    first, last = V[..., :half, :] @ turned[..., :half], V[..., half:] @ turned[..., half:, half:]
    corner = last[..., :half, :]
    return jnp.block([[first, corner], [jnp.swapaxes(corner, -1, -2), last[..., half:, :]]])


def diagonal_matrix(values: Float[Array, "*b k"]) -> Float[Array, "*b k k"]:
    """Matrices with these diagonals."""
    size = values.shape[-1]
    eye = np.eye(size, dtype=bool).reshape((1,) * (values.ndim - 1) + (size, size))
    return namespace(values).where(eye, values[..., None], 0.0)


def _eye_like(K: Array) -> Array:
    """The identity, with as many axes as K."""
    return jnp.eye(K.shape[-1], dtype=K.dtype).reshape((1,) * (K.ndim - 2) + K.shape[-2:])


def _plus_on_diagonal(K: Any, number: Any) -> Any:
    """A copy of the matrices with a number, or one for each matrix, added to their diagonals."""
    found = _copied(K)
    found.reshape(*K.shape[:-2], K.shape[-1] ** 2)[..., :: K.shape[-1] + 1] += number
    return found


def _copied(A: Any) -> Any:
    """A copy by rows, which BLAS and LAPACK may change in place."""
    return np.array(A, np.float64, order="C")


def psd_factor(matrix: np.ndarray) -> np.ndarray:
    """F with F Fᵀ = matrix; where Cholesky fails, from eigenvalues cut off at zero."""
    symmetric = 0.5 * (matrix + matrix.T)
    try:
        return np.linalg.cholesky(symmetric)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(symmetric)
        return vectors * np.sqrt(np.maximum(values, 0.0))
