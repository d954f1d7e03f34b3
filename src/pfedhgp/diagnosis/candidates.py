"""Candidates for the covariance of cycles, judged by held-out runs, and averaged.

    ℓ_k = −½ d²_k − ½ log|Σ_k|,   or, with a scale of the cycle's own, −½ (D+1) log(1 + d²_k) − ½ log|Σ_k|
    Σ_k = (1 + 1/B_k) Σ                         the mean of a class is known from its B_k runs, and not better
    P_c = (1 − ε_c) softmax(ℓ_c/τ_c) + ε_c/K
    P = Σ_c w_c P_c,   w_c ∝ exp(−2 runs · (loss_c − least))

Each candidate has the temperature τ and the evenly dealt share ε at which held-out runs lose least. A high τ
says that all runs are less clear than they seem; a share says that a few runs look like another class, and
the others need not suffer for them. All runs weigh the same, however many cycles they have: a run of 200
cycles is one draw of what else was different. A site that has runs of its own can judge them alone, since
losses at given pairs (τ, ε) are sums over runs (`losses`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from pfedhgp.diagnosis.coordinates import View
from pfedhgp.diagnosis.cycle_metric import CycleMetric
from pfedhgp.diagnosis.run_layers import TARGETS, Layers
from pfedhgp.diagnosis.run_sums import RunSums
from pfedhgp.errors import InputError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
SHRINKAGES: Mapping[str, tuple[float, ...]] = {
    "channel": (1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0),
    "cell": (1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0),
    "smooth": (1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0),
    "within": (1e-3, 0.1, 1.0),
    "cycles": (1e-3, 1e-2, 0.1, 0.3, 0.6, 1.0),
    "stationary": (1e-2, 0.1, 0.3),
}
"""δ of each target"""
OF_RUNS = ("within", "cycles")
"""Targets that differ from others only if runs have several cycles."""
OWN_RUNS, OWN_SIZE = 3, 340
"""A class's own covariance is tried if every class has this many runs and there are few coordinates."""
TEMPERATURES = np.append(np.geomspace(1.0, 1e8, 81), 1e300)
"""The last one makes all classes equally likely."""
EVEN = (0.01, 0.03, 0.1, 0.3)
"""ε above 0 that are tried."""
PAIRS = np.asarray(
    [(t, 0.0) for t in TEMPERATURES] + [(t, e) for e in EVEN for t in TEMPERATURES[:-1]]
)
"""Pairs (τ, ε), those without ε first."""
COST = 1.0
"""Nats that held-out runs must gain by an ε above 0."""
SHARP = 2.0
"""How many independent losses a held-out run counts for: its cycles are alike, and more than one."""
ROUNDED = 10
"""Digits of losses. Those that differ by rounding alone are equal, whatever the order of cycles or sites."""
LEAST_WEIGHT, KEPT = 1e-3, 36
"""Candidates that weigh less are left out, and so are those after the first few."""


@dataclass(frozen=True, order=True)
class Candidate:
    """A covariance: what S is shrunk towards, how far, whether classes have their own; and tails."""

    target: str
    shrinkage: float
    own: bool = False
    heavy: bool = False
    """Whether a cycle has a scale of its own (Student t with one degree of freedom)."""

    def __post_init__(self) -> None:
        if self.target not in TARGETS or not 0.0 < self.shrinkage <= 1.0:
            raise InputError(
                f"no candidate {self.target!r}, {self.shrinkage!r}: targets are {', '.join(TARGETS)}, and "
                "the shrinkage is above 0 and at most 1"
            )

    def __str__(self) -> str:
        whose = "a class's own" if self.own else "shared"
        return f"{self.target} {self.shrinkage:g}, {whose}{', heavy tails' if self.heavy else ''}"

    @property
    def shape(self) -> Candidate:
        """The same covariance, with Gaussian tails."""
        return Candidate(self.target, self.shrinkage, self.own)


@dataclass(frozen=True)
class Judged:
    """A candidate, how far to trust it, and how it did on held-out runs."""

    candidate: Candidate
    temperature: float
    loss: float
    """log-loss at this temperature and `even`, all runs weighing the same"""
    accuracy: float
    weight: float
    even: float = 0.0
    """ε, the share that is dealt out evenly; 0 in models of older versions"""

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self.candidate),
            **{k: v for k, v in vars(self).items() if k != "candidate"},
        }

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> Judged:
        parts = {name: tree[name] for name in Candidate.__dataclass_fields__}
        names = [name for name in Judged.__dataclass_fields__ if name in tree]
        rest = {name: tree[name] for name in names if name != "candidate"}
        return Judged(Candidate(**parts), **rest)


def candidates_for(sums: RunSums, size: int) -> tuple[Candidate, ...]:
    """Every target and shrinkage with either tail; a class's own where the runs can tell."""
    own = sums.own and bool(np.all(sums.runs >= OWN_RUNS)) and size <= OWN_SIZE
    runs_matter = bool(np.sum(sums.cycles) > np.sum(sums.runs))
    targets = [target for target in TARGETS if runs_matter or target not in OF_RUNS]
    return tuple(
        Candidate(target, delta, each, heavy)
        for each in ((False, True) if own else (False,))
        for target in targets
        for delta in SHRINKAGES[target]
        for heavy in (False, True)
    )


def grown(candidate: Candidate, runs: FloatArray) -> FloatArray:
    """1 + 1/B: how much the covariance of a cycle grows since its class's mean is that of B runs.

    Without it a class with few runs, such as that of a run that is held out, would seem too far away. A
    class's own covariance is left as it is.
    """
    return np.ones_like(runs) if candidate.own else 1.0 + 1.0 / np.maximum(runs, 1.0)


def metrics(
    candidate: Candidate,
    layers: Layers,
    sums: RunSums,
    *,
    view: View | None = None,
    noise: FloatArray | None = None,
) -> Iterator[CycleMetric]:
    """The metric of all classes, or one after another if they have their own.

    With a `view` that of what is seen of a cycle; `noise` (Q,) is that outside of the coordinates.
    """
    r = layers.means.shape[1] // layers.channels
    slices = [slice(q * r, (q + 1) * r) for q in range(layers.channels)]
    each = range(len(layers.means)) if candidate.own else (None,)
    wider = None if candidate.own else grown(candidate, sums.runs)
    for k in each:
        used = layers if k is None else layers.of_class(sums, k)
        sigma = used.covariance(candidate.target, candidate.shrinkage)
        if view is None:
            yield replace(CycleMetric.of(sigma, slices), grown=wider)
        else:
            assert noise is not None
            metric = CycleMetric.of(view.covariance(sigma, noise), view.slices)
            yield replace(metric, grown=wider)


def distances(
    found: Sequence[CycleMetric], cycles: FloatArray, means: FloatArray, wider: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """d² (C, K) with the wildest channel set aside, and log|Σ_k| (K,), for one metric or one a class.

    `wider` is what Σ is multiplied by for each class, (K,), if they share a metric.
    """
    if len(found) == 1:
        (metric,) = found
        size = float(metric.lengths.sum())
        return metric.robust(cycles, means, wider), metric.log_det + size * np.log(wider)
    parts = [m.robust(cycles, means[k : k + 1]) for k, m in enumerate(found)]
    return np.concatenate(parts, axis=1), np.asarray([m.log_det for m in found])


def log_density(square: FloatArray, log_det: FloatArray, size: int, *, heavy: bool) -> FloatArray:
    """ℓ (C, K), up to a constant that classes share; log|Σ| is (K,) or (C, K)."""
    tail = -0.5 * (size + 1) * np.log1p(square) if heavy else -0.5 * square
    return np.asarray(tail - 0.5 * (log_det - log_det.mean(axis=-1, keepdims=True)))


def log_posterior(density: FloatArray, temperature: float) -> FloatArray:
    """log softmax(ℓ/τ)."""
    warm = density / temperature
    return np.asarray(warm - logsumexp(warm, axis=1, keepdims=True))


def probabilities(density: FloatArray, temperature: float, even: float = 0.0) -> FloatArray:
    """(1 − ε) softmax(ℓ/τ) + ε/K."""
    found = np.exp(log_posterior(density, temperature))
    return np.asarray((1.0 - even) * found + even / density.shape[1])


def losses(density: FloatArray, truth: IntArray, weights: FloatArray) -> FloatArray:
    """Σ_c weight · log-loss at each of `PAIRS`, and last Σ_c weight · [right]; sums over cycles."""
    behind = density - density.max(axis=1, keepdims=True)
    own = behind[np.arange(len(truth)), truth]
    logs = [own / t - np.log(np.sum(np.exp(behind / t), axis=1)) for t in TEMPERATURES]
    sure = np.exp(np.stack(logs[:-1]))
    less = [np.log((1.0 - e) * sure + e / density.shape[1]) for e in EVEN]
    right = np.sum(weights * (np.argmax(density, axis=1) == truth))
    return np.asarray([*(-np.concatenate([np.stack(logs), *less]) @ weights), right])


def judged(sums: Mapping[Candidate, FloatArray], runs: float) -> tuple[Judged, ...]:
    """Temperature, share and weight of each candidate, from its `losses` over all held-out runs; best first.

    `runs` is the sum of all weights, that is the number of runs.
    """
    mean = {candidate: np.round(each, ROUNDED) / runs for candidate, each in sums.items()}
    dear = np.where(PAIRS[:, 1] > 0.0, COST / runs, 0.0)
    pair = {c: int(np.argmin(each[:-1] + dear)) for c, each in mean.items()}
    loss = {c: float(each[pair[c]]) for c, each in mean.items()}
    least = min(loss.values())
    raw = {c: float(np.exp(-SHARP * runs * (each - least))) for c, each in loss.items()}
    total = sum(raw.values())
    found = [
        Judged(
            candidate,
            temperature=float(PAIRS[pair[candidate], 0]),
            loss=loss[candidate],
            accuracy=float(each[-1]),
            weight=raw[candidate] / total,
            even=float(PAIRS[pair[candidate], 1]),
        )
        for candidate, each in mean.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.weight, each.candidate)))


def kept(found: Sequence[Judged]) -> tuple[Judged, ...]:
    """Those that are averaged, with weights that sum to one."""
    some = [each for each in found if each.weight >= LEAST_WEIGHT][:KEPT]
    total = sum(each.weight for each in some)
    return tuple(replace(each, weight=each.weight / total) for each in some)
