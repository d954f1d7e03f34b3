"""`pfedhgp forecast RUN --horizon 3d`: each client's next steps, or scores of past forecasts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfedhgp.base.compilation_cache import use_compilation_cache
from pfedhgp.cli.options import AsJson, DatetimeFormat, Delimiter, Overwrite, Quiet, RunFolder
from pfedhgp.cli.targets import check_table, write_table
from pfedhgp.cli.terminal import counted, result, say, warnings_as_lines
from pfedhgp.errors import InputError

if TYPE_CHECKING:
    import polars as pl

    from pfedhgp.data.columns import Columns
    from pfedhgp.estimator import FederatedGP


def forecast(
    run: RunFolder,
    horizon: Annotated[
        str,
        typer.Option(help="How far ahead: 3d, 36h, '90 min', or a number in units of the input."),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="A .csv, .csv.gz, .parquet or .feather file, or - for stdout."
        ),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this client; may be repeated. Default: all."),
    ] = None,
    step: Annotated[
        str | None, typer.Option(help="Step of the grid. Default: that of each client's rows.")
    ] = None,
    level: Annotated[
        float, typer.Option(help="Level of the interval from lower to upper, with noise.")
    ] = 0.95,
    backtest: Annotated[
        int | None,
        typer.Option(metavar="N", help="Score forecasts of the last N windows of --data instead."),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option("--data", help="With --backtest: the rows of the fit; may be repeated."),
    ] = None,
    season: Annotated[
        str | None,
        typer.Option(help="With --backtest: length of a season, such as 1d, for seasonal-naive."),
    ] = None,
    delimiter: Delimiter = None,
    datetime_format: DatetimeFormat = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Forecast each client's next steps, with uncertainty; or score past forecasts.

    Forecasts begin after each client's last row, in the steps of its rows.

    With --backtest a model is fitted to the rows before the last N windows, and updated from window
    to window: CRPS and coverage by lead time, beside seasonal-naive and climatology. They are also
    kept for the report.
    """
    from pfedhgp.cli.saved import columns_of, model_of, open_run
    from pfedhgp.settings.config import in_options

    with warnings_as_lines(in_options) as told:
        if not 0.0 < level < 1.0:
            raise InputError(f"--level must be between 0 and 1, got {level}")
        if backtest is None and out is None:
            raise InputError("--out is missing: a file for the forecasts, or - for stdout")
        if (backtest is None) != (not data):
            raise InputError("--backtest N and --data ROWS go together: the model holds no rows")
        if backtest is not None and out is not None:
            raise InputError(
                "--out is for forecasts; the scores of --backtest are printed (--json)"
            )
        if out is not None:
            check_table(out, overwrite=overwrite, as_json=as_json)
        run = model_of(run)
        spec = open_run(run)
        columns = columns_of(spec, datetime_format)
        rows = None
        if data:
            from pfedhgp.cli.update import pairs
            from pfedhgp.data.readers import read_observations
            from pfedhgp.data.text_tables import delimiter_of

            rows = pairs(read_observations(data, columns, delimiter=delimiter_of(delimiter)))
        use_compilation_cache()
        from pfedhgp.estimator import FederatedGP

        model = FederatedGP.load(run)
        if backtest is not None:
            from pfedhgp.living import kept_backtest

            found = model.backtest(rows, horizon, origins=backtest, season=season)
            kept_backtest.write(run, str(spec["sha256"]), found)
        else:
            assert out is not None
            names = client or list(model.clients_)
            table = _table(model, names, columns, horizon, step, level)
            write_table(table, out)
    if backtest is not None:
        if as_json:
            result({"run": str(run), **found, "warnings": told})
        else:
            print(_shown(found))
            say(f"kept for the report: `pfedhgp report {run} --overwrite`", quiet=quiet)
        return
    if as_json:
        result({"out": out, "rows": table.height, "clients": len(names), "warnings": told})
    elif out != "-":
        say(
            f"{counted(table.height, 'forecast')} for {counted(len(names), 'client')}: {out}",
            quiet=quiet,
        )


def _table(
    model: FederatedGP,
    names: list[str],
    columns: Columns,
    horizon: str,
    step: str | None,
    level: float,
) -> pl.DataFrame:
    """The client, the input (both called as in the fit), lead, output, mean, sd, lower, upper."""
    import numpy as np
    import polars as pl

    from pfedhgp.data.tables import CLIENT

    parts = []
    for name in names:
        found = model.forecast(name, horizon, step=step)
        lower, upper = found.interval(level)
        n, Q = len(found.times), len(columns.outputs)
        time = found.times.astype("datetime64[us]").astype(np.float64) / 1e6
        time = time if columns.inputs[0].kind == "datetime" else found.times
        column = columns.inputs[0]
        parts.append(
            pl.DataFrame(
                [
                    pl.Series(columns.client or CLIENT, [name] * (n * Q)),
                    column.series(np.repeat(time, Q), column.name),
                    pl.Series("lead", np.repeat(found.lead, Q)),
                    pl.Series("output", list(columns.outputs) * n),
                    *(
                        pl.Series(key, values.reshape(-1))
                        for key, values in (
                            ("mean", found.mean),
                            ("sd", found.sd),
                            ("lower", lower),
                            ("upper", upper),
                        )
                    ),
                ]
            )
        )
    return pl.concat(parts)


def _shown(found: dict[str, Any]) -> str:
    """A line for each range of lead times: CRPS and coverage of each method."""
    from pfedhgp.model.words import duration

    words = {"model": "model", "seasonal_naive": "seasonal-naive", "climatology": "climatology"}
    methods = [name for name in words if name in found["scores"]]
    heads = "".join(f"{words[name] + ' CRPS':>22}{'cover':>7}" for name in methods)
    as_text = partial(duration, digits=2) if found["dates"] else "{:.3g}".format
    lines = [f"{'lead up to':>12}{heads}"]
    for k, each in enumerate(found["scores"]["model"]):
        cells = "".join(
            f"{found['scores'][name][k]['crps']:>22.4g}{found['scores'][name][k]['coverage']:>7.2f}"
            for name in methods
        )
        lines.append(f"{as_text(each['to']):>12}{cells}")
    return "\n".join(lines)
