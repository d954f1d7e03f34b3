"""`pfedhgp watch RUN DATA.csv`: says which rows look wrong, as they come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfedhgp.base.compilation_cache import use_compilation_cache
from pfedhgp.cli.options import DatetimeFormat, Delimiter, Quiet, RunFolder
from pfedhgp.cli.terminal import say, warnings_as_lines
from pfedhgp.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from pfedhgp.data.columns import Columns
    from pfedhgp.data.readers import Observations
    from pfedhgp.estimator import FederatedGP
    from pfedhgp.living.watching import Batch

KEPT = 200
"""Rows of each client that new ones are judged beside."""


def watch(
    run: RunFolder,
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A .csv file with the columns of the fit.")
    ],
    once: Annotated[
        bool, typer.Option("--once", help="Judge the rows that are there, and end.")
    ] = False,
    level: Annotated[
        float, typer.Option(help="Print rows whose chance is below this if nothing is wrong.")
    ] = 0.01,
    every: Annotated[float, typer.Option(help="Seconds between two looks at the file.")] = 2.0,
    delimiter: Delimiter = None,
    datetime_format: DatetimeFormat = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each row as one line of JSON.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Say which rows of a file look wrong, as they come.

    The file may grow: new lines are judged when they are whole. Ctrl-C ends it. A new line that
    cannot be read is named and left out; with --once it is refused.

    Times are UTC.

    Each row is judged by itself, and by the stretches of rows that it lies in: a shift, a drift, a
    stuck sensor, or rows that are too far off altogether.
    """
    from pfedhgp.cli.saved import columns_of, model_of, open_run
    from pfedhgp.data.text_tables import delimiter_of
    from pfedhgp.living.watching import batches

    with warnings_as_lines():
        if not 0.0 < level < 1.0 or every <= 0:
            raise InputError("--level must be between 0 and 1, and --every above 0")
        if data.suffix.lower() != ".csv":
            raise InputError(f"{data}: watch follows .csv files")
        run = model_of(run)
        columns, how = columns_of(open_run(run), datetime_format), delimiter_of(delimiter)
        use_compilation_cache()
        from pfedhgp.estimator import FederatedGP

        model = FederatedGP.load(run)
        before: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        judged = flagged = 0
        for batch in batches(data, once=once, every=every):
            for rows in _read(batch, data, columns, how, skip=not once):
                for line in _judged(model, rows, columns, before, level):
                    flagged += 1
                    print(json.dumps(line) if as_json else _words(line), flush=True)
                judged += len(rows.X)
    say(f"{judged} rows judged, {flagged} look wrong", quiet=quiet)


def _read(
    batch: Batch, data: Path, columns: Columns, how: str | None, *, skip: bool
) -> list[Observations]:
    """The rows of new lines; with `skip` a line that cannot be read is told and left out."""
    from pfedhgp.data.readers import check_header, observations_in

    def rows(part: Batch) -> list[Observations]:
        before = part.rows_before
        return observations_in(data, part.content, columns, delimiter=how, rows_before=before)

    check_header(data, batch.header, columns, delimiter=how)
    try:
        return rows(batch)
    except InputError:
        if not skip:
            raise
    bad = set()
    for part in batch.parts():
        try:
            rows(part)
        except InputError as error:
            bad.add(part.first_line)
            say(f"pfedhgp: left out: {error}")
    rest = batch.without(bad)
    return rows(rest) if any(line.strip() for line in rest.lines) else []


def _judged(
    model: FederatedGP,
    rows: Observations,
    columns: Columns,
    before: dict[str, tuple[np.ndarray, np.ndarray]],
    level: float,
) -> list[dict[str, Any]]:
    """The rows that look wrong; the client's last rows are kept for those that come next."""
    import numpy as np

    X, Y = rows.X, rows.Y
    if rows.name in before:
        X, Y = (np.concatenate(pair) for pair in zip(before[rows.name], (X, Y), strict=True))
    new = len(X) - len(rows.X)
    before[rows.name] = (X[-KEPT:], Y[-KEPT:])
    if not np.isfinite(Y).any():
        return []
    found = model.anomalies(rows.name, (X, Y))
    shown = [column.shown(X[:, j]) for j, column in enumerate(columns.inputs)]
    lines = []
    for i in np.flatnonzero(found.flagged(level)):
        if i >= new:
            by_row = not found.stretch[i] < found.row[i]
            inputs = {
                c.name: str(values[i]).removesuffix(".000000")
                + ("Z" if c.kind == "datetime" else "")
                for c, values in zip(columns.inputs, shown, strict=True)
            }
            lines.append(
                {
                    "client": rows.name,
                    **inputs,
                    "chance": float(found.chance[i]),
                    "what": "row" if by_row else str(found.kind[i]),
                }
            )
    return lines


def _words(line: dict[str, Any]) -> str:
    kinds = {
        "row": "far from what was expected",
        "energy": "in a stretch that is too far off",
        "shift": "in a stretch that has shifted",
        "drift": "in a stretch that drifts",
        "stuck": "in a stretch that hardly moves",
    }
    inputs = " ".join(str(v) for k, v in line.items() if k not in ("client", "chance", "what"))
    return f"{line['client']} {inputs}: {kinds[line['what']]} (chance {line['chance']:.1g})"
