"""`pfedhgp forget RUN --client NAME [DATA]`: a client, or some of its rows, out of a fitted model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pfedhgp.base.compilation_cache import use_compilation_cache
from pfedhgp.cli.options import AsJson, DatetimeFormat, Delimiter, Quiet, RunFolder
from pfedhgp.cli.terminal import counted, result, say, warnings_as_lines
from pfedhgp.errors import InputError


def forget(
    run: RunFolder,
    client: Annotated[str, typer.Option(metavar="NAME", help="The client.")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[DATA...]",
            help="Rows to take out, as they were fitted or added. Default: the client with all its rows.",
        ),
    ] = None,
    first: Annotated[
        str | None,
        typer.Option("--from", metavar="X", help="Only rows of DATA from this input on."),
    ] = None,
    last: Annotated[
        str | None,
        typer.Option("--to", metavar="X", help="Only rows of DATA up to this input."),
    ] = None,
    delimiter: Delimiter = None,
    datetime_format: DatetimeFormat = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Take a client, or some of its rows, out of a fitted model.

    The model is then what it would be with the same parameters and without these rows.

    Parameters that were learned with them stay: only a new fit removes what they taught.

    What was replaced is in RUN/previous: delete it if the rows must be gone.
    """
    from pfedhgp.cli.saved import columns_of, model_of, open_run
    from pfedhgp.cli.update import save, say_of_notes
    from pfedhgp.data.readers import naming_rows, read_observations
    from pfedhgp.data.text_tables import delimiter_of
    from pfedhgp.model.run_folder import check_target

    with warnings_as_lines() as told:
        run = model_of(run)
        spec = open_run(run)
        columns = columns_of(spec, datetime_format)
        check_target(run, overwrite=True)
        if not files and (first is not None or last is not None):
            raise InputError("--from and --to need DATA: the model holds no rows")
        rows, given, how = None, [], delimiter_of(delimiter)
        if files:
            found = read_observations(files, columns, delimiter=how)
            mine = [each for each in found if each.name == client]
            if not mine:
                raise InputError(f"{files[0]}: no row of client {client!r}")
            kind, X = columns.inputs[0].kind, mine[0].X[:, 0]
            low = X.min() if first is None else _bound(kind, first)
            high = X.max() if last is None else _bound(kind, last)
            inside = (low <= X) & (high >= X)
            given = [mine[0].take(inside)]
            rows = (given[0].X, given[0].Y)
            if not inside.any():
                raise InputError(f"no row of {client!r} lies from --from to --to")
        use_compilation_cache()
        from pfedhgp.estimator import FederatedGP

        model = FederatedGP.load(run)
        with naming_rows(files or (), columns, given, delimiter=how):
            model.forget(client, rows)
        save(model, run, spec)
        done = model.last_update_
    if as_json:
        result({"run": str(run), **done.to_json(), "warnings": told})
        return
    what = f"and client {client!r}" if done.gone_clients else f"of client {client!r}"
    say(f"forgotten: {counted(sum(done.rows.values()), 'row')} {what}: {run}", quiet=quiet)
    say(
        f"parameters that were learned with them stay; {run / 'previous'} still has the old model",
        quiet=quiet,
    )
    say_of_notes(run, quiet=quiet)


def _bound(kind: str, given: str) -> float:
    """A number, or a date and time as the data have them (UTC)."""
    if kind != "datetime":
        try:
            return float(given)
        except ValueError:
            raise InputError(f"{given!r} is not a number") from None
    from datetime import UTC, datetime

    try:
        at = datetime.fromisoformat(given)
    except ValueError:
        raise InputError(f"{given!r} is no date and time, such as 2014-03-01T00:00") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
