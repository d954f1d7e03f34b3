"""A client's evidence as a function of its φ_i, for a batch of clients without loadings.

At each φ_i all other parameters η are searched anew, and integrated out by Laplace:
    log Z(φ_i) = log p(y, η̂ | φ_i) − ½ log|−∂²_η log p|
η has the logarithms of lengthscales and variances. φ_i = 0 is a client that does not depart.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from pfedhgp.inference import host_lbfgs
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
"""Of the search at each φ_i, and the gain in nats below which it ends."""
FLATTEST = 0.05
"""The least curvature that a scale may have."""


def evidence(batch: HostBatch, *, searched: bool) -> Evidence:
    """log Z at each φ_i of GRID and at 0. If not `searched`, other parameters stay where they are.

    With many rows they hardly move, and neither do their volumes.
    """
    log_phi = np.log(float(batch.shared.block.phi))

    def one(part: Density, turn: slice) -> Evidence:
        points = _at_sizes(batch.start.of_some(turn), log_phi)
        count, number, P = points.shape
        every = part.of_some(np.repeat(np.arange(count), number))
        rows = points.reshape(-1, P)
        if searched:
            rows = _searched(every, batch.start, rows)
            value = heights(every, rows[:, None]).value[:, 0] + _log_volume(
                every, batch.start, rows
            )
        else:
            value = heights(every, rows[:, None]).value[:, 0]
        value -= _prior_of_deviation(every.prior, batch.start.from_rows(rows))
        found = value.reshape(count, number)
        return Evidence(found[:, :-1], found[:, -1])

    found = in_turns(quickest(batch.objective), one)
    return Evidence(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _at_sizes(start: Parameters, log_phi: float) -> Float[Array, "c G+1 P"]:
    """ψ with √(φ_i/φ) for each φ_i, and 0 as the last."""
    sizes = [*np.exp(0.5 * (GRID - log_phi)), 0.0]
    each = [start._replace(deviation=np.full_like(start.deviation, s)) for s in sizes]
    return np.stack([at.rows() for at in each], axis=1)


def _is_deviation(start: Parameters) -> Bool[Array, " P"]:
    """Which number of a row is √(φ_i/φ): the one after the kernels'."""
    return np.arange(start.rows().shape[1]) == kernel_count(start)


def _searched(every: Density, start: Parameters, rows: Float[Array, "k P"]) -> Array:
    found = host_lbfgs.minimize(
        Evaluations(every).loss,
        rows,
        evaluations=EVALUATIONS,
        movable=(~_is_deviation(start)).astype(np.float64),
        settled=SETTLED,
    )
    return found.x


def _prior_of_deviation(prior: Prior, at: Parameters) -> Float[Array, " k"]:
    """What log p(y, ψ) has for φ_i itself."""
    where = kernel_count(at)
    gap = at.traits(prior.structure)[:, where] - prior.expected.mean[:, where]
    return -0.5 * prior.expected.precision[:, where] * gap**2


def _log_volume(every: Density, start: Parameters, rows: Array) -> Float[Array, " k"]:
    """−½ log|−∂²_η log p|, by slopes at small steps; local variances are logarithms."""
    free = np.flatnonzero(~_is_deviation(start))
    first, size = kernel_count(start) + 1, start.loadings.shape[2]
    logs = np.isin(np.arange(rows.shape[1]), np.arange(first, first + size))
    points = np.repeat(rows[:, None], 1 + len(free), axis=1)
    steps = np.where(logs, np.expm1(0.5 * TRAIT_STEP) * rows, TRAIT_STEP)
    points[:, 1 + np.arange(len(free)), free] += steps[:, free]
    slopes = gradients(every, points)
    slopes = np.where(logs, 0.5 * points * slopes, slopes)[..., free]
    curvature = -(slopes[:, 1:] - slopes[:, :1]) / TRAIT_STEP
    values = np.linalg.eigvalsh(0.5 * (curvature + np.swapaxes(curvature, 1, 2)))
    return -0.5 * np.log(np.maximum(values, FLATTEST)).sum(1)
