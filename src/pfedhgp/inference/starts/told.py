"""How much a client may tell of its rows, and how much it was asked to tell.

The statistics at R latents and M inducing inputs have c(c + 1)/2 numbers for each of V outputs that depend on
the inputs of the rows, c = R M. If they are about as many as the rows, whoever has them can solve for the
rows. So they are at most half as many:

    c ≤ n/3   and   V c(c + 1) ≤ n

where c counts what all requests ask together. Requests at other inducing inputs or kernels ask about other
functions of the inputs: c is the dimension of all of them, on a public grid, but for what is smaller than
`TINY`. Anybody can compute it who has seen the requests; no row is needed. This is the arithmetic of the
rule; `federation.telling` has clients that refuse by it, and a server that plans within it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from pfedhgp.base.batching import on_numpy
from pfedhgp.gp.features import Basis
from pfedhgp.gp.kernels import Kernel
from pfedhgp.inference.starts.budget import box_points

LEAST_ROWS = 5
"""A count, a sum or a mean stands for at least so many rows or pairs."""
TELLS_FROM = 30
"""A client with fewer rows answers no statistics: it could tell little without giving rows away."""
SPARED = 0.1
"""Clients with so small a part of all rows may be left out, so that the others can tell more."""
TINY = 1e-3
"""What a request adds counts if its size, as root mean square over the domain, is more than this."""
GRID, GRID_SEVERAL = 512, 2048
"""Points of the grid: of one input, and of several."""
STEP = 1e-4
"""Of the differences that give derivatives in the logarithm of a kernel's parameter."""


def most_told(rows: int, outputs: int = 1) -> int:
    """The largest c that a client with `rows` rows answers, with the V `outputs` of its statistics.

    >>> [most_told(rows) for rows in (20, 30, 60, 200, 1000, 10_000)]
    [0, 5, 7, 13, 31, 99]
    """
    if rows < TELLS_FROM:
        return 0
    root = int((np.sqrt(4.0 * rows / outputs + 1.0) - 1.0) / 2.0)
    return min(root, rows // 3)


def rows_needed(c: int, outputs: int = 1) -> int:
    """The fewest rows with which a client answers c.

    >>> [rows_needed(c) for c in (1, 7, 13)]
    [30, 56, 182]
    """
    return max(TELLS_FROM, 3 * c, outputs * c * (c + 1))


def usable_rows(Y: np.ndarray) -> int:
    """Rows of the output that was observed least often, of those that were observed at all."""
    seen = np.isfinite(Y).sum(axis=0)
    return int(seen[seen > 0].min(initial=len(Y)))


def allowance(by_client: Sequence[int], outputs: int, asked: int = 0) -> int:
    """The largest c that a server asks for, from its clients' numbers of rows.

    Of those that can answer anything, all can answer it but for the smallest: at most half of them, which
    have no more than `SPARED` of all rows. If `asked` is smaller, whoever can answer that counts too.
    """
    rows = np.sort([n for n in by_client if most_told(n, outputs)])
    if not len(rows):
        return 0
    small = np.cumsum(rows) <= SPARED * rows.sum()
    small[len(rows) // 2 :] = False
    found = most_told(int(rows[~small][0]), outputs)
    able = [c for c in (most_told(int(n), outputs) for n in rows) if c >= max(asked, 1)]
    return min([found, *able]) if asked and able else found


@dataclass(frozen=True)
class Question:
    """What statistics are about: shared kernels, inducing inputs, and whether slopes are asked for too."""

    kernels: Kernel
    inputs: np.ndarray
    jitter: float
    slopes: bool = False
    """Whether the reply has derivatives in the kernels' parameters"""

    @property
    def size(self) -> int:
        """R M"""
        if not len(self.inputs):
            return 0
        first = self.inputs[:1]
        return int(on_numpy(self.kernels)(first, first, stacked=1).shape[0]) * len(self.inputs)

    def functions(self) -> np.ndarray:
        """The functions of the inputs that it is about, on the grid: (points, functions)."""
        d = self.inputs.shape[1]
        grid = box_points(GRID if d == 1 else GRID_SEVERAL, d)
        found = [_features(self.kernels, self.inputs, self.jitter, grid)]
        if self.slopes:
            leaves, tree = jax.tree.flatten(on_numpy(self.kernels))
            for i, leaf in enumerate(leaves):
                ends = []
                for sign in (1.0, -1.0):
                    moved = [*leaves[:i], leaf * np.exp(sign * STEP), *leaves[i + 1 :]]
                    kernels = jax.tree.unflatten(tree, moved)
                    ends.append(_features(kernels, self.inputs, self.jitter, grid))
                found.append((ends[0] - ends[1]) / (2.0 * STEP))
        return np.concatenate(found, axis=1)


def _features(kernels: Kernel, Z: np.ndarray, jitter: float, grid: np.ndarray) -> np.ndarray:
    found = np.asarray(Basis.build(on_numpy(kernels), Z, np.float64(jitter)).features(grid))
    return found.reshape(-1, found.shape[-1]).T


def nothing(inputs: int) -> np.ndarray:
    """Before the first question: no directions."""
    return np.zeros((GRID if inputs == 1 else GRID_SEVERAL, 0))


def with_questions(told: np.ndarray, questions: Iterable[Question]) -> np.ndarray:
    """The directions (points, c) of all that was asked: those of `told`, and what `questions` add."""
    for question in questions:
        if not question.size:
            continue
        functions = question.functions() / np.sqrt(len(told))
        new = functions - told @ (told.T @ functions)
        vectors, sizes, _ = np.linalg.svd(new, full_matrices=False)
        told = np.concatenate([told, vectors[:, sizes > TINY]], axis=1)
    return told


def counted(told: np.ndarray, questions: Sequence[Question]) -> tuple[int, np.ndarray]:
    """c after the `questions` of one request, and the directions: no less than the sum of their R M."""
    after = with_questions(told, questions)
    return max(after.shape[1], sum(each.size for each in questions)), after
