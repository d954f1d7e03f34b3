"""Tables that commands write: to stdout, or to a file whose suffix is the format."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pfedhgp.base.atomic_files import replacing
from pfedhgp.cli.targets import check_file, writing_to
from pfedhgp.errors import InputError

if TYPE_CHECKING:
    import polars as pl

SUFFIXES = (".csv", ".csv.gz", ".parquet", ".feather")


def check_table(out: str, *, overwrite: bool, as_json: bool = False) -> None:
    """Refuses a target that `write_table` cannot write, before any work is done."""
    if out == "-":
        if as_json:
            raise InputError("--json and --out - both write to stdout: choose one")
        return
    if not out.lower().endswith(SUFFIXES):
        raise InputError(f"--out {out}: the name must end in {', '.join(SUFFIXES)}, or be -")
    check_file(Path(out), overwrite=overwrite)


def write_table(table: pl.DataFrame, out: str) -> None:
    """Writes the table to stdout (-) or, in the format of its suffix, to a file: whole or not at all."""
    text = "%Y-%m-%dT%H:%M:%S%.fZ"
    if out == "-":
        sys.stdout.write(table.write_csv(datetime_format=text))
        sys.stdout.flush()
        return
    # Made in memory and written by Python: polars' own errors do not say that a disk is full.
    content = io.BytesIO()
    if out.lower().endswith(".parquet"):
        table.write_parquet(content)
    elif out.lower().endswith(".feather"):
        table.write_ipc(content)
    else:
        text_of = table.write_csv(datetime_format=text).encode("utf-8")
        content.write(gzip.compress(text_of) if out.lower().endswith(".gz") else text_of)
    with writing_to(Path(out)), replacing(Path(out)) as beside:
        beside.write_bytes(content.getbuffer())
