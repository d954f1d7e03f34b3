"""Clients by how they mix the shared functions: c_i = B_g,i, Q·R numbers, and one for how sure they are.

Client i's shared layer is c_iᵀg(x). Two clients' layers differ over the domain, apart from a constant, by
    d²_ij = Σ_q (c_iq − c_jq)ᵀΓ(c_iq − c_jq),   Γ = diag(E Var over x of g_r(x)) = diag(1 − mean k_r(x, x'))
a priori: functions have unit variance, but one that hardly moves over the domain (an offset) counts little.
Rotations of functions that share a kernel do not matter, and what all clients share alike cancels.

A client's rows say of its loadings what a precision p Γ says, nearly: with the population N(c̄, Σ_B),
    Cov(c_i) ≈ V(p) = (p I⊗Γ + Σ_B⁻¹)⁻¹,
and p is the number that it sends: where tr(ΓV) is that of its own covariance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq

from pfedhgp.base.batching import on_numpy
from pfedhgp.base.numerics import with_numerics
from pfedhgp.errors import InputError
from pfedhgp.inference.markov.loadings import knot_posterior, loadings_covariance
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.prediction import predict
from pfedhgp.zones import groups as grouping
from pfedhgp.zones import sketches as sketching

Array = np.ndarray
InputsAndOutputs = Mapping[str, tuple[np.ndarray, np.ndarray]]
COVERED = 0.5
"""A client with a lower coverage joins a group last."""
MOST = 1e12
"""p of a client whose loadings count as certain."""


@dataclass(frozen=True, eq=False)
class Loadings:
    """All clients' loadings, as the model has them. Clients send `numbers` and `information` alone."""

    names: tuple[str, ...]
    numbers: Float[Array, "clients Q R"]
    covariances: Float[Array, "clients QR QR"]
    mean: Float[Array, "Q R"]
    """B_g"""
    spread: Float[Array, "QR QR"]
    """Σ_B"""
    gram: Float[Array, "R R"]
    """Γ"""
    told: Float[Array, " clients"] | None = None
    """p of each client, where clients sent it and nothing else is known of how sure they are"""

    @staticmethod
    @with_numerics
    def of(model: FittedModel) -> Loadings:
        """Those of all clients of a model that has them."""
        if not model.structure.client_loadings:
            raise InputError(
                "by='loadings' needs a model whose clients have loadings of their own: fit with "
                "`client_loadings`, or use by='sketch'"
            )
        names = tuple(sorted(model.clients))
        block = on_numpy(model.shared.block)
        _Q, _R = block.loadings.shape
        return Loadings(
            names,
            np.array([model.clients[n].block.global_loadings for n in names]).reshape(-1, _Q, _R),
            np.array(covariances(model, names)).reshape(-1, _Q * _R, _Q * _R),
            np.asarray(block.loadings),
            np.asarray(block.loadings_covariance),
            variation(model),
        )

    @cached_property
    def metric(self) -> Float[Array, "QR QR"]:
        """I⊗Γ"""
        return np.kron(np.eye(self.mean.shape[0]), self.gram)

    @cached_property
    def _modes(self) -> tuple[Array, Array]:
        """A and λ with V(p) = A diag(1/(1 + pλ)) Aᵀ: A Aᵀ = Σ_B and AᵀΓA = diag(λ)."""
        root = _root(self.spread)
        values, vectors = np.linalg.eigh(root @ self.metric @ root)
        return root @ vectors, np.maximum(values, 0.0)

    def variances(self, p: float) -> Float[Array, "QR QR"]:
        """V(p)"""
        A, values = self._modes
        return (A / (1.0 + p * values)) @ A.T

    @cached_property
    def information(self) -> Float[Array, " clients"]:
        """p of each client."""
        if self.told is not None:
            return self.told
        values = self._modes[1]
        wanted = np.einsum("ab,kab->k", self.metric, self.covariances)

        def p_of(target: float) -> float:
            if target >= values.sum():
                return 0.0
            if target <= np.sum(values / (1.0 + MOST * values)):
                return MOST
            gap = lambda log_p: float(np.sum(values / (1.0 + np.exp(log_p) * values))) - target  # noqa: E731
            return float(np.exp(brentq(gap, -60.0, np.log(MOST))))

        return np.array([p_of(float(each)) for each in wanted])


def functions_at(model: FittedModel, X: np.ndarray) -> Float[Array, "n R"]:
    """E[g(x)] at inputs in the data's units."""
    shared = on_numpy(model.shared)
    basis = shared.block.basis(model.jitter)
    weights = np.asarray(shared.mean).reshape(basis.factor.shape[:2])
    inputs = np.asarray(model.scaling.inputs(X), np.float64)
    return np.einsum("rmn,rm->nr", np.asarray(basis.features(inputs)), weights)


def variation(model: FittedModel) -> Float[Array, "R R"]:
    """Γ over the inducing inputs, which fill the domain."""
    block = on_numpy(model.shared.block)
    K = np.asarray(block.kernels(block.inputs, block.inputs, stacked=1))
    return np.diag(1.0 - K.mean(axis=(1, 2)))


def covariances(model: FittedModel, names: tuple[str, ...]) -> list[Float[Array, "QR QR"]]:
    """Cov(c_i) beside what the other clients know, from averaging.

    A model at knots that was fitted without averaging has it at q(u) alone, which is too sure: there the
    client's own rows have told q(u) already. Zero where the model keeps neither.
    """
    shared = on_numpy(model.shared)
    size = np.size(shared.block.loadings)
    q = None if shared.knot_J is None else knot_posterior(shared)
    found = []
    for name in names:
        client = on_numpy(model.clients[name])
        if client.tangents is not None:
            slopes = np.asarray(client.tangents.global_loadings).reshape(-1, size)
            found.append(slopes.T @ slopes)
        elif client.loadings_half is not None:
            half = np.asarray(client.loadings_half).reshape(-1, size)
            found.append(half.T @ half)
        elif q is not None and client.states is not None:
            found.append(loadings_covariance(shared.block, q, client))
        else:
            found.append(np.zeros((size, size)))
    return found


def _root(matrix: Array) -> Array:
    """The symmetric root of a PSD matrix."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


class LoadingsComparison:
    """Distances and groups from what clients sent: c_i and p_i."""

    def __init__(self, loadings: Loadings, least: int) -> None:
        """If fewer than `least` clients have many rows, all are compared on equal terms."""
        self.known = loadings
        count = len(loadings.names)
        self.sent = loadings.numbers.reshape(count, -1)
        metric = loadings.metric
        self.variances = np.stack([loadings.variances(p) for p in loadings.information])
        left = np.einsum("ab,kab->k", metric, self.variances)
        prior = float(np.sum(metric * loadings.spread))
        self.coverage = np.clip(1.0 - left / prior, 0.0, 1.0) if prior > 0 else np.ones(count)
        few = np.flatnonzero(self.coverage < COVERED)
        self.sparse = few if count - len(few) >= max(2, least) else few[:0]
        self.dense = np.setdiff1d(np.arange(count), self.sparse)
        self.between = self._squared(self.sent)
        self.squared = self.between + left[:, None] + left[None, :]
        np.fill_diagonal(self.squared, 0.0)

    def _squared(self, sent: Array) -> Float[Array, "k k"]:
        size = sent.shape[1]
        points = sent @ _root(self.known.metric) * np.sqrt(size)
        return grouping.squared_distances(points, np.zeros(len(points)))

    def label(self, count: int, method: str, rng: np.random.Generator | None = None) -> np.ndarray:
        """Groups the clients with many rows; then every other client joins the group that it is nearest to.

        Its few rows show less of a group's loadings than there is, K(centre − c̄) with K = p V Γ: it is
        compared with that. With `rng`, clients' loadings are drawn from their posteriors.
        """
        sent = self.sent if rng is None else self._drawn(rng)
        labels = np.zeros(len(sent), int)
        between = self._squared(sent[self.dense])
        first = grouping.group(between, min(count, len(self.dense)), method)
        labels[self.dense] = first
        centre, metric = self.known.mean.reshape(-1), self.known.metric
        for i in map(int, self.sparse):
            shown = self.known.information[i] * self.variances[i] @ metric
            costs = []
            for g in range(first.max() + 1):
                members = self.dense[first == g]
                gap = sent[i] - centre - shown @ (sent[members].mean(0) - centre)
                costs.append(len(members) / (len(members) + 1.0) * float(gap @ metric @ gap))
            labels[i] = int(np.argmin(costs))
        return grouping.renumbered(labels)

    def _drawn(self, rng: np.random.Generator) -> Array:
        noise = rng.normal(size=self.sent.shape)
        return np.stack(
            [c + _root(V) @ e for c, V, e in zip(self.sent, self.variances, noise, strict=True)]
        )


def loadings_r2(
    model: FittedModel, points: np.ndarray, rows: InputsAndOutputs | None
) -> tuple[dict[str, float], dict[str, float]]:
    """R² of guesses at each client's rows (or fit): c_iᵀE[g], and B_gᵀE[g] by one who has no loadings."""
    spread = np.broadcast_to(model.scaling.spread, (model.outputs,))
    at_points = None if rows is not None else functions_at(model, points)
    found: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for name, client in model.clients.items():
        if rows is None:
            truth, g = predict(model, name, points).mean, at_points
        else:
            truth, g = rows[name][1], functions_at(model, rows[name][0])
        for r2, B in zip(
            found, (client.block.global_loadings, model.shared.block.loadings), strict=True
        ):
            guess = model.scaling.centre + (g @ np.asarray(B).T) * spread
            value = sketching.r_squared(truth, guess, spread)
            r2 |= {name: value} if np.isfinite(value) else {}
    return found
