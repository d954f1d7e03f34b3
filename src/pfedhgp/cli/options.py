"""Options that several commands have: one definition, one wording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that fit wrote.")]
Delimiter = Annotated[
    str | None,
    typer.Option("--delimiter", help="Of CSV files, where it is not a comma: ';' or tab."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace --out where it exists.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but warnings.")]
