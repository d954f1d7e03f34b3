"""Many rows in narrow cells become few weighted rows, before training: no evaluation depends on n.

Within a cell of widths w a function moves by E[f(x) − f(x̄)]² ≈ 2 Σ_j (k(0) − k(w_j/√12 e_j)). To the model
that looks like more noise. Cells are so narrow that it is at most a small `SHARE` of the noise's variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pfedhgp.base.batching import on_numpy
from pfedhgp.data.rows import ClientRows, merge, numbered
from pfedhgp.gp.kernels import Kernel
from pfedhgp.inference.starts.candidates import Start
from pfedhgp.model.spec import Spec, starting_kernels

SHARE = 0.05
"""The most that functions may move within a cell, in variances of the noise: σ² too large by a share s costs
s²/4 nats a cell."""
FEW = 8192
"""A client with no more rows keeps them as they are."""
MOST = 4096
"""As many rows may be left where wider cells would do: narrower ones allow for shorter lengthscales."""
WORTH = 3
"""Rows are merged only if this many times fewer are left."""
RESOLVED = 256
"""About the most inducing inputs that a layer has"""
NO_SHARE = 1e-9
"""Cells need not be narrower than this share asks for: inputs are equal, or as good as equal."""
WIDTHS = 0.5 ** np.arange(20, -1, -1)
"""From a millionth of the domain to all of it"""

FARTHEST = 2.0**20
"""In widths of the domain: cells of rows farther away than this have no number."""


class Layer(NamedTuple):
    """Stacked unit kernels (inputs in the unit box) of functions with this variance."""

    kernels: Kernel
    variance: float


def merge_rows(client: ClientRows, spec: Spec, start: Start, extent: np.ndarray) -> ClientRows:
    """The client's rows (scaled), merged cell by cell if there are many and cells hold several.

    Cells are the narrowest that leave at most `MOST` rows, and no wider than `SHARE` allows. A state-space
    layer needs each row at its own time, and whole cycles are merged already.
    """
    n = len(client.X)
    if n <= FEW or spec.state_space or client.cycles is not None:
        return client
    if np.abs(client.X).max() > FARTHEST:
        return client
    moved = movement(layers_of(spec, start, extent), client.X.shape[1])
    found, share = None, SHARE
    while share > NO_SHARE:
        cells = grid_cells(client.X, widest(moved, share * start.noise_variance))
        left = int(cells.max()) + 1
        if left * WORTH > n or (found is not None and left > MOST):
            break
        found, share = cells, 0.25 * share  # half as wide if functions are smooth
    if found is None:
        return client
    merged = merge(client, found, apart=spec.noise == "full")
    return merged if len(merged.X) * WORTH <= n else client


def layers_of(spec: Spec, start: Start, extent: np.ndarray) -> list[Layer]:
    """The model's layers at a start: global and deviation together, and local.

    Functions faster than inducing inputs can follow (half their distance in a full box) are not in the model.
    """
    layers, shortest = [], 0.5 * RESOLVED ** (-1.0 / spec.inputs)
    for kernel, scale, variance, count in (
        (spec.kernel, start.shared, start.shared_variance, spec.latents),
        (spec.local_kernel, start.local, start.local_variance, spec.local_latents),
    ):
        if count:
            longer = max(scale, shortest)
            kernels = starting_kernels(kernel, scale=longer, count=count, extent=extent)
            layers.append(Layer(kernels, variance))
    return layers


def movement(layers: Sequence[Layer], inputs: int) -> np.ndarray:
    """(d, W): how much functions move within a cell of each of `WIDTHS` along each input."""
    total = np.zeros((inputs, len(WIDTHS)))
    for j in range(inputs):
        at = np.zeros((len(WIDTHS), inputs))
        at[:, j] = WIDTHS / np.sqrt(12.0)
        for kernels, variance in layers:
            k = np.asarray(on_numpy(kernels)(np.zeros((1, inputs)), at, stacked=1))
            total[j] += 2.0 * variance * (1.0 - k[:, 0].min(axis=0))
    return np.maximum.accumulate(total, axis=1)  # a wave's kernel comes back to one


def widest(moved: np.ndarray, allowed: float) -> np.ndarray:
    """The largest of `WIDTHS` along each input so that all inputs together move functions by `allowed`."""
    fine = (moved <= allowed / len(moved)).sum(axis=1)
    return WIDTHS[np.maximum(fine - 1, 0)]


def grid_cells(X: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """The number of each row's cell on the grid of these widths."""
    return numbered(np.floor(X / widths).astype(np.int64))
