"""What the figures of one client show, as arrays: predictions on grids, and the rows that lie on them.

With one input a view runs along it. With several there is a view along each, the others held at one place
for all clients: the median of the rows, or the middle of the agreed domain where no rows are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pfedhgp.data.rows import ClientRows
from pfedhgp.gp.kernels import Kernel, Periodic, leaves_of
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.prediction import Prediction, predict
from pfedhgp.report.words import InputAxis, axes_of

LARGEST, FEWEST_POINTS, MOST_POINTS = 12, 160, 512
NEAR = 0.1
"""A slice shows the rows whose other inputs are within this share of the domain."""


@dataclass(frozen=True, eq=False)
class Slice:
    """One client along one input: the prediction there, and the rows near it."""

    axis: InputAxis
    x: np.ndarray
    prediction: Prediction
    at: tuple[tuple[InputAxis, float], ...] = ()
    """the other inputs and their values"""
    points: tuple[np.ndarray, np.ndarray] | None = None
    held_out: tuple[np.ndarray, np.ndarray] | None = None
    others: tuple[np.ndarray, np.ndarray] | None = None
    """rows of which it is not known whether they were in the fit"""


@dataclass(frozen=True, eq=False)
class ClientView:
    """All slices of one client."""

    name: str
    slices: tuple[Slice, ...]


def choose(clients: Sequence[str], errors: Mapping[str, float], limit: int = LARGEST) -> list[str]:
    """At most `limit` clients: all, or evenly spread by error, or by order if errors are unknown."""
    if len(clients) <= limit:
        return list(clients)
    if all(name in errors for name in clients):
        clients = sorted(clients, key=lambda name: errors[name])
    return [clients[i] for i in np.linspace(0, len(clients) - 1, limit).round().astype(int)]


def finest_scale(model: FittedModel, names: Sequence[str], column: int) -> float:
    """The shortest lengthscale, or period, along an input, as a part of the domain."""
    kernels = [model.shared.block.kernels, *(model.clients[n].block.kernels for n in names)]
    found = [s for kernel in kernels for s in _scales(kernel, column)]
    return min(found, default=1.0)


def grid_size(finest: float) -> int:
    """Twelve points per finest scale, within limits."""
    return int(np.clip(np.ceil(12.0 / max(finest, 1e-6)), FEWEST_POINTS, MOST_POINTS))


def view_client(
    model: FittedModel,
    name: str,
    *,
    points: Sequence[int],
    centre: np.ndarray | None = None,
    rows: ClientRows | None = None,
    held_out: ClientRows | None = None,
    others: ClientRows | None = None,
) -> ClientView:
    """Predicts along every input, with `points[j]` points along input j, the others held at `centre`."""
    axes = axes_of(model)
    lower, upper = (np.asarray(v, np.float64) for v in (model.scaling.lower, model.scaling.upper))
    if centre is None:
        centre = 0.5 * (lower + upper)
    slices = []
    for j, axis in enumerate(axes):
        X = np.tile(centre, (points[j], 1))
        X[:, j] = np.linspace(lower[j], upper[j], points[j])
        p = predict(model, name, X)
        near = [_near(r, centre, j, upper - lower) for r in (rows, held_out, others)]
        held_at = tuple((axes[k], float(centre[k])) for k in range(len(axes)) if k != j)
        slices.append(Slice(axis, X[:, j], p, held_at, *near))
    return ClientView(name, tuple(slices))


def _near(
    rows: ClientRows | None, centre: np.ndarray, j: int, extent: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    if rows is None or not len(rows.X):
        return None
    gap = np.abs(rows.X - centre) / np.where(extent > 0, extent, 1.0)
    close = np.all(np.delete(gap, j, axis=1) <= NEAR, axis=1)
    return rows.X[close, j], rows.Y[close]


def _scales(kernel: Kernel, column: int) -> list[float]:
    found: list[float] = []
    for leaf in leaves_of(kernel):
        if leaf.dims is not None and column not in leaf.dims:
            continue
        place = column if leaf.dims is None else leaf.dims.index(column)
        values = np.asarray(leaf.period if isinstance(leaf, Periodic) else leaf.lengthscale)
        if values.size:
            found += (values[:, place] if values.ndim == 2 else values).tolist()
    return found
