"""What clients' rows say of their traits: `client_step.trait_sites` on the host, for a batch.

The curvature in the traits takes an evaluation for each of them. A large client that has moved little since
its last one keeps it: slopes are those at which its search ended, and the prior's part is always today's.
Small clients, of which a population says most, take it anew: that costs little.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from pfedhgp.inference.structured.host.objective import Objective
from pfedhgp.inference.structured.host.parameters import Parameters
from pfedhgp.inference.structured.host.search import (
    LARGE_CLIENTS,
    Density,
    gradients,
    in_turns,
    kernel_count,
    quickest,
)
from pfedhgp.inference.structured.traits import TRAIT_STEP, TraitCurvature, sites

Array = np.ndarray
NEAR = 0.05
"""A client keeps its curvature until its local layer's or noise's parameters have moved by this much."""


class Found(NamedTuple):
    """The five numbers of each client, and the curvature behind them."""

    sites: Float[Array, "c 5 t"]
    curvature: TraitCurvature | None
    """None: these clients are small"""


def trait_sites(
    objective: Objective,
    at: Parameters,
    slope: Float[Array, "c P"],
    last: TraitCurvature | None,
    *,
    kernels_free: bool,
) -> Found:
    """From the slope at ψ, and from slopes at a small step in each trait or the last curvature."""
    structure, rows, density = objective.structure, at.rows(), quickest(objective)
    held = 0 if kernels_free else kernel_count(at)
    large, old = density.turns() <= LARGE_CLIENTS, np.arange(0)
    if last is None:
        last = TraitCurvature.unknown(rows, len(at.places(structure)))
    elif large:
        moved = np.abs(rows - last.at)[:, held:]
        old = np.flatnonzero(((moved < NEAR) | ~_matters(at, tied=structure.tied)[held:]).all(1))
    new = np.setdiff1d(np.arange(len(rows)), old)
    origin, hessian = rows.copy(), last.hessian.copy()
    origin[:, :held] = np.nan  # next time they may be free
    origin[old] = last.at[old]
    if len(new):
        some = density if not len(old) else density.of_some(new)
        hessian[new] = _by_slopes(some, at.of_some(new), slope[new], held)
    D = objective.prior.expected.precision
    whole = hessian - D[:, :, None] * np.eye(D.shape[1])
    free = (np.arange(D.shape[1]) >= held).astype(np.float64)
    in_traits = slope[:, at.places(structure)] / at.turns(structure)
    told = sites(objective.prior.expected, at.traits(structure), in_traits, whole, free)
    return Found(told, TraitCurvature(origin, hessian) if large else None)


def _matters(at: Parameters, *, tied: bool) -> Bool[Array, " P"]:
    """Which numbers of a row are traits' or the local layer's: the others' say little of traits."""
    ones = at.of_some(slice(0, 1)).from_rows(np.ones((1, at.rows().shape[1])))
    if not tied:
        ones.deviation[...] = 0.0
    if ones.global_loadings is not None:
        ones.global_loadings[...] = 0.0
    return ones.rows()[0] > 0.0


def _by_slopes(
    density: Density, at: Parameters, slope: Float[Array, "c P"], held: int
) -> Float[Array, "c t t"]:
    """∂² log p(y | ψ) in the traits; zero for the first ones, those of kernels that are `held`."""

    def one(part: Density, turn: slice) -> Array:
        here, part = at.of_some(turn), part.without_padding()
        whole = _hessian(
            part if not held else part.with_held_kernels(here), here, slope[turn], held
        )
        return whole + part.prior.expected.precision[:, :, None] * np.eye(whole.shape[1])

    return np.concatenate(in_turns(density, one))


def _hessian(
    part: Density, at: Parameters, slope: Float[Array, "c P"], held: int
) -> Float[Array, "c t t"]:
    """The same of log p(y, ψ), by differences."""
    structure, rows = part.structure, at.rows()
    where, step = at.places(structure), TRAIT_STEP
    size = len(where)
    shifts = step / at.turns(structure)
    if structure.tied:  # B² times exp(step)
        B = slice(kernel_count(at), size - at.noise.levels().shape[1])
        shifts[:, B] = np.expm1(0.5 * step) * rows[:, where[B]]
    points = np.repeat(rows[:, None], size - held, axis=1)
    points[:, np.arange(size - held), where[held:]] += shifts[:, held:]
    turns = at.from_rows(points.reshape(-1, rows.shape[1])).turns(structure)
    moved = gradients(part, points)[..., where] / turns.reshape(len(rows), -1, size)
    here = slope[:, where] / at.turns(structure)
    hessian = np.zeros((len(rows), size, size))
    hessian[:, held:] = (moved - here[:, None]) / step
    return hessian
