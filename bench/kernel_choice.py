"""`python -m bench.kernel_choice`: kernel="auto" on the study's simulator, beside RBF and the oracle.

    python -m bench.kernel_choice --scenario B --seeds 0 30
    python -m bench.kernel_choice --scenario A --seeds 200 210 --models auto rbf

One line a run and model, then means. Processor seconds are of one process.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from pfedhgp import FederatedGP
from pfedhgp.gp import metrics
from pfedhgp.model.prediction import predict
from pfedhgp.studies.synthetic.models import clients_of, scored
from pfedhgp.studies.synthetic.oracle import oracle
from pfedhgp.studies.synthetic.simulator import DOMAIN, Simulation, simulate

SHOWN = ("nll", "crps", "coverage")


def fitted(kernel: str, inducing: int) -> Callable[[Simulation], tuple[list, str]]:
    """Predictions of a fit with `kernel`, and what it took."""

    def predictions(truth: Simulation) -> tuple[list, str]:
        study = {"domain": [DOMAIN], "noise": "scalar", "rounds": 10}
        model = FederatedGP(kernel=kernel, inducing=inducing, **study)
        model.fit(clients_of(truth))
        found = [predict(model.model_, name, truth.X_test) for name in model.clients_]
        sent = sum(entry["bytes"] for entry in model.messages_)
        choice = model.model_.settings.get("choice") or [{"kernel": kernel}]
        said = f"{model.exchanges_} exchanges, {sent / 1e6:.1f} MB, {choice[0].get('kernel')}"
        return [(p.mean, p.covariance()) for p in found], said

    return predictions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenario", default="B", choices=tuple("ABCD"))
    parser.add_argument("--seeds", type=int, nargs=2, default=[0, 30], help="first, and one past")
    parser.add_argument("--models", nargs="+", default=["auto", "oracle"])
    asked = parser.parse_args()
    methods: dict[str, Callable[[Simulation], tuple[list, str]]] = {
        "auto": fitted("auto", 32),
        "rbf": fitted("rbf", 24),
        "oracle": lambda truth: (oracle(truth), ""),
    }
    warnings.simplefilter("ignore")
    all_scores: dict[str, list[list[Any]]] = {name: [] for name in asked.models}
    for seed in range(*asked.seeds):
        truth = simulate(asked.scenario, seed)
        for name in asked.models:
            began = time.process_time()
            predictions, said = methods[name](truth)
            took = time.process_time() - began
            found = metrics.evaluate(scored(truth, predictions))
            all_scores[name].append([found[m] for m in SHOWN] + [took])
            numbers = ", ".join(f"{m} {found[m]:.4f}" for m in SHOWN)
            print(f"{asked.scenario} {seed} {name}: {numbers}, {took:.1f} s {said}", flush=True)
    for name, rows in all_scores.items():
        means = dict(zip((*SHOWN, "processor seconds"), np.mean(rows, axis=0), strict=True))
        print(
            f"{asked.scenario} {name}, {len(rows)} runs:",
            {k: round(float(v), 4) for k, v in means.items()},
        )


if __name__ == "__main__":
    main()
