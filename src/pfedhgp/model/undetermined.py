"""What rows do not determine, and every prediction has to carry.

There are two such things. First, outputs that a client never observed: their deviation and local function are
the population's. Second, how the smooth part of the signal divides into global and deviation. Both layers
have one kernel, so a client's rows say nothing about the division. The mean of T clients' smooth parts is f_g
plus an error e(x) with the covariance of a deviation, P, over T:
    f_g + e,  f_δ,i − e,  e ~ GP(0, P/T ⊗ k)
The posterior at fitted loadings has much less of it if there are fewer latents than outputs, because at given
loadings a deviation keeps to a few directions of the outputs. In a client's sum e cancels, but not for a
client, or an output, that was never observed. A model without loadings has e in its posterior already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.predictor import Predictor

FloatArray = npt.NDArray[np.float64]
OF_DEVIATION, OF_LOCAL = 0, 1
"""Which of `prior_covariance`'s a function has."""


@dataclass(frozen=True, eq=False)
class Undetermined:
    """One function e(x) ~ GP(0, power ⊗ k), and with which weight each output of each layer has it."""

    power: FloatArray
    """(Q, Q), in the data's units"""
    kernel: int
    """OF_DEVIATION or OF_LOCAL"""
    weights: Mapping[str, FloatArray]
    """(Q,) for a layer or "total"; what is not there has none of it"""

    def between(self, first: str, second: str) -> FloatArray | None:
        """The covariance that it adds between the outputs of two layers at one input."""
        a, b = (self.weights.get(name) for name in (first, second))
        if a is None or b is None or not (a.any() and b.any()):
            return None
        return self.power * np.outer(a, b)


def undetermined(
    model: FittedModel, predictor: Predictor, spread: FloatArray
) -> tuple[Undetermined, ...]:
    """One client's: the division between global and deviation, and outputs that it never observed."""
    _, B_dev, B_loc = (np.asarray(B) for B in predictor.loadings)
    population, units = model.population, np.outer(spread, spread)
    unseen = ~np.any(B_dev != 0, axis=1) & ~np.any(B_loc != 0, axis=1)
    if not (B_dev.shape[1] or B_loc.shape[1]):
        unseen[:] = False
    found = []
    if predictor.known and unseen.any():
        one = unseen.astype(np.float64)
        for layer, power, kernel in (
            ("deviation", population.deviation_power, OF_DEVIATION),
            ("local", population.local_power, OF_LOCAL),
        ):
            weights = {layer: one, "total": one}
            found.append(Undetermined(np.asarray(power) * units, kernel, weights))
    if np.any(np.asarray(population.division)):
        all_of_it = np.ones(len(spread))
        given_up = np.where(unseen, 0.0, 1.0) if predictor.known else np.zeros(len(spread))
        weights = {"global": all_of_it, "deviation": -given_up, "total": all_of_it - given_up}
        found.append(Undetermined(np.asarray(population.division) * units, OF_DEVIATION, weights))
    return tuple(found)
