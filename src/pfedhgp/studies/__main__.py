"""`python -m pfedhgp.studies`: the numerical study without the command line's packages.

For a machine with a GPU and only jax, numpy, scipy, equinox and optax. The options are those of `pfedhgp
reproduce synthetic`; without matplotlib there are tables but no figures.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

from pfedhgp.base.option_names import naming
from pfedhgp.base.signals import INTERRUPTED, TERMINATED, Terminated, leave, resumable, terminable
from pfedhgp.errors import InputError
from pfedhgp.studies.common.pages import can_draw
from pfedhgp.studies.synthetic import report
from pfedhgp.studies.synthetic.models import MODELS
from pfedhgp.studies.synthetic.simulator import SCENARIOS
from pfedhgp.studies.synthetic.study import Study, run_study


def main(arguments: list[str] | None = None) -> int:
    """Runs the study; returns 2 if the input is wrong, 130 after Ctrl-C, 143 after SIGTERM."""
    try:
        with terminable(), naming({"runs", *(field.name for field in fields(Study))}):
            return _main(arguments)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except Terminated:
        return TERMINATED


def _main(arguments: list[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pfedhgp.studies", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help=_some(SCENARIOS))
    parser.add_argument("--models", default=",".join(MODELS), help=_some(MODELS))
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--join", action="store_true", help="add runs to a study; write no report")
    for field in fields(Study):
        if field.name != "rounds":
            name = field.name.replace("_", "-")
            parser.add_argument(f"--{name}", type=int, default=field.default)
    given = parser.parse_args(arguments)
    study = Study(**{field.name: getattr(given, field.name) for field in fields(Study)})
    scenarios, models = _names(given.scenarios), _names(given.models)
    warnings.simplefilter("ignore")
    began = time.perf_counter()

    def progress(done: int, total: int, record: dict[str, Any]) -> None:
        names = ("phase", "scenario", "model", "run")
        what = " ".join(str(record[name]) for name in names if name in record)
        line = f"{time.perf_counter() - began:7.1f} s  {done}/{total}  {what}"
        print(line, file=sys.stderr, flush=True)

    with nullcontext() if given.join else resumable():
        store = run_study(
            study,
            scenarios=scenarios,
            models=models,
            runs=given.runs,
            folder=given.out,
            device=given.device,
            progress=progress,
            joins=given.join,
        )
    if given.join:
        return 0
    report.write_synthetic(
        store, scenarios=scenarios, models=models, runs=given.runs, figures=can_draw()
    )
    print((given.out / "tables.md").read_text())
    return 0


def _some(known: Sequence[str]) -> str:
    return f"some of {', '.join(known)}, separated by commas (default: all)"


def _names(given: str) -> list[str]:
    return [name.strip() for name in given.split(",") if name.strip()]


if __name__ == "__main__":
    sys.exit(leave(main()))
