"""The server of the Markov solver: totals at the knots, and its step in all that is shared.

A round is one exchange. The server broadcasts the totals ΣJ, Σh at the knots, the lengthscales, the
population of loadings, and what clients say of their drifts and noise. It adds the replies up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import equinox as eqx
import numpy as np

from pfedhgp.inference.arrays import State, block_arrays, block_of, block_to_arrays
from pfedhgp.inference.jitter import expect_finite, sufficient_jitter
from pfedhgp.inference.markov import knots
from pfedhgp.inference.markov.knots import Evidence, KnotPosterior
from pfedhgp.inference.markov.population import GAUSSIAN, LOGS, kurtosis
from pfedhgp.inference.messages import KNOT_SUMS, LEVEL_SUMS, pack, unpack
from pfedhgp.inference.own_weights import population_of
from pfedhgp.inference.protocols import Arrays
from pfedhgp.inference.structured import traits
from pfedhgp.inference.structured.server import PopulationSums, with_population
from pfedhgp.model.blocks import GlobalBlock
from pfedhgp.model.global_posterior import from_knots
from pfedhgp.model.posterior import GlobalPosterior, Population
from pfedhgp.model.spec import Spec

if TYPE_CHECKING:
    from pfedhgp.inference.markov.settings import Markov

LEVEL_PRECISION, LARGEST_STEP = 4.0, 0.3
"""of γ: the precision of its prior, and how far it moves in a round."""


def lengths_of(block: GlobalBlock) -> np.ndarray:
    """ℓ of each shared function."""
    return np.asarray(block.kernels.lengthscale, np.float64).reshape(-1)  # type: ignore[attr-defined]


def solve(block: GlobalBlock, evidence: Evidence) -> KnotPosterior:
    """q(u) at the block's knots."""
    return knots.posterior(np.asarray(block.inputs)[:, 0], lengths_of(block), evidence)


def evidence_of(shared: GlobalPosterior) -> Evidence:
    """The totals at the knots, which a model of this solver keeps."""
    assert shared.knot_J is not None
    assert shared.knot_h is not None
    return Evidence(np.asarray(shared.knot_J), np.asarray(shared.knot_h))


class MarkovServer:
    """Lengthscales, the population of loadings, and the last totals at the knots."""

    def __init__(self, settings: Markov, spec: Spec, block: GlobalBlock) -> None:
        if spec.noise == "level":
            block = replace(block, noise_levels=np.zeros(2))
        self.settings, self.spec, self.block = settings, spec, block
        self.jitter = sufficient_jitter(block, settings.jitter)
        self.anchor = lengths_of(block)
        M, R = len(block.inputs), spec.latents
        self.totals = Evidence(np.zeros((M, R, R)), np.zeros((M, R)))
        self.sums: dict[str, np.ndarray] | None = None
        count = LOGS * spec.outputs
        self.logs, self.logs_at = (
            np.zeros((traits.SUMS, count)),
            traits.Population.unknown(count),
        )
        self.tails = GAUSSIAN
        self.round = 0
        self.bounds: list[float] = []

    def request(self) -> dict[str, np.ndarray]:
        count = self.settings.evaluations if self.round else 0
        return {
            **block_to_arrays(self.block),
            **pack(KNOT_SUMS, {"knot_J": self.totals.J, "knot_h": self.totals.h}),
            "evaluations": np.asarray(float(count)),
            "kernels_free": np.asarray(float(self.round > self.settings.frozen_rounds)),
            "logs": self.logs,
            "logs_at": np.stack(self.logs_at),
            "tails": np.asarray(self.tails),
            "jitter": np.asarray(self.jitter),
        }

    def gather(self, sums: Arrays) -> float:
        """Takes the summed evidence and returns the bound: Σ constants + log ∫ p(u) exp(hᵀu − ½uᵀJu)."""
        self.sums = unpack((*KNOT_SUMS, *LEVEL_SUMS), sums)
        self.totals = Evidence(self.sums["knot_J"], self.sums["knot_h"])
        bound = float(self.sums["evidence"]) + solve(self.block, self.totals).log_partition
        expect_finite("the bound", bound, matrix="K⁻¹ + ΣJ")
        self.bounds.append(bound)
        self.logs_at = traits.updated(self.logs, self.logs_at)
        self.logs = self.sums["logs"]
        self.tails = kurtosis(self.sums["fourth"], self.sums["cells"])
        self.round += 1
        return bound

    def advance(self, inputs: np.ndarray | None = None) -> None:
        """The next lengthscales and population; knots stay where they are."""
        assert self.sums is not None
        new = with_population(self.block, PopulationSums.of(self.sums))
        lengths, scales = knots.improved(
            np.asarray(self.block.inputs)[:, 0],
            lengths_of(self.block),
            self.totals,
            self.anchor,
            learn=self.settings.learn_shared and self.round > 1,
        )
        self.totals = knots.scaled(self.totals, scales)
        each = np.tile(scales, len(new.loadings))
        shape = np.shape(new.kernels.lengthscale)  # type: ignore[attr-defined]
        new = replace(
            eqx.tree_at(lambda b: b.kernels.lengthscale, new, lengths.reshape(shape)),
            loadings=np.asarray(new.loadings) * scales,
            loadings_covariance=new.loadings_covariance * each[:, None] * each[None, :],
        )
        if self.round > 2:
            new = with_levels(new, self.sums)
        expect_finite("the server's step", new, matrix="the global block")
        self.block = new

    def finish(self) -> GlobalPosterior:
        """q(v_g) at the last totals."""
        assert self.sums is not None
        self.block = with_population(self.block, PopulationSums.of(self.sums))
        self.jitter = sufficient_jitter(self.block, self.jitter)
        found = from_knots(self.block, *self.totals, self.jitter)
        expect_finite("q(v_g)", (found.mean, found.covariance), matrix="I + LᵀJL")
        return found

    def population(self) -> Population:
        assert self.sums is not None
        s = self.sums
        found = population_of(
            self.spec.structure,
            np.zeros_like(s["noise"]),
            s["local_square"],
            s["noise"],
            s["clients"],
        )
        expected = np.stack(traits.predicted(self.logs, self.logs_at))
        return replace(found, traits=expected, tails=np.asarray(self.tails))

    def shared_nats(self) -> float:
        """Knots lie where rows are, and leave nothing out."""
        return 0.0

    def state(self) -> State:
        arrays = {
            **block_arrays("block", self.block),
            "anchor": self.anchor,
            "knot_J": self.totals.J,
            "knot_h": self.totals.h,
            "logs": self.logs,
            "logs_at": np.stack(self.logs_at),
            "bounds": np.asarray(self.bounds, np.float64),
        }
        plain = {"jitter": self.jitter, "turn": self.round, "tails": self.tails}
        return State(arrays, plain)

    def restore(self, state: State) -> None:
        block = block_of(state, "block", self.block.kernels)
        assert block is not None
        self.block, self.anchor = block, state.array("anchor")
        self.totals = Evidence(state.array("knot_J"), state.array("knot_h"))
        self.bounds = state.array("bounds").tolist()
        if "logs" in state.arrays:  # a run that an earlier version began has none
            self.logs = state.array("logs")
            self.logs_at = traits.Population(*state.array("logs_at"))
            self.tails = float(state.plain["tails"])
        self.jitter, self.round = float(state.plain["jitter"]), int(state.plain["turn"])


def with_levels(block: GlobalBlock, sums: Arrays) -> GlobalBlock:
    """γ after a Newton step within a box, γ ~ N(0, ½²)."""
    if block.noise_levels is None:
        return block
    now = np.asarray(block.noise_levels)
    curvature = np.asarray(sums["level_curvature"]) + LEVEL_PRECISION * np.eye(2)
    step = np.linalg.solve(curvature, np.asarray(sums["level_slope"]) - LEVEL_PRECISION * now)
    return replace(block, noise_levels=now + np.clip(step, -LARGEST_STEP, LARGEST_STEP))
