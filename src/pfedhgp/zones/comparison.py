"""What clients send so that they can be grouped, and groups from it: everything here is in the message log.

Each client sends one sketch (`zone_sketches`), its mean variance and its coverage. A client with few rows
makes its coverage public, and all send one more sketch of their functions where it peaks: the others' times
that coverage, which is what the few rows would have shown of them. How stable groups are is seen from parts
of what was sent, halves and bootstraps of its numbers, so that nothing more leaves a client.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pfedhgp.federation.messages import Message, hash_arrays
from pfedhgp.zones import groups as grouping
from pfedhgp.zones import sketches as sketching

COVERED = 0.5
"""A client whose mean coverage is below this is compared next to its rows, and joins a group last."""
Owns = Mapping[str, sketching.OwnFunction]


class Sketch(NamedTuple):
    """The public settings of a sketch: with them anyone has Ω."""

    grid: str
    """the grid's hash"""
    size: int
    seed: int
    under: str = ""
    """the client with few rows next to whose rows it was taken"""

    def matrix(self, own: Owns, of: str) -> np.ndarray:
        """Ω (NQ, size) of the client `of`: s = Ωᵀm."""
        if not self.under:
            cells = next(iter(own.values())).mean.size
            return sketching.projection(cells, self.size, (self.seed, 0))
        few = own[self.under]
        inside = np.flatnonzero(few.peaks.reshape(-1))
        key = (self.seed, 1, zlib.crc32(self.under.encode("utf-8", "surrogatepass")))
        count = min(
            self.size, len(inside)
        )  # a log may have one of another fit, which knew more points
        omega = np.zeros((few.mean.size, count))
        omega[inside] = sketching.projection(len(inside), count, key)
        return omega if of == self.under else few.coverage.reshape(-1, 1) * omega

    def within(self, other: Sketch) -> bool:
        """Whether all its numbers are among the other's: fewer columns are the first of more."""
        same = (self.grid, self.seed, self.under) == (other.grid, other.seed, other.under)
        return same and self.size <= other.size

    def log_entry(self) -> dict[str, Any]:
        found = {"grid": self.grid, "size": self.size, "seed": self.seed}
        return found | ({"under": self.under} if self.under else {})


def grid_name(points: np.ndarray) -> str:
    """A grid's hash."""
    return hash_arrays({"grid": points})[:16]


def sent_before(log: Iterable[Mapping[str, Any]]) -> list[Sketch]:
    """The sketches that a message log has, each once, the larger of two where one holds the other."""
    found: list[Sketch] = []
    for entry in log:
        public = entry.get("public")
        if entry.get("kind") == "zones" and public and "size" in public:
            found.append(
                Sketch(
                    grid=str(public["grid"]),
                    size=int(public["size"]),
                    seed=int(public["seed"]),
                    under=str(public.get("under", "")),
                )
            )
    return distinct(found)


def distinct(sketches: Iterable[Sketch]) -> list[Sketch]:
    """Without those that are part of another."""
    kept: list[Sketch] = []
    for one in sketches:
        if not any(one.within(other) for other in kept):
            kept = [other for other in kept if not other.within(one)] + [one]
    return kept


class Talk:
    """Both sides of the exchange, as messages, for the log."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names, self.turn = names, 0
        self.log: list[dict[str, Any]] = []

    def publish(self, name: str, arrays: dict[str, Any]) -> None:
        """A client's word before the next request, which hands it on to all."""
        self.log.append(self._message(name, arrays).log_entry("server"))

    def exchange(
        self,
        request: dict[str, Any],
        replies: list[dict[str, Any]],
        public: Mapping[str, Any] | None = None,
    ) -> None:
        """`public`: settings that all know, kept in the log; values are not."""
        asked = self._message("server", request).log_entry("all")
        self.log.append(asked | ({"public": dict(public)} if public else {}))
        for name, arrays in zip(self.names, replies, strict=True):
            self.log.append(self._message(name, arrays).log_entry("server"))
        self.turn += 1

    def _message(self, sender: str, arrays: dict[str, Any]) -> Message:
        whole = {name: np.asarray(a, np.float64) for name, a in arrays.items()}
        found = Message("zones", self.turn, sender, whole)
        found.check_finite()
        return found


class Compared:
    """Sketches of all clients under one seed, and what follows from them."""

    def __init__(
        self,
        own: Owns,
        names: tuple[str, ...],
        *,
        size: int,
        seed: int,
        grid: str,
        least: int = 2,
        talk: Talk | None = None,
    ) -> None:
        """`least`: so many clients with many rows there must be; else all are compared on equal terms."""
        means = np.stack([own[name].mean.reshape(-1) for name in names])
        covered = np.array([own[name].coverage.mean() for name in names])
        self.extra = np.array([own[name].variance.mean() for name in names])
        seen = np.array([own[name].peaks.any() for name in names])
        self.sparse = np.flatnonzero((covered < COVERED) & seen)
        if len(names) - len(self.sparse) < max(2, least):
            self.sparse = self.sparse[:0]
        self.dense = np.setdiff1d(np.arange(len(names)), self.sparse)
        first = Sketch(grid, size, seed)
        self.sent = [first]
        self.sketches = sketching.rounded(means @ first.matrix(own, names[0]))
        self.masked: dict[int, np.ndarray] = {}
        if talk is not None:
            replies = [
                {"sketch": s, "variance": v, "coverage": c}
                for s, v, c in zip(self.sketches, self.extra, covered, strict=True)
            ]
            request = {"grid": means.shape[1], "size": size, "seed": seed}
            talk.exchange(request, replies, first.log_entry())
        for i in map(int, self.sparse):
            few = own[names[i]]
            one = Sketch(grid, int(few.peaks.sum()), seed, names[i])
            self.sent.append(one)
            self.masked[i] = sketching.rounded(
                np.stack(
                    [mean @ one.matrix(own, name) for name, mean in zip(names, means, strict=True)]
                )
            )
            if talk is not None:
                replies = [{"sketch": s} for s in self.masked[i]]
                where = {"coverage": few.coverage.reshape(-1)}
                talk.publish(names[i], where)
                request = {**where, "seed": seed}
                talk.exchange(request, replies, one.log_entry())
        self.squared = grouping.squared_distances(self.sketches, self.extra)
        self.between = grouping.squared_distances(self.sketches, np.zeros(len(names)))

    def label(
        self,
        count: int,
        method: str,
        part: np.random.Generator | None = None,
        *,
        again: bool = False,
    ) -> np.ndarray:
        """Groups of the clients with many rows; each of the others joins the group where it adds least.

        By the means: in Ward's objective, Σ_G Σ_{i∈G} E|f_i − centre of G|², variances add Σ_G v (|G| − 1),
        which for clients equally sure of themselves is the same for every grouping into as many groups.
        The cost of joining is Ward's: n/(n + 1) times the squared distance to the group's centre.

        `part` takes a random half of every sketch's numbers, or with `again` as many as there are, drawn with
        replacement.
        """
        labels = np.zeros(len(self.squared), int)
        among = self.sketches[self.dense][:, _some(self.sketches.shape[1], part, again)]
        squared = grouping.squared_distances(among, np.zeros(len(among)))
        first = grouping.group(squared, min(count, len(among)), method)
        labels[self.dense] = first
        for i, sketches in self.masked.items():
            taken = sketches[:, _some(sketches.shape[1], part, again)]
            costs = []
            for g in range(first.max() + 1):
                members = self.dense[first == g]
                gap = taken[i] - taken[members].mean(0)
                costs.append(len(members) / (len(members) + 1.0) * float(gap @ gap))
            labels[i] = int(np.argmin(costs))
        return grouping.in_order(labels)


def _some(size: int, part: np.random.Generator | None, again: bool) -> np.ndarray:
    """Which of a sketch's numbers: all, half of them, or as many with replacement."""
    if part is None:
        return np.arange(size)
    return part.integers(0, size, size) if again else part.permutation(size)[: -(-size // 2)]


def all_sent(sketches: Sequence[Sketch], own: Owns, of: str) -> np.ndarray:
    """Ω of several sketches of one client, side by side."""
    return np.concatenate([one.matrix(own, of) for one in sketches], axis=1)
