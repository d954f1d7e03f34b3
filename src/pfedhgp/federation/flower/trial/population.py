"""Made-up sites: their rows, and how they behave.

y_i(x) = sin(x) + 0.3 cos(1.7 x + i) + 0.1 noise,  x uniform in 0..10
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from pfedhgp.errors import InputError
from pfedhgp.federation.envelope import Envelope

HONEST, DROPOUT, SLOW, LIAR = "honest", "dropout", "slow", "liar"
ATTACKS = ("scaled", "nan", "flipped")
FIRST_ROUND, LATEST = 1, 4
"""Dropouts leave for good in one of these rounds."""


@dataclass(frozen=True)
class Population:
    """`sites` of them; shares of all are `dropouts`, `slow` or `liars`, the rest is honest."""

    sites: int
    rows: int = 40
    dropouts: float = 0.0
    slow: float = 0.0
    liars: float = 0.0
    attack: str = "scaled"
    delay: float = 10.0
    """Seconds that a slow site takes longer, at most; at least half of it."""
    seed: int = 0

    def check(self) -> None:
        """Refuses shares that cannot be."""
        shares = (self.dropouts, self.slow, self.liars)
        if min(shares) < 0.0 or sum(shares) > 1.0:
            raise InputError(
                "--dropouts, --slow and --liars are shares: 0 to 1, and 1 in all at most"
            )
        if self.attack not in ATTACKS:
            raise InputError(f"--attack must be one of {', '.join(ATTACKS)}, got {self.attack}")

    @property
    def names(self) -> tuple[str, ...]:
        width = len(str(self.sites - 1))
        return tuple(f"site {i:0{width}d}" for i in range(self.sites))

    def roles(self) -> dict[str, str]:
        """Which site does what; by chance, from the seed."""
        order = np.random.default_rng([self.seed, 1]).permutation(self.sites)
        found = [HONEST] * self.sites
        start = 0
        for role, share in ((DROPOUT, self.dropouts), (SLOW, self.slow), (LIAR, self.liars)):
            count = round(share * self.sites)
            for i in order[start : start + count]:
                found[i] = role
            start += count
        return dict(zip(self.names, found, strict=True))

    def behaviour(self, name: str) -> Behaviour:
        number = self.names.index(name)
        rng = np.random.default_rng([self.seed, 2, number])
        leaves = int(rng.integers(FIRST_ROUND, LATEST + 1))
        delay = float(self.delay * rng.uniform(0.5, 1.0))
        return Behaviour(self.roles()[name], self.attack, leaves, delay)

    def write_rows(self, name: str, path: Path) -> None:
        """The site's table, with columns x and y."""
        i = self.names.index(name)
        rng = np.random.default_rng([self.seed, 3, i])
        x = np.sort(rng.uniform(0.0, 10.0, self.rows))
        y = np.sin(x) + 0.3 * np.cos(1.7 * x + i) + 0.1 * rng.normal(size=self.rows)
        pl.DataFrame({"x": x, "y": y}).write_parquet(path)


@dataclass(frozen=True)
class Behaviour:
    """What a site does with its answers."""

    role: str
    attack: str = "scaled"
    leaves: int = FIRST_ROUND
    """The round from which on a dropout is gone."""
    delay: float = 0.0

    def is_gone(self, request: Envelope) -> bool:
        """Whether the site has left; it does not even read the request."""
        after = request.round >= self.leaves or request.kind in ("finish", "deliver")
        return self.role == DROPOUT and request.round > 0 and after

    def seconds(self) -> float:
        """How much longer than it needs the site takes."""
        return self.delay if self.role == SLOW else 0.0

    def changed(self, reply: Envelope) -> Envelope:
        """The answer that leaves; liars lie in training."""
        if self.role != LIAR or reply.kind not in ("start", "round"):
            return reply
        by = {"scaled": 1000.0, "nan": np.nan, "flipped": -1.0}[self.attack]
        return replace(reply, arrays={name: by * a for name, a in reply.arrays.items()})
