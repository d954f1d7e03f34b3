"""How much less sure a prediction is because the shared kernel is itself only known from rows.

q(v_g) = N(m, S) is the prior N(0, I) and evidence: J = S⁻¹ − I, h = S⁻¹m. With J = B Bᵀ, h = B g and u = L v,
the evidence is worth as much as observations of the function's values at the inducing inputs,
    g = Pᵀu + ε,   P = L⁻ᵀB,   ε ~ N(0, I).
These stay what they are under another kernel k', and say two things of it:
    log p(g; k') = log N(g; 0, I + A),  A = PᵀK'P                      how likely it is
    f(x) | g ~ N(cᵀ(I + A)⁻¹g, k'(x, x) − cᵀ(I + A)⁻¹c),  c = PᵀK'(Z, x)     what it predicts
With the first, log parameters have a posterior around the fitted θ̂; Laplace's has principal directions F_p.
Along each of them it is averaged over nodes θ̂ + tF_p, t = −3 … 3, with weights w ∝ its density, because it
is skewed: five turns of a function allow a variance three times as large sooner than a third of it. With the
second, the variance of a prediction is then larger by
    [Σ_p Σ_t w_pt (v_pt − v₀ + (m_pt − m₀)²)]₊.
Near rows this is little. Beyond the last row it is not: a month of weather is a handful of turns of the
shared function, and so a handful of observations of how far it swings.

Deviations have the shared kernel too, so a client's evidence is taken of both layers together. Rows also tell
the kernel by the spread of deviations over clients. That is left out, which errs on the wide side; since the
fit has it, θ̂ is not the maximum of log p(g; k'), whose slope at θ̂ is therefore taken off.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Float
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from pfedhgp.base.batching import on_numpy
from pfedhgp.base.numerics import with_numerics
from pfedhgp.base.trees import ravel
from pfedhgp.gp import linalg
from pfedhgp.gp.features import Basis
from pfedhgp.gp.linalg import psd_factor
from pfedhgp.model.blocks import GlobalBlock
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.posterior import GlobalPosterior
from pfedhgp.model.predictor import Predictor

Array = np.ndarray
PRIOR_SD = 1.0
"""Of a log parameter around the fitted one, where rows say nothing of it"""
LEAST = 1e-10
"""Evidence below this share of its largest part is rounding."""
LARGEST_STEP, WANTED_DROP = 0.3, 0.5
"""Differences are taken over steps that lower log p by about so much: one posterior sd, or less."""
AT, NEAR = np.array([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0]), 0.1
"""Where along a direction, in sds; and where slopes are taken."""
MOST_INPUTS, ROWS = 300, 2048
"""Inducing inputs that are used, and rows that are worked on at a time."""

_KEPT: WeakKeyDictionary[FittedModel, tuple[bytes, Nodes]] = WeakKeyDictionary()


class Observed(NamedTuple):
    """Evidence as observations: P by block (a layer's latent), which latent that is, and g."""

    P: Float[Array, "b M r"]
    latent: tuple[int, ...]
    g: Float[Array, " r"]

    @staticmethod
    def of(
        factors: Float[Array, "R M M"],
        latent: tuple[int, ...],
        mean: Float[Array, " bM"],
        covariance: Float[Array, "bM bM"],
    ) -> Observed:
        """From the moments of whitened weights, ordered (block, inducing input)."""
        values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
        values = np.clip(values, 1e-12, 1.0)
        J = 1.0 / values - 1.0
        kept = LEAST * J.max(initial=0.0) < J
        root, U = np.sqrt(J[kept]), vectors[:, kept]
        g = (U.T @ mean) / (values[kept] * root)
        B = (U * root).reshape(len(latent), factors.shape[-1], -1)
        P = [
            solve_triangular(factors[r], part, lower=True, trans=1)
            for r, part in zip(latent, B, strict=True)
        ]
        return Observed(np.stack(P), latent, g)


class Near(NamedTuple):
    """The inducing inputs that are used: all, or those nearest to the forecast if there are very many."""

    inputs: Float[Array, "m d"]
    factor: Float[Array, "R m m"]
    weights: Float[Array, "R m M"] | None
    """From all whitened weights to those of these inputs; None: they are the same"""

    @staticmethod
    def to(basis: Basis, X: Float[Array, "n d"]) -> Near:
        Z, L = np.asarray(basis.inputs), np.asarray(basis.factor)
        if len(Z) <= MOST_INPUTS:
            return Near(Z, L, None)
        far = np.abs(Z - np.clip(Z, X.min(axis=0), X.max(axis=0))).max(axis=1)
        kept = np.sort(np.argsort(far, kind="stable")[:MOST_INPUTS])
        factor = linalg.factorise(np.asarray(basis.gram)[:, kept[:, None], kept])
        return Near(Z[kept], factor, linalg.solve_lower(factor, L[:, kept]))

    def of(self, columns: Float[Array, "bM k"], latent: tuple[int, ...]) -> Float[Array, "bm k"]:
        """Columns over all whitened weights as columns over those of these inputs."""
        if self.weights is None:
            return columns
        each = columns.reshape(len(latent), -1, columns.shape[1])
        return np.concatenate(
            [self.weights[r] @ part for r, part in zip(latent, each, strict=True)]
        )


class Kernels:
    """The shared kernels at other parameters: logarithms of theirs, and of a scale of each latent."""

    def __init__(self, block: GlobalBlock, inputs: Float[Array, "m d"], jitter: float) -> None:
        flat, self.unravel = ravel(block.kernels)
        self.inputs, self.jitter, self.own = inputs, jitter, np.asarray(flat)
        self.size = self.own.size + int(np.shape(block.loadings)[1])

    def at(self, free: Float[Array, " k"], X: Array, Z: Array) -> Float[Array, "R n m"]:
        """s² k'(X, Z) of each latent."""
        kernels = self.unravel(self.own * np.exp(free[: self.own.size]))
        scale = np.exp(2.0 * free[self.own.size :])
        return scale[:, None, None] * np.asarray(kernels(X, Z, stacked=1))

    def gram(self, free: Float[Array, " k"], observed: Observed) -> Float[Array, "r r"]:
        """I + A"""
        K = linalg.add_jitter(self.at(free, self.inputs, self.inputs), self.jitter)
        A = sum(P.T @ K[r] @ P for P, r in zip(observed.P, observed.latent, strict=True))
        return np.eye(len(observed.g)) + A


def log_evidence(kernels: Kernels, free: Float[Array, " k"], observed: Observed) -> float:
    """log N(g; 0, I + A), but for a constant."""
    factor = cho_factor(kernels.gram(free, observed), lower=True)
    fit = observed.g @ cho_solve(factor, observed.g)
    return float(-0.5 * fit - np.log(np.diagonal(factor[0])).sum())


def posterior_steps(kernels: Kernels, observed: Observed) -> Float[Array, "k k"]:
    """F, a column for each direction of the posterior of the log parameters."""
    count, start = kernels.size, log_evidence(kernels, np.zeros(kernels.size), observed)

    def gain(*steps: tuple[int, float]) -> float:
        free = np.zeros(count)
        for i, step in steps:
            free[i] = step
        return log_evidence(kernels, free, observed) - start

    widths, single = np.full(count, LARGEST_STEP), np.zeros(count)
    for i in range(count):
        for _ in range(8):
            single[i] = gain((i, widths[i])) + gain((i, -widths[i]))
            if abs(single[i]) <= 2.0 * WANTED_DROP:
                break
            widths[i] *= max(0.1, np.sqrt(0.5 * WANTED_DROP / abs(single[i])))
    hessian = np.diag(single)
    for i in range(count):
        for j in range(i):
            both = sum(gain((i, s * widths[i]), (j, s * widths[j])) for s in (1.0, -1.0))
            hessian[i, j] = hessian[j, i] = 0.5 * (both - single[i] - single[j])
    prior = PRIOR_SD / widths  # in units of the steps
    values, vectors = np.linalg.eigh(-hessian * np.outer(prior, prior))
    return PRIOR_SD * vectors / np.sqrt(np.maximum(values, 0.0) + 1.0)


class Nodes(NamedTuple):
    """Other log parameters, and what each weighs; the fitted ones have the rest of each direction."""

    free: Float[Array, "n k"]
    weight: Float[Array, " n"]


def posterior_nodes(kernels: Kernels, observed: Observed) -> Nodes:
    """Along each principal direction, at whole sds of Laplace's posterior, by the posterior itself."""
    start, free, weights = log_evidence(kernels, np.zeros(kernels.size), observed), [], []
    for step in posterior_steps(kernels, observed).T:
        ends = (log_evidence(kernels, s * NEAR * step, observed) for s in (1.0, -1.0))
        slope = (next(ends) - next(ends)) / (2.0 * NEAR)
        nodes = AT[:, None] * step
        gains = np.array([log_evidence(kernels, node, observed) - start for node in nodes])
        prior = 0.5 * (nodes**2).sum(axis=1) / PRIOR_SD**2
        # Beside the fitted parameters nothing is likelier: what would be is the linearised slope's doing.
        density = np.exp(np.minimum(gains - AT * slope - prior, 0.0))
        free.append(nodes)
        weights.append(density / (1.0 + density.sum()))
    return Nodes(np.concatenate(free), np.concatenate(weights))


@with_numerics
def added_variance(model: FittedModel, client: str, X: Float[Array, "n d"]) -> Float[Array, "n Q"]:
    """What the variance of `client`'s predictions at X is larger by, in the data's units."""
    shared = on_numpy(model.shared)
    R = int(np.shape(shared.block.loadings)[1])
    added = np.zeros((len(X), model.outputs))
    if not R or not len(X):
        return added
    predictor = Predictor.build(model, client)
    assert predictor.shared is not None
    at = np.asarray(model.scaling.inputs(X), np.float64)
    near = Near.to(predictor.shared, at)
    kernels = Kernels(shared.block, near.inputs, model.jitter)
    nodes = _nodes(model, shared, near, kernels)
    observed, loadings = _of_client(predictor, near)
    for first in range(0, len(X), ROWS):
        rows = slice(first, first + ROWS)
        mean, before = _moments(kernels, np.zeros(kernels.size), observed, loadings, at[rows])
        for free, weight in zip(*nodes, strict=True):
            moved, variance = _moments(kernels, free, observed, loadings, at[rows])
            added[rows] += weight * (variance - before + (moved - mean) ** 2)
    return np.maximum(added, 0.0) * np.broadcast_to(model.scaling.spread, (model.outputs,)) ** 2


def _nodes(model: FittedModel, shared: GlobalPosterior, near: Near, kernels: Kernels) -> Nodes:
    """`posterior_nodes` of what all clients say, kept as long as the model is: its clients share them."""
    key = near.inputs.tobytes()
    kept = _KEPT.get(model)
    if kept is None or kept[0] != key:
        latent = tuple(range(near.factor.shape[0]))
        half = near.of(psd_factor(shared.covariance), latent)
        mean = near.of(shared.mean[:, None], latent)[:, 0]
        everybody = Observed.of(near.factor, latent, mean, half @ half.T)
        kept = _KEPT[model] = key, posterior_nodes(kernels, everybody)
    return kept[1]


def _of_client(predictor: Predictor, near: Near) -> tuple[Observed, Float[Array, "Q b"]]:
    """What a client's rows and all others' say of its global and deviation layer, and their loadings."""
    assert predictor.shared is not None
    g, d, _ = predictor.counts
    size = predictor.shared.factor.shape[-1]
    latent = (*range(g), *(range(d) if predictor.known else ()))
    shared, weights = g * size, len(latent) * size
    own = np.pad(predictor.half_own[: weights - shared], ((shared, 0), (0, 0)))
    half = near.of(np.concatenate([predictor.half_shared[:weights], own], axis=1), latent)
    mean = near.of(predictor.mean[:weights, None], latent)[:, 0]
    B = np.concatenate([predictor.loadings.shared, predictor.loadings.deviation], axis=1)
    found = Observed.of(near.factor, latent, mean, half @ half.T)
    return found, B[:, : len(latent)]


def _moments(
    kernels: Kernels,
    free: Float[Array, " k"],
    observed: Observed,
    loadings: Float[Array, "Q b"],
    X: Float[Array, "n d"],
) -> tuple[Float[Array, "n Q"], Float[Array, "n Q"]]:
    """Mean and variance of the smooth part, scaled, under the kernels at `free`."""
    cross = kernels.at(free, X, kernels.inputs)
    c = np.stack([cross[r] @ P for P, r in zip(observed.P, observed.latent, strict=True)])
    by_output = np.einsum("qb,bnr->nqr", loadings, c)
    factor = cho_factor(kernels.gram(free, observed), lower=True)
    mean = by_output @ cho_solve(factor, observed.g)
    white = solve_triangular(factor[0], by_output.reshape(-1, len(observed.g)).T, lower=True)
    scale = np.exp(2.0 * free[kernels.own.size :])[list(observed.latent)]
    prior = loadings**2 @ scale
    return mean, np.maximum(prior - (white**2).sum(axis=0).reshape(mean.shape), 0.0)
