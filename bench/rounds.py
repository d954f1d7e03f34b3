"""The table that decided what ships: the bound reached per exchange, per second, and what it predicts.

    python -m bench.rounds --seeds 6 --variants "default,never frozen"

Scenario A of the paper, the domain known, 12 exchanges in all by default. The gap is to the
best bound that any variant reached on that seed; Algorithm 1's server does not know the bound.
Every fit is made twice, and the second, which compiles nothing, is the one that is timed.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.base import clone

from pfedhgp import FederatedGP
from pfedhgp.gp import metrics
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.studies.synthetic import algorithm1
from pfedhgp.studies.synthetic.simulator import simulate

VARIANTS: dict[str, dict] = {
    "default": {},
    "never frozen": {"inference": Structured(frozen_rounds=0)},
    "frozen 4 rounds": {"inference": Structured(frozen_rounds=4)},
    "20 evaluations": {"inference": Structured(evaluations=20, first_evaluations=30)},
    "80 evaluations": {"inference": Structured(evaluations=80, first_evaluations=120)},
    "small radius": {"inference": Structured(radius=0.1, largest_radius=0.1)},
    "learned Z": {"learn_inducing": True},
    "M = M_i = 25": {"inducing": 25, "local_inducing": 25},
    "M = M_i = 25 learned": {"inducing": 25, "local_inducing": 25, "learn_inducing": True},
    "6 rounds": {"rounds": 6},
    "25 rounds": {"rounds": 25, "tolerance": 0.0},
    "mean-field, as printed": {"inference": "mean-field"},
}


def one(seed: int, scenario: str = "A", **settings) -> dict:
    """Fits one simulated run and scores it as the paper does."""
    truth = simulate(scenario, seed)
    data = {f"client {i}": (X, Y) for i, (X, Y) in enumerate(zip(truth.X, truth.Y, strict=True))}
    cold, model = _timed(_model(seed, settings), data)
    seconds, model = _timed(clone(model), data)
    scored = []
    for i, name in enumerate(data):
        p = model.predict(name, truth.X_test)
        scored.append(
            metrics.Scored(
                y=truth.Y_test[i],
                mean=p.mean,
                cov=p.covariance(),
                clean=truth.clean_test[i],
                noise=truth.noise_sd**2,
            )
        )
    bounds = {r["exchange"]: r["bound"] for r in model.history_ if r["bound"] is not None}
    return {
        **metrics.evaluate(scored),
        "bounds": bounds,
        "seconds": seconds,
        "cold_seconds": cold,
        "exchanges": model.exchanges_,
        "bytes": sum(r["bytes_up"] + r["bytes_down"] for r in model.history_),
    }


def _model(seed: int, settings: dict) -> FederatedGP:
    if settings.get("inference") == "mean-field":
        return algorithm1.Algorithm1(**algorithm1.settings(rounds=None, seed=seed))
    usual = {"rounds": None, "tolerance": 0.0, "averaging": False}
    return FederatedGP(domain=[(0.0, 10.0)], noise="scalar", **{**usual, **settings})


def _timed(model: FederatedGP, data: dict) -> tuple[float, FederatedGP]:
    began = time.perf_counter()
    model.fit(data)
    return time.perf_counter() - began, model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    results = {
        name: [one(seed, **VARIANTS[name]) for seed in range(args.seeds)]
        for name in args.variants.split(",")
    }
    best = [
        max((b for r in results.values() for b in r[s]["bounds"].values()), default=np.nan)
        for s in range(args.seeds)
    ]
    print(
        "| variant | gap at 7 / 12 / last exchange | exchanges | NLL | CRPS | RMSE | coverage "
        "| s, warm | s, cold |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name, runs in results.items():
        gaps = []
        for at in (7, 12, 99) if runs[0]["bounds"] else ():
            reached = [
                best[s] - max(b for e, b in run["bounds"].items() if e <= at)
                for s, run in enumerate(runs)
            ]
            gaps.append(f"{np.mean(reached):.1f}")
        mean = {k: np.mean([run[k] for run in runs]) for k in runs[0] if k != "bounds"}
        print(
            f"| {name} | {' / '.join(gaps) or '–'} | {mean['exchanges']:.0f} | {mean['nll']:.3f} "
            f"| {mean['crps']:.4f} | {mean['rmse']:.3f} | {mean['coverage']:.3f} "
            f"| {np.median([run['seconds'] for run in runs]):.1f} "
            f"| {np.median([run['cold_seconds'] for run in runs]):.1f} |",
            flush=True,
        )
    if args.out:
        args.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
