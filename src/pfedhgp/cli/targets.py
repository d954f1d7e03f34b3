"""Where a command writes: checked before any work is done; errors of the system become one line."""

from __future__ import annotations

import errno
import gzip
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pfedhgp.base.atomic_files import replacing
from pfedhgp.errors import InputError

if TYPE_CHECKING:
    import polars as pl

SUFFIXES = (".csv", ".csv.gz", ".parquet", ".feather")
"""The formats of tables."""
NO_SUCH_PLACE = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
    *(errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP),
)
"""Errors of a path that cannot exist; a full or broken disk is another matter."""


def check_file(path: Path, *, overwrite: bool, option: str | None = None) -> None:
    """Refuses a folder, and an existing file unless it may be replaced.

    `option` is the option that names another file, if the user did not choose this one.
    """
    check_parent(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file to write to")
    if os.path.lexists(path) and not overwrite:
        other = "choose another file" if option is None else f"choose another file with {option}"
        raise InputError(f"{path} already exists: {other}, or give --overwrite")


def check_parent(path: Path) -> None:
    """Refuses a path below a file; missing folders are made later."""
    for parent in path.absolute().parents:
        if os.path.lexists(parent):
            if not parent.is_dir():
                raise InputError(f"{path}: {parent} is a file, not a folder: choose another place")
            break
    with writing_to(path), suppress(FileNotFoundError):
        os.lstat(path)  # a name that is too long, a loop of links


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Turns the system's errors about a path into an `InputError` that names it."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SUCH_PLACE:
            if error.filename is None and error.errno is not None:  # a full disk names no path
                raise OSError(error.errno, error.strerror, str(path)) from error
            raise
        raise InputError(
            f"{path}: nothing can be written there ({error.strerror}): choose another place"
        ) from None


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
