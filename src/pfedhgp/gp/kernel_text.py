"""Kernels in words: "rbf", "rbf + periodic(1 day)", "matern52(2h) * periodic(7d, input=time)".

    sum      := product ("+" product)*
    product  := kernel ("*" kernel)*
    kernel   := NAME [ "(" argument ("," argument)* ")" ] | "(" sum ")"
    argument := [ KEY "=" ] value        value := NUMBER [UNIT] | input name

The first value without a key is the period of `periodic` and the lengthscale of the others. Units are those
of time (s, min, h, d, w, y) and only for datetime inputs. Parsing needs no JAX, building does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pfedhgp.base.choices import AUTO, KERNELS
from pfedhgp.data.columns import InputColumn
from pfedhgp.errors import InputError

if TYPE_CHECKING:
    from pfedhgp.gp.kernels import Kernel

PARAMETERS = dict.fromkeys(KERNELS, ("lengthscale",)) | {
    "periodic": ("period", "lengthscale"),
    "rational_quadratic": ("lengthscale", "alpha"),
}
"""Each kernel's parameters, in the order in which values without a key are taken."""
_DAY = 86400.0
UNITS = {
    **dict.fromkeys(("s", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), _DAY),
    **dict.fromkeys(("w", "week", "weeks"), 7 * _DAY),
    **dict.fromkeys(("y", "year", "years"), 365.25 * _DAY),
}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<word>[^\W\d][\w.-]*|\"[^\"]*\")"
    r"|(?P<sign>[-+*(),=]))"
)


@dataclass(frozen=True)
class Leaf:
    """A kernel by name, with numbers in the inputs' units (seconds for datetimes)."""

    name: str
    numbers: tuple[tuple[str, float], ...] = ()
    inputs: tuple[str, ...] = ()
    timed: tuple[str, ...] = ()
    """Parameters that were given with a unit of time."""


@dataclass(frozen=True)
class Combined:
    """A sum or a product, by its sign."""

    sign: str
    parts: tuple[Leaf | Combined, ...]


def parse(text: str, option: str = "--kernel") -> Leaf | Combined:
    """The tree of an expression; `option` is named in errors."""
    parser = _Parser(text, option)
    tree = parser.combined()
    if parser.sign or parser.word or parser.number:
        raise parser.refuse("something is left over at its end")
    return tree


def listed(text: str) -> list[str] | None:
    """The kernels of "auto: rbf, matern32 + periodic(1 day)", none for "auto"; None for another text.

    >>> listed("auto: rbf, periodic(1 day, 0.5)")
    ['rbf', 'periodic(1 day, 0.5)']
    """
    word, _, rest = text.partition(":")
    if word.strip().lower() != AUTO:
        return None
    found, depth = [""], 0
    for sign in rest:
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            found.append("")
        else:
            found[-1] += sign
    return [each.strip() for each in found] if rest.strip() else []


def kernel_of(
    tree: Leaf | Combined, columns: Sequence[InputColumn], option: str = "--kernel"
) -> Kernel | str:
    """The kernel of a tree; a name alone stays one, which lets the model choose the local kernel by it."""
    if isinstance(tree, Leaf) and not (tree.numbers or tree.inputs):
        return tree.name
    return build(tree, columns, option)


def build(
    tree: Leaf | Combined, columns: Sequence[InputColumn], option: str = "--kernel"
) -> Kernel:
    """The kernel of a tree, for these inputs in this order."""
    if isinstance(tree, Combined):
        parts = [build(part, columns, option) for part in tree.parts]
        whole = parts[0]
        for part in parts[1:]:
            whole = whole + part if tree.sign == "+" else whole * part
        return whole
    from pfedhgp.gp import kernels

    given: dict[str, Any] = dict(tree.numbers)
    if tree.inputs:
        given["dims"] = _dims(tree, columns, option)
    kernel: Any = kernels.KERNELS[tree.name]
    return kernel(**given)


def check_inputs(tree: Leaf | Combined, columns: Sequence[InputColumn], option: str) -> None:
    """Inputs that are named exist, and units of time belong to datetimes."""
    if isinstance(tree, Combined):
        for part in tree.parts:
            check_inputs(part, columns, option)
        return
    dims = _dims(tree, columns, option) if tree.inputs else range(len(columns))
    numbers = [columns[i].name for i in dims if columns[i].kind != "datetime"]
    if tree.timed and numbers:
        raise InputError(
            f"{option}: {tree.name}'s {tree.timed[0]} has a unit of time, but input {numbers[0]!r} "
            "is a number: leave the unit out, or choose inputs with input=NAME"
        )


def _dims(tree: Leaf, columns: Sequence[InputColumn], option: str) -> list[int]:
    names = [column.name for column in columns]
    for name in tree.inputs:
        if name not in names:
            raise InputError(f"{option}: no input {name!r}; there are {', '.join(names)}")
    return [names.index(name) for name in tree.inputs]


class _Parser:
    """Reads one token ahead."""

    def __init__(self, text: str, option: str) -> None:
        self.text, self.option, self.at = text, option, 0
        self.number: str | None = None
        self.word: str | None = None
        self.sign: str | None = None
        self.next()

    def refuse(self, problem: str) -> InputError:
        return InputError(
            f"{self.option} {self.text!r}: {problem}; known kernels are {', '.join(PARAMETERS)}, "
            "as in 'rbf + periodic(1 day)'"
        )

    def next(self) -> None:
        self.number = self.word = self.sign = None
        if not self.text[self.at :].strip():
            return
        found = _TOKEN.match(self.text, self.at)
        if found is None:
            raise self.refuse(f"{self.text[self.at :].strip()[0]!r} is not understood")
        self.at = found.end()
        self.number, self.word, self.sign = found["number"], found["word"], found["sign"]

    def take(self, sign: str) -> bool:
        if self.sign != sign:
            return False
        self.next()
        return True

    def combined(self, sign: str = "+") -> Leaf | Combined:
        """A sum of products, or with "*" a product of kernels."""
        one: Callable[[], Leaf | Combined]
        one = partial(self.combined, "*") if sign == "+" else self.kernel
        parts = [one()]
        while self.take(sign):
            parts.append(one())
        return parts[0] if len(parts) == 1 else Combined(sign, tuple(parts))

    def kernel(self) -> Leaf | Combined:
        if self.take("("):
            inside = self.combined()
            if not self.take(")"):
                raise self.refuse("a bracket is not closed")
            return inside
        name = (self.word or "").lower().replace("-", "_")
        if name not in PARAMETERS:
            raise self.refuse(
                f"{self.word!r} is not a kernel" if self.word else "a kernel is missing"
            )
        self.next()
        if not self.take("("):
            return Leaf(name)
        return self.arguments(name)

    def arguments(self, name: str) -> Leaf:
        numbers: dict[str, float] = {}
        inputs: list[str] = []
        timed: list[str] = []
        while not self.take(")"):
            key = self.key(name, numbers)
            if key == "input":
                if self.word is None:
                    raise self.refuse("input= needs the name of an input")
                inputs.append(self.word.strip('"'))
                self.next()
            else:
                numbers[key], unit = self.value(name, key)
                timed += [key] if unit else []
            if self.sign != ")" and not self.take(","):
                raise self.refuse("a bracket is not closed")
        return Leaf(name, tuple(numbers.items()), tuple(inputs), tuple(timed))

    def key(self, name: str, already: dict[str, float]) -> str:
        if self.word is None:
            free = [key for key in PARAMETERS[name] if key not in already]
            if not free:
                raise self.refuse(f"{name} has no more parameters")
            return free[0]
        key = self.word.lower()
        if key not in (*PARAMETERS[name], "input") or key in already:
            known = ", ".join(PARAMETERS[name])
            raise self.refuse(
                f"{name} takes {known} and input, each number once, not {self.word!r}"
            )
        self.next()
        if not self.take("="):
            raise self.refuse(f"{key} needs a value: {key}=...")
        return key

    def value(self, name: str, key: str) -> tuple[float, bool]:
        if self.number is None:
            raise self.refuse(f"{key} of {name} needs a positive number")
        value = float(self.number)
        self.next()
        unit = self.word
        if unit is not None:
            if unit.lower() not in UNITS or key == "alpha":
                raise self.refuse(
                    f"{unit!r} is not a unit here; units are s, min, h, d, w, y, or second(s), minute(s), "
                    "hour(s), day(s), week(s), year(s)"
                )
            if name == "periodic" and key == "lengthscale":
                raise self.refuse("the lengthscale of periodic is relative to the wave: no unit")
            value *= UNITS[unit.lower()]
            self.next()
        if not 0.0 < value < float("inf"):
            raise self.refuse(f"{key} of {name} needs a positive number")
        return value, unit is not None
