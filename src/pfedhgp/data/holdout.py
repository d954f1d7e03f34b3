"""An honest test split inside every client: rows that the fit never sees.

    random:0.2    rows at random (whole cycles where there are cycles)
    last:0.2      the rows with the largest values of the first input: the future
    blocks:0.2    contiguous stretches of the first input: gaps

`last` and `blocks` never part rows with equal first inputs. A client keeps at least one row to train on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pfedhgp.data.readers import Observations
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
        return {"kind": self.kind, "fraction": self.fraction, "seed": self.seed}


def split(
    clients: Sequence[Observations], holdout: Holdout
) -> tuple[list[Observations], list[Observations]]:
    """(training, test): every client in the first; in the second those with an observed test row."""
    training, test = [], []
    for index, client in enumerate(clients):
        held = test_rows(client, holdout, np.random.default_rng([holdout.seed, index]))
        training.append(client.take(~held))
        observed = held & np.isfinite(client.Y).any(axis=1)
        if observed.any():
            test.append(client.take(observed))
    return training, test


def test_rows(client: Observations, holdout: Holdout, rng: np.random.Generator) -> np.ndarray:
    """Which of the client's rows are held out."""
    unit = _units(client, holdout.kind)
    count = int(unit.max(initial=-1)) + 1
    chosen = _choose(count, holdout, rng)
    return np.isin(unit, chosen)


def _units(client: Observations, kind: str) -> np.ndarray:
    """The number of the unit that each row belongs to; units are held out whole."""
    if client.cycle is not None and kind != "blocks":
        _, first, index = np.unique(client.cycle, return_index=True, return_inverse=True)
        rank = np.argsort(np.argsort(first))  # in order of appearance
        return rank[index.reshape(-1)]
    if kind == "random":
        return np.arange(len(client.X))
    return np.unique(client.X[:, 0], return_inverse=True)[1].reshape(-1)


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
