"""`pfedhgp update RUN DATA`: new rows, and new clients, into a fitted model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfedhgp.base.checks import listed
from pfedhgp.base.compilation_cache import use_compilation_cache
from pfedhgp.cli.options import AsJson, DatetimeFormat, Delimiter, Quiet, RunFolder
from pfedhgp.cli.targets import writing_to
from pfedhgp.cli.terminal import counted, result, say, warnings_as_lines
from pfedhgp.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from pfedhgp.data.readers import Observations
    from pfedhgp.estimator import FederatedGP

Data = Annotated[
    list[Path], typer.Argument(metavar="DATA...", help="Tables with the columns of the fit.")
]


def update(
    run: RunFolder,
    files: Data,
    retrain: Annotated[
        list[Path] | None,
        typer.Option(
            "--retrain",
            metavar="OLD",
            help="The rows of the fit again, to train on all rows from where the model is; may be "
            "repeated.",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="With --retrain: rounds of training.")] = 5,
    delimiter: Delimiter = None,
    datetime_format: DatetimeFormat = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Add new rows, and new clients, to a fitted model without training again.

    The model is then what a fit with the same parameters and all rows would give.

    The rows of the fit are not needed. Rows that the model has already are refused.

    A warning says when the parameters have gone stale: new rows are not as expected.

    What was replaced is in RUN/previous.
    """
    from pfedhgp.cli.saved import columns_of, model_of, open_run
    from pfedhgp.data.readers import naming_rows, read_observations
    from pfedhgp.data.text_tables import delimiter_of
    from pfedhgp.model.run_folder import check_target
    from pfedhgp.settings.config import in_options

    with warnings_as_lines(in_options) as told:
        run = model_of(run)
        spec = open_run(run)
        columns = columns_of(spec, datetime_format)
        check_target(run, overwrite=True)
        if columns.cycle is not None:
            raise InputError(f"{run} was fitted to cycles: `update` takes rows; fit again instead")
        how = delimiter_of(delimiter)
        new = read_observations(files, columns, delimiter=how)
        old = read_observations(retrain, columns, delimiter=how) if retrain else None
        use_compilation_cache()
        from pfedhgp.estimator import FederatedGP

        model = FederatedGP.load(run)
        with naming_rows(files, columns, new, delimiter=how):
            if old is None:
                model.update(pairs(new))
            else:
                model.update(pairs(new), retrain=pairs(old), rounds=rounds)
        save(model, run, spec)
        done = model.last_update_
    if as_json:
        result({"run": str(run), **done.to_json(), "warnings": told})
        return
    added = sum(done.rows.values())
    text = f"{counted(added, 'row')} of {counted(len(done.rows), 'client')}"
    if done.new_clients:
        text += f", new: {listed(done.new_clients, 3)}"
    say(f"{text}: {run} (before: {run / 'previous'})", quiet=quiet)
    if done.surprises and not done.stale:
        say(f"the new rows are as expected (chance {done.p:.2g})", quiet=quiet)
    say_of_notes(run, quiet=quiet)


def say_of_notes(run: Path, *, quiet: bool) -> None:
    """What was found about the model before went to RUN/previous with it."""
    from pfedhgp.model.run_folder import NOTES, PREVIOUS

    found = [name for name in NOTES if (run / PREVIOUS / name).exists()]
    if found:
        are = "are" if len(found) > 1 else "is"
        say(
            f"{listed(found, len(found))} {are} about the model before, and went with it to "
            f"{run / PREVIOUS}, which the next update replaces",
            quiet=quiet,
        )
    if "report.html" in found:
        say(f"`pfedhgp report {run}` writes a new report", quiet=quiet)


def pairs(rows: list[Observations]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {each.name: (each.X, each.Y) for each in rows}


def save(model: FederatedGP, run: Path, before: Mapping[str, Any]) -> None:
    """Replaces RUN in one step; what was there is in RUN/previous.

    `before` is the spec of the model that was read: if RUN is another one by now, nothing is written.
    """
    from pfedhgp.model import files

    with writing_to(run):
        files.save(
            model.model_, run, overwrite=True, keep_previous=True, replaces=str(before["sha256"])
        )
