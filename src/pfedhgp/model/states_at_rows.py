"""A state-space local layer at a few new rows, in NumPy: nothing is compiled, whatever the series' length.

What a local function h_q at a new time makes of data at the client's times is a column S,
    E[h_q(x)] = Σ_k S_k y_k,
and its covariance with h_q at other new times comes with it: one banded solve for each new row
(`pfedhgp.gp.banded_states`). How h_q leans on a basis' features is S against these; they are never smoothed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from pfedhgp.gp import linalg, state_space
from pfedhgp.gp.banded_states import BandedStates
from pfedhgp.gp.features import Basis
from pfedhgp.gp.kernels import unstack
from pfedhgp.model.blocks import ClientBlock
from pfedhgp.model.posterior import LocalStates


class StatesAtRows(NamedTuple):
    """Of each output: S, and the covariance between new rows, given the data."""

    leaning: Float[np.ndarray, "Q n m"]
    covariance: Float[np.ndarray, "Q m m"]

    @staticmethod
    def of(
        states: LocalStates,
        block: ClientBlock,
        variances: Float[np.ndarray, " Q"],
        new: Float[np.ndarray, " m"],
    ) -> StatesAtRows:
        """For the times of `states` and new ones, which may be among them, in any order."""
        n, Q = np.shape(states.counts)
        both = np.concatenate([states.times, new])
        order = np.argsort(both, kind="stable")
        place = np.argsort(order, kind="stable")
        leaning, covariance = np.empty((Q, n, len(new))), np.empty((Q, len(new), len(new)))
        for q in range(Q):
            counts = np.concatenate([states.counts[:, q], np.zeros(len(new))])
            series = of_output(block, q, both[order], counts[order] / variances[q])
            S, found = series.towards(place[n:])
            leaning[q], covariance[q] = S[place[:n]], found[place[n:]]
        return StatesAtRows(leaning, covariance)

    def on_features(
        self, basis: Basis, times: Float[np.ndarray, " n"]
    ) -> Float[np.ndarray, "Q R M m"]:
        """Σ_k S_k a(t_k) for each output and each of the basis' features."""
        k = np.asarray(basis.cross(times[:, None]))
        R, M = k.shape[:2]
        Q, n, m = self.leaning.shape
        found = k @ np.swapaxes(self.leaning, 0, 1).reshape(n, Q * m)
        white = linalg.solve_lower(np.asarray(basis.factor), found).reshape(R, M, Q, m)
        return np.moveaxis(white, 2, 0)


def of_output(
    block: ClientBlock,
    q: int,
    times: Float[np.ndarray, " n"],
    precision: Float[np.ndarray, " n"],
) -> BandedStates:
    """The series of one output; `precision` is 0 where nothing was seen."""
    model = state_space.StateModel.of(unstack(block.kernels, q))
    return BandedStates.of(model, float(block.loadings[q, q]), times, precision)


def smoothed(
    block: ClientBlock,
    states: LocalStates,
    variances: Float[np.ndarray, " Q"],
    columns: Float[np.ndarray, "Q n k"],
) -> Float[np.ndarray, "Q n s k"]:
    """What the smoother makes of some columns of each output, as data at the client's times."""
    precision = np.asarray(states.counts).T / variances[:, None]
    times = np.asarray(states.times)
    return np.stack(
        [of_output(block, q, times, w).smooth(columns[q]) for q, w in enumerate(precision)]
    )


def interpolated(
    block: ClientBlock, states: LocalStates, at: Float[np.ndarray, " m"]
) -> Float[np.ndarray, "Q m s"]:
    """E[x_q(t)] at any times, from the smoothed states."""
    times = np.asarray(states.times)
    return np.stack(
        [
            state_space.interpolate(
                state_space.StateModel.of(unstack(block.kernels, q)), times, means, at
            )
            for q, means in enumerate(np.asarray(states.means))
        ]
    )


def means(
    block: ClientBlock, states: LocalStates, at: Float[np.ndarray, " m"]
) -> Float[np.ndarray, "m Q"]:
    """E[h_q(t)] at any times."""
    models = [
        state_space.StateModel.of(unstack(block.kernels, q)) for q in range(len(states.means))
    ]
    observe = np.stack([np.asarray(model.observe) for model in models])
    return np.einsum("qms,qs->mq", interpolated(block, states, at), observe)
