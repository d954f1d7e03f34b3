"""A file that grows: its new whole lines, again and again, until the caller stops or the file ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from pfedhgp.errors import InputError


def batches(path: Path, *, once: bool, every: float = 2.0) -> Iterator[bytes]:
    """The header with all lines so far, then the header with the lines that have come since.

    A line counts when its end has been written. A file that becomes shorter was replaced: it is read from
    its beginning again.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    header, done = b"", 0
    while True:
        with open(path, "rb") as file:
            if path.stat().st_size < done:
                header, done = b"", 0
            file.seek(done)
            content = file.read()
        whole = content if once else content[: content.rfind(b"\n") + 1]
        if whole and not header:
            header, _, rest = whole.partition(b"\n")
            header += b"\n"
        else:
            rest = whole
        done += len(whole)
        if rest.strip():
            yield header + rest
        if once:
            return
        time.sleep(every)
