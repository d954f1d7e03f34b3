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
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace --out if it exists.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but warnings.")]
