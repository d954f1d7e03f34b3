"""An exact GP for each station and output alone, with yearly, weekly and daily waves.

y = A w + f + ε: waves A of the year, the week and the day with weights w ~ N(0, diag s²) (periodic kernels of
few harmonics), f a Matérn 1/2 function (Kalman filter), ε white noise. Parameters maximise the likelihood.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pfedhgp.base.numerics import with_numerics
from pfedhgp.gp import linalg
from pfedhgp.gp import state_space as ss
from pfedhgp.gp.kernels import Matern12
from pfedhgp.inference import lbfgs
from pfedhgp.inference.structured.state_space_sums import observed

PERIODS = ((365.25, 2), (7.0, 2), (1.0, 4))
"""Periods in days, each with its number of harmonics."""
EVALUATIONS = 40


class Waves(NamedTuple):
    """cos and sin at each time, and the period that each column belongs to."""

    columns: np.ndarray
    period: np.ndarray


def waves(t: np.ndarray) -> Waves:
    """The waves of `PERIODS` at times in days."""
    columns, which = [], []
    for i, (period, harmonics) in enumerate(PERIODS):
        for k in range(1, harmonics + 1):
            angle = 2.0 * np.pi * k * t / period
            columns += [np.cos(angle) / k, np.sin(angle) / k]
            which += [i, i]
    return Waves(np.column_stack(columns), np.array(which))


class _Whitened(NamedTuple):
    """A series under one value of the parameters, with the rest of the model integrated out."""

    model: ss.StateModel
    scale: Array
    noise: Array
    series: ss.Series
    columns: Array
    """[A diag(s) | y]"""
    gram: Array
    """columnsᵀ (b²K + σ²)⁻¹ columns"""
    log_scale: Array
    """−½ log |b²K + σ²|, and the constants of the density"""


def _whitened(
    free: Float[Array, " P"], t: Array, y: Array, mask: Array, A: Array, which: np.ndarray
) -> _Whitened:
    """`free` is log (ℓ, b, σ², s of each period)."""
    length, scale, noise = jnp.exp(free[:3])
    series, constant = observed(t, mask, noise)
    model = ss.StateModel.of(Matern12(length))
    columns = jnp.concatenate([A * jnp.exp(free[3:])[which][None, :], y[:, None]], axis=1)
    start = ss.start(model, columns.shape[1], t[0])
    white, log_det, _ = ss.whiten(model, scale, series, columns, start)
    log_scale = constant - 0.5 * log_det
    return _Whitened(model, scale, noise, series, columns, white.T @ white, log_scale)


def log_evidence(
    free: Float[Array, " P"], t: Array, y: Array, mask: Array, A: Array, which: np.ndarray
) -> Array:
    """log N(y; 0, A diag(s²) Aᵀ + b²K + σ²) over observed cells."""
    found = _whitened(free, t, y, mask, A, which)
    G = found.gram
    return found.log_scale - 0.5 * G[-1, -1] + linalg.log_partition(G[:-1, :-1], G[:-1, -1])


def moments(
    free: Float[Array, " P"], t: Array, y: Array, mask: Array, A: Array, which: np.ndarray
) -> tuple[Array, Array]:
    """Mean and variance of a new observation at every time, observed or not."""
    found = _whitened(free, t, y, mask, A, which)
    mean, covariance = linalg.posterior_moments(found.gram[:-1, :-1], found.gram[:-1, -1])
    states, spread = ss.smooth(found.model, found.scale, found.series, found.columns)
    h = found.scale * found.model.observe
    local = jnp.einsum("s,nsk->nk", h, states)
    lean = found.columns[:, :-1] - local[:, :-1]
    known = jnp.sum((lean @ covariance) * lean, axis=1) + jnp.einsum("s,nst,t->n", h, spread, h)
    return lean @ mean + local[:, -1], known + found.noise


@with_numerics
def station_gps(
    t: np.ndarray, Y: Float[np.ndarray, "n c"]
) -> tuple[Float[np.ndarray, "n c"], Float[np.ndarray, "n c"]]:
    """Means and sds at all times for each column of Y (NaN: missing), each by itself."""
    centre, spread = np.nanmean(Y, axis=0), np.nanstd(Y, axis=0)
    unit = (Y - centre) / spread
    mask = np.isfinite(unit).astype(np.float64)
    found = waves(t)
    mean, variance = _fit(
        jnp.asarray(t),
        jnp.asarray(np.where(mask > 0, unit, 0.0).T),
        jnp.asarray(mask.T),
        jnp.asarray(found.columns),
        tuple(int(v) for v in found.period),
    )
    return np.asarray(mean).T * spread + centre, np.sqrt(np.asarray(variance)).T * spread


def _fit(t: Array, Y: Array, mask: Array, A: Array, period: tuple[int, ...]) -> tuple:
    which = np.asarray(period)
    start = jnp.log(jnp.asarray([1.0, 0.7, 0.02] + [0.3] * len(PERIODS)))

    def one(y: Array, seen: Array) -> tuple[Array, Array]:
        def objective(z: Array) -> Array:  # with a weak prior, as our own parameters have
            return 0.125 * jnp.sum((z - start) ** 2) - log_evidence(z, t, y, seen, A, which)

        best = lbfgs.minimize(
            objective, start, evaluations=EVALUATIONS, movable=jnp.ones_like(start)
        )
        return moments(best.x, t, y, seen, A, which)

    return jax.jit(jax.vmap(one))(Y, mask)
