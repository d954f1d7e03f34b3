"""Rewrites library errors so that they mention command-line options.

Nothing but the standard library: `python -m pfedhgp.studies` has none of the command line's packages.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from pfedhgp.errors import InputError


def as_options(text: str, names: Collection[str] | Mapping[str, str]) -> str:
    """The text with the arguments `names` as options: --name, or what a mapping says.

    What is said to be in a table of a settings file stays.

    >>> as_options("`curve_runs` must be at least 0; local='state-space'", {"curve_runs", "local"})
    '--curve-runs must be at least 0; --local state-space'
    >>> as_options("`inputs` names 2 columns; `inputs` in [data]", {"inputs": "--input"})
    '--input names 2 columns; `inputs` in [data]'
    """
    options = names if isinstance(names, Mapping) else {n: _option(n) for n in names}
    known = "|".join(sorted(options))

    def option(match: re.Match[str]) -> str:
        return " ".join([options[match.group(1)], *match.groups()[1:]])

    text = re.sub(rf"`?\b({known})='([\w-]+)'`?", option, text)
    return re.sub(rf"`({known})=?`(?! in \[)", option, text)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@contextmanager
def naming(names: Collection[str] | Mapping[str, str]) -> Iterator[None]:
    """Rewrites errors of the block so that they name options."""
    try:
        yield
    except InputError as error:
        if type(error) is not InputError:
            raise
        raise InputError(as_options(str(error), names)) from None
