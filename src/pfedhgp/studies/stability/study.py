"""How stable is the split between global and deviation? Recovery of f_g, and a rule of thumb.

The paper leaves open when the two can be told apart. The study varies the number of clients, the balance
of their rows and φ (the deviations' variance relative to the global layer's), one at a time, and compares
the fits with the rule of thumb in `pfedhgp.report.recovery_rule`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pfedhgp.estimator import FederatedGP
from pfedhgp.gp import metrics
from pfedhgp.model.prediction import predict
from pfedhgp.report.recovery_rule import expected_recovery
from pfedhgp.studies.common.provenance import MADE, made_here, today
from pfedhgp.studies.common.records import measured, possible, record_of
from pfedhgp.studies.common.schedule import COMPILING, check_device, check_least, run_tasks
from pfedhgp.studies.common.store import Store
from pfedhgp.studies.synthetic.models import INDUCING, clients_of
from pfedhgp.studies.synthetic.simulator import DOMAIN, Simulation, simulate

CLIENTS = (2, 3, 6, 12, 24)
BALANCE = (1.0, 5.0, 20.0)
PHI = (0.05, 0.3, 1.2, 4.0)
USUAL_CLIENTS, USUAL_PHI = 6, 1.2
LOCAL_INDUCING = 64
KEY = ("sweep", "value", "run")
LEAST = {"seed": 0, "rows": 4, "grid": 2}
NEEDS = ("metrics", "rule")


@dataclass(frozen=True)
class Stability:
    """What the results depend on."""

    seed: int = 0
    rounds: int | None = None
    rows: int = 50
    grid: int = 100
    quick: bool = False

    def points(self) -> list[tuple[str, float]]:
        """Sweeps and their values; `quick` has the ends alone."""
        sweeps = {"clients": CLIENTS, "balance": BALANCE, "phi": PHI}
        return [
            (name, float(value))
            for name, values in sweeps.items()
            for value in ((values[0], values[-1]) if self.quick else values)
        ]

    def sizes(self, sweep: str, value: float) -> list[int]:
        """Each client's rows. Balance 1:b has half of the clients at b times the others' rows, same total."""
        if sweep == "clients":
            return [self.rows] * int(value)
        if sweep == "balance":
            half = USUAL_CLIENTS // 2
            small = max(2, round(2.0 * self.rows / (1.0 + value)))
            return [small] * half + [2 * self.rows - small] * half
        return [self.rows] * USUAL_CLIENTS

    def phi(self, sweep: str, value: float) -> float:
        """The deviations' variance relative to the global layer's."""
        return value if sweep == "phi" else USUAL_PHI

    def alike(self, sweep: str, value: float) -> list[tuple[str, float]]:
        """All points that have this one's data, itself among them: what is usual is on every sweep."""
        return [
            point
            for point in self.points()
            if (self.sizes(*point), self.phi(*point))
            == (self.sizes(sweep, value), self.phi(sweep, value))
        ]

    def label(self, sweep: str, value: float) -> str:
        """A point as tables and figures name it; balance by the rows that clients truly have."""
        if sweep != "balance":
            return f"{value:g}"
        sizes = self.sizes(sweep, value)
        return f"{max(sizes)}:{min(sizes)}"

    def truth(self, sweep: str, value: float, run: int) -> Simulation:
        sizes = self.sizes(sweep, value)
        return simulate(
            "A",
            self.seed + run,
            clients=len(sizes),
            n=sizes,
            n_test=self.grid,
            phi=self.phi(sweep, value),
        )


Cell = tuple[str, float, int]
Progress = Callable[[int, int, dict[str, Any]], None]


def run_stability(
    study: Stability,
    *,
    runs: int,
    folder: Path,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Store:
    """Does what is not in `folder` yet, and returns all that is.

    A point that several sweeps have in common is fitted once a run, and its record stands under each of them.
    """
    check_least(study, LEAST, runs=runs)
    check_device(device)
    store = Store(folder, {"study": "stability", **asdict(study)}, key=KEY, needs=NEEDS)
    wanted = [(sweep, value, run) for sweep, value in study.points() for run in range(runs)]
    done = sum(cell in store.records for cell in wanted)

    def share(record: dict[str, Any]) -> None:
        """The record under all points that have its data, but those that are there."""
        nonlocal done
        for sweep, value in study.alike(record["sweep"], record["value"]):
            if (sweep, value, record["run"]) not in store.records:
                one = {**record, "sweep": sweep, "value": value}
                store.add(one)
                done += 1
                if progress is not None:
                    progress(done, len(wanted), one)

    for cell in wanted:
        if cell in store.records:
            share(store.records[cell])
    missing = [cell for cell in wanted if cell not in store.records]
    left = [cell for cell in missing if study.alike(*cell[:2])[0] == cell[:2]]
    made = made_here(device) if left else {}
    if left and progress is not None:
        progress(done, len(wanted), COMPILING)

    def work(cell: Cell) -> None:
        share({**run_point(study, cell), MADE: {**made, "date": today()}})

    run_tasks(
        left, work, kind=lambda cell: tuple(sorted(set(study.sizes(*cell[:2])))), device=device
    )
    return store


def run_point(study: Stability, cell: Cell) -> dict[str, Any]:
    """Fits one simulated run, and compares the global layer with the truth."""
    sweep, value, run = cell
    truth = study.truth(sweep, value, run)
    began = time.perf_counter()
    # Clients one by one and fixed budgets: then one compiled step serves every number of clients.
    model = FederatedGP(
        domain=[DOMAIN],
        noise="scalar",
        inducing=INDUCING,
        local_inducing=LOCAL_INDUCING,
        rounds=study.rounds,
        batch=False,
    ).fit(clients_of(truth))
    layer = predict(model.model_, "0", truth.X_test).layers["global"]
    f_g = truth.layers_test[0]["global"]
    return {
        "sweep": sweep,
        "value": value,
        "run": run,
        "seed": study.seed + run,
        "metrics": {
            "correlation": recovery(layer.mean, f_g),
            "crps": metrics.crps(
                f_g, layer.mean, layer.covariance() + 1e-12 * np.eye(f_g.shape[1])
            ),
            "coverage": metrics.coverage(f_g, layer.mean, layer.covariance()),
            "exchanges": float(model.exchanges_),
            "seconds": time.perf_counter() - began,
        },
        "rule": expected_recovery(study.sizes(sweep, value), study.phi(sweep, value)),
    }


def recovery(found: np.ndarray, truth: np.ndarray) -> float:
    """Correlation over inputs and outputs, each output centred: a constant is nobody's."""
    a, b = found - found.mean(0), truth - truth.mean(0)
    return float(np.sum(a * b) / np.sqrt(np.sum(a**2) * np.sum(b**2)))


def runs_of(store: Store, study: Stability, runs: int) -> int:
    """How many runs every point has: `runs`, or more where the folder had more before."""
    while all((sweep, value, runs) in store.records for sweep, value in study.points()):
        runs += 1
    return runs


def summarise(store: Store, study: Stability, runs: int) -> list[dict[str, Any]]:
    """Records: `scenario` is the sweep, `model` the point on it; the rule of thumb is a model of its own."""
    records = []
    for sweep, value in study.points():
        found = [store.records[sweep, value, run] for run in range(runs)]
        for name in measured(found):
            values = [record["metrics"][name] for record in found]
            records.append(record_of(sweep, f"{value:g}", name, values, possible(name)))
        rule = record_of(sweep, f"{value:g} (rule)", "correlation", [found[0]["rule"]])
        records.append({**rule, "runs": runs})
    return records
