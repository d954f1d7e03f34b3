"""`pfedhgp reproduce`: the paper's experiments, each into a folder of its own."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from pfedhgp.base.option_names import naming
from pfedhgp.base.signals import resumable
from pfedhgp.cli.commands import SETTINGS, PlainCommand, PlainGroup
from pfedhgp.cli.options import Device, FirstSeed, ResultsJson, Rounds, StudyFolder
from pfedhgp.errors import InputError

app = typer.Typer(
    name="reproduce",
    cls=PlainGroup,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=SETTINGS,
    help="Run the paper's experiments and write their results.",
)

ARGUMENTS = {"runs", "seed", "rounds", "clients", "rows", "grid", "quick"}
ARGUMENTS |= {"data", "share", "subtlety", "small", "year", "sketches"}
"""Arguments of studies that are options here, and may be named in an error."""


@app.command(cls=PlainCommand)
def synthetic(
    out: StudyFolder,
    scenarios: Annotated[
        str, typer.Option(help="Some of A, B, C, D, separated by commas.")
    ] = "A,B,C,D",
    models: Annotated[
        str,
        typer.Option(
            help="Rows of the table, separated by commas. Default: all, that is full, full-kernels, "
            "no-deviation, no-local, global-only, local-only, pfedgp, algorithm1, oracle.",
            show_default=False,
        ),
    ] = "full,full-kernels,no-deviation,no-local,global-only,local-only,pfedgp,algorithm1,oracle",
    runs: Annotated[int, typer.Option(help="Number of independent runs.")] = 30,
    seed: FirstSeed = 0,
    rounds: Rounds = None,
    device: Device = "cpu",
    clients: Annotated[int, typer.Option(help="Number of clients (6 in the paper).")] = 6,
    rows: Annotated[int, typer.Option(help="Rows per client (50 in the paper).")] = 50,
    grid: Annotated[int, typer.Option(help="Number of test inputs (150 in the paper).")] = 150,
    as_json: ResultsJson = False,
) -> None:
    """The numerical study: every model on scenarios A to D, with the Bayes oracle and the printed table."""
    from pfedhgp.studies.synthetic import report
    from pfedhgp.studies.synthetic.study import Study, run_study

    _check_device(device)
    study = Study(seed=seed, rounds=rounds, clients=clients, rows=rows, grid=grid)
    chosen, wanted = _names(scenarios), _names(models)
    with _running():
        store = run_study(
            study,
            scenarios=chosen,
            models=wanted,
            runs=runs,
            folder=out,
            device=device,
            progress=None if as_json else _Progress(),
        )
    _say(report.write_synthetic(store, scenarios=chosen, models=wanted, runs=runs), out, as_json)


@app.command(cls=PlainCommand)
def stability(
    out: StudyFolder,
    runs: Annotated[int, typer.Option(help="Independent runs of each point.")] = 10,
    seed: FirstSeed = 0,
    rounds: Rounds = None,
    device: Device = "cpu",
    rows: Annotated[int, typer.Option(help="Rows per client, on average.")] = 50,
    grid: Annotated[int, typer.Option(help="Number of test inputs.")] = 100,
    quick: Annotated[bool, typer.Option(help="Only the ends of each range.")] = False,
    as_json: ResultsJson = False,
) -> None:
    """When global and deviation can be told apart: by clients, balance and heterogeneity."""
    from pfedhgp.studies.stability.report import write_stability
    from pfedhgp.studies.stability.study import Stability, run_stability

    _check_device(device)
    study = Stability(seed=seed, rounds=rounds, rows=rows, grid=grid, quick=quick)
    with _running():
        store = run_stability(
            study,
            runs=runs,
            folder=out,
            device=device,
            progress=None if as_json else _Progress(),
        )
    _say(write_stability(store, study, runs=runs), out, as_json)


@app.command(cls=PlainCommand)
def tonnage(
    out: StudyFolder,
    data: Annotated[
        str,
        typer.Option(
            help="FILE (.mat, .npz), simulated, runs:SDxRUNS, hydraulic:valve, hydraulic:valve-all "
            "or hydraulic:cooler."
        ),
    ] = "simulated",
    runs: Annotated[int, typer.Option(help="Number of splits (and of simulated presses).")] = 5,
    seed: FirstSeed = 0,
    models: Annotated[
        str | None,
        typer.Option(
            help="Rows of the table, separated by commas. Default: all, that is pfedhgp, pfedhgp-white, "
            "paper, lda, pca+ridge, 1-nn, minirocket-style. If all channels together have more than 2000 "
            "samples, paper takes many minutes per split and runs only with --full or by name.",
            show_default=False,
        ),
    ] = None,
    share: Annotated[float, typer.Option(help="Share of cycles or blocks for training.")] = 0.1377,
    subtlety: Annotated[
        float, typer.Option(help="How faint simulated faults are: 2 halves them.")
    ] = 1.0,
    none: Annotated[
        bool, typer.Option("--none", help="Also leave out each class once, to test none of these.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="--none, and curves of accuracy.")] = False,
    small: Annotated[bool, typer.Option("--small", help="A small simulated press.")] = False,
    as_json: ResultsJson = False,
) -> None:
    """Fault diagnosis: whole cycles go to the class under which they are most probable."""
    from pfedhgp.studies.tonnage.report import write_tonnage
    from pfedhgp.studies.tonnage.study import Tonnage, run_tonnage

    study = Tonnage(data=data, seed=seed, share=share, subtlety=subtlety, small=small)
    with _running():
        store = run_tonnage(
            study,
            runs=runs,
            folder=out,
            models=None if models is None else _names(models),
            none=none,
            full=full,
            progress=None if as_json else _Progress(),
        )
    _say(write_tonnage(store, study, runs=runs), out, as_json)


@app.command(cls=PlainCommand)
def airquality(
    data: Annotated[Path, typer.Option(help="UCI's files: a folder, a zip, or a zip in a zip.")],
    out: Annotated[
        Path,
        typer.Option("--out", help="Folder for results. Those of an earlier run are replaced."),
    ],
    year: Annotated[
        int | None,
        typer.Option(help="The year (2013 begins in March). Not needed with --hours all."),
    ] = None,
    hours: Annotated[
        str, typer.Option(help="Hours of the day (2,14 in the paper), or all, with PM2.5 and TEMP.")
    ] = "2,14",
    raw: Annotated[bool, typer.Option(help="Use PM2.5 itself instead of log(1 + PM2.5).")] = False,
    seed: Annotated[int, typer.Option(help="Seed of sketches and held-out days.")] = 0,
    sketches: Annotated[
        int | None, typer.Option(help="Number of sketch seeds, starting with --seed. Default: 5.")
    ] = None,
    sparse: Annotated[
        int | None,
        typer.Option(help="Stations of each zone that keep only 5% of their rows, one at a time."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Imputation on three splits, and --sparse 4.")
    ] = False,
    as_json: ResultsJson = False,
) -> None:
    """Twelve Beijing stations: three zones without pooling rows, and imputation of missing days."""

    def tell(line: str) -> None:
        if not as_json:
            print(line, file=sys.stderr, flush=True)

    if hours.strip() == "all":
        from pfedhgp.studies.airquality import hours as air_hours

        unused = {"--full": full or None, "--sparse": sparse, "--sketches": sketches}
        given = [name for name, value in unused.items() if value is not None]
        if given:
            raise InputError(
                f"{given[0]} cannot be combined with --hours all, which has neither zones nor splits"
            )
        every = air_hours.AllHours(year=year, raw=raw, seed=seed)
        with naming(ARGUMENTS):
            _say(air_hours.run(every, data, out, tell), out, as_json)
        return
    from pfedhgp.studies.airquality.models import AirQuality
    from pfedhgp.studies.airquality.study import run

    if year is None:
        raise InputError("--year is missing, such as --year 2013 (only --hours all needs none)")
    if sparse is not None and sparse < 0:
        raise InputError(f"--sparse must be at least 0, got {sparse}")
    study = AirQuality(
        year=year,
        raw=raw,
        hours=_hours(hours),
        seed=seed,
        sketches=5 if sketches is None else sketches,
        sparse=sparse or 0,
        full=full,
    )
    with naming(ARGUMENTS):
        _say(run(study, data, out, tell), out, as_json)


@contextmanager
def _running() -> Iterator[None]:
    """Errors mention options, warnings are silent, and Ctrl-C says how to continue."""
    with naming(ARGUMENTS), resumable(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _names(given: str) -> list[str]:
    return [name.strip() for name in given.split(",") if name.strip()]


def _hours(given: str) -> tuple[int, ...]:
    try:
        found = tuple(int(hour) for hour in _names(given))
    except ValueError:
        found = ()
    if not found or not all(0 <= hour <= 23 for hour in found) or len(set(found)) != len(found):
        raise InputError(f"--hours must be all, or hours from 0 to 23 like 2,14, got {given!r}")
    return found


def _check_device(device: str) -> None:
    if device not in ("cpu", "gpu"):
        raise InputError(f"--device must be cpu or gpu, got {device!r}")


class _Progress:
    """One line per finished run; on a terminal one line that is overwritten."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.over = sys.stderr.isatty()

    def __call__(self, done: int, total: int, record: dict[str, Any]) -> None:
        spent = time.perf_counter() - self.began
        named = ("phase", "scenario", "part", "model", "sweep", "value", "run")
        what = " ".join(str(record[name]) for name in named if name in record)
        nll = record.get("metrics", {}).get("nll")
        score = f"  NLL {nll:.3f}" if nll is not None else ""
        accuracy = record.get("metrics", {}).get("accuracy")
        score = f"  accuracy {accuracy:.4f}" if accuracy is not None else score
        text = f"{done}/{total}  {spent:.0f} s  {what}{score}"
        print(
            f"\r\033[K{text}" if self.over else text,
            end="" if self.over and done < total else "\n",
            file=sys.stderr,
            flush=True,
        )


def _say(results: dict[str, Any], out: Path, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(results))
        return
    typer.echo((out / "tables.md").read_text())
    typer.echo(f"wrote {out / 'results.json'} and {out / 'report.html'}")
