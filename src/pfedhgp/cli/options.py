"""Options that several commands have: one definition, one wording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pfedhgp.settings.config import BY_KEY

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that fit wrote.")]
Delimiter = Annotated[
    str | None,
    typer.Option("--delimiter", help=BY_KEY["data", "delimiter"].help),
]
DatetimeFormat = Annotated[
    str | None,
    typer.Option(
        "--datetime-format",
        metavar="FORMAT",
        help=f"{BY_KEY['data', 'datetime_format'].help} Default: that of the fit.",
    ),
]
TableFile = Annotated[
    str,
    typer.Option(
        "--out",
        metavar="FILE",
        help="A .csv, .csv.gz, .parquet or .feather file, or - for stdout.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace --out if it exists.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but warnings.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="No TLS and no keys, only on 127.0.0.1: for trials.")
]

# For `reproduce`: every study has a folder of results, from which it can resume.
StudyFolder = Annotated[
    Path, typer.Option("--out", help="Folder for results. An unfinished study in it is resumed.")
]
FirstSeed = Annotated[
    int, typer.Option("--seed", help="Seed of the first run; run r uses this plus r.")
]
Rounds = Annotated[
    int | None, typer.Option("--rounds", help="Training rounds. Default: each method's own.")
]
Device = Annotated[str, typer.Option("--device", help="cpu or gpu.")]
ResultsJson = Annotated[bool, typer.Option("--json", help="Print results.json instead of text.")]
