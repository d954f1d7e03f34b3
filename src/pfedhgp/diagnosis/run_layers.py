"""Class, run and cycle layers from sums, and the covariance of a new cycle of a new run.

    Σ = (1−δ) S + δ s_b R s_b + (1 − 1/n_h) [(1−τ) W + τ s_e R s_e],   1/n_h = mean of 1/n_b

A run's mean has covariance Ψ_b + Ψ_e/n_b, which S estimates, and W estimates Ψ_e: together Ψ_b + Ψ_e. With a
dozen runs S has rank a dozen, so it is shrunk towards a target:

| target  | R |
|---------|---|
| channel | I, one standard deviation a channel |
| cell    | I, one standard deviation a coordinate |
| smooth  | a C ⊗ Matérn 3/2 + (1−a) I, by moments of the correlations; one standard deviation a coordinate |
| within  | runs differ as the cycles of a run do, only more: S is shrunk towards a scaled W |
| cycles  | runs do not matter: all cycles together, shrunk towards one standard deviation a coordinate |
| stationary | correlations by lag alone, one spectrum (`stationary`); of S and of W, and τ = ½ |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pfedhgp.diagnosis.run_sums import RunSums
from pfedhgp.diagnosis.stationary import stationary_covariance

FloatArray = npt.NDArray[np.float64]
WITHIN_SHRINKAGE = 0.1
"""τ. Within runs there are many cycles, so a little is enough."""
STATIONARY_SHRINKAGE = 0.5
"""τ of the stationary target."""
STILL = 1e-8
"""Variance of a coordinate that never moves, relative to the mean of its channel's."""
STILL_CHANNEL = 1e-10
"""The same relative to all channels."""
ADDED_RUNS = 3
"""A class that was added later has a covariance of its own if it has this many runs."""
TARGETS = ("channel", "cell", "smooth", "within", "cycles", "stationary")


@dataclass(frozen=True, eq=False)
class Layers:
    """f, S, W and the run lengths of K classes; `of_class` has a class's own S and W."""

    channels: int
    means: FloatArray
    """f, (K, D)"""
    S: FloatArray
    W: FloatArray
    freedom: tuple[float, float]
    """of S and of W"""
    share: float
    """1 − 1/n_h; 0 if every run is a single cycle"""
    floor: FloatArray
    """(D,), added to every variance"""
    trained: int
    """of how many classes S and W are; those behind them were added later"""

    @staticmethod
    def of(sums: RunSums, channels: int, *, added: int = 0) -> Layers:
        """The layers that all classes share: of all but the last `added` classes."""
        K, G = len(sums.runs) - added, len(sums.between) - added
        B = sums.runs[:K]
        nu_b, nu_w = float(np.sum(B - 1.0)), float(np.sum(sums.cycles[:K] - B))
        means = sums.means / sums.runs[:, None]
        between, within = (part[:G].sum(axis=0) for part in (sums.between, sums.within))
        S = (between - (means[:K] * B[:, None]).T @ means[:K]) / max(nu_b, 1.0)
        W = within / max(nu_w, 1.0)
        share = 1.0 - float(sums.inverse[:K].sum() / B.sum()) if nu_w > 0 else 0.0
        variance = np.maximum(np.diagonal(S) + share * np.diagonal(W), 0.0)
        by_channel = variance.reshape(channels, -1).mean(axis=1)
        floor = STILL * np.repeat(by_channel, S.shape[0] // channels)
        floor += STILL_CHANNEL * max(float(variance.mean()), 1e-300)
        return Layers(channels, means, S, W, (nu_b, nu_w), share, floor, K)

    def of_class(self, sums: RunSums, k: int) -> Layers:
        """The same with the S and W of class k alone; what it cannot say is everyone's."""
        B, N = float(sums.runs[k]), float(sums.cycles[k])
        if k >= self.trained and B < ADDED_RUNS:
            return self
        S, W, f = self.S, self.W, self.means[k]
        if B > 1:
            S = (sums.between[k] - B * np.outer(f, f)) / (B - 1.0)
        if N > B:
            W = sums.within[k] / (N - B)
        return replace(self, S=S, W=W, freedom=(max(B - 1.0, 0.0), N - B))

    def covariance(self, target: str, delta: float) -> FloatArray:
        """Σ of a new cycle of a new run."""
        tau, share = WITHIN_SHRINKAGE, self.share
        if target == "cycles":
            out = (1.0 - delta) * self.over_cycles
            _add_diagonal(out, delta * np.diagonal(self.over_cycles) + self.floor)
            return out
        if target == "within":
            out = (1.0 - delta) * self.S + self.within * (
                share + delta * np.outer(self._ratio, self._ratio)
            )
            _add_diagonal(out, self.floor)
            return out
        if target == "stationary":
            run, cycle = self._stationary
            out = (1.0 - delta) * self.S + delta * run
            out += share * (STATIONARY_SHRINKAGE * (cycle - self.W) + self.W)
            _add_diagonal(out, self.floor)
            return out
        out = (1.0 - delta) * self.S + share * (1.0 - tau) * self.W
        s_b, s_e = (self._deviations(M, by_channel=target == "channel") for M in (self.S, self.W))
        if target == "smooth":
            out += self._smooth * (delta * np.outer(s_b, s_b) + share * tau * np.outer(s_e, s_e))
            _add_diagonal(out, self.floor)
        else:
            _add_diagonal(out, delta * s_b**2 + share * tau * s_e**2 + self.floor)
        return out

    @property
    def over_cycles(self) -> FloatArray:
        """The covariance of cycles if runs do not matter: n_h S and W say the same, each by its freedom."""
        nu_b, nu_w = self.freedom
        return np.asarray(
            (nu_b * self.S / (1.0 - self.share) + nu_w * self.W) / max(nu_b + nu_w, 1.0)
        )

    @cached_property
    def within(self) -> FloatArray:
        """W, shrunk towards one standard deviation a coordinate."""
        out = (1.0 - WITHIN_SHRINKAGE) * self.W
        _add_diagonal(out, WITHIN_SHRINKAGE * np.diagonal(self.W) + self.floor)
        return out

    @property
    def _ratio(self) -> FloatArray:
        """How much more runs differ than cycles within a run, (D,), one number a channel."""
        s_b, s_e = (self._deviations(M, by_channel=True) for M in (self.S, self.W))
        return np.asarray(s_b / np.maximum(s_e, 1e-150))

    @cached_property
    def _smooth(self) -> FloatArray:
        total = self.S + self.share * self.W
        _add_diagonal(total, self.floor)
        return smooth_correlation(total, self.channels)

    @cached_property
    def _stationary(self) -> tuple[FloatArray, FloatArray]:
        """Of S and of W."""
        run = stationary_covariance(self.S, self.channels)
        cycle = stationary_covariance(self.W, self.channels) if self.share else self.W
        return run, cycle

    def _deviations(self, matrix: FloatArray, *, by_channel: bool) -> FloatArray:
        variance = np.maximum(np.diagonal(matrix), 0.0)
        if by_channel:
            each = len(variance) // self.channels
            variance = np.repeat(variance.reshape(self.channels, -1).mean(axis=1), each)
        return np.asarray(np.sqrt(variance))


def smooth_correlation(covariance: FloatArray, channels: int) -> FloatArray:
    """a C ⊗ K + (1−a) I: K a Matérn 3/2 of the lag within channels, C the channels at equal places."""
    D = len(covariance)
    r = D // channels
    sd = np.sqrt(np.diagonal(covariance))
    P = (covariance / np.outer(sd, sd)).reshape(channels, r, channels, r)
    own = np.einsum("qaqb->ab", P) / channels
    lags = np.array([np.mean(np.diagonal(own, lag)) for lag in range(r)])
    best, a, k = np.inf, 0.0, np.eye(1, r)[0]
    for scale in np.geomspace(0.3, 3.0 * r, 40) if r > 1 else ():
        x = np.sqrt(3.0) * np.arange(r) / scale
        shape = (1.0 + x) * np.exp(-x)
        size = float(np.clip(shape[1:] @ lags[1:] / max(shape[1:] @ shape[1:], 1e-12), 0.0, 0.999))
        error = float(np.sum((size * shape[1:] - lags[1:]) ** 2 * np.arange(r - 1, 0, -1)))
        if error < best:
            best, a, k = error, size, shape
    K = k[np.abs(np.subtract.outer(np.arange(r), np.arange(r)))]
    values, vectors = np.linalg.eigh(np.einsum("qapa->qp", P) / r)
    C = (vectors * np.maximum(values, 1e-3)) @ vectors.T
    scale = np.sqrt(np.diagonal(C))
    out = a * np.kron(C / np.outer(scale, scale), K)
    _add_diagonal(out, np.full(D, 1.0 - a))
    return np.asarray(out)


def _add_diagonal(matrix: FloatArray, values: FloatArray) -> None:
    matrix[np.diag_indices(len(matrix))] += values
