"""Which encoding a text file has that is not UTF-8: by its mark, where its zeros are, or its high bytes.

Nothing is converted here: a guess at an encoding can change a client's name without anyone seeing it. The
name that is found goes into the advice, and `iconv` converts the file or says that it cannot.
"""

from __future__ import annotations

import re

import numpy as np

__all__ = ["probable", "with_zeros"]

MARKS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
"""UTF-32's first: UTF-16's little-endian mark is the beginning of it."""
ZEROS = {
    "UTF-32LE": (0, 1, 1, 1),
    "UTF-32BE": (1, 1, 1, 0),
    "UTF-16LE": (0, 1, 0, 1),
    "UTF-16BE": (1, 0, 1, 0),
}
"""Which of four neighbouring bytes are zero in text that is mostly ASCII."""
_HIGH = re.compile(rb"[\x80-\xff]+")
_HANZI = re.compile(rb"(?:[\xa1-\xa9\xb0-\xf7][\xa1-\xfe])+")


def with_zeros(data: bytes) -> str | None:
    """UTF-16 or UTF-32 by iconv's name, where `data` is that; without a mark the order of bytes is in it.

    >>> with_zeros("a,b\\n1,2\\n".encode("utf-32-be")), with_zeros(b"a,b\\n")
    ('UTF-32BE', None)
    """
    for mark, name in MARKS.items():
        if data.startswith(mark):
            return name
    start = np.frombuffer(data[: min(len(data), 400) // 4 * 4], np.uint8).reshape(-1, 4)
    if len(start) < 2:
        return None
    zero = np.mean(start == 0, axis=0) > 0.8
    return next((name for name, where in ZEROS.items() if np.array_equal(zero, where)), None)


def probable(data: bytes) -> tuple[str, str]:
    """(for people, for iconv): GB18030 where all bytes beyond ASCII are pairs of its usual characters.

    In a file of Western Europe such bytes mostly stand alone, between ASCII letters.

    >>> probable("东四,1\\n".encode("gb18030"))[1], probable("Käse,1\\n".encode("latin-1"))[1]
    ('GB18030', 'WINDOWS-1252')
    """
    if all(_HANZI.fullmatch(run) for run in _HIGH.findall(data)):
        return "GB18030 (Chinese)", "GB18030"
    return "Latin-1 (Windows-1252)", "WINDOWS-1252"
