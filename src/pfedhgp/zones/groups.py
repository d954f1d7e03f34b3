"""Groups of clients from squared distances: the grouping, the number of groups, and how stable it is.

Clients are sorted by name, so labels do not depend on the order in which they came.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import fcluster, leaves_list, linkage, optimal_leaf_ordering
from scipy.spatial.distance import squareform

from pfedhgp.base.checks import one_of
from pfedhgp.errors import InputError

METHODS = ("agglomerative", "average", "spectral")
CHOICES = ("eigengap", "silhouette")
DEFAULT_METHOD = {"function": "agglomerative", "loadings": "average", "operator": "spectral"}
"""By what is compared; for operators it is the paper's choice."""


def group(squared: np.ndarray, count: int, method: str) -> np.ndarray:
    """Labels 0 … count − 1, numbered by the first client of each group."""
    n = len(squared)
    one_of(*METHODS)(method, "method")
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or not 1 <= count <= n:
        raise InputError(f"`groups` must be a whole number from 1 to {n} (clients), got {count!r}")
    if count == 1:
        return np.zeros(n, int)
    if count == n:
        return np.arange(n)
    if method == "spectral":
        return renumbered(_spectral(squared, count))
    return renumbered(fcluster(tree(squared, method), count, "maxclust"))


def tree(squared: np.ndarray, method: str = "agglomerative") -> np.ndarray:
    """SciPy's linkage matrix with similar leaves side by side: Ward's of distances, or average of squares."""
    flat = squareform(_symmetric(squared), checks=False)
    found = linkage(flat, "average") if method == "average" else linkage(np.sqrt(flat), "ward")
    return optimal_leaf_ordering(found, flat) if len(squared) > 2 else found


def leaf_order(squared: np.ndarray, method: str = "agglomerative") -> np.ndarray:
    """The order of a dendrogram's leaves."""
    return leaves_list(tree(squared, method)) if len(squared) > 1 else np.zeros(1, int)


def affinity(squared: np.ndarray) -> np.ndarray:
    """exp(−d²/median d²)"""
    off = squared[~np.eye(len(squared), dtype=bool)]
    middle = float(np.median(off))
    return np.exp(-_symmetric(squared) / (middle if middle > 0 else 1.0))


def _spectral(squared: np.ndarray, count: int) -> np.ndarray:
    from sklearn.cluster import SpectralClustering

    model = SpectralClustering(count, affinity="precomputed", random_state=0, n_init=50)
    return model.fit_predict(affinity(squared))


def choose_count(squared: np.ndarray, method: str, choice: str) -> tuple[int, dict[int, float]]:
    """The number of groups with the largest eigengap or mean silhouette, and the score of each number.

    With fewer than three clients there is nothing to choose from: one group, and no scores.
    """
    n = len(squared)
    one_of(*CHOICES)(choice, "choose")
    if n < 3:
        return 1, {}
    candidates = range(2, min(n - 1, 10) + 1)
    if choice == "eigengap":
        A = affinity(squared)
        root = 1.0 / np.sqrt(A.sum(1))
        values = np.sort(np.linalg.eigvalsh(root[:, None] * A * root[None, :]))[::-1]
        scores = {k: float(values[k - 1] - values[k]) for k in candidates}
    else:
        distance = np.sqrt(_symmetric(squared))
        scores = {k: silhouette(distance, group(squared, k, method)) for k in candidates}
    return max(scores, key=lambda k: scores[k]), scores


def silhouette(distance: np.ndarray, labels: np.ndarray) -> float:
    """Mean over clients of (b − a)/max(a, b); a client alone in its group counts 0."""
    scores = []
    for i, label in enumerate(labels):
        own = (labels == label) & (np.arange(len(labels)) != i)
        if not own.any():
            scores.append(0.0)
            continue
        a = distance[i, own].mean()
        b = min(distance[i, labels == other].mean() for other in set(labels) - {label})
        scores.append((b - a) / max(a, b, 1e-300))
    return float(np.mean(scores))


def shared_membership(labellings: Sequence[np.ndarray]) -> np.ndarray:
    """How often two clients are in the same group, over labellings."""
    return np.mean([labels[:, None] == labels[None, :] for labels in labellings], axis=0)


def agreement(one: npt.ArrayLike, two: npt.ArrayLike) -> float:
    """The adjusted Rand index of two labellings: 1 is equal, 0 is chance."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(one, two))


def stability(reference: np.ndarray, others: Sequence[np.ndarray]) -> float:
    """Mean adjusted Rand index of the other labellings with the reference."""
    return float(np.mean([agreement(reference, labels) for labels in others]))


def squared_distances(sketches: np.ndarray, extra: np.ndarray) -> np.ndarray:
    """|s_i − s_j|²/k + v_i + v_j; 0 on the diagonal."""
    gram = sketches @ sketches.T
    norms = np.diag(gram)
    squared = np.maximum(norms[:, None] + norms[None, :] - 2.0 * gram, 0.0) / sketches.shape[1]
    squared = squared + extra[:, None] + extra[None, :]
    np.fill_diagonal(squared, 0.0)
    return squared


def renumbered(labels: np.ndarray) -> np.ndarray:
    """The same groups, numbered by first occurrence."""
    seen: dict[int, int] = {}
    return np.array([seen.setdefault(int(label), len(seen)) for label in labels])


def _symmetric(squared: np.ndarray) -> np.ndarray:
    out = 0.5 * (squared + squared.T)
    np.fill_diagonal(out, 0.0)
    return out
