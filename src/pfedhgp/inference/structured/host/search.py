"""Searches and averages over ψ for a batch of clients: many evaluations of one `Objective`.

Clients are taken in turns that fit the cache. Turns of few clients, whose matrices are large, are computed by
one thread a core: most of their time goes to BLAS and LAPACK, which need no interpreter. Small ones are not:
threads would wait for each other. Turns do not depend on one another, so neither do results on threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar, cast

import jax
import numpy as np
from jaxtyping import Float

from pfedhgp.inference import host_lbfgs
from pfedhgp.inference.lbfgs import Pairs
from pfedhgp.inference.structured.client_step import SETTLED, Broadcast
from pfedhgp.inference.structured.host.few_cells import FewCells
from pfedhgp.inference.structured.host.objective import Height, Objective
from pfedhgp.inference.structured.host.parameters import Parameters

Array = np.ndarray
LARGE_CLIENTS = 8
"""Turns of at most so many clients have large matrices."""
T = TypeVar("T")
D = TypeVar("D", bound=Objective | FewCells)
Density = Objective | FewCells
"""log p(y, ψ) of a batch of clients, in one of its two forms"""


def quickest(objective: Objective) -> Density:
    """The form with the smaller matrix: that of all weights, or that of all cells."""
    _, n, Q = objective.cells.Y.shape
    return FewCells.of(objective) if n * Q <= objective.layout.weights else objective


def in_turns(objective: D, work: Callable[[D, slice], T]) -> list[T]:
    """`work` for each turn of clients, in order."""
    count, size = len(objective.h), objective.turns()
    turns = [slice(a, min(a + size, count)) for a in range(0, count, size)]
    if len(turns) == 1:
        return [work(objective, turns[0])]
    errors = np.geterr()

    def one(turn: slice) -> T:
        with np.errstate(**errors):  # a thread begins with NumPy's own
            return work(cast(D, objective.of_some(turn)), turn)

    threads = min(cores(), len(turns)) if size <= LARGE_CLIENTS else 1
    if threads == 1:
        return [one(turn) for turn in turns]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, turns))


def cores() -> int:
    """How many cores this process may use."""
    own = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(own(0)) if own is not None else os.cpu_count() or 1


class Evaluations:
    """An objective at changing sets of its clients; the last set is kept."""

    def __init__(self, objective: Density) -> None:
        self.objective, self.part = objective, objective
        self.which = np.arange(len(objective.h))

    def at(self, which: Array) -> Density:
        if not np.array_equal(which, self.which):
            self.which, self.part = which, self.objective.of_some(which)
        return self.part

    def loss(self, rows: Float[Array, "k P"], which: Array) -> tuple[Array, Array]:
        """−log p(y, ψ) and its gradient, for the clients `which`."""
        value, gradient = self.at(which).value_and_gradient(rows)
        return -value, -gradient


class Effort(NamedTuple):
    """How long a search goes on, and whether kernels move; see `client_step.SHARE`."""

    evaluations: int
    kernels_free: bool = True
    share: float = 0.0

    @staticmethod
    def of(broadcast: Broadcast) -> Effort:
        return Effort(
            int(broadcast.evaluations), bool(broadcast.kernels_free > 0), float(broadcast.share)
        )


def maximise(
    objective: Objective, start: Parameters, pairs: Pairs, effort: Effort
) -> tuple[Parameters, host_lbfgs.State]:
    """ψ after L-BFGS on the cavity bound and the prior; `pairs` are those of the searches before."""
    mask = np.ones_like(start.rows()[0])
    if not effort.kernels_free:
        mask[: kernel_count(start)] = 0.0

    def one(part: Density, turn: slice) -> host_lbfgs.State:
        own, part = start.of_some(turn), part.without_padding()
        return host_lbfgs.minimize(
            Evaluations(part if effort.kernels_free else part.with_held_kernels(own)).loss,
            own.rows(),
            evaluations=effort.evaluations,
            movable=mask,
            settled=SETTLED,
            share=effort.share,
            pairs=pairs.of_some(turn),
        )

    found = in_turns(quickest(objective), one)
    state = host_lbfgs.State(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
    return start.from_rows(state.x), state


def kernel_count(start: Parameters) -> int:
    """How many numbers of a row are kernels'; they come first."""
    return sum(int(np.prod(leaf.shape[1:])) for leaf in jax.tree.leaves(start.kernels))


def at_points(
    objective: Density, points: Float[Array, "c N P"], look: Callable[[Density, Array], T]
) -> list[T]:
    """`look` at N points of each client, all points in one long batch, in turns."""
    count, number, size = points.shape
    which = np.repeat(np.arange(count), number)
    rows = points.reshape(-1, size)
    step = objective.turns()
    found = []
    for a in range(0, len(rows), step):
        part = objective.of_some(which[a : a + step])
        found.append(look(part, rows[a : a + step]))
    return found


def gradients(objective: Density, points: Float[Array, "c N P"]) -> Float[Array, "c N P"]:
    """∇ log p(y, ψ) at N points of each client."""

    def slopes(part: Density, rows: Array) -> Array:
        return part.without_padding().value_and_gradient(rows)[1]

    found = at_points(objective, points, slopes)
    return np.concatenate(found).reshape(points.shape)


def heights(objective: Density, points: Float[Array, "c N P"]) -> Height:
    """log p(y, ψ) and the weights' means at N points of each client; covariances are left out."""
    found = at_points(objective, points, lambda part, rows: part.heights(rows)[:2])
    shape = points.shape[:2]
    value = np.concatenate([each[0] for each in found]).reshape(shape)
    mean = np.concatenate([each[1] for each in found])
    return Height(value, mean.reshape(*shape, -1))
