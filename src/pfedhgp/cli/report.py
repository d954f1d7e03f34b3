"""`pfedhgp report RUN`: one HTML file about a fitted model."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfedhgp.cli.options import AsJson, Delimiter, Overwrite, Quiet, RunFolder
from pfedhgp.cli.terminal import say

if TYPE_CHECKING:
    from pfedhgp.data.rows import ClientRows
    from pfedhgp.estimator import FederatedGP
    from pfedhgp.zones.files import KeptZones


def report(
    run: RunFolder,
    data: Annotated[
        list[Path] | None,
        typer.Option("--data", help="Data to show beside the predictions; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The file to write; by default RUN/report.html.")
    ] = None,
    delimiter: Delimiter = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write a report of a fitted model: one HTML file, no network.

    RUN is a folder that fit wrote; it holds no rows.

    Give --data to see rows beside the predictions.

    Rows that the fit held out are marked; other data are shown apart.

    Groups that cluster found in RUN are in it.
    Cycles that classify last saw are in it, and what decided.

    An existing report, RUN's own too, is replaced with --overwrite only.
    """
    from pfedhgp.base.compilation_cache import use_compilation_cache
    from pfedhgp.cli.saved import columns_of, open_run
    from pfedhgp.cli.targets import check_file
    from pfedhgp.cli.terminal import result, warnings_as_lines
    from pfedhgp.data.text_tables import delimiter_of

    with warnings_as_lines() as told:
        spec = open_run(run)
        columns = columns_of(spec)
        target = run / "report.html" if out is None else out
        check_file(target, overwrite=overwrite, option="--out" if out is None else None)
        given = None
        if data:
            from pfedhgp.data.readers import observations_of, read_tables, wanted_names

            tables = read_tables(
                data,
                wanted=wanted_names(columns),
                delimiter=delimiter_of(delimiter),
            )
            given = observations_of(tables, columns)
        use_compilation_cache()
        from pfedhgp.cli.resplit import Shown, parts_of, warn_of
        from pfedhgp.estimator import FederatedGP

        model = FederatedGP.load(run)
        parts = Shown() if given is None else parts_of(given, columns, model.model_)
        warn_of(parts.strangers, "not in the model, and not shown")
        warn_of(
            [each.name for each in parts.others],
            "not the rows of the fit: drawn apart, as neither fitted nor held out",
        )
        written = write_report(
            target,
            model,
            rows=None if given is None else parts.rows,
            held_out=parts.held_out,
            others=parts.others,
            zones=_zones(run, spec["sha256"]),
            classified=_classified(run, spec["sha256"]),
            quiet=quiet,
        )
        if written is None:
            raise typer.Exit(1)
    if as_json:
        result({"run": str(run), "report": str(written), "warnings": told})
    elif not quiet:
        print(written)


def _zones(run: Path, model: str) -> KeptZones | None:
    """What `pfedhgp cluster` left in RUN; zones that cannot be shown are no reason for no report."""
    from pfedhgp.errors import InputError, PFedHGPWarning
    from pfedhgp.zones import files as zone_files

    try:
        return zone_files.read(run / zone_files.FOLDER, model)
    except InputError as error:
        warnings.warn(f"zones are left out: {error}", PFedHGPWarning, stacklevel=2)
        return None


def _classified(run: Path, model: str) -> dict[str, Any] | None:
    """What `pfedhgp classify` left in RUN; what cannot be shown is no reason for no report."""
    from pfedhgp.diagnosis import files as classified
    from pfedhgp.errors import InputError, PFedHGPWarning

    try:
        return classified.read(run, model)
    except InputError as error:
        warnings.warn(f"classified cycles are left out: {error}", PFedHGPWarning, stacklevel=2)
        return None


def write_report(
    path: Path,
    model: FederatedGP,
    *,
    rows: Sequence[ClientRows] | None,
    held_out: Sequence[ClientRows] = (),
    others: Sequence[ClientRows] = (),
    zones: KeptZones | None = None,
    classified: dict[str, Any] | None = None,
    quiet: bool,
) -> Path | None:
    """Writes the report whole or not at all; None, and a line, where this build has none.

    Rows that were fitted to, rows that were held out and rows of which this is not known are shown apart.
    """
    from pfedhgp.base.atomic_files import replacing
    from pfedhgp.cli.targets import writing_to

    try:
        package = importlib.import_module("pfedhgp.report")
    except ModuleNotFoundError as error:
        if error.name != "pfedhgp.report":
            raise
        say("pfedhgp: no report was written: this build has no pfedhgp.report", quiet=quiet)
        return None
    apart: dict[str, Any] = {"held_out": held_out, "others": others, "zones": zones}
    apart["classified"] = classified
    apart = {name: part for name, part in apart.items() if part}
    with writing_to(path), replacing(path) as beside:
        package.write(beside, model, rows=rows, metrics=model.model_.metrics, **apart)
    return path
