"""Refusals of the library's name Python's arguments; here they name a command's options.

Nothing but the standard library: `python -m pfedhgp.studies` has none of the command line's packages.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from pfedhgp.errors import InputError


def as_options(text: str, names: Collection[str]) -> str:
    """The text with the arguments `names` as options.

    >>> as_options("`curve_runs` must be at least 0; local='state-space'", {"curve_runs", "local"})
    '--curve-runs must be at least 0; --local state-space'
    """
    known = "|".join(sorted(names))

    def option(match: re.Match[str]) -> str:
        return " ".join([f"--{match.group(1).replace('_', '-')}", *match.groups()[1:]])

    text = re.sub(rf"`?\b({known})='([\w-]+)'`?", option, text)
    return re.sub(rf"`({known})=?`", option, text)


@contextmanager
def naming(names: Collection[str]) -> Iterator[None]:
    """Refusals of what is done inside name options."""
    try:
        yield
    except InputError as error:
        if type(error) is not InputError:
            raise
        raise InputError(as_options(str(error), names)) from None
