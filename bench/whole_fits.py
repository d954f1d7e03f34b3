"""Whole fits in fresh processes: seconds of each step beside its goal, and beside other libraries' fits.

    python -m bench fits                 # the cases that take seconds
    python -m bench fits --full          # and those that take minutes

The rows before the growth are README's example in a second process, which finds what the first one kept, and
`pfedhgp demo`. Steps of a fit are import, first fit, first predict (one client), next fit (the median of
other draws in the same process), adopt (a new client) and save. Nothing compiled is kept on disk. Others fit
the same clients in a process of their own (`peers`). Each is scored on the same held-out rows: RMSE and NLL
a cell.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.federations import CASES, Case, Federation, alike
from bench.timing import slope

DRAWS = 3
OURS = "pfedhgp"
PATIENCE = 1800.0
"""Seconds after which a fit is given up."""
COMMAND_GOALS = {"README's example in a second process": 4.0, "pfedhgp demo": 30.0}
Predict = Callable[[str, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Mean and sd, with noise, of a client at some inputs."""


class Clock:
    """Seconds by the clock, and of processor time, of named steps."""

    def __init__(self) -> None:
        self.steps: dict[str, dict[str, float]] = {}

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        wall, spent = time.perf_counter(), time.process_time()
        found = work()
        spent, wall = time.process_time() - spent, time.perf_counter() - wall
        self.steps[name] = {"seconds": wall, "processor": spent}
        return found


def score(predict: Predict, test: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """RMSE and Gaussian NLL over all held-out cells."""
    squares, nll = [], []
    for name, (X, Y) in test.items():
        mean, sd = predict(name, X)
        squares.append(((Y - mean) ** 2).ravel())
        nll.append((0.5 * ((Y - mean) / sd) ** 2 + np.log(sd) + 0.5 * np.log(2 * np.pi)).ravel())
    return {
        "RMSE": float(np.sqrt(np.mean(np.concatenate(squares)))),
        "NLL": float(np.mean(np.concatenate(nll))),
    }


def ours(case: Case) -> dict[str, Any]:
    """All steps of a case, in this process."""
    clock, data = Clock(), case.make(0)
    FederatedGP = clock("import", _imported)
    model = clock("first fit", lambda: FederatedGP(**case.settings).fit(data.train))
    name = next(iter(data.test))
    clock("first predict", lambda: model.predict(name, data.test[name][0]))

    def predict(name: str, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = model.predict(name, X)
        return found.mean, found.sd

    found = score(predict, data.test)
    if "next fit" in case.goals:
        _next_fits(clock, FederatedGP, case)
    if "adopt" in case.goals:
        X, Y = data.train[name]
        clock("adopt", lambda: model.adopt("a new site", X, Y + 0.1))
    if "save" in case.goals:
        with tempfile.TemporaryDirectory() as folder:
            clock("save", lambda: model.save(Path(folder) / "model"))
    three = [clock.steps[step] for step in ("import", "first fit", "first predict")]
    clock.steps["import to prediction"] = {key: sum(s[key] for s in three) for key in three[0]}
    return {"steps": clock.steps, **found, "GiB": _peak()}


def _imported() -> Any:
    from pfedhgp import FederatedGP

    return FederatedGP


def _next_fits(clock: Clock, FederatedGP: Any, case: Case) -> None:
    taken = []
    for draw in range(1, 1 + (1 if case.settings else DRAWS)):
        other = case.make(draw).train
        clock("next fit", lambda other=other: FederatedGP(**case.settings).fit(other))
        taken.append(clock.steps["next fit"])
    clock.steps["next fit"] = {key: float(np.median([t[key] for t in taken])) for key in taken[0]}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def peer(name: str, case: Case) -> dict[str, Any]:
    """Another library's fit of the same clients, in this process."""
    from bench import peers

    clock, data = Clock(), case.make(0)
    fit = clock("import", lambda: peers.FITS[name]())
    predict = clock("first fit", lambda: fit(data))
    return {"steps": clock.steps, **score(predict, data.test), "GiB": _peak()}


def in_fresh_process(name: str, who: str, patience: float = PATIENCE) -> dict[str, Any] | None:
    """What `ours` or `peer` finds in a process of its own; None if it took too long or failed."""
    kept = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    command = [sys.executable, "-m", "bench.whole_fits", who, name]
    try:
        done = subprocess.run(
            command, env=kept, capture_output=True, text=True, timeout=patience, check=True
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as failure:
        lines = [line for line in (failure.stderr or "").splitlines() if line.strip()]
        print(f"      {who}: {lines[-1] if lines else f'not done in {patience:g} s'}")
        return None
    return json.loads(done.stdout.splitlines()[-1])


def table(*, full: bool, torch: bool) -> dict[str, Any]:
    """Prints every case with its goals and its peers, and returns it."""
    print("\n(f) whole fits in fresh processes: seconds (of processor time), goal")
    cases: dict[str, Any] = {}
    for name, case in CASES.items():
        if case.full and not full:
            continue
        print(f"    {name}", flush=True)
        found = in_fresh_process(name, OURS)
        if found is None:
            continue
        row = {OURS: found, "missed": missed(case, found)}
        show(case, found)
        for other in case.peers:
            if not torch and other.startswith("GPyTorch"):
                continue
            if (theirs := in_fresh_process(name, other)) is not None:
                row[other] = {**theirs, "ratio": ratio(theirs, found)}
                _show_peer(other, row[other])
        cases[name] = row
    return {"cases": cases, "commands": commands(), "growth": growth()}


def commands() -> dict[str, dict[str, float]]:
    """README's example in a second process, from import to prediction, and the demo: seconds and goals."""
    found: dict[str, dict[str, float]] = {}
    again = in_fresh_process(next(iter(CASES)), OURS)
    if again is not None:
        found["README's example in a second process"] = again["steps"]["import to prediction"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pfedhgp", "demo", "--quiet", "--out", f"{folder}/demo"]
        found["pfedhgp demo"] = timed_command(command)
    for name, taken in found.items():
        taken["goal"] = COMMAND_GOALS[name]
        late = ", missed" if taken["seconds"] > taken["goal"] else ""
        print(
            f"    {name}: {taken['seconds']:.2f} s ({taken['processor']:.2f})"
            f"  goal {taken['goal']:g}{late}",
            flush=True,
        )
    return found


def timed_command(command: list[str]) -> dict[str, float]:
    """Seconds by the clock and of processor time of a command, its own processes included."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, capture_output=True, timeout=PATIENCE, check=True)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "processor": spent}


def reached(found: Mapping[str, Any], step: str) -> float:
    """Seconds of a step, or GiB."""
    return found["GiB"] if step == "GiB" else found["steps"][step]["seconds"]


def missed(case: Case, found: Mapping[str, Any]) -> list[str]:
    """The steps that took longer than their goals."""
    return [step for step, goal in case.goals.items() if reached(found, step) > goal]


def ratio(theirs: Mapping[str, Any], found: Mapping[str, Any]) -> float:
    """How many times our first fit the other's takes, in processor time."""
    return theirs["steps"]["first fit"]["processor"] / found["steps"]["first fit"]["processor"]


def show(case: Case, found: Mapping[str, Any]) -> None:
    """A line for each step, and one for the scores."""
    late = missed(case, found)
    for step, taken in found["steps"].items():
        goal = f"goal {case.goals[step]:g}" if step in case.goals else ""
        print(
            f"      {step:24s}{taken['seconds']:9.2f} s ({taken['processor']:.2f})  {goal}"
            f"{', missed' if step in late else ''}"
        )
    print(f"      RMSE {found['RMSE']:.4f}, NLL {found['NLL']:.4f}, {found['GiB']:.2f} GiB")


def _show_peer(name: str, found: Mapping[str, Any]) -> None:
    taken = found["steps"]["first fit"]
    print(
        f"      {name:24s}{taken['seconds']:9.2f} s ({taken['processor']:.2f}), "
        f"{found['ratio']:.2f} times ours; RMSE {found['RMSE']:.4f}, NLL {found['NLL']:.4f}"
    )


def growth() -> dict[str, Any]:
    """How the processor time of a fit grows with clients, rows and inducing inputs: slopes.

    Numbers of inducing inputs are given: automatic ones differ from draw to draw, and time with them.
    """
    print("    growth of a whole fit, 4 rounds")
    few = {"inducing": 24, "local_inducing": 24}
    by = {
        "clients × 50 rows": [(n, alike(n, 50, 0), few) for n in (10, 40, 160)],
        "rows of 2 clients": [(n, alike(2, n, 0), few) for n in (10**4, 3 * 10**4, 10**5)],
        "inducing inputs, 4 × 200 rows": [
            (m, alike(4, 200, 0), {"inducing": m, "local_inducing": m}) for m in (24, 48, 96)
        ],
    }
    return {name: _slope(name, fits) for name, fits in by.items()}


def _slope(name: str, fits: list[tuple[int, Federation, dict[str, Any]]]) -> dict[str, Any]:
    from pfedhgp import FederatedGP

    taken = []
    for _, data, settings in fits:
        clock = Clock()
        model = FederatedGP(rounds=4, tolerance=0.0, **settings)
        clock("fit", lambda model=model, data=data: model.fit(data.train))
        taken.append(clock.steps["fit"]["processor"])
    sizes = [size for size, _, _ in fits]
    found = {"sizes": sizes, "processor": taken, "slope": slope(sizes, taken)}
    shown = "  ".join(f"{n}: {t:.2f} s" for n, t in zip(sizes, taken, strict=True))
    print(f"      {name}: slope {found['slope']:.2f}; {shown}", flush=True)
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    who, which = sys.argv[1:]
    print(json.dumps(ours(CASES[which]) if who == OURS else peer(who, CASES[which])))
