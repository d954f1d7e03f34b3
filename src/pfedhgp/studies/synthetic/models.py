"""The rows of the study's table: how each method is set up and trained, and how it predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pfedhgp.errors import InputError
from pfedhgp.estimator import FederatedGP
from pfedhgp.gp import metrics
from pfedhgp.gp.kernels import RBF, Periodic
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.prediction import predict
from pfedhgp.studies.common import provenance
from pfedhgp.studies.synthetic import algorithm1
from pfedhgp.studies.synthetic.oracle import Gaussians, oracle
from pfedhgp.studies.synthetic.personal import Personal
from pfedhgp.studies.synthetic.scored_rounds import Point, RoundScores
from pfedhgp.studies.synthetic.simulator import DOMAIN, Simulation

INDUCING = 24
"""Global inducing inputs over [0, 10]: a third of a lengthscale of 1.5 apart. Fixed, so that all runs have
arrays of one shape and compile once; `inducing="auto"` chooses 20 or 32 run by run."""
SHORT_INDUCING = 48
"""The same for models without a local layer, where the global layer must follow short scales."""
CANDIDATE_INDUCING = 32
"""The same for the kernels that `full-kernels` tries besides RBF."""

STRUCTURED: Mapping[str, Mapping[str, Any]] = {
    "full": {"inducing": INDUCING},
    "no-deviation": {"layers": ("global", "local"), "inducing": INDUCING},
    "no-local": {"layers": ("global", "deviation"), "inducing": SHORT_INDUCING},
    "global-only": {"layers": ("global",), "inducing": SHORT_INDUCING},
    "local-only": {"layers": ("local",)},
    "pfedgp": {"layers": ("local",), "inference": Personal()},
}
CANDIDATES: Mapping[str, Mapping[str, Any]] = {
    "matern52": {"kernel": "matern52", "local_kernel": "rbf", "inducing": CANDIDATE_INDUCING},
    "rbf+periodic": {
        "kernel": RBF() + Periodic(),
        "local_kernel": "rbf",
        "inducing": CANDIDATE_INDUCING,
    },
}
"""What `full-kernels` tries besides `full`. The period is learned, and starts from the data."""
KERNELS = "full-kernels"
PARTS: Mapping[str, str] = {"rbf": "full", **{name: f"{KERNELS}/{name}" for name in CANDIDATES}}
"""The trainings that `full-kernels` is made of, each stored as a row of its own."""
MODELS = ("full", KERNELS, *(name for name in STRUCTURED if name != "full"), "algorithm1", "oracle")


@dataclass(frozen=True)
class Outcome:
    """A method's predictions at the test inputs, client by client, and what they cost."""

    predictions: list[Gaussians]
    costs: dict[str, float] = field(default_factory=dict)
    bound: float | None = None
    curve: list[Point] = field(default_factory=list)


def trainings_of(models: Sequence[str]) -> list[str]:
    """What has to be trained for these rows; `full-kernels` needs several trainings."""
    parts = [PARTS.values() if model == KERNELS else (model,) for model in models]
    return list(dict.fromkeys(name for names in parts for name in names))


def outcome_of(
    model: str, truth: Simulation, *, rounds: int | None = None, curve: bool = False
) -> Outcome:
    """Trains one row on one simulated run. `rounds` overrides the method's own number."""
    if model == "oracle":
        return Outcome(oracle(truth))
    if model == "algorithm1":
        settings = algorithm1.settings(rounds=rounds, seed=truth.seed)
        return _trained(algorithm1.Algorithm1(**settings), truth, curve)
    if model.startswith(f"{KERNELS}/"):
        return _trained(_federation(CANDIDATES[model.split("/")[1]], rounds), truth, curve)
    if model in STRUCTURED:
        return _trained(_federation(STRUCTURED[model], rounds), truth, curve)
    raise InputError(f"no model {model!r} in the study; there are {', '.join(MODELS)}")


def chosen(found: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The record of `full-kernels`: the candidate with the highest bound, at the cost of all of them.

    `exchanges` and `rounds` are those of the longest training, as if each exchange carried the messages of
    all candidates. In fact they run one after another, which takes the sum; that is stored, too. Bytes and
    seconds are sums.
    """
    bounds = {name: record["bound"] for name, record in found.items()}
    best = max(bounds, key=lambda name: bounds[name])
    costs = [record["metrics"] for record in found.values()]
    total = {name: max(c[name] for c in costs) for name in ("rounds", "exchanges")}
    total |= {name: sum(c[name] for c in costs) for name in ("bytes", "seconds")}
    factor = total["bytes"] / found[best]["metrics"]["bytes"]
    kept = {name: found[best][name] for name in ("scenario", "run", "seed", "coverage", "bound")}
    return {
        **kept,
        "model": KERNELS,
        "metrics": {**found[best]["metrics"], **total},
        "curve": [[e, round(factor * sent), nll] for e, sent, nll in found[best]["curve"]],
        "chosen": best,
        "bounds": bounds,
        "exchanges one after another": sum(c["exchanges"] for c in costs),
        provenance.MADE: provenance.common(found.values()),
    }


def scored(truth: Simulation, predictions: list[Gaussians]) -> list[metrics.Scored]:
    """Predictions beside the truth, for `metrics.evaluate`."""
    return [
        metrics.Scored(y=y, mean=mean, cov=cov, clean=clean, noise=truth.noise_sd**2)
        for y, clean, (mean, cov) in zip(truth.Y_test, truth.clean_test, predictions, strict=True)
    ]


def clients_of(truth: Simulation) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The training data as `FederatedGP.fit` takes them."""
    return {str(i): (X, Y) for i, (X, Y) in enumerate(zip(truth.X, truth.Y, strict=True))}


def _federation(settings: Mapping[str, Any], rounds: int | None) -> FederatedGP:
    """Our solver on the study's domain, which all know; noise is σ²I, as in the paper's model."""
    if rounds is None and "inference" not in settings:
        rounds = Structured().rounds
    return FederatedGP(**{"domain": [DOMAIN], "noise": "scalar", "rounds": rounds, **settings})


def _trained(model: FederatedGP, truth: Simulation, curve: bool) -> Outcome:
    def nll(fitted: FittedModel) -> float:
        return _mean_nll(truth, _predictions(fitted, truth))

    scores = RoundScores(nll)
    if curve:
        model.set_params(callbacks=[scores])
    model.fit(clients_of(truth))
    predictions = _predictions(model.model_, truth)
    exchanges, sent = model.exchanges_, sum(entry["bytes"] for entry in model.messages_)
    last = [(exchanges, sent, _mean_nll(truth, predictions))] if curve else []
    costs = {
        "rounds": float(sum(entry["kind"] == "round" for entry in model.history_)),
        "exchanges": float(exchanges),
        "bytes": float(sent),
    }
    if model.plan_.inference.start_is_round:
        costs["rounds"] += 1.0
    bound = None if model.bound_ is None else float(model.bound_)
    return Outcome(predictions, costs, bound, [*scores.points, *last])


def _predictions(fitted: FittedModel, truth: Simulation) -> list[Gaussians]:
    found = [predict(fitted, name, truth.X_test) for name in fitted.clients]
    return [(p.mean, p.covariance()) for p in found]


def _mean_nll(truth: Simulation, predictions: list[Gaussians]) -> float:
    values = [metrics.nll(y, *p) for y, p in zip(truth.Y_test, predictions, strict=True)]
    return float(np.mean(values))
