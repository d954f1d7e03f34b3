"""What clients send so that they can be grouped, and the groups that follow; all of it is in the message log.

Each client sends one sketch (`zones.sketches`), its mean variance and its coverage. A client with few rows
publishes its coverage, and every client sends one more sketch of its function near those rows: weighted by
that coverage, which is what the few rows would have shown of it. The stability of groups is measured on
halves and bootstraps of the numbers that were sent, so nothing more leaves a client.
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
"""A client with a lower mean coverage is compared only near its rows, and joins a group last."""
OwnFunctions = Mapping[str, sketching.OwnFunction]


class Sketch(NamedTuple):
    """The public settings of a sketch: anyone can compute Ω from them."""

    grid: str
    """the grid's hash"""
    size: int
    seed: int
    near: str = ""
    """a client with few rows, if the sketch was taken near its rows alone"""

    def matrix(self, own: OwnFunctions, of: str) -> np.ndarray:
        """Ω (NQ, size) of the client `of`: s = Ωᵀm."""
        if not self.near:
            cells = next(iter(own.values())).mean.size
            return sketching.projection(cells, self.size, (self.seed, 0))
        few = own[self.near]
        key = key_of(self.near)
        omega = near_rows(few.peaks, size=self.size, seed=self.seed, key=key)
        return omega if of == self.near else few.coverage.reshape(-1, 1) * omega

    def is_part_of(self, other: Sketch) -> bool:
        """Whether the other has all its numbers: a smaller sketch is the beginning of a larger one."""
        same = (self.grid, self.seed, self.near) == (other.grid, other.seed, other.near)
        return same and self.size <= other.size

    def log_entry(self) -> dict[str, Any]:
        found = {"grid": self.grid, "size": self.size, "seed": self.seed}
        return found | ({"under": self.near} if self.near else {})


def key_of(name: str) -> int:
    """A number that stands for a client with few rows."""
    return zlib.crc32(name.encode("utf-8", "surrogatepass"))


def near_rows(peaks: np.ndarray, *, size: int, seed: int, key: int) -> np.ndarray:
    """Ω (NQ, size) that is zero but for the peaks of a client's coverage."""
    inside = np.flatnonzero(peaks.reshape(-1))
    # A log may hold a sketch of another fit, which knew more points.
    count = min(size, len(inside))
    omega = np.zeros((peaks.size, count))
    omega[inside] = sketching.projection(len(inside), count, (seed, 1, key))
    return omega


def with_few_rows(covered: np.ndarray, least: int) -> np.ndarray:
    """Which clients have few rows, by their mean coverage; none if fewer than `least` have many.

    A client that is covered nowhere has no rows to be compared at.
    """
    few = np.flatnonzero((covered < COVERED) & (covered > 0.0))
    return few if len(covered) - len(few) >= max(2, least) else few[:0]


def grid_name(points: np.ndarray) -> str:
    """A grid's hash."""
    return hash_arrays({"grid": points})[:16]


def sent_before(log: Iterable[Mapping[str, Any]]) -> list[Sketch]:
    """The sketches in a message log, without those that are part of another."""
    found: list[Sketch] = []
    for entry in log:
        public = entry.get("public")
        if entry.get("kind") == "zones" and public and "size" in public:
            found.append(
                Sketch(
                    grid=str(public["grid"]),
                    size=int(public["size"]),
                    seed=int(public["seed"]),
                    near=str(public.get("under", "")),
                )
            )
    return distinct(found)


def distinct(sketches: Iterable[Sketch]) -> list[Sketch]:
    """Without those that are part of another."""
    kept: list[Sketch] = []
    for one in sketches:
        if not any(one.is_part_of(other) for other in kept):
            kept = [other for other in kept if not other.is_part_of(one)] + [one]
    return kept


class SketchLog:
    """The message log of clustering: both sides of every exchange."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names, self.round = names, 0
        self.entries: list[dict[str, Any]] = []

    def publish(self, name: str, arrays: dict[str, Any]) -> None:
        """A client publishes arrays, which the next request passes on to all."""
        self.entries.append(self._message(name, arrays).log_entry("server"))

    def request(
        self,
        arrays: dict[str, Any],
        replies: list[dict[str, Any]],
        public: Mapping[str, Any] | None = None,
    ) -> None:
        """A request of the server and all replies. `public` settings are kept in the log, values are not."""
        entry = self._message("server", arrays).log_entry("all")
        self.entries.append(entry | ({"public": dict(public)} if public else {}))
        for name, reply in zip(self.names, replies, strict=True):
            self.entries.append(self._message(name, reply).log_entry("server"))
        self.round += 1

    def near_rows(self, one: Sketch, coverage: np.ndarray, sketches: list[np.ndarray]) -> None:
        """A client with few rows publishes its coverage, and all send a sketch near these rows."""
        where = {"coverage": coverage.reshape(-1)}
        self.publish(one.near, where)
        request = {**where, "size": one.size, "seed": one.seed, "key": key_of(one.near)}
        self.request(request, [{"sketch": s} for s in sketches], one.log_entry())

    def _message(self, sender: str, arrays: dict[str, Any]) -> Message:
        whole = {name: np.asarray(a, np.float64) for name, a in arrays.items()}
        found = Message("zones", self.round, sender, whole)
        found.check_finite()
        return found


class SketchDistances:
    """What clients sent, and the distances and groups that follow from it."""

    def __init__(
        self,
        sketches: np.ndarray,
        extra: np.ndarray,
        sparse: np.ndarray,
        masked: Mapping[int, np.ndarray],
    ) -> None:
        """Sketches (clients, size), mean variances, the clients with few rows; and for each of these
        the sketches of all clients near its rows."""
        self.sketches, self.extra, self.sparse = sketches, extra, sparse
        self.masked = dict(masked)
        self.dense = np.setdiff1d(np.arange(len(sketches)), sparse)
        self.squared = grouping.squared_distances(sketches, extra)
        self.between = grouping.squared_distances(sketches, np.zeros(len(sketches)))

    def label(
        self,
        count: int,
        method: str,
        part: np.random.Generator | None = None,
        *,
        bootstrap: bool = False,
    ) -> np.ndarray:
        """Groups the clients with many rows; then every other client joins a group.

        It joins the group whose within-group distance grows least: Ward's cost, n/(n + 1) times the squared
        distance to the group's centre. Only means count: in Ward's Σ_G Σ_{i∈G} E|f_i − centre of G|²
        variances add Σ_G v (|G| − 1), which is the same for every grouping if clients are equally sure.

        `part` takes a random half of every sketch's numbers; with `bootstrap` it draws as many as there are,
        with replacement.
        """
        labels = np.zeros(len(self.squared), int)
        among = self.sketches[self.dense][:, _columns(self.sketches.shape[1], part, bootstrap)]
        squared = grouping.squared_distances(among, np.zeros(len(among)))
        first = grouping.group(squared, min(count, len(among)), method)
        labels[self.dense] = first
        for i, sketches in self.masked.items():
            taken = sketches[:, _columns(sketches.shape[1], part, bootstrap)]
            costs = []
            for g in range(first.max() + 1):
                members = self.dense[first == g]
                gap = taken[i] - taken[members].mean(0)
                costs.append(len(members) / (len(members) + 1.0) * float(gap @ gap))
            labels[i] = int(np.argmin(costs))
        return grouping.renumbered(labels)


class Comparison(SketchDistances):
    """Sketches of all clients with one seed, made where all their functions are at hand."""

    def __init__(
        self,
        own: OwnFunctions,
        names: tuple[str, ...],
        *,
        size: int,
        seed: int,
        grid: str,
        least: int = 2,
        log: SketchLog | None = None,
    ) -> None:
        """If fewer than `least` clients have many rows, all are compared on equal terms."""
        means = np.stack([own[name].mean.reshape(-1) for name in names])
        covered = np.array([own[name].coverage.mean() for name in names])
        extra = np.array([own[name].variance.mean() for name in names])
        first = Sketch(grid, size, seed)
        self.sent = [first]
        sketches = sketching.rounded(means @ first.matrix(own, names[0]))
        masked: dict[int, np.ndarray] = {}
        if log is not None:
            replies = [
                {"sketch": s, "variance": v, "coverage": c}
                for s, v, c in zip(sketches, extra, covered, strict=True)
            ]
            request = {"grid": means.shape[1], "size": size, "seed": seed}
            log.request(request, replies, first.log_entry())
        sparse = with_few_rows(covered, least)
        for i in map(int, sparse):
            few = own[names[i]]
            one = Sketch(grid, int(few.peaks.sum()), seed, names[i])
            self.sent.append(one)
            masked[i] = sketching.rounded(
                np.stack(
                    [mean @ one.matrix(own, name) for name, mean in zip(names, means, strict=True)]
                )
            )
            if log is not None:
                log.near_rows(one, few.coverage, list(masked[i]))
        super().__init__(sketches, extra, sparse, masked)


def _columns(size: int, part: np.random.Generator | None, bootstrap: bool) -> np.ndarray:
    """Which of a sketch's numbers to use: all, half of them, or as many with replacement."""
    if part is None:
        return np.arange(size)
    return part.integers(0, size, size) if bootstrap else part.permutation(size)[: -(-size // 2)]


def joint_matrix(sketches: Sequence[Sketch], own: OwnFunctions, of: str) -> np.ndarray:
    """Ω of several sketches of a client, side by side."""
    return np.concatenate([one.matrix(own, of) for one in sketches], axis=1)
