"""`pfedhgp report RUN`: one HTML file about a fitted model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, Unpack

import typer

from pfedhgp.base.compilation_cache import use_compilation_cache
from pfedhgp.cli.options import AsJson, Delimiter, Overwrite, Quiet, RunFolder
from pfedhgp.cli.targets import check_file, writing_to
from pfedhgp.cli.terminal import result, warnings_as_lines
from pfedhgp.errors import InputError, warn

if TYPE_CHECKING:
    from pfedhgp.estimator import FederatedGP
    from pfedhgp.report.page import Shown


def report(
    run: RunFolder,
    data: Annotated[
        list[Path] | None,
        typer.Option("--data", help="Rows to show with the predictions; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The file to write. Default: RUN/report.html.")
    ] = None,
    delimiter: Delimiter = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write a report of a fitted model: one HTML file, no network.

    RUN has no rows: give --data to see them with the predictions.

    Rows that the fit held out are marked, and rows that it did not have look different.

    The report also shows groups that cluster found, and the cycles that classify saw last.

    An existing report is replaced only with --overwrite.
    """
    from pfedhgp.cli.saved import columns_of, open_run
    from pfedhgp.data.text_tables import delimiter_of

    with warnings_as_lines() as told:
        spec = open_run(run)
        columns = columns_of(spec)
        target = run / "report.html" if out is None else out
        check_file(target, overwrite=overwrite, option="--out" if out is None else None)
        given = None
        if data:
            from pfedhgp.data.readers import read_observations

            given = read_observations(data, columns, delimiter=delimiter_of(delimiter))
        use_compilation_cache()
        from pfedhgp.attacks import kept as kept_attacks
        from pfedhgp.cli.resplit import GivenRows, parts_of, warn_of
        from pfedhgp.diagnosis import files as class_files
        from pfedhgp.estimator import FederatedGP
        from pfedhgp.living import kept_backtest
        from pfedhgp.zones import result as zone_files

        this = str(spec["sha256"])
        model = FederatedGP.load(run)
        parts = (
            GivenRows() if given is None else parts_of(given, columns, model.model_, as_now=True)
        )
        warn_of(parts.strangers, "not in the model, and not shown")
        warn_of(
            [each.name for each in parts.others],
            "rows that are not those of the fit, nor came since: drawn as other rows",
        )
        written = write_report(
            target,
            model,
            rows=None if given is None else parts.rows,
            held_out=parts.held_out,
            others=parts.others,
            zones=_stored("zones", lambda: zone_files.read(run / zone_files.FOLDER, this)),
            classified=_stored("classified cycles", lambda: class_files.read(run, this)),
            backtest=_stored("past forecasts", lambda: kept_backtest.read(run, this)),
            attacks=_stored("attacks", lambda: kept_attacks.read(run, this)),
        )
    if as_json:
        result({"run": str(run), "report": str(written), "warnings": told})
    elif not quiet:
        print(written)


Stored = TypeVar("Stored")


def _stored(what: str, read: Callable[[], Stored | None]) -> Stored | None:
    """What another command stored in RUN for the report; warns if it cannot be shown."""
    try:
        return read()
    except InputError as error:
        warn(f"{what} are left out: {error}")
        return None


def write_report(path: Path, model: FederatedGP, **shown: Unpack[Shown]) -> Path:
    """Writes the report with the model's own metrics, and the folder that it goes to."""
    from pfedhgp.report import write

    with writing_to(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        shown["metrics"] = model.model_.metrics
        return write(path, model, **shown)
