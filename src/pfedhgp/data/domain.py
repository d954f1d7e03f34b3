"""The known range of each input: from texts such as "0..10", and whether rows lie inside it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from pfedhgp.base.checks import short
from pfedhgp.data.columns import Columns, InputColumn
from pfedhgp.data.rows import Named
from pfedhgp.errors import InputError

Pairs = Sequence[tuple[float, float]]
"""(lower, upper) of each input."""


def outside(pairs: Pairs, X: np.ndarray) -> int | None:
    """The first input of which a row of X (n, d) is outside its range; None if there is none."""
    lower, upper = np.asarray(pairs, np.float64).T
    found = np.flatnonzero(np.any((lower > X) | (upper < X), axis=0))
    return int(found[0]) if len(found) else None


def check_domain(
    pairs: Pairs,
    clients: Sequence[Named],
    names: Sequence[str],
    given: Sequence[str] = (),
    *,
    needed: bool = False,
) -> None:
    """There is a pair for each of the inputs `names`, and every row lies inside; `given` are their texts.

    `needed`: it cannot be left out.
    """
    if len(pairs) != len(names):
        wanted = "one pair" if len(names) == 1 else f"{len(names)} pairs"
        raise InputError(f"`domain` must be {wanted} (lower, upper), got {len(pairs)}")
    for client in clients:
        if (j := outside(pairs, client.X)) is not None:
            which = f"`domain` {given[j]}" if given else "`domain`"
            what = "drop these rows, or widen it" if needed else "widen it, or leave it out"
            raise InputError(
                f"{which}: client {short(client.name)!r} has rows with input {short(names[j])!r} outside it: "
                f"{what}"
            )


def pairs_of(given: Sequence[str], columns: Columns) -> list[tuple[float, float]]:
    """Pairs from "LOW..HIGH", one for each input; dates if the input is one."""
    if len(given) != len(columns.inputs):
        raise InputError(
            f"`domain` is given {len(given)} times for {len(columns.inputs)} inputs: once for each"
        )
    return [_pair(text, column) for text, column in zip(given, columns.inputs, strict=True)]


def bounds_of(given: Sequence[str], outputs: Sequence[str]) -> list[tuple[float, float]]:
    """Pairs from "LOW..HIGH", one for each output."""
    if len(given) != len(outputs):
        raise InputError(
            f"`output_bounds` is given {len(given)} times for {len(outputs)} outputs: once for each"
        )
    found = []
    for text, output in zip(given, outputs, strict=True):
        low, dots, high = text.partition("..")
        try:
            pair = (float(low), float(high) if dots else np.nan)
        except ValueError:
            pair = (np.nan, np.nan)
        if not np.isfinite(pair).all() or not pair[0] < pair[1]:
            raise InputError(
                f"`output_bounds` {text}: for output {short(output)!r} it must look like 0..500, "
                "with LOW below HIGH"
            )
        found.append(pair)
    return found


def _pair(text: str, column: InputColumn) -> tuple[float, float]:
    low, dots, high = text.partition("..")
    try:
        if not dots:
            raise ValueError
        pair = (_position(low.strip(), column), _position(high.strip(), column))
        if not np.isfinite(pair).all():
            raise ValueError
    except ValueError:
        shape = "2013-01-01..2013-12-31" if column.kind == "datetime" else "0..10"
        raise InputError(
            f"`domain` {text}: for input {short(column.name)!r} it must look like {shape}"
        ) from None
    if not pair[0] < pair[1]:
        raise InputError(f"`domain` {text} of input {short(column.name)!r}: LOW must be below HIGH")
    return pair


def _position(text: str, column: InputColumn) -> float:
    if column.kind == "number":
        return float(text)
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
