"""The paper's numerical study: every model on every scenario, run by run, streamed to disk and resumable."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pfedhgp.errors import InputError
from pfedhgp.gp import metrics
from pfedhgp.studies.common.provenance import MADE, made_here, today
from pfedhgp.studies.common.schedule import COMPILING, check_device, check_least, run_tasks
from pfedhgp.studies.common.store import Store
from pfedhgp.studies.synthetic.models import (
    KERNELS,
    MODELS,
    PARTS,
    Outcome,
    chosen,
    outcome_of,
    scored,
    trainings_of,
)
from pfedhgp.studies.synthetic.simulator import SCENARIOS, Simulation, simulate

KEY = ("scenario", "model", "run")
LEAST = {"seed": 0, "clients": 1, "rows": 2, "grid": 2, "curve_runs": 0}
NEEDS = ("metrics", "coverage", "curve")
QUICK_TO_COMPILE = ("--xla_gpu_autotune_level=0", "--xla_gpu_enable_triton_gemm=false")
"""Matrices are small and a study is short: trying out kernels for them takes five times as long as the
rest of a compilation."""


@dataclass(frozen=True)
class Study:
    """What the results depend on. The sizes are the paper's unless given; run r uses `seed` + r."""

    seed: int = 0
    rounds: int | None = None
    clients: int = 6
    rows: int = 50
    grid: int = 150
    curve_runs: int = 5
    """For how many runs of a model predictions are also scored after each exchange."""

    def truth(self, scenario: str, run: int) -> Simulation:
        return simulate(
            scenario,  # type: ignore[arg-type]
            self.seed + run,
            clients=self.clients,
            n=self.rows,
            n_test=self.grid,
        )


COMPILED_LIKE = {"pfedgp": "local-only"}
"""Rows that run the compiled functions of another: side by side both would compile them."""
Cell = tuple[str, str, int]
"""Scenario, model, run."""


def run_study(
    study: Study,
    *,
    scenarios: Sequence[str],
    models: Sequence[str],
    runs: int,
    folder: Path,
    device: str = "cpu",
    progress: Callable[[int, int, dict[str, Any]], None] | None = None,
    joins: bool = False,
) -> Store:
    """Does what is not in `folder` yet, and returns all that is.

    On a GPU each model has a process of its own: all its runs of all scenarios are one batch,
    compiled once, and what is left is compiling and Python, of which a process does one thing at a time. Such
    a process `joins` a study.
    """
    check_least(study, LEAST, runs=runs)
    check_names("scenario", scenarios, SCENARIOS)
    check_names("model", models, (*MODELS, *PARTS.values()) if joins else MODELS)
    check_device(device)
    store = Store(folder, asdict(study), key=KEY, needs=NEEDS, mend=not joins)
    names = trainings_of(models)
    if device == "gpu" and not joins:
        run_processes([joining_command(study, scenarios, m, runs, folder, device) for m in names])
        store = Store(folder, asdict(study), key=KEY, needs=NEEDS)
        choose_kernels(store)
        return store
    wanted = [(s, m, r) for m in names for s in scenarios for r in range(runs)]
    left = [cell for cell in wanted if cell not in store.records]
    done = len(wanted) - len(left)
    made = made_here(device) if left else {}
    if left and progress is not None:
        progress(done, len(wanted), COMPILING)

    def work(cell: Cell) -> None:
        nonlocal done
        record = {**run_cell(study, cell), MADE: {**made, "date": today()}}
        store.add(record)
        done += 1
        if progress is not None:
            progress(done, len(wanted), record)

    run_tasks(left, work, kind=lambda cell: COMPILED_LIKE.get(cell[1], cell[1]), device=device)
    if not joins:
        choose_kernels(store)
    return store


def choose_kernels(store: Store) -> None:
    """Adds the rows of `full-kernels` whose candidates are all there."""
    runs = {(scenario, run) for scenario, model, run in store.records if model in PARTS.values()}
    for scenario, run in sorted(runs):
        found = {name: store.records.get((scenario, row, run)) for name, row in PARTS.items()}
        whole = {name: record for name, record in found.items() if record is not None}
        if len(whole) == len(PARTS) and (scenario, KERNELS, run) not in store.records:
            store.add(chosen(whole))


def joining_command(
    study: Study, scenarios: Sequence[str], model: str, runs: int, folder: Path, device: str
) -> list[str]:
    """The same study of one model, as a command line that joins it."""
    given = {"out": folder, "scenarios": ",".join(scenarios), "models": model, "runs": runs}
    given["device"] = device
    given |= {name: value for name, value in asdict(study).items() if value is not None}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    return [sys.executable, "-m", "pfedhgp.studies", "--join", *options]


def run_processes(commands: Sequence[Sequence[str]]) -> None:
    """Runs the commands side by side; ends them all when one fails or the user stops."""
    settings = dict(os.environ)
    settings["XLA_FLAGS"] = " ".join([*QUICK_TO_COMPILE, os.environ.get("XLA_FLAGS", "")])
    started = [subprocess.Popen(command, env=settings) for command in commands]
    try:
        while any(process.poll() is None for process in started):
            if any(process.poll() for process in started):
                break
            time.sleep(0.2)
    finally:
        for process in started:
            if process.poll() is None:
                process.terminate()
        codes = [process.wait() for process in started]
    if any(codes):
        raise RuntimeError(f"a process of the study ended with codes {codes}: see its own message")


def check_names(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Refuses an empty list, an unknown name (naming it) and one given twice."""
    if not given:
        raise InputError(f"no {what} given; there are {', '.join(known)}")
    for name in given:
        if name not in known:
            raise InputError(f"no {what} {name!r}; there are {', '.join(known)}")
    if len(set(given)) != len(given):
        raise InputError(f"a {what} is given twice: {', '.join(given)}")


def run_cell(study: Study, cell: Cell) -> dict[str, Any]:
    """One model on one run of one scenario: its record."""
    scenario, model, run = cell
    truth = study.truth(scenario, run)
    began = time.perf_counter()
    outcome = outcome_of(model, truth, rounds=study.rounds, curve=run < study.curve_runs)
    seconds = time.perf_counter() - began
    cases = scored(truth, outcome.predictions)
    values = metrics.evaluate(cases)
    if outcome.costs:
        values |= {**outcome.costs, "seconds": seconds}
    record: dict[str, Any] = {
        "scenario": scenario,
        "model": model,
        "run": run,
        "seed": study.seed + run,
        "metrics": values,
        "coverage": [_coverage(cases, level) for level in metrics.ECE_LEVELS],
        "bound": outcome.bound,
        "curve": [list(point) for point in outcome.curve],
    }
    if run == 0 and model == "full":
        record["example"] = _example(truth, outcome)
    return record


def _coverage(cases: list[metrics.Scored], level: float) -> float:
    return float(np.mean([metrics.coverage(c.y, c.mean, c.cov, level=level) for c in cases]))


def _example(truth: Simulation, outcome: Outcome) -> dict[str, Any]:
    """The first client's prediction, for the figure (simulated data: nobody's rows)."""
    mean, cov = outcome.predictions[0]
    sd = np.sqrt(np.diagonal(cov, axis1=1, axis2=2))
    arrays = {
        "x": truth.X[0][:, 0],
        "y": truth.Y[0],
        "grid": truth.X_test[:, 0],
        "clean": truth.clean_test[0],
        "mean": mean,
        "sd": sd,
    }
    return {name: np.round(array, 6).tolist() for name, array in arrays.items()}
