"""The population of drifts and noise: ψ = log (ℓ, b², σ²) of each output, as the clients have them.

ψ_i ~ N(μ, τ²), with μ and τ² learned from five sums over clients, as for the traits of `structured`. A client
with thirty rows knows little of its drift and noise; the others say what is usual. What its rows say of ψ is
Laplace's Gaussian, from differences of the bound.

Noise with heavy tails says less of its variance than Gaussian noise would: n cells leave log σ² a variance of
(κ − 1)/n, with κ their kurtosis, and not 2/n. So what rows say of σ² counts λ = 2/(κ − 1) of what it would,
κ from sums over clients. In a search the prior's precision is 1/λ times as large instead: the best ψ is the
same.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from pfedhgp.inference.markov.step import ExpectedLogs, Problem
from pfedhgp.inference.starts.candidates import Start
from pfedhgp.inference.structured import traits
from pfedhgp.inference.structured.traits import Expected, Population, Reference
from pfedhgp.model.spec import Spec, starting_kernels

Array = np.ndarray
OPENING_NOISE, OPENING_DRIFT = 0.3, 0.003
"""σ² and b² at the start, in scaled units: drifts start small, or they would take what clients share."""
GAUSSIAN, MOST_KURTOSIS = 3.0, 30.0
"""κ is between these."""
TAILS_WORTH = 100.0
"""How many cells of Gaussian noise are counted with the clients' own."""
STEP = 0.02
"""Of the differences that give slope and curvature in ψ."""
LOGS = 3


def starting_logs(spec: Spec, start: Start, extent: Array) -> Float[Array, " 3Q"]:
    """ψ of the agreed start, all of ℓ first: the population's mean is counted from there."""
    kernels = starting_kernels(
        spec.local_kernel, scale=start.local, count=spec.local_latents, extent=extent
    )
    lengths = np.concatenate([np.log(leaf).reshape(-1) for leaf in jax.tree.leaves(kernels)])
    Q = spec.outputs
    return np.concatenate(
        [lengths, np.full(Q, np.log(OPENING_DRIFT)), np.full(Q, np.log(OPENING_NOISE))]
    )


def by_client(rows: Float[Array, "cQ *a 3"], outputs: int) -> Float[Array, "c *a 3Q"]:
    """Series of the same client side by side, all of ℓ first."""
    each = rows.reshape(-1, outputs, *rows.shape[1:])
    return np.moveaxis(each, 1, -1).reshape(len(each), *rows.shape[1:-1], LOGS * outputs)


def by_series(traits: Float[Array, "c 3Q"], outputs: int) -> Float[Array, "cQ 3"]:
    """The inverse, for one row a client."""
    each = traits.reshape(len(traits), LOGS, outputs)
    return np.moveaxis(each, 1, 2).reshape(-1, LOGS)


class Curvature(NamedTuple):
    """Slope and Hessian of log p(ψ | y) at some ψ."""

    slope: Float[Array, "k 3"]
    hessian: Float[Array, "k 3 3"]

    @staticmethod
    def at(problem: Problem, rows: Float[Array, "k 3"]) -> Curvature:
        """By central differences, all in one batch."""
        eye = STEP * np.eye(LOGS)
        pairs = [(a, b) for a in range(LOGS) for b in range(a)]
        crosses = [s * eye[a] + t * eye[b] for a, b in pairs for s, t in _SIGNS]
        offsets = np.stack([np.zeros(LOGS), *eye, *-eye, *crosses])
        k, count = len(rows), len(offsets)
        every = (rows[:, None] + offsets[None]).reshape(-1, LOGS)
        value = problem.of_some(np.repeat(np.arange(k), count)).solved(every).value
        value = value.reshape(k, count)
        up, down, cross = value[:, 1:4], value[:, 4:7], value[:, 7:].reshape(k, -1, 4)
        H = np.zeros((k, LOGS, LOGS))
        index = np.arange(LOGS)
        H[:, index, index] = (up + down - 2.0 * value[:, :1]) / STEP**2
        for p, (a, b) in enumerate(pairs):
            mixed = (cross[:, p, 0] - cross[:, p, 1] - cross[:, p, 2] + cross[:, p, 3]) / 4.0
            H[:, a, b] = H[:, b, a] = mixed / STEP**2
        return Curvature((up - down) / (2.0 * STEP), H)


_SIGNS = ((1, 1), (1, -1), (-1, 1), (-1, -1))


def kurtosis(fourth: Array, cells: Array) -> float:
    """κ from sums over clients: Σ z⁴ of residuals of unit mean square, and their number."""
    found = (float(fourth) + GAUSSIAN * TAILS_WORTH) / (float(cells) + TAILS_WORTH)
    return float(np.clip(found, GAUSSIAN, MOST_KURTOSIS))


def shares(tails: float) -> Float[Array, " 3"]:
    """1, 1, λ: how much of what rows seem to say of ψ counts."""
    return np.array([1.0, 1.0, 2.0 / (tails - 1.0)])


class Asked(NamedTuple):
    """What is expected of clients' ψ, and where their next reply is counted."""

    expected: ExpectedLogs
    """as searches take it: that of σ² with 1/λ of its precision"""
    reference: Reference
    share: Float[Array, " 3"]
    """1, 1, λ"""

    @staticmethod
    def of(
        centre: Float[Array, "cQ 3"],
        outputs: int,
        total: Float[Array, "5 3Q"],
        at: Population,
        own: Float[Array, "c 5 3Q"] | None,
        tails: float,
    ) -> Asked:
        """The population as all other clients tell it: `own` is each client's part of the total."""
        count = len(centre) // outputs
        others = np.broadcast_to(total, (count, *total.shape))
        found = traits.predicted(others if own is None else others - own, at)
        now = traits.updated(total, at)
        shape = (count, LOGS * outputs)
        mean, variance, now_mean, now_variance = (
            by_series(np.broadcast_to(each, shape), outputs) for each in (*found, *now)
        )
        share = shares(tails)
        return Asked(
            ExpectedLogs(centre + mean, 1.0 / (share * variance)),
            Reference(centre + now_mean, now_variance),
            share,
        )

    @staticmethod
    def of_a_newcomer(
        mean: Float[Array, " 3Q"], variance: Float[Array, " 3Q"], outputs: int, tails: float
    ) -> Asked:
        """What is expected of one client that joins later; nobody asks what its rows say."""
        mean, variance = (by_series(each[None], outputs) for each in (mean, variance))
        share = shares(tails)
        return Asked(ExpectedLogs(mean, 1.0 / (share * variance)), Reference(mean, variance), share)

    def sites(
        self, problem: Problem, rows: Float[Array, "cQ 3"], outputs: int, *, drifts_free: bool
    ) -> Float[Array, "c 5 3Q"]:
        """What clients' rows say of their ψ, in five numbers each; nothing of drifts that are held."""
        slope, hessian = Curvature.at(problem, rows)
        fine = np.isfinite(slope).all(1) & np.isfinite(hessian).all((1, 2))
        prior = -self.expected.precision[:, :, None] * np.eye(LOGS)
        slope = np.where(fine[:, None], slope, 0.0)  # a series whose bound overflows says nothing
        hessian = np.where(fine[:, None, None], hessian, prior)
        half = np.sqrt(self.share)
        mean, precision = self.expected
        found = traits.sites(
            Expected(mean, precision * self.share, self.reference),
            rows,
            slope * self.share,
            hessian * half[:, None] * half[None, :],
            np.array([drifts_free, drifts_free, 1.0]),
        )
        return by_client(np.asarray(found), outputs)
