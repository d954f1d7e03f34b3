"""Shared functions in a form that is always the same, so that they can be named: "shared 1", "shared 2", …

Functions are known up to order and sign, and up to a rotation if their kernels are equal: (c, g) and
(cT, Tᵀg) are then the same model. Within equal kernels T has the principal axes of Σ c cᵀ over clients and
outputs. The first function is the one that explains most, and mean loadings are positive.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from pfedhgp.base.trees import ravel
from pfedhgp.gp.kernels import Kernel, unstack
from pfedhgp.zones.loadings import Loadings

Array = np.ndarray
EQUAL = 1e-6
"""Kernels whose parameters are closer than this, relatively, are equal."""


class Named(NamedTuple):
    """T, where each column came from, and what it explains."""

    turn: Float[Array, "R R"]
    first: Float[Array, " R"]
    """for each named function, one that had its kernel"""
    shares: Float[Array, " R"]
    """of Σ c²Var(E[g]) over clients and outputs; they add up to 1"""


class Plane(NamedTuple):
    """Where clients lie along the two directions in which they differ most, in the output's spread."""

    places: Float[Array, "clients 2"]
    covariances: Float[Array, "clients 2 2"]
    shares: Float[Array, " 2"]
    """of the squared differences between clients"""
    most: tuple[int, int]
    """the named function that each direction has most of"""


def named(loadings: Loadings, kernels: Kernel) -> Named:
    """The order, signs and rotations that make names possible."""
    R = loadings.mean.shape[1]
    flat = loadings.numbers.reshape(-1, R)
    turn, first = np.zeros((R, R)), np.zeros(R, int)
    for members in _equal(kernels, R):
        values, vectors = np.linalg.eigh(flat[:, members].T @ flat[:, members])
        for at, k in zip(members, np.argsort(-values, kind="stable"), strict=True):
            turn[members, at] = vectors[:, k]
            first[at] = members[0]
    own = flat @ turn
    explained = (own**2).sum(0) * np.diagonal(turn.T @ loadings.gram @ turn)
    order = np.argsort(-explained, kind="stable")
    signs = np.where(own.mean(0) < 0, -1.0, 1.0)
    total = float(explained.sum())
    shares = explained[order] / total if total > 0 else np.full(R, 1.0 / R)
    return Named((turn * signs)[:, order], first[order], shares)


def _equal(kernels: Kernel, count: int) -> Iterator[list[int]]:
    """The functions of each kernel."""
    rows = np.stack([np.asarray(ravel(unstack(kernels, r))[0]) for r in range(count)])
    left = list(range(count))
    while left:
        gaps = np.abs(rows[left] - rows[left[0]]) / np.abs(rows[left[0]])
        members = [r for r, gap in zip(left, gaps, strict=True) if np.all(gap < EQUAL)]
        yield members
        left = [r for r in left if r not in members]


def plane(loadings: Loadings, names: Named) -> Plane:
    """Principal axes of the differences between clients, as distances measure them."""
    count = len(loadings.names)
    Q, R = loadings.mean.shape
    values, vectors = np.linalg.eigh(loadings.metric)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    points = loadings.numbers.reshape(count, -1) @ root
    points = points - points.mean(0)
    _, sizes, axes = np.linalg.svd(points, full_matrices=False)
    wide = np.zeros((2, Q * R))
    kept = min(2, len(sizes))
    wide[:kept] = axes[:kept]
    places = points @ wide.T
    furthest = places[np.argmax(np.abs(places), axis=0), [0, 1]]
    wide *= np.where(furthest < 0, -1.0, 1.0)[:, None]
    half = wide @ root
    total = float(np.sum(sizes**2))
    shares = np.zeros(2)
    shares[:kept] = sizes[:kept] ** 2 / total if total > 0 else 0.0
    parts = np.abs(half.reshape(2, Q, R) @ names.turn).sum(1)
    most = np.argmax(parts, axis=1)
    return Plane(
        points @ wide.T,
        np.einsum("ia,kab,jb->kij", half, loadings.covariances, half, optimize=True),
        shares,
        (int(most[0]), int(most[1])),
    )
