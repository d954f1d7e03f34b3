"""Clients of the Markov solver: EM between q(u) at the knots and what clients own.

In a round each client solves for q(u), improves its own parameters and returns its evidence, R × R numbers
and R numbers a knot. After training it stands beside what all others know (`cavity`), and averages over its
loadings, drift and noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import equinox as eqx
import numpy as np

from pfedhgp.gp.noise import DiagonalNoise
from pfedhgp.inference.arrays import (
    State,
    block_from_arrays,
    for_some,
)
from pfedhgp.inference.markov import cavity, step
from pfedhgp.inference.markov.knots import Evidence, KnotPosterior
from pfedhgp.inference.markov.population import (
    GAUSSIAN,
    LOGS,
    OPENING_DRIFT,
    OPENING_NOISE,
    Asked,
)
from pfedhgp.inference.markov.server import evidence_of, solve
from pfedhgp.inference.messages import KNOT_SUMS, LEVEL_SUMS, pack, unpack
from pfedhgp.inference.protocols import Arrays
from pfedhgp.inference.structured import traits
from pfedhgp.inference.structured.bound import GlobalEvidence
from pfedhgp.inference.structured.clients import StructuredClients
from pfedhgp.model.blocks import ClientBlock, GlobalBlock
from pfedhgp.model.kept_sums import KeptSums
from pfedhgp.model.noise_level import loudness
from pfedhgp.model.posterior import ClientPosterior, GlobalPosterior, Population

FINAL_EVALUATIONS = 20
"""Of the search at the final q(u)."""


def _by_client(about: list[Evidence], outputs: int) -> Evidence:
    """The evidence of each client's series added up, with a leading axis of clients."""
    each = (np.stack(arrays) for arrays in zip(*about, strict=True))
    return Evidence(*(a.reshape(-1, outputs, *a.shape[1:]).sum(1) for a in each))


@dataclass
class MarkovClients(StructuredClients):
    """A batch of clients. What they keep and how they predict is as with other state-space local layers."""

    levels: np.ndarray | None = None
    """Where each cell was predicted to be in the last round, in scaled units."""
    starts: ClientBlock = field(init=False)
    """The agreed starting values, from which the population's ψ is counted."""
    asked: Asked = field(init=False)
    own_logs: np.ndarray | None = None
    """What clients said of their ψ in the last round."""
    own_evidence: Evidence | None = None
    """and of the knots, a leading axis of clients"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.starts = self.blocks
        count = LOGS * self.spec.outputs
        self._ask(np.zeros((traits.SUMS, count)), traits.Population.unknown(count), GAUSSIAN)

    def _ask(self, total: np.ndarray, at: traits.Population, tails: float) -> None:
        centre = self._logs(opening=True)
        self.asked = Asked.of(centre, self.spec.outputs, total, at, self.own_logs, tails)

    def forget_last_reply(self, stays: np.ndarray | None = None) -> None:
        super().forget_last_reply(stays)
        if stays is None or not stays.any():
            self.own_logs = self.own_evidence = None
        elif self.own_logs is not None and self.own_evidence is not None:
            self.own_logs = for_some(self.own_logs, stays)
            self.own_evidence = Evidence(*(for_some(a, stays) for a in self.own_evidence))

    def answer(
        self, arrays: Arrays, kind: str, names: tuple[str, ...]
    ) -> list[dict[str, np.ndarray]]:
        self.names = names
        shared = block_from_arrays(arrays, self.like)
        found = unpack(KNOT_SUMS, {n: arrays[n] for n in ("knot_J", "knot_h")})
        q = solve(shared, Evidence(found["knot_J"], found["knot_h"]))
        at = traits.Population(*np.asarray(arrays["logs_at"]))
        self._ask(np.asarray(arrays["logs"]), at, float(arrays["tails"]))
        problem = self._problem(shared, q)
        evaluations = int(arrays["evaluations"])
        places = len(shared.inputs)
        if evaluations:
            free = bool(arrays["kernels_free"])
            logs = step.search(problem, self._logs(), evaluations, drifts_free=free)
            sent = step.send(problem, logs, None, places)
            self.own_logs = self.asked.sites(problem, logs, self.spec.outputs, drifts_free=free)
        else:
            logs = self._logs(opening=True)
            own = np.asarray(self.blocks.global_loadings)
            sent = step.send(problem, logs, own.reshape(-1, own.shape[2]), places)
            self.own_logs = np.zeros((len(own), *np.shape(arrays["logs"])))
        self._keep(logs, sent.loadings)
        self._move_levels(sent.level)
        self.own_evidence = _by_client(sent.about_knots, self.spec.outputs)
        return self._replies(sent, logs)

    def _move_levels(self, found: np.ndarray) -> None:
        """Half-way to where cells are predicted now.

        A whole step would swing: a cell that is predicted low counts little, is then predicted from others,
        higher, counts much, and is predicted low again.
        """
        self.levels = found if self.levels is None else 0.5 * (self.levels + found)

    def _problem(self, shared: GlobalBlock, q: KnotPosterior) -> step.Problem:
        return step.Problem.of(
            self._series(shared), q, self._population(shared), self.asked.expected
        )

    def posteriors(
        self, shared: GlobalPosterior, jitter: float, others: GlobalEvidence | None = None
    ) -> list[ClientPosterior]:
        """Averaged over loadings, and with b² and σ² at their means.

        Rows count as much as their noise at their level allows.
        """
        found = self.found(shared)
        logs, averaged = found.logs, self.settings.averaging is not None
        if averaged:
            variances = found.log_variances / self.asked.share
            logs = logs + 0.5 * variances * np.array([0.0, 1.0, 1.0])
        series, rows, blocks = self._series(shared.block), self.rows, self.blocks
        shape = np.swapaxes(rows.mask, 1, 2).shape
        weights = np.swapaxes(series.weights.reshape(shape), 1, 2)
        self._keep(logs, found.loadings)
        self.rows = replace(rows, mask=weights)
        try:
            kept = super().posteriors(shared, jitter, others)
        finally:
            self.rows, self.blocks = rows, blocks
        if not averaged:
            return kept
        halves = self._halves(found.loadings_covariance)
        return [replace(own, loadings_half=half) for own, half in zip(kept, halves, strict=True)]

    def kept(
        self, shared: GlobalPosterior, jitter: float, found: Sequence[ClientPosterior]
    ) -> list[KeptSums | None]:
        """None: the weights of rows depend on their level, and so on all others."""
        return [None] * len(found)

    def join(self, population: Population) -> None:
        """What is expected of a client that comes later, from the model's population."""
        assert population.traits is not None
        mean, variance = (np.asarray(each) for each in population.traits)
        tails = GAUSSIAN if population.tails is None else float(population.tails)
        self.asked = Asked.of_a_newcomer(mean, variance, self.spec.outputs, tails)
        self._keep(self.asked.expected.mean, np.asarray(self.blocks.global_loadings)[0])

    def look(self, shared: GlobalPosterior) -> None:
        """The best parameters beside the others, and where the rows are then predicted to be."""
        found = self.found(shared)
        self._keep(found.logs, found.loadings)
        block = shared.block
        problem = self._problem(block, solve(block, evidence_of(shared)))
        self.levels = step.send(problem, found.logs, None, len(block.inputs)).level

    def beside(self, shared: GlobalPosterior) -> cavity.Beside:
        """Clients beside what all others know of u, which is the total less each client's own part."""
        block, total = shared.block, evidence_of(shared)
        series = self._series(block)
        others = [total] * len(self.jitter)
        if self.own_evidence is not None:
            others = [
                Evidence(total.J - J, total.h - h) for J, h in zip(*self.own_evidence, strict=True)
            ]
        first = slice(None, None, self.spec.outputs)
        chain = cavity.Chain.of([solve(block, each) for each in others], series.knots[first])
        return cavity.Beside(series, chain, self._population(block), self.asked.expected)

    def found(self, shared: GlobalPosterior) -> cavity.Found:
        """(c, ψ) there, and how sure they are; the search starts from a step at q(u)."""
        block, logs = shared.block, self._logs()
        problem = self._problem(block, solve(block, evidence_of(shared)))
        guess = problem.solved(logs)
        return cavity.laplace(
            self.beside(shared), guess.loadings, logs, guess.precision, FINAL_EVALUATIONS
        )

    def _halves(self, covariance: np.ndarray) -> np.ndarray:
        """F of each client with Cov(vec B_g,i) = Σ_p F_p F_pᵀ, (c, QR, Q, R)."""
        half = np.linalg.cholesky(covariance)
        return np.swapaxes(half, 1, 2).reshape(*half.shape[:2], self.spec.outputs, -1)

    def state(self) -> State:
        kept = super().state()
        more = {"levels": self.levels, "own_logs": self.own_logs}
        if self.own_evidence is not None:
            more |= {"own_J": self.own_evidence.J, "own_h": self.own_evidence.h}
        there = {name: array for name, array in more.items() if array is not None}
        return replace(kept, arrays={**kept.arrays, **there})

    def restore(self, state: State) -> None:
        super().restore(state)
        self.levels, self.own_logs = (state.arrays.get(n) for n in ("levels", "own_logs"))
        if "own_J" in state.arrays:
            self.own_evidence = Evidence(state.array("own_J"), state.array("own_h"))

    def _series(self, shared: GlobalBlock) -> step.Series:
        """Each output of each client as a series, its times at the nearest knots."""
        X, Y, mask = (np.asarray(a) for a in (self.rows.X, self.rows.Y, self.rows.mask))
        c, n, Q = Y.shape
        places = np.asarray(shared.inputs)[:, 0]
        middles = 0.5 * (places[1:] + places[:-1])
        times = np.repeat(X[:, None, :, 0], Q, axis=1).reshape(c * Q, n)
        scatter = np.zeros((c, Q))
        counts = np.swapaxes(mask, 1, 2).reshape(c * Q, n)
        if self.rows.scatter is not None:
            scatter = np.einsum("cgqq->cq", np.asarray(self.rows.scatter))
        return step.Series(
            times,
            np.searchsorted(middles, times),
            np.swapaxes(Y, 1, 2).reshape(c * Q, n),
            counts,
            counts / self._loudness(shared, counts),
            scatter.reshape(c * Q),
        )

    def _loudness(self, shared: GlobalBlock, counts: np.ndarray) -> np.ndarray:
        """v of each cell, by its level in the last round."""
        if self.levels is None:
            return np.ones_like(counts)
        return loudness(self.levels, shared.noise_levels)

    def _population(self, shared: GlobalBlock) -> step.LoadingsPrior:
        """N(B_g, Σ_B), output by output."""
        Q, R = shared.loadings.shape
        count = len(self.jitter)
        spread = np.asarray(shared.loadings_covariance).reshape(Q, R, Q, R)
        each = np.linalg.inv(spread[np.arange(Q), :, np.arange(Q)])
        mean = np.asarray(shared.loadings)
        return step.LoadingsPrior(np.tile(mean, (count, 1)), np.tile(each, (count, 1, 1)))

    def _logs(self, *, opening: bool = False) -> np.ndarray:
        """log (ℓ, b², σ²) of each series."""
        block = self.starts if opening else self.blocks
        lengths = np.asarray(block.kernels.lengthscale)  # type: ignore[attr-defined]
        lengths = lengths.reshape(len(self.jitter), -1)
        Q = lengths.shape[1]
        sizes = np.asarray(block.loadings)[:, np.arange(Q), np.arange(Q)] ** 2
        noise = np.asarray(block.noise.variances(Q))  # type: ignore[attr-defined]
        if opening:
            sizes, noise = np.full_like(sizes, OPENING_DRIFT), np.full_like(noise, OPENING_NOISE)
        return np.log(np.stack([lengths, sizes, noise], axis=2)).reshape(-1, 3)

    def _keep(self, logs: np.ndarray, loadings: np.ndarray) -> None:
        """The clients' blocks with what was found."""
        blocks, count = self.blocks, len(self.jitter)
        own = np.asarray(blocks.global_loadings)
        lengths, sizes, noise = np.moveaxis(np.exp(logs).reshape(count, own.shape[1], 3), 2, 0)
        shape = np.shape(blocks.kernels.lengthscale)  # type: ignore[attr-defined]
        kernels = eqx.tree_at(lambda k: k.lengthscale, blocks.kernels, lengths.reshape(shape))
        assert isinstance(blocks.noise, DiagonalNoise)
        variances = np.maximum(noise - blocks.noise.floor, 1e-12)
        self.blocks = replace(
            blocks,
            kernels=kernels,
            loadings=np.sqrt(sizes)[:, :, None] * np.eye(own.shape[1]),
            noise=replace(blocks.noise, log_variance=np.log(variances)),
            global_loadings=loadings.reshape(own.shape),
        )

    def _replies(self, sent: step.Sent, logs: np.ndarray) -> list[dict[str, np.ndarray]]:
        count, said, own_logs = len(self.jitter), self.own_evidence, self.own_logs
        assert said is not None
        assert own_logs is not None
        Q = len(logs) // count
        R = sent.loadings.shape[1]
        _, sizes, noise = np.moveaxis(np.exp(logs).reshape(count, Q, 3), 2, 0)
        replies = []
        for i in range(count):
            own = range(i * Q, (i + 1) * Q)
            c = sent.loadings[own.start : own.stop]
            square = np.outer(c.reshape(-1), c.reshape(-1)).reshape(Q, R, Q, R)
            square[np.arange(Q), :, np.arange(Q)] += sent.spread[own.start : own.stop]
            reply = {
                "evidence": sent.evidence[own.start : own.stop].sum(),
                "knot_J": said.J[i],
                "knot_h": said.h[i],
                "logs": own_logs[i],
                "fourth": sent.fourth[own.start : own.stop].sum(),
                "cells": sent.cells[own.start : own.stop].sum(),
                "local_square": np.diag(sizes[i]),
                "noise": np.diag(noise[i]),
                "client_loadings": c,
                "client_loadings_square": square.reshape(Q * R, Q * R),
                "clients": np.ones(()),
            }
            if self.spec.noise == "level":
                reply["level_slope"] = sent.level_slope[own.start : own.stop].sum(0)
                reply["level_curvature"] = sent.level_curvature[own.start : own.stop].sum(0)
            replies.append(pack((*KNOT_SUMS, *LEVEL_SUMS), reply))
        return replies
