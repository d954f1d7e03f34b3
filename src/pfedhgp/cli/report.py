"""`pfedhgp report RUN`: one HTML file about a fitted model."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pfedhgp.cli.terminal import say

if TYPE_CHECKING:
    from pfedhgp.data.rows import ClientRows
    from pfedhgp.estimator import FederatedGP


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that fit wrote.")],
    data: Annotated[
        list[Path] | None,
        typer.Option("--data", help="Data to show beside the predictions; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The file to write; by default RUN/report.html.")
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="Of CSV files, where it is not a comma: ';' or tab.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace --out where it exists.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but warnings.")] = False,
) -> None:
    """Write a report of a fitted model: one HTML file, no network.

    RUN is a folder that fit wrote; it holds no rows.

    Give --data to see rows beside the predictions.
    """
    from pfedhgp.cli.config import Data
    from pfedhgp.cli.ingest import delimiter_of
    from pfedhgp.cli.saved import columns_of, open_run
    from pfedhgp.cli.terminal import result, use_compilation_cache, warnings_as_lines
    from pfedhgp.errors import InputError

    with warnings_as_lines():
        columns = columns_of(open_run(run))
        if out is not None and out.exists() and not overwrite:
            raise InputError(f"{out} already exists: choose another file, or give --overwrite")
        rows = None
        if data:
            from pfedhgp.data.readers import read_clients

            rows = read_clients(data, columns, delimiter=delimiter_of(Data(delimiter=delimiter)))
        use_compilation_cache()
        from pfedhgp.estimator import FederatedGP

        model = FederatedGP.load(run)
        target = run / "report.html" if out is None else out
        written = write_report(target, model, rows=rows, quiet=quiet)
        if written is None:
            raise typer.Exit(1)
    if as_json:
        result({"run": str(run), "report": str(written)})
    elif not quiet:
        print(written)


def write_report(
    path: Path,
    model: FederatedGP,
    *,
    rows: Sequence[ClientRows] | None,
    held_out: Sequence[ClientRows] = (),
    quiet: bool,
) -> Path | None:
    """Writes the report whole or not at all; None, and a line, where this build has none.

    Rows that were fitted to and rows that were held out are shown apart.
    """
    from pfedhgp.atomic import replacing

    try:
        package = importlib.import_module("pfedhgp.report")
    except ModuleNotFoundError as error:
        if error.name != "pfedhgp.report":
            raise
        say("pfedhgp: no report was written: this build has no pfedhgp.report", quiet=quiet)
        return None
    apart = {"held_out": held_out} if held_out else {}
    with replacing(path) as beside:
        package.write(beside, model, rows=rows, metrics=model.model_.metrics, **apart)
    return path
