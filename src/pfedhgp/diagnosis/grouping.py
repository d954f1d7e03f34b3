"""Groups of points whose number the evidence decides: one group, each alone, or anything between.

    x_u = m_g + noise,   m_g ~ N(0, κ σ²),   noise ~ N(0, σ²)          unit u of group g, r directions
    log p = −½ Σ_g [SS_g + n_g |x̄_g|²/(1 + n_g κ)]/σ² − (r/2) Σ_g log(1 + n_g κ) + Σ_g log Γ(n_g)

SS_g is the sum of squares about the group's mean. The last term is the Chinese restaurant's prior over
partitions, with weight one for a new group. Groups are joined by Ward's rule, which costs least SS. Of all
numbers of groups and all κ, those of highest evidence are taken.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
RATIOS = np.geomspace(1e-3, 1e9, 49)
"""κ"""
REFINED = 20
"""Up to this many groups, units then move to the nearest group until none does."""
PASSES = 20


def grouped(points: FloatArray, noise: float) -> IntArray:
    """The group of each of U points (U, r) with noise of variance σ² = `noise`, numbered from the largest."""
    x = (points - points.mean(axis=0)) / np.sqrt(noise)
    found = [np.zeros(len(x), np.int64), np.arange(len(x))]
    if len(x) > 2:
        found += _levels(x)
    best = max(found, key=lambda labels: float(evidence(x, labels).max()))
    return by_size(best)


def evidence(x: FloatArray, labels: IntArray) -> FloatArray:
    """log p at each of `RATIOS`, up to a constant, of points with unit noise."""
    _, place, n = np.unique(labels, return_inverse=True, return_counts=True)
    sums = np.zeros((len(n), x.shape[1]))
    np.add.at(sums, place, x)
    size = np.sum(sums**2, axis=1) / n
    within = float(np.sum(x**2) - size.sum())
    grown = 1.0 + n[:, None] * RATIOS
    between = np.sum(size[:, None] / grown + x.shape[1] * np.log(grown), axis=0)
    return np.asarray(-0.5 * (within + between) + np.sum(gammaln(n)))


def by_size(labels: IntArray) -> IntArray:
    """The same groups, numbered from the largest; of equal ones, the first to appear comes first."""
    _, first, place, n = np.unique(
        labels, return_index=True, return_inverse=True, return_counts=True
    )
    rank = np.empty(len(n), np.int64)
    rank[np.lexsort((first, -n))] = np.arange(len(n))
    return np.asarray(rank[place])


def _levels(x: FloatArray) -> list[IntArray]:
    """Partitions of a tree by Ward's rule: the best as they are, and all of few groups after moves."""
    from scipy.cluster.hierarchy import fcluster, linkage

    tree = linkage(x, "ward")
    count = min(REFINED, len(x) - 1)
    out = [
        _moved(x, np.asarray(fcluster(tree, groups, "maxclust"), np.int64))
        for groups in range(2, count + 1)
    ]
    best = _best_level(x, tree)
    return [*out, np.asarray(fcluster(tree, best, "maxclust"), np.int64)]


def _best_level(x: FloatArray, tree: FloatArray) -> int:
    """The number of groups of highest evidence, without moves: one merge after another."""
    U, r = x.shape
    sums = np.concatenate([x, np.zeros((U - 1, r))])
    n = np.concatenate([np.ones(U), np.zeros(U - 1)])

    def part(g: int) -> FloatArray:
        size, grown = float(np.sum(sums[g] ** 2)) / n[g], 1.0 + n[g] * RATIOS
        return np.asarray(-0.5 * (size / grown - size + r * np.log(grown)) + gammaln(n[g]))

    total = np.sum([part(u) for u in range(U)], axis=0)
    best, groups = float(total.max()), U
    for step, (a, b) in enumerate(tree[:, :2].astype(int)):
        new = U + step
        sums[new], n[new] = sums[a] + sums[b], n[a] + n[b]
        total = total + part(new) - part(a) - part(b)
        if total.max() > best:
            best, groups = float(total.max()), U - step - 1
    return groups


def _moved(x: FloatArray, labels: IntArray) -> IntArray:
    """Units go to the group with the nearest mean, until none moves; empty groups vanish."""
    for _ in range(PASSES):
        _, place, n = np.unique(labels, return_inverse=True, return_counts=True)
        means = np.zeros((len(n), x.shape[1]))
        np.add.at(means, place, x)
        means /= n[:, None]
        near = np.argmin(np.sum(means**2, axis=1) - 2.0 * x @ means.T, axis=1)
        if np.array_equal(near, place):
            break
        labels = near
    return labels
