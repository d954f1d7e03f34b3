"""Kinds of values: what a setting may be in Python, in a file and on the command line."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from datetime import date
from pathlib import Path
from typing import Any

from pfedhgp.base import checks, choices
from pfedhgp.base.checks import Check


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Kind:
    """What values a setting may have, in Python, in a file and on the command line."""

    check: Check
    """Checks a value given in Python: returns it as plain Python, or refuses it."""
    option: Any = str
    """The type in which the command line reads it."""
    written: Check | None = None
    """Checks a value in a file, if it is written in another form there."""
    read: Callable[[Any], Any] = _as_it_is
    """Turns what the command line read into what a file would have."""


def whole(least: int) -> Kind:
    """A whole number of at least `least`."""
    return Kind(checks.whole(least), int)


def budget(least: int) -> Kind:
    """ "auto", or a whole number."""
    return Kind(checks.auto_or(checks.whole(least)), read=_number_or_word)


def number(**limits: float) -> Kind:
    """A finite number within limits."""
    return Kind(checks.number(**limits), float)


def word(*known: str) -> Kind:
    """One of some words."""
    return Kind(checks.one_of(*known))


def words(*known: str) -> Kind:
    """Some of some words; a list in a file, and with commas on the command line."""
    some = checks.some_of(*known)

    def written(value: Any, name: str) -> tuple[str, ...]:
        return some(_texts(value, name), name)

    return Kind(some, written=written, read=lambda text: [each.strip() for each in text.split(",")])


def _number_or_word(text: str) -> int | str:
    digits = text.removeprefix("-").removeprefix("+")
    return int(text) if digits.isascii() and digits.isdigit() else text


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise checks.refusal(name, "a text", value)
    return value


def _texts(value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise checks.refusal(name, "a list of texts", value)
    return tuple(value)


def _pairs(value: Any, name: str) -> tuple[tuple[float, float], ...]:
    """Pairs of numbers, or of datetimes: these become seconds, as the model has them."""
    import numpy as np

    from pfedhgp.data.moments import position

    given = value
    if isinstance(value, np.ndarray) and value.dtype.kind == "M":
        given = value.astype("datetime64[us]")
    cells = np.asarray(given, object)
    if any(isinstance(each, date | np.datetime64) for each in cells.ravel()):
        with suppress(TypeError, ValueError):  # refused below, as it was given
            value = np.vectorize(position, otypes=[np.float64])(cells)
    return checks.pairs(value, name)


FLAG = Kind(checks.flag, bool)
FLAG_OR_AUTO = Kind(checks.auto_or(checks.flag), bool)
TEXT = Kind(_text)
TEXTS = Kind(_texts, list[str])
PATH = Kind(_text, Path, read=str)
PATHS = Kind(_texts, list[Path], read=lambda paths: [str(path.resolve()) for path in paths])
PAIRS = Kind(_pairs, list[str], written=_texts)
FUNCTIONS = Kind(checks.functions)


def _kernel(value: Any, name: str) -> Any:
    """A kernel of ours or text of one; "auto", or a list of kernels to choose from.

    Text stays text: the columns of the data decide what "1 day" and input=time are.
    """
    if isinstance(value, str) and value in (choices.AUTO, *choices.KERNELS):
        return value
    from pfedhgp.gp import kernel_text
    from pfedhgp.gp.kernels import Kernel, refuse_unknown

    if isinstance(value, Kernel):
        refuse_unknown(value, name)
        return value
    if isinstance(value, str):
        several = kernel_text.listed(value)
        for each in [value] if several is None else several:
            kernel_text.parse(each, f"`{name}`")
        return value
    if isinstance(value, list | tuple) and value:
        return tuple(_one_kernel(each, name) for each in value)
    known = ", ".join(choices.KERNELS)
    raise checks.refusal(name, f"a kernel, 'auto', a list of kernels, or one of {known}", value)


def _one_kernel(value: Any, name: str) -> Any:
    if isinstance(value, list | tuple) or value == choices.AUTO:
        raise checks.refusal(name, "a list of kernels", value)
    return _kernel(value, name)


def _kernel_text(value: Any, name: str) -> str:
    """A text; a list of texts is the same as "auto: " and them."""
    if isinstance(value, list | tuple) and value:
        return f"{choices.AUTO}: {', '.join(_texts(value, name))}"
    return _text(value, name)


def _inference(value: Any, name: str) -> Any:
    """An inference's name, or an object with its settings (not its class)."""
    own = is_dataclass(value) and not isinstance(value, type)
    if own and hasattr(value, "server") and hasattr(value, "clients"):
        return value
    if isinstance(value, str) and value in choices.INFERENCES:
        return value
    known = ", ".join(choices.INFERENCES)
    raise checks.refusal(name, f"one of {known}, or settings such as Structured(...)", value)


KERNEL = Kind(_kernel, written=_kernel_text)
"""In words it is more than a name ("rbf + periodic(1 day)"): `gp.kernel_text` reads it."""
INFERENCE = Kind(_inference, written=checks.one_of(*choices.INFERENCES))
