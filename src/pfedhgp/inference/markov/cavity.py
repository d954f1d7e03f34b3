"""A client beside what all others know of the shared functions: its evidence in O(n), and Laplace's Gaussian.

The others' q(u) at the knots is a Markov chain, u_k | u_j ~ N(m_k + A(u_j − m_j), W). Beside it stands the
client's drift, and a Kalman filter of both has
    log p(y | c, ψ, others) = log ∫ q₋ᵢ(u) N(y; cᵀu, N_ψ) du
exactly, outputs together. After training, and for a client that joins later, c and ψ = log (ℓ, b², σ²) are
found on it, and its curvature there says how sure they are. (The curvature of a round's step would not do: it
takes u as known, although a client with few rows may lean on it.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from pfedhgp.inference import host_lbfgs
from pfedhgp.inference.markov.knots import KnotPosterior
from pfedhgp.inference.markov.step import ExpectedLogs, LoadingsPrior, Series, log_constant

Array = np.ndarray
LOGS = 3
SLOPE_STEP, CURVATURE_STEP = 1e-3, 0.1
"""Of differences, in standard deviations as they are guessed before the search."""
SETTLED = 1e-3
"""Nats: a search ends when two steps in a row gained less than this."""
FURTHEST = 12.0
"""How far a search may go, in these units: further out the arithmetic may overflow."""
GUESSED_SD = 0.5
"""of ψ, before the search"""


class Chain(NamedTuple):
    """The others' q(u) at the rows of clients: δu_n = A_n δu_{n−1} + w, w ~ N(0, W_n), around its mean."""

    mean: Float[Array, "c n R"]
    step: Float[Array, "c n R R"]
    spread: Float[Array, "c n R R"]

    @staticmethod
    def of(each: list[KnotPosterior], knots: Float[Array, "c n"]) -> Chain:
        """From q(u) as each client's others have it, and the knots of its rows in order of time."""
        parts = [_at_rows(q, which) for q, which in zip(each, knots, strict=True)]
        return Chain(*(np.stack(arrays) for arrays in zip(*parts, strict=True)))


def _at_rows(q: KnotPosterior, which: Float[Array, " n"]) -> tuple[Array, Array, Array]:
    """Means, and steps from the knot of one row to that of the next."""
    R = q.mean.shape[1]
    forward = np.swapaxes(np.linalg.solve(q.covariance[:-1], q.between), 1, 2)
    left = q.covariance[1:] - forward @ q.between
    A, W = np.zeros((len(which), R, R)), np.zeros((len(which), R, R))
    A[0], W[0] = 0.0, q.covariance[which[0]]
    for n in range(1, len(which)):
        step, spread = np.eye(R), np.zeros((R, R))
        for j in range(which[n - 1], which[n]):
            step, spread = forward[j] @ step, forward[j] @ spread @ forward[j].T + left[j]
        A[n], W[n] = step, spread
    return q.mean[which], A, 0.5 * (W + np.swapaxes(W, 1, 2))


class Beside(NamedTuple):
    """Clients beside their others: series (Q of each client, one after another), chain and priors."""

    series: Series
    chain: Chain
    prior: LoadingsPrior
    expected: ExpectedLogs

    @property
    def outputs(self) -> int:
        return len(self.series.times) // len(self.chain.mean)

    def of_some(self, which: Array) -> Beside:
        Q = self.outputs
        every = (which[:, None] * Q + np.arange(Q)).reshape(-1)
        return Beside(
            self.series.of_some(every),
            Chain(*(array[which] for array in self.chain)),
            self.prior.of_some(every),
            self.expected.of_some(every),
        )

    def log_evidence(
        self, c: Float[Array, "c p Q R"], logs: Float[Array, "c p Q 3"]
    ) -> Float[Array, "c p"]:
        """log p(y | c, ψ, others) of each client at p points."""
        count, points, Q, R = c.shape
        series, chain = self.series, self.chain
        length, variance, noise = np.exp(np.moveaxis(logs, 3, 0))
        n = series.times.shape[1]
        steps = np.diff(series.times, axis=1, prepend=series.times[:, :1])
        shape = (count, Q, n)
        steps, weights = steps.reshape(shape), series.weights.reshape(shape)
        left = series.values.reshape(shape)[:, None] - np.einsum(
            "cpqr,cnr->cpqn", c, chain.mean, optimize=True
        )
        x, P = np.zeros((count, points, R + Q)), np.zeros((count, points, R + Q, R + Q))
        index = np.arange(R, R + Q)
        P[..., index, index] = variance
        total = np.zeros((count, points))
        observe = np.concatenate([c, np.broadcast_to(np.eye(Q), (count, points, Q, Q))], axis=3)
        for i in range(n):
            rho = np.exp(-steps[:, None, :, i] / length)
            x, P = _predicted(x, P, chain.step[:, None, i], chain.spread[:, None, i], rho, variance)
            for q in range(Q):
                weight = weights[:, q, i]
                seen = weight > 0
                if not seen.any():
                    continue
                h = observe[..., q, :]
                Ph = (P @ h[..., None])[..., 0]
                V = (h * Ph).sum(-1) + noise[..., q] / np.maximum(weight, 1e-300)[:, None]
                gap = left[..., q, i] - (h * x).sum(-1)
                here = seen[:, None]
                total -= np.where(here, np.log(V) + gap**2 / V, 0.0)
                gain = np.where(here, 1.0 / V, 0.0)[..., None] * Ph
                x = x + gain * gap[..., None]
                P = P - gain[..., :, None] * Ph[..., None, :]
        flat = np.moveaxis(noise, 2, 1).reshape(count * Q, points)
        fixed = np.stack([log_constant(series, flat[:, p]) for p in range(points)], axis=1)
        return 0.5 * total + fixed.reshape(count, Q, points).sum(1)

    def log_density(
        self, c: Float[Array, "c p Q R"], logs: Float[Array, "c p Q 3"]
    ) -> Float[Array, "c p"]:
        """log p(c, ψ | y, others), up to a constant."""
        count, _, Q, R = c.shape
        gap = c - self.prior.mean.reshape(count, 1, Q, R)
        pull = self.prior.precision.reshape(count, 1, Q, R, R)
        own = (gap * (pull @ gap[..., None])[..., 0]).sum((2, 3))
        mean, precision = (each.reshape(count, 1, Q, LOGS) for each in self.expected)
        return (
            self.log_evidence(c, logs)
            - 0.5 * own
            + ExpectedLogs(mean, precision).log_density(logs).sum(2)
        )


def _predicted(
    x: Array, P: Array, A: Array, W: Array, rho: Array, variance: Array
) -> tuple[Array, Array]:
    """Mean and covariance of (δu, drifts) one row later."""
    R, Q = A.shape[-1], rho.shape[-1]
    x = np.concatenate([(A @ x[..., :R, None])[..., 0], rho * x[..., R:]], axis=-1)
    top = A @ P[..., :R, :]
    bottom = rho[..., None] * P[..., R:, :]
    half = np.concatenate([top, bottom], axis=-2)
    P = np.concatenate(
        [half[..., :R] @ np.swapaxes(A, -1, -2), half[..., R:] * rho[..., None, :]], axis=-1
    )
    P[..., :R, :R] += W
    index = np.arange(R, R + Q)
    P[..., index, index] += variance * (1.0 - rho**2)
    return x, P


class Found(NamedTuple):
    """Laplace's Gaussian of (c, ψ) of each client."""

    loadings: Float[Array, "cQ R"]
    logs: Float[Array, "cQ 3"]
    loadings_covariance: Float[Array, "c QR QR"]
    log_variances: Float[Array, "cQ 3"]
    log_evidence: Float[Array, " c"]
    """log ∫ p(y, c, ψ | others), by Laplace"""


class _Coordinates(NamedTuple):
    """(c, ψ) of each output = start + T z: one standard deviation, as it is guessed, is 1."""

    start: Float[Array, "c Q R+3"]
    T: Float[Array, "c Q R+3 R+3"]

    @staticmethod
    def of(
        loadings: Float[Array, "cQ R"],
        logs: Float[Array, "cQ 3"],
        precision: Float[Array, "cQ R R"],
        outputs: int,
    ) -> _Coordinates:
        k, R = loadings.shape
        T = np.zeros((k, R + LOGS, R + LOGS))
        T[:, :R, :R] = np.linalg.cholesky(np.linalg.inv(precision))
        T[:, R:, R:] = GUESSED_SD * np.eye(LOGS)
        start = np.concatenate([loadings, logs], axis=1)
        return _Coordinates(*(a.reshape(-1, outputs, *a.shape[1:]) for a in (start, T)))

    def at(self, z: Float[Array, "c p D"], which: Array) -> tuple[Array, Array]:
        """c and ψ at each point."""
        start, T = self.start[which], self.T[which]
        each = z.reshape(*z.shape[:2], *start.shape[1:])
        found = start[:, None] + (T[:, None] @ each[..., None])[..., 0]
        R = found.shape[-1] - LOGS
        return found[..., :R], found[..., R:]


def laplace(
    beside: Beside,
    loadings: Float[Array, "cQ R"],
    logs: Float[Array, "cQ 3"],
    precision: Float[Array, "cQ R R"],
    evaluations: int,
) -> Found:
    """The best (c, ψ) from a start, and what is not known of them; `precision` guesses that of c."""
    Q = beside.outputs
    by = _Coordinates.of(loadings, logs, precision, Q)
    count, D = len(by.start), Q * by.start.shape[2]
    offsets = SLOPE_STEP * np.concatenate([np.zeros((1, D)), np.eye(D), -np.eye(D)])

    def loss(points: Array, which: Array) -> tuple[Array, Array]:
        places = points[:, None] + offsets[None]
        found = beside.of_some(which).log_density(*by.at(places, which))
        slope = (found[:, 1 : D + 1] - found[:, D + 1 :]) / (2.0 * SLOPE_STEP)
        inside = (np.abs(points) < FURTHEST).all(1) & np.isfinite(found).all(1)
        return np.where(inside, -found[:, 0], np.inf), np.where(inside[:, None], -slope, 0.0)

    best = host_lbfgs.minimize(
        loss,
        np.zeros((count, D)),
        evaluations=evaluations,
        movable=np.ones(D),
        settled=SETTLED,
    ).x
    return _found(beside, by, best)


def _found(beside: Beside, by: _Coordinates, z: Float[Array, "c D"]) -> Found:
    every = np.arange(len(z))
    value, hessian = _curvature(lambda p: beside.log_density(*by.at(p, every)), z)
    count, Q, size, _ = by.T.shape
    R = size - LOGS
    blocks = np.zeros((count, Q, size, Q, size))
    blocks[:, np.arange(Q), :, np.arange(Q)] = np.moveaxis(by.T, 1, 0)
    T = blocks.reshape(count, Q * size, Q * size)
    prior = _prior_precision(beside, Q, R)
    root = np.linalg.cholesky(np.swapaxes(T, 1, 2) @ prior @ T)
    white = np.linalg.solve(root, np.swapaxes(np.linalg.solve(root, -hessian), 1, 2))
    values, vectors = np.linalg.eigh(0.5 * (white + np.swapaxes(white, 1, 2)))
    values = np.maximum(values, 1.0)  # rows are worth no less than nothing
    half = np.linalg.solve(np.swapaxes(root, 1, 2), vectors) / np.sqrt(values)[:, None, :]
    half = T @ half
    covariance = (half @ np.swapaxes(half, 1, 2)).reshape(count, Q, size, Q, size)
    c, logs = by.at(z[:, None], every)
    q = np.arange(Q)
    spread = covariance[:, q, :, q][:, :, np.arange(R, size), np.arange(R, size)]
    return Found(
        c.reshape(count * Q, R),
        logs.reshape(count * Q, LOGS),
        covariance[:, :, :R, :, :R].reshape(count, Q * R, Q * R),
        np.moveaxis(spread, 0, 1).reshape(count * Q, LOGS),
        value - 0.5 * np.log(values).sum(1),
    )


def _prior_precision(beside: Beside, Q: int, R: int) -> Float[Array, "c D D"]:
    """of (c, ψ) of each output"""
    k, size = len(beside.series.times), R + LOGS
    each = np.zeros((k, size, size))
    each[:, :R, :R] = beside.prior.precision
    each[:, np.arange(R, size), np.arange(R, size)] = beside.expected.precision
    out = np.zeros((k // Q, Q, size, Q, size))
    out[:, np.arange(Q), :, np.arange(Q)] = np.moveaxis(each.reshape(-1, Q, size, size), 1, 0)
    return out.reshape(k // Q, Q * size, Q * size)


def _curvature(function: Callable[[Array], Array], z: Float[Array, "c D"]) -> tuple[Array, Array]:
    """Values and Hessians by differences, all points in one batch."""
    D, h = z.shape[1], CURVATURE_STEP
    eye = h * np.eye(D)
    pairs = [(a, b) for a in range(D) for b in range(a)]
    offsets = np.stack(
        [np.zeros(D), *eye, *-eye, *(s * (eye[a] + eye[b]) for a, b in pairs for s in (1, -1))]
    )
    value = function(z[:, None] + offsets[None])
    middle, up, down = value[:, 0], value[:, 1 : D + 1], value[:, D + 1 : 2 * D + 1]
    both = value[:, 2 * D + 1 :].reshape(len(z), -1, 2).sum(2)
    ends = up + down
    H = np.zeros((len(z), D, D))
    H[:, np.arange(D), np.arange(D)] = (ends - 2.0 * middle[:, None]) / h**2
    for p, (a, b) in enumerate(pairs):
        mixed = both[:, p] - ends[:, a] - ends[:, b] + 2.0 * middle
        H[:, a, b] = H[:, b, a] = mixed / (2.0 * h**2)
    return middle, H
