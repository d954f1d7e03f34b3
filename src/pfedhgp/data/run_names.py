"""The runs of cycles as a user names them: text, and none of them missing."""

from __future__ import annotations

from collections.abc import Iterable

from pfedhgp.errors import InputError

NO_NAMES = ("None", "nan", "NaT", "<NA>", "--")
"""How values that are missing read as text; a text of the user's own may read so."""


def run_names(values: Iterable[object], what: str) -> list[str]:
    """The run of each of `what`, as text: cycles whose run is not known must not become one run.

    >>> run_names([1, "late"], "cycles")
    ['1', 'late']
    """
    out = []
    for c, value in enumerate(values):
        text = str(value)
        own = isinstance(value, str)
        if not text.strip() or (text in NO_NAMES and not own):
            raise InputError(
                f"{what}: entry {c} of `block` is missing ({text or 'empty'}): name the run of each cycle"
            )
        out.append(text)
    return out
