"""The paper's numerical study: every model on every scenario, run by run, streamed to disk and resumable."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pfedhgp import metrics
from pfedhgp.errors import InputError
from pfedhgp.studies.models import (
    CANDIDATES,
    MODELS,
    Outcome,
    candidate,
    chosen,
    outcome_of,
    scored,
)
from pfedhgp.studies.schedule import run_tasks
from pfedhgp.studies.simulator import SCENARIOS, Simulation, simulate
from pfedhgp.studies.store import Store

KEY = ("scenario", "model", "run")


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

    def check(self) -> None:
        for name, least in (
            ("seed", 0),
            ("clients", 1),
            ("rows", 2),
            ("grid", 2),
            ("curve_runs", 0),
        ):
            if getattr(self, name) < least:
                raise InputError(f"`{name}` must be at least {least}, got {getattr(self, name)}")
        if self.rounds is not None and self.rounds < 1:
            raise InputError(f"`rounds` must be at least 1, got {self.rounds}")

    def truth(self, scenario: str, run: int) -> Simulation:
        return simulate(
            scenario,  # type: ignore[arg-type]
            self.seed + run,
            clients=self.clients,
            n=self.rows,
            n_test=self.grid,
        )


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

    With several scenarios on a GPU each has a process of its own: batches keep the device busy, and what is
    left is Python, of which a process does one thing at a time. Such a process `joins` a study.
    """
    study.check()
    check_names("scenario", scenarios, SCENARIOS)
    check_names("model", models, MODELS)
    if runs < 1:
        raise InputError(f"`runs` must be at least 1, got {runs}")
    store = Store(folder, asdict(study), key=KEY, mend=not joins)
    if device == "gpu" and len(scenarios) > 1:
        run_processes([_arguments(study, s, models, runs, folder, device) for s in scenarios])
        return Store(folder, asdict(study), key=KEY)
    wanted = [(s, m, r) for m in _dependent_last(models) for s in scenarios for r in range(runs)]
    left = [cell for cell in wanted if cell not in store.records]
    done = len(wanted) - len(left)

    def work(cell: Cell) -> None:
        nonlocal done
        record = run_cell(study, cell, store)
        store.add(record)
        done += 1
        if progress is not None:
            progress(done, len(wanted), record)

    run_tasks(left, work, kind=lambda cell: cell[1], device=device)
    return store


def _arguments(
    study: Study, scenario: str, models: Sequence[str], runs: int, folder: Path, device: str
) -> list[str]:
    """The same study of one scenario, as a command line that joins it."""
    given = {"out": folder, "scenarios": scenario, "models": ",".join(models), "runs": runs}
    given["device"] = device
    given |= {name: value for name, value in asdict(study).items() if value is not None}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    return [sys.executable, "-m", "pfedhgp.studies", "--join", *options]


def run_processes(commands: Sequence[Sequence[str]]) -> None:
    """Runs the commands side by side; ends them all when one fails or the user stops."""
    started = [subprocess.Popen(command) for command in commands]
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


def _dependent_last(models: Sequence[str]) -> list[str]:
    """`full-kernels` after the others, so that its first candidate, which is `full`, is there already."""
    return sorted(models, key=lambda model: model == "full-kernels")


def run_cell(study: Study, cell: Cell, store: Store | None = None) -> dict[str, Any]:
    """One model on one run of one scenario: its record."""
    scenario, model, run = cell
    truth = study.truth(scenario, run)
    began = time.perf_counter()
    known = store.records.get((scenario, "full", run)) if store is not None else None
    outcome = _outcome(study, cell, truth, known)
    seconds = time.perf_counter() - began
    if known is not None and not outcome.predictions:  # the predictions of `full`, scored already
        values, coverage = dict(known["metrics"]), known["coverage"]
        seconds += values["seconds"]
    else:
        cases = scored(truth, outcome.predictions)
        values = metrics.evaluate(cases)
        coverage = [_coverage(cases, level) for level in metrics.ECE_LEVELS]
    if outcome.costs:
        values |= {**outcome.costs, "seconds": seconds}
    record: dict[str, Any] = {
        "scenario": scenario,
        "model": model,
        "run": run,
        "seed": study.seed + run,
        "metrics": values,
        "coverage": coverage,
        "bound": outcome.bound,
        "curve": [list(point) for point in outcome.curve],
        **outcome.notes,
    }
    if run == 0 and model == "full":
        record["example"] = _example(truth, outcome)
    return record


def _outcome(study: Study, cell: Cell, truth: Simulation, known: dict[str, Any] | None) -> Outcome:
    """Trains the model. Of `full-kernels`, the candidate that `full` has trained already (`known`: the same
    seed gives the same numbers) is not repeated: where it is chosen, the outcome has no predictions."""
    _, model, run = cell
    curve = run < study.curve_runs
    if model != "full-kernels" or known is None or known["bound"] is None:
        return outcome_of(model, truth, rounds=study.rounds, curve=curve)
    found = {
        name: candidate(name, truth, rounds=study.rounds, curve=curve)
        for name in CANDIDATES
        if name != "rbf"
    }
    costs = {name: known["metrics"][name] for name in ("rounds", "exchanges", "bytes")}
    points = [(int(e), int(b), nll) for e, b, nll in known["curve"]]
    return chosen({"rbf": Outcome([], costs, known["bound"], points), **found})


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
