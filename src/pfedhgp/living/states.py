"""Rows that come to, or leave, a series with a state-space local layer; the other rows are not needed.

Given what the other rows say, those at times t₂ have for each output the innovations
    E = H₂ + b T,   e = r₂ − b E[h(t₂)],   V = b² Cov(h(t₂)) + D,   D = diag(σ²/c)
where T is how the local function leans on the weights, and r₂ = y₂ − H₂ E[v]. Then
    Λ ± EᵀV⁻¹E,   η ± EᵀV⁻¹(e + E E[v])
and the smoothed states move by what the smoother makes of e at t₂ and zero elsewhere. For rows that leave,
r₂ − b E[h(t₂)] is known after they were counted, and e = V D⁻¹ (r₂ − b E[h(t₂)]). Times may be in any order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pfedhgp.base.arrays_of import Array
from pfedhgp.base.batching import batchable, on_numpy
from pfedhgp.gp import state_space
from pfedhgp.gp.features import Basis
from pfedhgp.gp.kernels import Kernel
from pfedhgp.gp.linalg import LOG_2PI
from pfedhgp.inference.structured.kept import PointSums
from pfedhgp.model import local_states
from pfedhgp.model.blocks import (
    ClientBlock,
    GlobalBlock,
    Rows,
    Structure,
    deviation_loadings,
    global_loadings,
)
from pfedhgp.model.local_states import longer, padded, round_up
from pfedhgp.model.posterior import LocalStates


class Layers(NamedTuple):
    """A client's shared and deviation layers at any inputs: H_q(x) = [b_q ⊗ a(x) | c_q ⊗ a(x)]."""

    basis: Basis
    B_g: Float[np.ndarray, "Q R"]
    B_dev: Float[np.ndarray, "Q Rd"]

    @staticmethod
    def of(structure: Structure, shared: GlobalBlock, basis: Basis, block: ClientBlock) -> Layers:
        B_g, B_dev = global_loadings(shared, block), deviation_loadings(structure, shared, block)
        return Layers(basis, np.asarray(B_g), np.asarray(B_dev))

    def design(self, times: Float[np.ndarray, " n"]) -> Float[np.ndarray, "Q n K"]:
        A = np.asarray(self.basis.features(times[:, None]))
        d = self.B_dev.shape[1]
        both = [(A, self.B_g), (A[:d], self.B_dev)]
        parts = [np.einsum("qr,rmn->qnrm", B, each) for each, B in both]
        Q, n = len(self.B_g), len(times)
        return np.concatenate([part.reshape(Q, n, -1) for part in parts], axis=2)


class Innovations(NamedTuple):
    """What some rows add to what the others say, output by output; cells that were not seen are empty."""

    columns: Float[np.ndarray, "Q n K"]
    """E"""
    covariance: Float[np.ndarray, "Q n n"]
    """V"""
    noise: Float[np.ndarray, "Q n"]
    """D"""
    expected: Float[np.ndarray, "n Q"]
    """b E[h(t₂)] from the states that were given"""


def innovations(layers: Layers, block: ClientBlock, states: LocalStates, rows: Rows) -> Innovations:
    """E, V and D of `rows`, given the series of `states`."""
    n, Q = np.shape(rows.Y)
    noise = np.asarray(block.noise.covariance(Q))
    scales = np.diagonal(np.asarray(block.loadings))
    seen = np.asarray(rows.mask) > 0
    H = layers.design(np.asarray(rows.X)[:, 0])
    K = H.shape[2]
    d = layers.B_dev.shape[1] * layers.basis.factor.shape[1]
    eye = np.eye(K)
    series = padded(states)
    X = longer(np.asarray(rows.X), round_up(n))
    at = on_numpy(
        local_states.latents(
            series,
            block,
            noise,
            layers.basis,
            layers.B_g,
            layers.B_dev,
            eye,
            np.zeros((d, 0)),
            X,
        )
    )
    covariance = np.asarray(local_states.covariance(series, block, noise, X, X))[:, :n, :n]
    E = H + scales[:, None, None] * np.moveaxis(np.asarray(at.T)[:n], 1, 0)
    D = np.diagonal(noise)[:, None] / np.where(seen, rows.mask, 1.0).T
    both = seen.T[:, :, None] & seen.T[:, None, :]
    V = np.where(both, scales[:, None, None] ** 2 * covariance, 0.0)
    V += np.where(seen.T, D, 1.0)[:, :, None] * np.eye(n)[None]
    E = np.where(seen.T[:, :, None], E, 0.0)
    return Innovations(E, V, D, np.asarray(at.mean)[:n] * scales[None, :])


def sums_of(
    layers: Layers,
    found: Innovations,
    error: Float[np.ndarray, "n Q"],
    weights: Float[np.ndarray, " K"],
    rows: Rows,
) -> PointSums:
    """What the rows add to Λ, η and the scalars, `error` being e for the weights' mean."""
    K = found.columns.shape[2]
    precision, linear, constant = np.zeros((K, K)), np.zeros(K), 0.0
    seen = np.asarray(rows.mask) > 0
    for q, (E, V) in enumerate(zip(found.columns, found.covariance, strict=True)):
        e = np.where(seen[:, q], error[:, q], 0.0) + E @ weights
        L = np.linalg.cholesky(V)
        white = np.linalg.solve(L, np.concatenate([E, e[:, None]], axis=1))
        precision += white[:, :K].T @ white[:, :K]
        linear += white[:, :K].T @ white[:, K]
        there = seen[:, q]
        logs = 2.0 * np.log(np.diagonal(L))[there].sum() + there.sum() * LOG_2PI
        counts = np.asarray(rows.mask)[there, q]
        logs += float(
            np.sum(
                np.log(counts) + (counts - 1.0) * (LOG_2PI + np.log(found.noise[q, there] * counts))
            )
        )
        constant -= 0.5 * (logs + float(white[:, K] @ white[:, K]))
    left = np.asarray(layers.basis.residual(layers.basis.features(np.asarray(rows.X))))
    weighted = np.where(seen, 1.0, 0.0) / found.noise.T
    each = np.einsum("rn,nq->rq", left, weighted)
    residual = np.einsum("rq,qr->", each, layers.B_g**2)
    residual += np.einsum("rq,qr->", each[: layers.B_dev.shape[1]], layers.B_dev**2)
    return PointSums(precision[None], linear[None], np.array([constant]), np.array([residual]))


# ------------------------------------------------------------------------------------------- states


def moved(
    layers: Layers, block: ClientBlock, states: LocalStates, change: Float[np.ndarray, " K"]
) -> LocalStates:
    """The states after the weights' mean has changed: s(y − H v) is linear in v."""
    column = layers.design(np.asarray(states.times)) @ change
    return replace(states, means=states.means - _smoothed(block, states, column.T))


def joined(
    block: ClientBlock, states: LocalStates, rows: Rows, error: Float[np.ndarray, "n Q"]
) -> LocalStates:
    """The states with `rows` in the series, whose innovations are `error`."""
    times = np.concatenate([states.times, rows.X[:, 0]])
    counts = np.concatenate([states.counts, rows.mask])
    before = np.concatenate([states.means, _at(block, states, np.asarray(rows.X)[:, 0])], axis=1)
    all_rows = _merged(times, counts, before)
    column = np.zeros((len(all_rows.times), counts.shape[1]))
    where = np.searchsorted(all_rows.times, rows.X[:, 0])
    weighted = np.where(rows.mask > 0, rows.mask * error, 0.0)
    np.add.at(column, where, weighted)
    column /= np.maximum(all_rows.counts, 1.0)
    return replace(all_rows, means=all_rows.means + _smoothed(block, all_rows, column))


def parted(
    block: ClientBlock, states: LocalStates, rows: Rows, error: Float[np.ndarray, "n Q"]
) -> LocalStates:
    """The inverse of `joined`: the states without `rows`, whose innovations were `error`."""
    times = np.asarray(states.times)
    where = np.searchsorted(times, rows.X[:, 0])
    column, left = np.zeros_like(states.counts), np.array(states.counts)
    np.add.at(column, where, np.where(rows.mask > 0, rows.mask * error, 0.0))
    np.add.at(left, where, -np.asarray(rows.mask))
    column /= np.maximum(states.counts, 1.0)
    means = states.means - _smoothed(block, states, column)
    kept = left.any(axis=1)
    return LocalStates(times[kept], left[kept], means[:, kept])


def without(states: LocalStates, rows: Rows) -> LocalStates:
    """The series without some rows; its means are still those with them."""
    left = np.array(states.counts)
    np.add.at(left, np.searchsorted(states.times, rows.X[:, 0]), -np.asarray(rows.mask))
    kept = left.any(axis=1)
    return LocalStates(states.times[kept], left[kept], states.means[:, kept])


def expected_at(
    block: ClientBlock, states: LocalStates, times: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "n Q"]:
    """b E[h(t)] of each output."""
    scales = np.diagonal(np.asarray(block.loadings))
    observe = np.asarray(jax.vmap(lambda k: state_space.StateModel.of(k).observe)(block.kernels))
    return np.einsum("qns,qs,q->nq", _at(block, states, times), observe, scales)


def _merged(times: np.ndarray, counts: np.ndarray, means: np.ndarray) -> LocalStates:
    """Each time once, with what was observed there in all."""
    distinct, first, which = np.unique(times, return_index=True, return_inverse=True)
    total = np.zeros((len(distinct), counts.shape[1]))
    np.add.at(total, which.reshape(-1), counts)
    return LocalStates(distinct, total, means[:, first])


def _at(block: ClientBlock, states: LocalStates, times: np.ndarray) -> np.ndarray:
    n = len(times)
    return np.asarray(_interpolated(block, padded(states), longer(times, round_up(n))))[:, :n]


@batchable()
def _interpolated(block: ClientBlock, states: LocalStates, times: Array) -> Array:
    """E[x_q(t)] at any times, from the states."""

    def one(kernel: Kernel, means: Array) -> Array:
        model = state_space.StateModel.of(kernel)
        return state_space.interpolate(model, states.times, means, times)

    return jax.vmap(one)(block.kernels, states.means)


def _smoothed(
    block: ClientBlock, states: LocalStates, columns: Float[np.ndarray, "n Q"]
) -> Float[np.ndarray, "Q n s"]:
    n, Q = columns.shape
    series = padded(states)
    variances = np.diagonal(np.asarray(block.noise.covariance(Q)))
    wide = np.pad(columns, ((0, len(series.times) - n), (0, 0)))
    return np.asarray(_smooth(block, series.times, series.counts, variances, wide))[:, :n]


@batchable()
def _smooth(
    block: ClientBlock, times: Array, counts: Array, variances: Array, columns: Array
) -> Array:
    """What the smoother makes of one column for each output."""

    def one(kernel: Kernel, scale: Array, variance: Array, count: Array, column: Array) -> Array:
        series = state_space.Series.of_means(times, count, variance)
        model = state_space.StateModel.of(kernel)
        return state_space.smooth(model, scale, series, column[:, None])[0][:, :, 0]

    scales = jnp.diagonal(jnp.asarray(block.loadings))
    return jax.vmap(one)(block.kernels, scales, variances, counts.T, columns.T)
