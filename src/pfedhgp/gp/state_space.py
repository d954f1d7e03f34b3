"""Matérn processes of one input as state-space models: solves with K + noise in O(n), and nothing else.

A Matérn function of order p + ½ and its first p derivatives are Markov. With rate λ = √(2p+1)/ℓ and the state
x = (f, f'/λ, …), a step of dt is x' = F(λ dt) x + w, w ~ N(0, P − F P Fᵀ), x ~ N(0, P), and
F(a) = exp(−a) Σ_j aʲ Nʲ/j! with N nilpotent. Sums of such kernels stack their states. The Kalman filter then
gives rows of L⁻¹, L Lᵀ = b²K + diag(noise): `whiten` is L⁻¹A for any columns A, `smooth` is what the data
say of the state at any time.

`StateModel` and `interpolate` run in NumPy or JAX, as their arrays are. The filter is JAX's. For few columns
`pfedhgp.gp.banded_states` smooths in NumPy, and nothing is compiled.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Float

from pfedhgp.base.arrays_of import Array, namespace
from pfedhgp.errors import InputError
from pfedhgp.gp.kernels import Kernel, Matern12, Matern32, Matern52, Sum, leaves_of

ORDERS: dict[type, int] = {Matern12: 1, Matern32: 2, Matern52: 3}
"""States of each kernel."""
_STATIONARY = {
    1: np.eye(1),
    2: np.eye(2),
    3: np.array([[1.0, 0.0, -1.0 / 3.0], [0.0, 1.0 / 3.0, 0.0], [-1.0 / 3.0, 0.0, 1.0]]),
}


def has_states(kernel: Kernel) -> bool:
    """Whether the kernel is a Matérn 1/2, 3/2 or 5/2, or a sum of them."""
    parts = kernel.kernels if isinstance(kernel, Sum) else (kernel,)
    return all(type(part) in ORDERS for part in parts)


class StateModel(eqx.Module):
    """f(t) = observeᵀ x(t), of unit variance; one entry of `rates` for each part of a sum."""

    observe: Float[Array, " s"]
    stationary: Float[Array, "s s"]
    rates: tuple[Array, ...]
    orders: tuple[int, ...] = eqx.field(static=True)

    @staticmethod
    def of(kernel: Kernel) -> StateModel:
        """The state-space model of a kernel of one input."""
        if not has_states(kernel):
            raise InputError(
                f"a state-space layer takes Matérn kernels and sums of them, not {type(kernel).__name__}"
            )
        parts, xp = leaves_of(kernel), namespace(*jax.tree.leaves(kernel))
        weights = xp.asarray(kernel.weights) if isinstance(kernel, Sum) else xp.ones(1)
        orders = tuple(ORDERS[type(part)] for part in parts)
        rates = tuple(
            math.sqrt(2 * order - 1) / xp.asarray(part.lengthscale).reshape(())
            for part, order in zip(parts, orders, strict=True)
        )
        places = np.eye(sum(orders))[np.cumsum([0, *orders[:-1]])]
        return StateModel(
            observe=xp.sum(xp.sqrt(weights)[:, None] * places, axis=0),
            stationary=xp.asarray(scipy.linalg.block_diag(*(_STATIONARY[n] for n in orders))),
            rates=rates,
            orders=orders,
        )

    def transition(self, dt: Float[Array, " *b"]) -> Float[Array, "*b s s"]:
        """F for a step of dt."""
        parts = [
            _transition(rate * dt, order)
            for rate, order in zip(self.rates, self.orders, strict=True)
        ]
        return parts[0] if len(parts) == 1 else _block_diagonal(parts)


def _transition(a: Float[Array, " *b"], order: int) -> Float[Array, "*b o o"]:
    """exp(−a) Σ_j aʲ Nʲ/j!, N = companion + I of (1 + z)^order."""
    a = a[..., None, None]
    companion = np.diag(np.ones(order - 1), 1)
    companion[-1] = [-math.comb(order, j) for j in range(order)]
    nilpotent = companion + np.eye(order)
    lead = (1,) * (a.ndim - 2)
    total = np.eye(order).reshape(*lead, order, order)
    for j in range(1, order):
        power = np.linalg.matrix_power(nilpotent, j) / math.factorial(j)
        total = total + a**j * power.reshape(*lead, order, order)
    return namespace(a).exp(-a) * total


def _block_diagonal(blocks: list[Array]) -> Array:
    """The blocks along the diagonal of one matrix; leading axes are kept."""
    xp, size = namespace(*blocks), sum(block.shape[-1] for block in blocks)
    rows, start = [], 0
    for block in blocks:
        around = [(0, 0)] * (block.ndim - 1) + [(start, size - start - block.shape[-1])]
        rows.append(xp.pad(block, around))
        start += block.shape[-1]
    return xp.concatenate(rows, axis=-2)


class Series(eqx.Module):
    """Times in order, and the noise variance of each; `seen` is 0 at times without an observation."""

    times: Float[Array, " n"]
    variance: Float[Array, " n"]
    seen: Float[Array, " n"]

    @staticmethod
    def of_means(times: Array, counts: Float[Array, " n"], variance: Array) -> Series:
        """Each observation is the mean of `counts` with noise `variance`; 0 of them is none."""
        seen = (counts > 0).astype(times.dtype)
        return Series(times, variance / jnp.where(seen > 0, counts, 1.0), seen)


class Carry(NamedTuple):
    """The filter between two pieces of a series."""

    state: Float[Array, "s k"]
    covariance: Float[Array, "s s"]
    time: Array


class Steps(NamedTuple):
    """What the filter does at each time: predicted covariance, gain, innovation variance, transition."""

    covariance: Float[Array, "n s s"]
    gain: Float[Array, "n s"]
    variance: Float[Array, " n"]
    transition: Float[Array, "n s s"]


def start(model: StateModel, columns: int, time: Array) -> Carry:
    """Before the first row: the prior."""
    return Carry(jnp.zeros((model.observe.shape[0], columns)), model.stationary, time)


def gains(model: StateModel, scale: Array, series: Series, carry: Carry) -> tuple[Steps, Array]:
    """The part of the filter that does not look at data, and the last covariance. y = scale · f + noise."""
    dt = jnp.diff(series.times, prepend=carry.time[None])
    transition = jax.vmap(model.transition)(dt)
    H, P0 = scale * model.observe, model.stationary

    def step(P: Array, row: tuple) -> tuple[Array, tuple]:
        F, variance, seen = row
        P = F @ (P - P0) @ F.T + P0
        innovation = H @ P @ H + variance
        gain = seen * (P @ H) / innovation
        after = P - gain[:, None] * (P @ H)[None, :]
        return 0.5 * (after + after.T), (P, gain, innovation)

    last, (P, gain, innovation) = jax.lax.scan(
        step, carry.covariance, (transition, series.variance, series.seen)
    )
    return Steps(P, gain, innovation, transition), last


def whiten(
    model: StateModel, scale: Array, series: Series, columns: Float[Array, "n k"], carry: Carry
) -> tuple[Float[Array, "n k"], Array, Carry]:
    """L⁻¹A for one piece of a series (rows not seen are 0), log|L|² of it, and the filter after it."""
    steps, last = gains(model, scale, series, carry)
    errors, state = _innovations(model, scale, steps, columns, carry.state)
    root = series.seen / jnp.sqrt(steps.variance)
    log_determinant = jnp.sum(series.seen * jnp.log(steps.variance))
    return errors * root[:, None], log_determinant, Carry(state, last, series.times[-1])


def _innovations(
    model: StateModel, scale: Array, steps: Steps, columns: Array, state: Array
) -> tuple[Array, Array]:
    H = scale * model.observe

    def step(x: Array, row: tuple) -> tuple[Array, Array]:
        F, gain, a = row
        x = F @ x
        error = a - H @ x
        return x + gain[:, None] * error[None, :], error

    state, errors = jax.lax.scan(step, state, (steps.transition, steps.gain, columns), unroll=4)
    return errors, state


def smooth(
    model: StateModel, scale: Array, series: Series, columns: Float[Array, "n k"]
) -> tuple[Float[Array, "n s k"], Float[Array, "n s s"]]:
    """E[x(t) | columns as data] and Cov(x(t)) at each time, observed or not, given all of the series."""
    carry = start(model, columns.shape[1], series.times[0])
    steps, _ = gains(model, scale, series, carry)
    H = scale * model.observe
    size = H.shape[0]

    def forward(x: Array, row: tuple) -> tuple[Array, tuple]:
        F, gain, a = row
        before = F @ x
        error = a - H @ before
        return before + gain[:, None] * error[None, :], (before, error)

    _, (before, errors) = jax.lax.scan(
        forward, carry.state, (steps.transition, steps.gain, columns), unroll=4
    )
    following = jnp.concatenate([steps.transition[1:], jnp.eye(size)[None]])

    def backward(later: tuple, row: tuple) -> tuple[tuple, tuple]:
        r, N = later
        F, gain, variance, seen, error, x, P = row
        keep = jnp.eye(size) - gain[:, None] * H[None, :]
        r, N = F.T @ r, F.T @ N @ F
        r = keep.T @ r + (seen / variance) * H[:, None] * error[None, :]
        N = keep.T @ N @ keep + (seen / variance) * H[:, None] * H[None, :]
        return (r, N), (x + P @ r, P - P @ N @ P)

    zero = (jnp.zeros((size, columns.shape[1])), jnp.zeros((size, size)))
    _, (states, covariances) = jax.lax.scan(
        backward,
        zero,
        (following, steps.gain, steps.variance, series.seen, errors, before, steps.covariance),
        reverse=True,
    )
    return states, covariances


def interpolate(
    model: StateModel,
    times: Float[Array, " n"],
    states: Float[Array, "n s"],
    at: Float[Array, " m"],
) -> Float[Array, "m s"]:
    """E[x(t) | x at `times`], `times` all different and in order: exact, since x is Markov."""
    P, xp = model.stationary[None], namespace(times, states, at)
    last = times.shape[0] - 1

    def outside() -> Array:
        F = xp.swapaxes(model.transition(xp.maximum(times[0] - at, 0.0)), -1, -2)
        before = P @ F @ xp.linalg.solve(P, states[:1][..., None])
        beyond = model.transition(xp.maximum(at - times[-1], 0.0)) @ states[-1:][..., None]
        return xp.where((at < times[0])[:, None], before[..., 0], beyond[..., 0])

    if last == 0:
        return outside()
    k = xp.clip(xp.searchsorted(times, at, side="right"), 1, last)
    t = xp.clip(at, times[0], times[-1])
    F1, F2 = model.transition(t - times[k - 1]), model.transition(times[k] - t)
    back = xp.swapaxes(F2, -1, -2)
    Q1, Q2 = P - F1 @ P @ xp.swapaxes(F1, -1, -2), P - F2 @ P @ back
    ahead = F1 @ states[k - 1][..., None]
    both = F2 @ Q1 @ back + Q2 + 1e-14 * np.eye(P.shape[1])[None]
    inside = ahead + Q1 @ back @ xp.linalg.solve(both, states[k][..., None] - F2 @ ahead)
    out = (at < times[0]) | (at > times[-1])
    return xp.where(out[:, None], outside(), inside[..., 0])
