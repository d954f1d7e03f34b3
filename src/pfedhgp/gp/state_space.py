"""Matérn processes of one input as state-space models: solves with K + noise in O(n), and nothing else.

A Matérn function of order p + ½ and its first p derivatives are Markov. With rate λ = √(2p+1)/ℓ and the state
x = (f, f'/λ, …), a step of dt is x' = F(λ dt) x + w, w ~ N(0, P − F P Fᵀ), x ~ N(0, P), and
F(a) = exp(−a) Σ_j aʲ Nʲ/j! with N nilpotent. Sums of such kernels stack their states. The Kalman filter then
gives rows of L⁻¹, L Lᵀ = b²K + diag(noise): `whiten` is L⁻¹A for any columns A, `smooth` is what the data
say of the state at any time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.scipy.linalg import block_diag
from jaxtyping import Array, Float

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
        parts = leaves_of(kernel)
        weights = jnp.asarray(kernel.weights) if isinstance(kernel, Sum) else jnp.ones(1)
        orders = tuple(ORDERS[type(part)] for part in parts)
        rates = tuple(
            math.sqrt(2 * order - 1) / jnp.asarray(part.lengthscale).reshape(())
            for part, order in zip(parts, orders, strict=True)
        )
        first = np.cumsum([0, *orders[:-1]])
        observe = jnp.zeros(sum(orders)).at[first].set(jnp.sqrt(weights))
        return StateModel(
            observe=observe,
            stationary=jnp.asarray(scipy.linalg.block_diag(*(_STATIONARY[n] for n in orders))),
            rates=rates,
            orders=orders,
        )

    def transition(self, dt: Array) -> Float[Array, "s s"]:
        """F for a step of dt."""
        parts = [
            _transition(rate * dt, order)
            for rate, order in zip(self.rates, self.orders, strict=True)
        ]
        return parts[0] if len(parts) == 1 else block_diag(*parts)


def _transition(a: Array, order: int) -> Array:
    """exp(−a) Σ_j aʲ Nʲ/j!, N = companion + I of (1 + z)^order."""
    companion = np.diag(np.ones(order - 1), 1)
    companion[-1] = [-math.comb(order, j) for j in range(order)]
    nilpotent = companion + np.eye(order)
    total = jnp.zeros((order, order))
    for j in range(order):
        power = np.linalg.matrix_power(nilpotent, j) / math.factorial(j)
        total = total + a**j * jnp.asarray(power)
    return jnp.exp(-a) * total


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
    P = model.stationary
    after = jnp.clip(jnp.searchsorted(times, at, side="right"), 1, times.shape[0] - 1)

    def between(t: Array, k: Array) -> Array:
        left, right = t - times[k - 1], times[k] - t
        F1, F2 = model.transition(left), model.transition(right)
        Q1, Q2 = P - F1 @ P @ F1.T, P - F2 @ P @ F2.T
        ahead = F1 @ states[k - 1]
        both = F2 @ Q1 @ F2.T + Q2 + 1e-14 * jnp.eye(P.shape[0])
        return ahead + Q1 @ F2.T @ jnp.linalg.solve(both, states[k] - F2 @ ahead)

    def outside(t: Array) -> Array:
        before = P @ model.transition(times[0] - t).T @ jnp.linalg.solve(P, states[0])
        return jnp.where(t < times[0], before, model.transition(t - times[-1]) @ states[-1])

    if times.shape[0] == 1:
        return jax.vmap(outside)(at)
    inside = jax.vmap(between)(jnp.clip(at, times[0], times[-1]), after)
    out = (at < times[0]) | (at > times[-1])
    return jnp.where(out[:, None], jax.vmap(outside)(at), inside)
