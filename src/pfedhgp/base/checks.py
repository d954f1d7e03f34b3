"""Checks of single arguments: each takes a value and its name, and returns the value as plain Python.

A value that does not fit is refused with an `InputError` of one line, which names the argument and says what
to give. It shows short plain values only: a table given by mistake must not end up in a message.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ContextDecorator
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from pfedhgp.errors import InputError

Check = Callable[[Any, str], Any]
LONGEST = 60


def shown(value: Any) -> str:
    """`value` for a message: itself if it is plain and short, or its type."""
    few = isinstance(value, list | tuple) and all(_plain(each) for each in value)
    text = repr(value) if few or _plain(value) else ""
    if text and len(text) <= LONGEST and text.isprintable():
        return text
    return f"a value of type {type(value).__name__}"


def listed(names: Iterable[str], most: int = 20) -> str:
    """Names in a line, the first ones of many."""
    shown = [repr(name) if name != name.strip() or not name else name for name in names]
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(short(name) for name in shown[:most]) + more


def short(name: str, most: int = 60) -> str:
    """A name as it is put into a message: one line, and not 300 characters of it."""
    flat = name if name.isprintable() else repr(name)
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, str | Real) or _is_flag(value)


def _is_flag(value: Any) -> bool:
    """True and False, NumPy's too (which is not imported for it: the command line's help needs none)."""
    numpy = sys.modules.get("numpy")
    return isinstance(value, bool) or (numpy is not None and isinstance(value, numpy.bool_))


def refusal(name: str, wanted: str, value: Any) -> InputError:
    """`name` must be `wanted`."""
    return InputError(f"`{name}` must be {wanted}, got {shown(value)}")


def whole(least: int) -> Check:
    """A whole number of at least `least`."""
    wanted = "a positive whole number" if least == 1 else f"a whole number of at least {least}"

    def check(value: Any, name: str) -> int:
        if _is_flag(value) or not isinstance(value, Integral) or value < least:
            raise refusal(name, wanted, value)
        return int(value)

    return check


def number(
    *, above: float | None = None, least: float | None = None, below: float | None = None
) -> Check:
    """A finite number above, of at least, or below a limit."""
    limits = {"above": above, "of at least": least, "below": below}
    given = [f"{words} {limit:g}" for words, limit in limits.items() if limit is not None]
    limit = f" {' and '.join(given)}" if given else ""

    def check(value: Any, name: str) -> float:
        if _is_flag(value) or not isinstance(value, Real):
            raise refusal(name, f"a number{limit}", value)
        try:
            found = float(value)
        except OverflowError:
            found = math.inf
        low = (above is not None and found <= above) or (least is not None and found < least)
        if not math.isfinite(found) or low or (below is not None and found >= below):
            raise refusal(name, f"a finite number{limit}", value)
        return found

    return check


def flag(value: Any, name: str) -> bool:
    """True or False, and nothing that only counts as one of them."""
    if not _is_flag(value):
        raise refusal(name, "True or False", value)
    return bool(value)


def _listed(value: Any) -> tuple[Any, ...]:
    """What a list, a tuple or an array holds; nothing for anything else."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return ()
    return tuple(value)


def one_of(*known: str) -> Check:
    """One of some words."""

    def check(value: Any, name: str) -> str:
        if not isinstance(value, str) or value not in known:
            raise refusal(name, f"one of {', '.join(known)}", value)
        return value

    return check


def some_of(*known: str) -> Check:
    """One or more of some words, each at most once; a single word is one of them."""

    def check(value: Any, name: str) -> tuple[str, ...]:
        listed = (value,) if isinstance(value, str) else _listed(value)
        wanted = f"some of {', '.join(known)}"
        if listed and all(isinstance(word, str) for word in listed):
            value = ", ".join(listed)  # for the message: as one writes it in a command
        if not listed or not all(isinstance(word, str) and word in known for word in listed):
            raise refusal(name, wanted, value)
        if len(set(listed)) != len(listed):
            raise refusal(name, f"{wanted}, each at most once", value)
        return tuple(str(word) for word in listed)

    return check


def optional(check: Check) -> Check:
    """None, or what `check` takes."""

    def either(value: Any, name: str) -> Any:
        if value is None:
            return None
        try:
            return check(value, name)
        except InputError as error:
            raise InputError(f"{error} (None: the default)") from None

    return either


def auto_or(check: Check) -> Check:
    """The word "auto", or what `check` takes."""

    def either(value: Any, name: str) -> Any:
        if isinstance(value, str) and value == "auto":
            return value
        try:
            return check(value, name)
        except InputError as error:
            raise InputError(str(error).replace(" must be ", " must be 'auto' or ", 1)) from None

    return either


def functions(value: Any, name: str) -> tuple[Callable[..., Any], ...]:
    """A sequence of functions."""
    listed = _listed(value)
    empty = isinstance(value, list | tuple) and not value
    if not (listed or empty) or not all(callable(each) for each in listed):
        raise refusal(name, "a list of functions", value)
    for each in listed:
        if isinstance(each, ContextDecorator):
            raise InputError(
                f"`{name}` has a context manager that was not entered: `with progress(...) as show:`, and "
                f"then {name}=[show]"
            )
        if not _takes_one(each):
            called = getattr(each, "__name__", type(each).__name__)
            raise InputError(
                f"`{name}`: {short(called)} must take one argument, the record of a round"
            )
    return listed


def _takes_one(function: Callable[..., Any]) -> bool:
    """Whether it can be called with one argument; functions that do not say are believed."""
    try:
        inspect.signature(function).bind({})
    except TypeError:
        return False
    except ValueError:  # of a builtin: no signature is known
        return True
    return True


def path(value: Any, name: str) -> Path:
    """A path to a file or folder."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise refusal(name, "a path", value)
    text = os.fspath(value)
    if not isinstance(text, str) or "\0" in text:
        raise refusal(name, "a path", value)
    return Path(text)


def column(value: Any, name: str) -> str:
    """The name of a column."""
    if not isinstance(value, str) or not value:
        raise refusal(name, "the name of a column", value)
    return value


def columns(value: Any, name: str) -> tuple[str, ...]:
    """One or more different names of columns."""
    listed = (value,) if isinstance(value, str) else _listed(value)
    if not listed or not all(isinstance(each, str) and each for each in listed):
        raise refusal(name, "one or more names of columns", value)
    if len(set(listed)) != len(listed):
        raise refusal(name, "different columns", value)
    return tuple(str(each) for each in listed)


def pairs(value: Any, name: str) -> tuple[tuple[float, float], ...]:
    """(lower, upper) for each input, or output, finite and in that order; for one the bare pair will do."""
    import numpy as np

    of = "output" if name.startswith("output") else "input"
    wanted = f"a pair (lower, upper) for each {of}"
    try:
        array = np.asarray(value)
    except ValueError:
        raise refusal(name, wanted, value) from None
    if array.dtype.kind not in "fiu" or array.size == 0:
        raise refusal(name, wanted, value)
    if array.shape == (2,):
        array = array[None]
    if array.ndim != 2 or array.shape[1] != 2:
        raise refusal(name, wanted, value)
    array = array.astype(np.float64)
    if not np.all(np.isfinite(array)) or np.any(array[:, 1] <= array[:, 0]):
        raise refusal(name, f"{wanted}, finite and with lower < upper", value)
    return tuple((float(low), float(high)) for low, high in array)


def client_name(value: Any, known: Mapping[str, Any], name: str = "client") -> str:
    """A client's name as text, which is how names are compared: 7 is "7". None and NaN are no names."""
    missing = value is None or (isinstance(value, Real) and math.isnan(value))
    if not missing and str(value) in known:
        return str(value)
    spoken = isinstance(value, str | Integral) and not isinstance(value, bool)
    if missing or not spoken or value == "":
        raise refusal(name, "a client's name", value)
    return str(value)
