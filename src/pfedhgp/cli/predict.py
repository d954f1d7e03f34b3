"""`pfedhgp predict RUN DATA --out FILE`: a long table of predictions, one row per input row and output."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfedhgp.base.checks import listed
from pfedhgp.base.compilation_cache import use_compilation_cache
from pfedhgp.cli.options import AsJson, Delimiter, Overwrite, Quiet, RunFolder, TableFile
from pfedhgp.cli.targets import check_table, write_table
from pfedhgp.cli.terminal import counted, result, say, warnings_as_lines
from pfedhgp.errors import ExtrapolationWarning, InputError, PFedHGPWarning, warn

if TYPE_CHECKING:
    import polars as pl

    from pfedhgp.data.columns import Columns
    from pfedhgp.data.readers import Observations
    from pfedhgp.estimator import FederatedGP

OURS = ("client", "output", "mean", "sd", "lower", "upper", "global", "deviation", "local")
FLAG = "known"
"""The last column: true if the model knows the client, false if it predicts from the population."""


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
    delimiter: Delimiter = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Predict for the rows of tables, with uncertainty and layer by layer.

    The output has the columns client, inputs, output, mean, sd, lower, upper, layers, known.

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
        columns = columns_of(spec)
        rows = read_inputs(
            files,
            columns,
            client=client,
            delimiter=delimiter_of(delimiter),
            dropped=dropped_of(spec),
        )
        unknown = [each.name for each in rows if each.name not in clients_of(spec)]
        if unknown:
            count = "client" if len(unknown) == 1 else f"{len(unknown)} clients"
            warn(f"unknown {count} {listed(unknown, 3)}: this is the population's prediction")
        use_compilation_cache()
        from pfedhgp.estimator import FederatedGP

        table = long_table(FederatedGP.load(run), rows, columns, level)
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
    """The rows to predict at, by client; outputs and the inputs `dropped` are not read."""
    import numpy as np

    from pfedhgp.data.readers import observations_of, read_tables, wanted_names

    needed = replace(columns, outputs=(), cycle=None)
    if client is not None:
        needed = replace(needed, client=None)
    tables = read_tables(files, wanted=wanted_names(needed), delimiter=delimiter)
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


def long_table(
    model: FederatedGP, rows: Sequence[Observations], columns: Columns, level: float
) -> pl.DataFrame:
    """client, the inputs, output, mean, sd, lower, upper, layers, known; in the data's order."""
    import numpy as np
    import polars as pl

    parts = [_of_client(model, each, level) for each in rows]
    order = np.concatenate([each.order for each in rows if each.order is not None])
    outputs = len(columns.outputs)
    # Row n of the data is the `outputs` rows of the table from n · outputs on.
    place = np.argsort(order, kind="stable")
    take = (place[:, None] * outputs + np.arange(outputs)).reshape(-1)
    row, output = np.divmod(take, outputs)
    names = [each.name for each in rows for _ in range(len(each.X))]
    X = np.concatenate([each.X for each in rows])
    series = [pl.Series("client", [names[n] for n in row], dtype=pl.String)]
    for j, column in enumerate(columns.inputs):
        # An input with the name of one of our columns is called "input NAME".
        name = f"input {column.name}" if column.name in (*OURS, FLAG) else column.name
        series.append(column.series(X[row, j], name))
    series.append(pl.Series("output", [columns.outputs[q] for q in output], dtype=pl.String))
    for name in (*OURS[2:], FLAG):
        series.append(pl.Series(name, np.concatenate([part[name] for part in parts])[take]))
    return pl.DataFrame(series)


def _of_client(model: FederatedGP, rows: Observations, level: float) -> Mapping[str, Any]:
    """Each of OURS after `output`, and FLAG, as one array, with the outputs of a row side by side."""
    import numpy as np

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PFedHGPWarning)
        p = model.predict(rows.name, rows.X)
    for each in caught:  # unknown clients were already named, all in one warning
        if issubclass(each.category, ExtrapolationWarning):
            warn(f"client {rows.name!r}: {each.message}", each.category, stacklevel=3)
    lower, upper = p.interval(level)
    arrays = {"mean": p.mean, "sd": p.sd, "lower": lower, "upper": upper}
    arrays |= {layer: p.layers[layer].mean for layer in ("global", "deviation", "local")}
    arrays[FLAG] = np.full(p.mean.shape, p.known)
    return {name: array.reshape(-1) for name, array in arrays.items()}
