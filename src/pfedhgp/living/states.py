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

import numpy as np
from jaxtyping import Float

from pfedhgp.gp import linalg
from pfedhgp.gp.features import Basis
from pfedhgp.gp.linalg import LOG_2PI
from pfedhgp.inference.structured.kept import PointSums
from pfedhgp.model.blocks import (
    ClientBlock,
    GlobalBlock,
    Rows,
    Structure,
    deviation_loadings,
    global_loadings,
)
from pfedhgp.model.posterior import LocalStates
from pfedhgp.model.states_at_rows import StatesAtRows, interpolated, means, smoothed


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
        return self.of_features(np.asarray(self.basis.features(times[:, None]))[None])

    def of_features(self, A: Float[np.ndarray, "Q R M n"]) -> Float[np.ndarray, "Q n K"]:
        """H_q made of features, everybody's or each output's own."""
        Q, n, d = len(self.B_g), A.shape[3], self.B_dev.shape[1]
        both = [(A, self.B_g), (A[:, :d], self.B_dev)]
        parts = [(B[:, :, None, None] * each).reshape(Q, -1, n) for each, B in both]
        return np.swapaxes(np.concatenate(parts, axis=1), 1, 2)

    def fitted(
        self, times: Float[np.ndarray, " n"], weights: Float[np.ndarray, " K"]
    ) -> Float[np.ndarray, "Q n"]:
        """H v = k(x, Z) L⁻ᵀ v: for one vector of weights no feature is formed."""
        R, M = self.basis.factor.shape[:2]
        d = self.B_dev.shape[1]
        v_g, v_d = weights[: R * M].reshape(R, M), weights[R * M :].reshape(d, M)
        both = np.einsum("qr,rm->rmq", self.B_g, v_g)
        both[:d] += np.einsum("qr,rm->rmq", self.B_dev, v_d)
        u = linalg.solve_lower(np.asarray(self.basis.factor), both, transpose=True)
        k = np.asarray(self.basis.cross(times[:, None]))
        return np.tensordot(u, k, axes=([0, 1], [0, 1]))


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
    variances, scales = noise_variances(block, Q), np.diagonal(np.asarray(block.loadings))
    seen, X = np.asarray(rows.mask) > 0, np.asarray(rows.X)[:, 0]
    here = StatesAtRows.of(states, block, variances, X)
    leaning = layers.of_features(here.on_features(layers.basis, np.asarray(states.times)))
    E = layers.design(X) - scales[:, None, None] * leaning
    D = variances[:, None] / np.where(seen, rows.mask, 1.0).T
    both = seen.T[:, :, None] & seen.T[:, None, :]
    V = np.where(both, scales[:, None, None] ** 2 * here.covariance, 0.0)
    V += np.where(seen.T, D, 1.0)[:, :, None] * np.eye(n)[None]
    E = np.where(seen.T[:, :, None], E, 0.0)
    return Innovations(E, V, D, expected_at(block, states, X))


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
    column = layers.fitted(np.asarray(states.times), change)
    return replace(states, means=states.means - _smoothed(block, states, column.T))


def joined(
    block: ClientBlock, states: LocalStates, rows: Rows, error: Float[np.ndarray, "n Q"]
) -> LocalStates:
    """The states with `rows` in the series, whose innovations are `error`."""
    times = np.concatenate([states.times, rows.X[:, 0]])
    counts = np.concatenate([states.counts, rows.mask])
    new = interpolated(block, states, np.asarray(rows.X)[:, 0])
    before = np.concatenate([states.means, new], axis=1)
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
    return means(block, states, times) * np.diagonal(np.asarray(block.loadings))[None]


def _merged(times: np.ndarray, counts: np.ndarray, means: np.ndarray) -> LocalStates:
    """Each time once, with what was observed there in all."""
    distinct, first, which = np.unique(times, return_index=True, return_inverse=True)
    total = np.zeros((len(distinct), counts.shape[1]))
    np.add.at(total, which.reshape(-1), counts)
    return LocalStates(distinct, total, means[:, first])


def noise_variances(block: ClientBlock, outputs: int) -> Float[np.ndarray, " Q"]:
    return np.diagonal(np.asarray(block.noise.covariance(outputs)))


def _smoothed(
    block: ClientBlock, states: LocalStates, columns: Float[np.ndarray, "n Q"]
) -> Float[np.ndarray, "Q n s"]:
    variances = noise_variances(block, columns.shape[1])
    return smoothed(block, states, variances, columns.T[:, :, None])[..., 0]
