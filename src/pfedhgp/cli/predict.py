"""`pfedhgp predict RUN DATA --out FILE`: a long table of predictions, one row per input row and output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfedhgp.base.compilation_cache import use_compilation_cache
from pfedhgp.cli.options import (
    AsJson,
    DatetimeFormat,
    Delimiter,
    Overwrite,
    Quiet,
    RunFolder,
    TableFile,
)
from pfedhgp.cli.targets import check_table, write_table
from pfedhgp.cli.terminal import counted, result, say, warnings_as_lines
from pfedhgp.errors import InputError, warn

if TYPE_CHECKING:
    import polars as pl

    from pfedhgp.data.columns import Columns
    from pfedhgp.data.readers import Observations
    from pfedhgp.data.table import Table
    from pfedhgp.estimator import FederatedGP


def predict(
    run: RunFolder,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="DATA...", help="Where to predict: tables with the model's input columns."
        ),
    ],
    out: TableFile,
    level: Annotated[
        float, typer.Option(help="Level of the interval from lower to upper, with noise.")
    ] = 0.95,
    client: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The client of all rows, if the data have no client column."
        ),
    ] = None,
    held_out: Annotated[
        bool,
        typer.Option(
            "--held-out",
            help="Only the rows that `fit --holdout` kept back, to score another method on them. "
            "DATA are those of the fit.",
        ),
    ] = False,
    delimiter: Delimiter = None,
    datetime_format: DatetimeFormat = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Predict for the rows of tables, with uncertainty and layer by layer.

    The output has the columns client, inputs, output, observed, mean, sd, lower, upper, layers,
    known. Client and inputs are called as in the fit; observed is what the data have, if they have it.

    sd, lower and upper are for an observation, with noise.

    global, deviation and local are means that add up to mean.

    An unknown client gets the population's prediction; known is then false.
    """
    from pfedhgp.cli.saved import clients_of, columns_of, dropped_of, model_of, open_run
    from pfedhgp.data.text_tables import delimiter_of

    with warnings_as_lines() as told:
        if not 0.0 < level < 1.0:
            raise InputError(f"--level must be between 0 and 1, got {level}")
        check_table(out, overwrite=overwrite, as_json=as_json)
        run = model_of(run)
        spec = open_run(run)
        columns = columns_of(spec, datetime_format)
        rows = read_inputs(
            files,
            columns,
            client=client,
            delimiter=delimiter_of(delimiter),
            dropped=dropped_of(spec),
        )
        unknown = [each.name for each in rows if each.name not in clients_of(spec)]
        use_compilation_cache()
        from pfedhgp.estimator import FederatedGP

        model = FederatedGP.load(run, sums=False)
        if held_out:
            from pfedhgp.cli.resplit import held_out_of

            rows, unknown = held_out_of(rows, model.model_), []
        table = predictions(model, rows, columns, level)
        write_table(table, out)
    summary: dict[str, Any] = {
        "out": out,
        "rows": table.height,
        "clients": len(rows),
        "unknown_clients": unknown,
        "level": level,
    }
    if as_json:
        result({**summary, "warnings": told})
    elif out != "-":
        made, whose = counted(table.height, "prediction"), counted(len(rows), "client")
        say(f"{made} for {whose}: {out}", quiet=quiet)


def read_inputs(
    files: Sequence[Path],
    columns: Columns,
    *,
    client: str | None,
    delimiter: str | None,
    dropped: Sequence[str] = (),
) -> list[Observations]:
    """The rows to predict at, by client; the inputs `dropped` are not read.

    Outputs are read if the data have any of them: Y has those of the model then, and no column otherwise.
    """
    import numpy as np

    from pfedhgp.data.readers import observations_of, read_tables, wanted_names

    needed = replace(columns, outputs=(), cycle=None)
    if client is not None:
        needed = replace(needed, client=None)
    tables = read_tables(files, wanted=wanted_names(needed), delimiter=delimiter)
    if any(name in table.names for name in columns.outputs for table in tables):
        tables = [_with_outputs(table, columns.outputs) for table in tables]
        needed = replace(needed, outputs=columns.outputs)
    for name in dropped:
        if any(name in table.names for table in tables):
            warn(
                f"input {name!r} is not used: it was constant in the fit, so the model knows only one "
                "value of it"
            )
    if needed.client is not None and not all(needed.client in t.frame.columns for t in tables):
        first = next(t for t in tables if needed.client not in t.frame.columns)
        raise InputError(
            f"{first.path}: no column {needed.client!r}, which names the clients; the file has "
            f"{', '.join(first.names)}: add it, or give --client NAME"
        )
    if client is None:
        return observations_of(tables, needed)
    found, start = [], 0
    for table in tables:
        for each in observations_of([table], needed):
            assert each.order is not None
            found.append(replace(each, name=client, order=each.order + start))
        start += len(table)
    joined: dict[str, Any] = {
        name: np.concatenate([vars(p)[name] for p in found]) for name in ("X", "Y", "order")
    }
    return [replace(found[0], **joined)]


def _with_outputs(table: Table, outputs: Sequence[str]) -> Table:
    """The table with all outputs as numbers; what is missing, or no number, was not observed."""
    import polars as pl

    frame = table.frame
    for name in outputs:
        if name not in frame.columns:
            frame = frame.with_columns(pl.lit(None, pl.Float64).alias(name))
            continue
        text = frame[name]
        values = text.str.strip_chars() if text.dtype == pl.String else text
        numbers = values.cast(pl.Float64, strict=False)
        numbers = pl.select(pl.when(numbers.is_finite()).then(numbers)).to_series()
        frame = frame.with_columns(numbers.alias(name))
    return replace(table, frame=frame)


def predictions(
    model: FederatedGP, rows: Sequence[Observations], columns: Columns, level: float
) -> pl.DataFrame:
    """The long table of `pfedhgp.estimator.long_table`, in the data's order."""
    import narwhals as nw
    import numpy as np
    import polars as pl

    from pfedhgp.data.tables import CLIENT
    from pfedhgp.estimator.long_table import Asked, long_table, predicted

    order = np.concatenate([each.order for each in rows if each.order is not None])
    place = np.argsort(np.argsort(order, kind="stable"), kind="stable")  # a row's place in the data
    ends = np.cumsum([len(each.X) for each in rows])
    places = np.split(place, ends[:-1])
    asked = [Asked(each.name, each.X, own) for each, own in zip(rows, places, strict=True)]
    found = predicted(model.model_, asked, level=level, device=model.device)
    back = np.argsort(place)
    names = [each.name for each in rows for _ in range(len(each.X))]
    X, Y = (np.concatenate([getattr(each, part) for each in rows])[back] for part in "XY")
    series = [pl.Series(columns.client or CLIENT, [names[n] for n in back], dtype=pl.String)]
    series += [column.series(X[:, j], column.name) for j, column in enumerate(columns.inputs)]
    table = long_table(
        nw.from_native(pl.DataFrame(series), eager_only=True),
        columns,
        found,
        observed=Y if Y.shape[1] else None,
    )
    found_table: pl.DataFrame = table.to_native()
    return found_table
