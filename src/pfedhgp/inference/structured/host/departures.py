"""A client's evidence as a function of the size of its deviation, for a batch of clients.

The deviation is ρD, where D is the direction of the client's own B̃. For each ρ all other parameters η are
searched anew and integrated out by Laplace, and so is D over the sphere that it lies on:
    log Z(ρ) = log p(y, η̂ | ρD) − ½ log|H_ηη| + log(share of the sphere that D may be on)
with scales in η as logarithms. The share goes to 1 as ρ → 0. ρ = 0 is a client that does not depart.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import lgamma

import jax
import numpy as np
from jaxtyping import Float

from pfedhgp.inference import host_lbfgs
from pfedhgp.inference.lbfgs import Pairs
from pfedhgp.inference.structured.departures import GRID, Evidence
from pfedhgp.inference.structured.host.parameters import Parameters, Prior
from pfedhgp.inference.structured.host.search import (
    Density,
    Evaluations,
    gradients,
    heights,
    in_turns,
    kernel_count,
    quickest,
)
from pfedhgp.inference.structured.host.step import HostBatch
from pfedhgp.inference.structured.traits import TRAIT_STEP

Array = np.ndarray
EVALUATIONS, SETTLED = 15, 1e-3
"""Of the search at each size, and the gain in nats below which it ends."""
FLATTEST = 0.05
"""The least curvature that a scale may have."""


def evidence(batch: HostBatch, *, searched: bool) -> Evidence:
    """log Z at each size of GRID and at none. If not `searched`, the others' parameters stay where they are.

    With many rows they hardly move, and neither do their volumes.
    """

    def one(part: Density, turn: slice) -> Evidence:
        sizes = _Sizes.of(batch, turn)
        if not searched:
            value = heights(part, sizes.points).value - sizes.prior_of_deviation(sizes.points)
            return Evidence(value[:, :-1], value[:, -1])
        return _searched(part, sizes, batch.pairs.of_some(turn))

    found = in_turns(quickest(batch.objective), one)
    return Evidence(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


@dataclass(frozen=True)
class _Sizes:
    """ψ of some clients with their deviations at each size; the last one is 0."""

    start: Parameters
    prior: Prior
    tied: bool
    points: Float[Array, "c G+1 P"]

    @staticmethod
    def of(batch: HostBatch, turn: slice) -> _Sizes:
        objective, start = batch.objective, batch.start.of_some(turn)
        R, d = objective.layout.latents, objective.layout.deviations
        B = objective.loadings(start)
        shared, own = (np.sum(b**2, axis=(1, 2)) for b in (B[..., :R], B[..., R : R + d]))
        unseen = own <= 1e-12 * shared  # B̃ is 0: any direction
        deviation = np.where(unseen[:, None, None], 1.0, start.deviation)
        if objective.tied_deviation is not None:
            B_dev = deviation * objective.tied_deviation
        else:
            B_dev = deviation
        now = np.log(np.sum(B_dev**2, axis=(1, 2)) / shared)
        factors = np.exp(0.5 * (GRID[:, None] - now))
        each = [f[:, None, None] * deviation for f in factors] + [np.zeros_like(deviation)]
        points = np.stack([start._replace(deviation=B).rows() for B in each], axis=1)
        tied = objective.structure.tied
        return _Sizes(start, objective.prior.of_some(turn), tied, points)

    @property
    def of_deviation(self) -> Array:
        """Which numbers of a row are the deviation's."""
        first = kernel_count(self.start)
        size = int(np.prod(self.start.deviation.shape[1:]))
        where = np.zeros(self.points.shape[2], bool)
        where[first : first + size] = True
        return where

    def repeated(self) -> Array:
        """The client of each point."""
        return np.repeat(np.arange(len(self.points)), self.points.shape[1])

    def at(self, points: Float[Array, "c N P"]) -> Parameters:
        return self.start.from_rows(points.reshape(-1, points.shape[2]))

    def prior_of_deviation(self, points: Float[Array, "c N P"]) -> Float[Array, "c N"]:
        """What log p(y, ψ) has for the deviation itself."""
        at, prior = self.at(points), self.prior.of_some(self.repeated())
        usual = at._replace(deviation=np.ones_like(at.deviation))
        found, there = (prior.value_and_gradient(p)[0] for p in (at, usual))
        if self.tied:
            cut = slice(kernel_count(self.start), None)
            size = at.deviation.shape[2]
            mean, precision = (
                np.asarray(v)[:, cut][:, :size]
                for v in (prior.expected.mean, prior.expected.precision)
            )
            there += 0.5 * (precision * mean**2).sum(1)
        else:
            phi, size = float(prior.shared.phi), int(np.prod(at.deviation.shape[1:]))
            there += 0.5 * size * (1.0 / phi + np.log(phi))
        return (found - there).reshape(points.shape[:2])

    def curvature_of_prior(self) -> float:
        """−∂² of the deviation's prior, where it has loadings."""
        return 0.0 if self.tied else 1.0 / float(self.prior.shared.phi)


def _searched(part: Density, sizes: _Sizes, pairs: Pairs) -> Evidence:
    count, number, P = sizes.points.shape
    which = sizes.repeated()
    every = part.of_some(which)
    found = host_lbfgs.minimize(
        Evaluations(every).loss,
        sizes.points.reshape(-1, P),
        evaluations=EVALUATIONS,
        movable=(~sizes.of_deviation).astype(np.float64),
        settled=SETTLED,
        share=0.0,
        pairs=pairs.of_some(which),
    )
    points = found.x.reshape(count, number, P)
    volume = _log_volumes(every, sizes, found.x).reshape(count, number)
    value = -found.value.reshape(count, number) - sizes.prior_of_deviation(points) + volume
    return Evidence(value[:, :-1], value[:, -1])


def _log_volumes(every: Density, sizes: _Sizes, rows: Float[Array, "k P"]) -> Float[Array, " k"]:
    """−½ log|H_ηη| and the share of the sphere."""
    H, slope = _curvature(every, sizes, rows)
    dev = sizes.of_deviation
    values, vectors = np.linalg.eigh(H[:, ~dev][:, :, ~dev])
    values = np.maximum(values, FLATTEST)
    found = -0.5 * np.log(values).sum(1)
    if dev.sum() == 1:
        return found
    across = np.swapaxes(vectors, 1, 2) @ H[:, ~dev][:, :, dev]
    given = H[:, dev][:, :, dev] - np.swapaxes(across, 1, 2) @ (across / values[..., None])
    given = given - sizes.curvature_of_prior() * np.eye(int(dev.sum()))
    latents = sizes.start.deviation.shape[2]
    share = partial(_log_share, latents=latents)
    return found + np.array([share(*each) for each in zip(given, rows[:, dev], slope[:, dev], strict=True)])


def _log_share(H: Array, B: Array, slope: Array, *, latents: int) -> float:
    """log of the part of the sphere around B on which H lets the direction be; 2^R signs are alike."""
    size, radius = len(B), float(np.linalg.norm(B))
    if radius == 0.0:
        return 0.0
    D = B / radius
    tangent = np.linalg.svd(D[None])[2][1:]
    angular = radius**2 * tangent @ H @ tangent.T + radius * (slope @ D) * np.eye(size - 1)
    area = np.log(2.0) + 0.5 * size * np.log(np.pi) - lgamma(0.5 * size)
    whole = np.log(2.0 * np.pi) + 2.0 * (latents * np.log(2.0) - area) / (size - 1)
    values = np.linalg.eigvalsh(0.5 * (angular + angular.T))
    return 0.5 * float(np.minimum(whole - np.log(np.maximum(values, 1e-12)), 0.0).sum())


def _curvature(
    every: Density, sizes: _Sizes, rows: Float[Array, "k P"]
) -> tuple[Float[Array, "k P P"], Float[Array, "k P"]]:
    """−∂² log p(y, ψ) by slopes at small steps, local variances of a model without loadings in logarithms."""
    k, P = rows.shape
    logs = np.zeros(P, bool)
    if sizes.tied:
        first = kernel_count(sizes.start) + int(sizes.of_deviation.sum())
        logs[first : first + int(np.prod(sizes.start.loadings.shape[1:]))] = True
    points = np.repeat(rows[:, None], 1 + P, axis=1)
    each = np.arange(P)
    points[:, 1 + each, each] += np.where(logs, np.expm1(0.5 * TRAIT_STEP) * rows, TRAIT_STEP)
    slopes = gradients(every, points)
    slopes = np.where(logs, 0.5 * points * slopes, slopes)
    H = -(slopes[:, 1:] - slopes[:, :1]) / TRAIT_STEP
    return 0.5 * (H + np.swapaxes(H, 1, 2)), slopes[:, 0]
