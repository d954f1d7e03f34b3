"""How many inducing inputs, and where: as few as leave no variance that the noise would notice.

A layer's residual costs ½ Σ res/σ² nats. For the global layer the server places inputs in the agreed domain
without seeing a row; a client places its own among its rows. Both start from the starting lengthscales and
grow while the residual that training reports is above `NATS` per client.
"""

from __future__ import annotations

import jax
import numpy as np

from pfedhgp.base.arrays_of import Array, namespace
from pfedhgp.base.batching import batchable, on_numpy
from pfedhgp.errors import BudgetWarning, warn_caller
from pfedhgp.gp.features import Basis
from pfedhgp.gp.kernels import Kernel

NATS = 0.5
MARGIN = 0.1
"""Starting budgets aim at this part of NATS, since lengthscales may shrink while training."""
SIZES = (4, 8, 12, 20, 32, 48, 72, 100, 150, 200, 300, 400, 512)
CLOSEST = 1e-4
"""No floor on a lengthscale is lower, in the unit box: rows may coincide along one of several inputs."""
ALL_ROWS = 64
"""A client with at most this many distinct inputs has an inducing input at each, so its layer is exact."""


def tolerance(noise_variance: float, layer_variance: float, cells: float) -> float:
    """The mean residual variance at which a client's `cells` cost MARGIN · NATS."""
    return 2.0 * MARGIN * NATS * noise_variance / (max(cells, 1.0) * layer_variance)


def round_up(size: int) -> int:
    """The next size of the ladder, so that few shapes are compiled."""
    return next((s for s in SIZES if s >= size), -(-size // 128) * 128)


def box_points(size: int, dimensions: int) -> np.ndarray:
    """`size` points that fill the unit box: a grid in one dimension, a Halton sequence in more."""
    if dimensions == 1:
        return np.linspace(0.0, 1.0, size)[:, None] if size > 1 else np.full((1, 1), 0.5)
    from scipy.stats import qmc  # half a second to import, and most data have one input

    return qmc.Halton(dimensions, scramble=False).random(size + 1)[1:]


def distinct_rows(X: np.ndarray) -> np.ndarray:
    """The different rows, in order; a single column sorts thirty times faster than rows do."""
    return np.unique(X, axis=0) if X.shape[1] > 1 else np.unique(X[:, 0])[:, None]


def spacing(X: np.ndarray) -> np.ndarray:
    """Half the distance of neighbouring rows along each input, if the distinct ones filled their own box."""
    count = len(distinct_rows(X))
    width = np.ptp(X, axis=0) if count > 1 else np.zeros(X.shape[1])
    return np.maximum(0.5 * width * max(count - 1, 1) ** (-1.0 / X.shape[1]), CLOSEST)


def residual(kernels: Kernel, Z: np.ndarray, X: np.ndarray, jitter: float) -> float:
    """Mean over latents and rows of k(x, x) − |a(x)|²."""
    return float(_residual(kernels, Z, X, np.float64(jitter)))


def box_residual(kernels: Kernel, Z: np.ndarray, jitter: float) -> float:
    """The same over the unit box."""
    probe = box_points(401 if Z.shape[1] == 1 else 1000, Z.shape[1])
    return residual(kernels, Z, probe, jitter)


@batchable(effort="lowest", host=True)
def _residual(kernels: Kernel, Z: Array, X: Array, jitter: float) -> Array:
    basis = Basis.build(kernels, Z, jitter)
    left = basis.residual(basis.features(X))
    return namespace(left).mean(left)


def domain_budget(
    kernels: Kernel, dimensions: int, tolerance: float, cap: int, jitter: float
) -> np.ndarray:
    """The smallest set of the ladder whose mean residual over the unit box is at most `tolerance`.

    Jitter leaves about as much as itself, however many there are: less is not asked for.
    """
    tolerance = max(tolerance, jitter)
    for size in SIZES:
        Z = box_points(min(size, cap), dimensions)
        if size >= cap or box_residual(kernels, Z, jitter) <= tolerance:
            return Z
    return box_points(cap, dimensions)


def local_inputs(
    name: str,
    kernels: Kernel,
    X: np.ndarray,
    wanted: int | str,
    *,
    tolerance: float,
    largest: int,
    say: bool = True,
) -> np.ndarray:
    """A client's own inducing inputs in the unit box: "auto" or a number, all distinct ones if they are few.

    "auto": enough that the residual is below `tolerance`, by a greedy choice.
    """
    distinct = distinct_rows(X)
    count = len(distinct)
    if isinstance(wanted, str):
        return distinct if count <= ALL_ROWS else greedy_rows(kernels, X, tolerance, largest)
    if wanted <= count:
        return spread_rows(kernels, X, wanted)
    if say:
        plural = "" if count == 1 else "s"
        warn_caller(
            f"client {name!r} has {count} distinct input{plural}: "
            f"{count} local inducing input{plural} instead of {wanted}",
            BudgetWarning,
        )
    return distinct


def spread_rows(kernels: Kernel, X: np.ndarray, count: int) -> np.ndarray:
    """`count` inputs among a client's own rows: quantiles along one input, a greedy choice among several."""
    if X.shape[1] > 1:
        return greedy_rows(kernels, X, 0.0, count)
    distinct = distinct_rows(X)
    return distinct[np.unique(np.linspace(0, len(distinct) - 1, count).round().astype(int))]


def greedy_rows(kernels: Kernel, X: np.ndarray, tolerance: float, cap: int) -> np.ndarray:
    """Rows chosen one by one where the residual is largest (pivoted Cholesky), until its mean is small."""
    X = distinct_rows(X)
    if len(X) > 2000:
        X = X[np.linspace(0, len(X) - 1, 2000).astype(int)]
    if len(X) <= cap and len(X) <= SIZES[-1]:
        cap = len(X)
    latents = jax.tree.leaves(kernels)[0].shape[0]
    matrix = on_numpy(kernels)(X, X, stacked=1)
    left = np.ones((latents, len(X)))
    factors = np.zeros((latents, len(X), min(cap, len(X))))
    chosen: list[int] = []
    for step in range(min(cap, len(X))):
        total = left.mean(0)
        if step and total.mean() <= tolerance:
            break
        pivot = int(np.argmax(total))
        if total[pivot] <= 1e-10:
            break
        chosen.append(pivot)
        for r in range(latents):
            if left[r, pivot] <= 1e-12:
                continue
            done = factors[r, :, :step]
            column = (matrix[r, :, pivot] - done @ done[pivot]) / np.sqrt(left[r, pivot])
            factors[r, :, step] = column
            left[r] = np.maximum(left[r] - column**2, 0.0)
    return X[np.sort(chosen)]
