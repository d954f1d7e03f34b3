"""An honest test split inside every client: rows that the fit never sees.

    random:0.2    rows at random (whole cycles where there are cycles)
    last:0.2      the rows with the largest values of the first input: the future
    blocks:0.2    contiguous stretches of the first input: gaps

`last` and `blocks` never part rows with equal first inputs. A client keeps at least one row to train on.

Which rows are held out follows from the seed, the client's name and its rows, whatever their order and
whoever else is there: the split can be made again from the data. `ledger` keeps what tells whether data are
the same: numbers of rows and a four-digit checksum for each client, nothing that gives a row back.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pfedhgp.data.readers import Observations
from pfedhgp.data.rows import by_appearance
from pfedhgp.errors import InputError

KINDS = ("random", "last", "blocks")
STRETCHES = 20


@dataclass(frozen=True)
class Holdout:
    """Which part of each client's rows is kept for testing."""

    kind: str
    fraction: float
    seed: int = 0

    @staticmethod
    def parse(text: str, *, seed: int) -> Holdout:
        """From "random:0.2", "last:0.2" or "blocks:0.2"."""
        kind, _, number = text.partition(":")
        try:
            fraction = float(number)
        except ValueError:
            fraction = math.nan
        if kind not in KINDS or not 0.0 < fraction < 1.0:
            raise InputError(
                f"--holdout must be random:F, last:F or blocks:F with 0 < F < 1, got {text!r}"
            )
        return Holdout(kind, fraction, seed)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def split(
    clients: Sequence[Observations], holdout: Holdout
) -> tuple[list[Observations], list[Observations]]:
    """(training, test): every client in the first; in the second those with an observed test row."""
    training, test = [], []
    for client in clients:
        held = held_rows(client, holdout)
        training.append(client.take(~held))
        observed = held & np.isfinite(client.Y).any(axis=1)
        if observed.any():
            test.append(client.take(observed))
    return training, test


def held_rows(client: Observations, holdout: Holdout) -> np.ndarray:
    """Which of the client's rows are held out."""
    name = hashlib.sha256(client.name.encode("utf-8", "surrogatepass")).digest()
    rng = np.random.default_rng([holdout.seed, *np.frombuffer(name[:16], np.uint32).tolist()])
    unit = _units(client, holdout.kind)
    count = int(unit.max(initial=-1)) + 1
    chosen = _choose(count, holdout, rng)
    return np.isin(unit, chosen)


def _units(client: Observations, kind: str) -> np.ndarray:
    """The number of the unit that each row belongs to; units are held out whole."""
    if client.cycle is not None and kind != "blocks":
        return by_appearance(client.cycle)
    if kind == "random":
        rank = np.empty(len(client.X), np.int64)
        rank[_order(client)] = np.arange(len(client.X))
        return rank
    return np.unique(client.X[:, 0], return_inverse=True)[1].reshape(-1)


def _order(client: Observations) -> np.ndarray:
    """Rows by their inputs, then by their outputs: the same for any order of a file."""
    keys = [*client.X.T, *client.Y.T]
    return np.lexsort(keys[::-1])


def _choose(count: int, holdout: Holdout, rng: np.random.Generator) -> np.ndarray:
    wanted = min(max(round(holdout.fraction * count), 1), count - 1)
    if count < 2:
        return np.array([], np.int64)
    if holdout.kind == "last":
        return np.arange(count - wanted, count)
    if holdout.kind == "random":
        return rng.choice(count, wanted, replace=False)
    pieces = min(count, max(STRETCHES, math.ceil(1.0 / holdout.fraction)))
    stretches = np.array_split(np.arange(count), pieces)
    taken = min(max(round(holdout.fraction * pieces), 1), pieces - 1)
    return np.concatenate([stretches[i] for i in rng.choice(pieces, taken, replace=False)])


# --------------------------------------------------------------------------- to make a split again


def ledger(
    everything: Sequence[Observations],
    training: Sequence[Observations],
    test: Sequence[Observations],
) -> dict[str, dict[str, Any]]:
    """For each client: its rows, the observed cells that were fitted to, its test rows and a checksum.

    A client without test rows has no checksum: there is nothing to find again, and of one row even four
    digits would say something.
    """
    cells = {client.name: int(np.isfinite(client.Y).sum()) for client in training}
    held = {client.name: len(client.X) for client in test}
    found: dict[str, dict[str, Any]] = {}
    for client in everything:
        name = client.name
        found[name] = {"rows": len(client.X), "cells": cells.get(name, 0)}
        found[name]["held_out"] = held.get(name, 0)
        if name in held:
            found[name]["check"] = checksum(client)
    return found


def checksum(client: Observations) -> str:
    """Four digits that change if any cell does (except once in 65,536), but not if rows are reordered.

    With cycles the order counts: it is the order in which the cycles come.
    """
    content = np.concatenate([client.X, client.Y], axis=1) + 0.0  # −0 is 0
    content[np.isnan(content)] = np.nan  # one kind of NaN
    digest = hashlib.sha256()
    if client.cycle is None:
        content = content[_order(client)]
    else:
        digest.update("\n".join(map(str, client.cycle)).encode("utf-8", "surrogatepass"))
    digest.update(np.ascontiguousarray(content, "<f8").tobytes())
    return digest.hexdigest()[:4]


def is_the_same(client: Observations, kept: Mapping[str, Any] | None) -> bool:
    """Whether these rows are those of the ledger's entry."""
    if not kept or kept.get("rows") != len(client.X):
        return False
    return "check" not in kept or kept["check"] == checksum(client)
