"""Checks where a command writes, before any work is done; errors of the system become one line."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pfedhgp.errors import InputError

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
            raise
        raise InputError(
            f"{path}: nothing can be written there ({error.strerror}): choose another place"
        ) from None
