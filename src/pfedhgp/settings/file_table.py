"""The table of settings, its second part: what a fit from files needs beside the settings of its model."""

from __future__ import annotations

from collections.abc import Sequence

from pfedhgp.settings import kinds
from pfedhgp.settings.setting import setting, table


@table("data")
class DataSection:
    """[data] of a settings file: what is read."""

    files: Sequence[str] = setting(
        default=(),
        kind=kinds.PATHS,
        option="DATA...",
        required=True,
        unused=True,
        help="CSV (gz too), Parquet or Feather: files, or a folder with one file per client.",
    )
    client: str | None = setting(
        default=None,
        kind=kinds.TEXT,
        unused=True,
        help="Column that names the client.",
        unset="each file is a client",
        example="station",
    )
    inputs: Sequence[str] = setting(
        default=(),
        kind=kinds.TEXTS,
        option="--input",
        required=True,
        help="An input column. Repeat the option for several.",
    )
    outputs: Sequence[str] = setting(
        default=(),
        kind=kinds.TEXTS,
        option="--output",
        required=True,
        help="An output column. Repeat the option for several.",
    )
    cycle: str | None = setting(
        default=None,
        kind=kinds.TEXT,
        help="Column that numbers cycles: whole repetitions of the input grid.",
        unset="there are no cycles",
        example="stroke",
    )
    block: str | None = setting(
        default=None,
        kind=kinds.TEXT,
        only_with="diagnose",
        help="With --diagnose: column that names blocks of cycles that belong together.",
        unset="blocks are not known",
        example="shift",
    )
    delimiter: str | None = setting(
        default=None,
        kind=kinds.TEXT,
        unused=True,
        help="Delimiter of CSV files, such as ';' or tab.",
        unset="a comma; tab in .tsv files",
        example=";",
    )
    datetimes: Sequence[str] | None = setting(
        default=None,
        kind=kinds.TEXTS,
        option=None,
        help="Inputs that are datetimes, for a federation's server: it has no file to see them in.",
        unset="as the files show; only a federation's server needs it",
        example=("time",),
    )
    datetime_format: str | None = setting(
        default=None,
        kind=kinds.TEXT,
        help="Format of datetime inputs that are not ISO 8601, such as %d/%m/%Y.",
        unset="ISO 8601",
        example="%d/%m/%Y",
    )


@table("run")
class OutputSection:
    """[run] of a settings file: what is written, and what is kept for testing."""

    out: str | None = setting(
        default=None,
        kind=kinds.PATH,
        metavar="RUN",
        required=True,
        unused=True,
        help="Folder for the model.",
        unset="must be given, here or as --out",
        example="RUN",
    )
    holdout: str | None = setting(
        default=None,
        kind=kinds.TEXT,
        panel="Data",
        metavar="KIND:PART",
        unused=True,
        help="Rows of each client to keep for testing: random:0.2, last:0.2 or blocks:0.2.",
        unset="no rows",
        example="blocks:0.2",
    )
    report: bool = setting(
        default=True,
        kind=kinds.FLAG,
        option="--report/--no-report",
        unused=True,
        help="Whether to write RUN/report.html.",
    )


@table("model")
class DiagnosisSection:
    """[model] of a settings file: fault diagnosis, where clients are classes."""

    diagnose: bool = setting(
        default=False,
        kind=kinds.FLAG,
        option="--diagnose/--no-diagnose",
        refused="it compares cycles of all classes in one place: use `pfedhgp fit`",
        help="Treat clients as classes, for `classify`: choose the cycle layer that tells them apart best, "
        'and set thresholds for "none of these" by cross-validation.',
    )
    false_alarms: float = setting(
        default=0.01,
        kind=kinds.number(above=0.0, below=1.0),
        metavar="RATE",
        only_with="diagnose",
        help='With --diagnose: share of known cycles that may be called "none of these".',
    )
