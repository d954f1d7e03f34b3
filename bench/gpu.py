"""Whole fits on a GPU: first and next fit, what was compiled for them, and how far a CPU's predictions are.

    python -m bench gpu              # also 1,000 and 10,000 clients
    python -m bench gpu --quick      # without the 10,000

One process: a case's first fit compiles what earlier cases did not. Differences are of the first fits'
predictions at held-out rows of up to ten clients, in standard deviations.
"""

from __future__ import annotations

import logging
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np

from bench.federations import Federation, alike, ragged, readme
from pfedhgp import FederatedGP
from pfedhgp.base.numerics import has_device

HEAVY = 0.5
"""Seconds of compilation from which a program is named."""
LOGGERS = ("jax._src.dispatch", "jax._src.interpreters.pxla")
COMPILED = re.compile(r"Finished XLA compilation of (.+) in ([\d.e+-]+) sec")


class Case(NamedTuple):
    """A federation, the settings of its fit, and goals in seconds for the first and the next fit."""

    make: Callable[[int], Federation]
    settings: dict[str, Any]
    goals: tuple[float | None, float | None] = (None, None)
    on_cpu: bool = True
    """Whether it is also fitted on the CPU"""


def three_outputs(draw: int) -> Federation:
    """README's sites with three outputs each."""
    first = readme(draw)

    def more(rows: dict) -> dict:
        return {
            name: (x, np.concatenate([y, 0.5 * y + np.cos(x), np.sin(x + i)], axis=1))
            for i, (name, (x, y)) in enumerate(rows.items())
        }

    return Federation(more(dict(first.train)), more(dict(first.test)))


SIX = {"rounds": 6, "tolerance": 0.0}
CASES = {
    "README's example": Case(readme, {}),
    "six ragged clients": Case(ragged, {}),
    "three outputs": Case(three_outputs, {}),
    "1,000 clients × 50 rows, 6 rounds": Case(lambda d: alike(1000, 50, d), SIX, (20.0, 5.0)),
    "10,000 clients × 50 rows, 6 rounds": Case(
        lambda d: alike(10_000, 50, d), SIX, (30.0, None), on_cpu=False
    ),
}


class _Programs(logging.Handler):
    """Seconds of every compilation, with the program's name."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.found: list[tuple[str, float]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if match := COMPILED.match(record.getMessage()):
            self.found.append((match[1], float(match[2])))


@contextmanager
def programs() -> Iterator[list[tuple[str, float]]]:
    """The programs that are compiled inside the block."""
    handler = _Programs()
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
    try:
        yield handler.found
    finally:
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate


def fitted(case: Case, draw: int, device: str) -> tuple[FederatedGP, dict[str, Any]]:
    """A model, its seconds, and what was compiled for it."""
    data = case.make(draw).train
    with programs() as found, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        model = FederatedGP(**case.settings, device=device).fit(data)
        seconds = time.perf_counter() - start
    heavy = sorted((each for each in found if each[1] >= HEAVY), key=lambda each: -each[1])
    about = {
        "seconds": seconds,
        "programs": len(found),
        "compiling": sum(taken for _, taken in found),
        "heavy": heavy,
    }
    return model, about


def difference(first: FederatedGP, second: FederatedGP, data: Federation) -> dict[str, float]:
    """The largest |Δmean|/sd and |Δsd|/sd at held-out rows."""
    mean, sd = 0.0, 0.0
    for name, (x, _) in list(data.test.items())[:10]:
        a, b = first.predict(name, x), second.predict(name, x)
        mean = max(mean, float(np.max(np.abs(a.mean - b.mean) / a.sd)))
        sd = max(sd, float(np.max(np.abs(a.sd - b.sd) / a.sd)))
    return {"mean": mean, "sd": sd}


def measured(name: str, case: Case, device: str) -> dict[str, Any]:
    """One case's lines, as they come."""
    print(f"    {name}", flush=True)
    model, first = fitted(case, 0, device)
    _show("first fit", first, case.goals[0])
    for program, seconds in first["heavy"]:
        print(f"        {seconds:7.2f} s to compile {program}")
    _, again = fitted(case, 0, device)
    _show("the same again", again, case.goals[1])
    _, other = fitted(case, 1, device)
    _show("other rows", other, None)
    row: dict[str, Any] = {"first": first, "again": again, "other rows": other}
    if case.on_cpu:
        beside, row["cpu"] = fitted(case, 0, "cpu")
        _show("on the CPU", row["cpu"], None)
        row["difference"] = difference(model, beside, case.make(0))
        print("      difference, in sd: mean {mean:.1e}, sd {sd:.1e}".format(**row["difference"]))
    return row


def _show(name: str, about: dict[str, Any], goal: float | None) -> None:
    late = "" if goal is None else f"  goal {goal:g}{', missed' if about['seconds'] > goal else ''}"
    print(
        f"      {name:16s}{about['seconds']:8.2f} s, {about['compiling']:7.2f} s of them compiling "
        f"{about['programs']} programs ({len(about['heavy'])} heavy){late}",
        flush=True,
    )


def table(*, quick: bool) -> dict[str, Any]:
    """Prints every case, and returns it; nothing where JAX finds no GPU."""
    if not has_device("gpu"):
        print("\ngpu: skipped, JAX finds none")
        return {}
    print(f"\n(g) whole fits on {jax.devices('gpu')[0].device_kind}")
    few = [name for name in CASES if not (quick and name.startswith("10,000"))]
    return {"cases": {name: measured(name, CASES[name], "gpu") for name in few}}
