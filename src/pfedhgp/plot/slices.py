"""A client's prediction along one input, and the rows near it.

With one input a client's prediction runs along it. With several there is a slice along each, the others held
at one place for all clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pfedhgp.data.rows import ClientRows
from pfedhgp.gp.kernels import Kernel, Periodic, leaves_of
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.prediction import Prediction, predict
from pfedhgp.model.words import InputAxis, axes_of

FEWEST_POINTS, MOST_POINTS = 160, 512
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


def finest_scale(model: FittedModel, names: Sequence[str], column: int) -> float:
    """The shortest lengthscale, or period, along an input, as a part of the domain."""
    kernels = [model.shared.block.kernels, *(model.clients[n].block.kernels for n in names)]
    found = [s for kernel in kernels for s in _scales(kernel, column)]
    return min(found, default=1.0)


def grid_size(finest: float) -> int:
    """Twelve points per finest scale, within limits."""
    return int(np.clip(np.ceil(12.0 / max(finest, 1e-6)), FEWEST_POINTS, MOST_POINTS))


def slices_of(
    model: FittedModel,
    name: str,
    *,
    points: Sequence[int],
    centre: np.ndarray | None = None,
    rows: Sequence[ClientRows | None] = (),
) -> list[Slice]:
    """Predicts along every input, with `points[j]` points along input j, the others held at `centre`.

    `rows` are those of the fit, those held out, and others.
    """
    lower, upper = domain_of(model)
    if centre is None:
        centre = 0.5 * (lower + upper)
    return [
        slice_of(model, name, j, np.linspace(lower[j], upper[j], points[j]), centre, rows)
        for j in range(model.inputs)
    ]


def slice_of(
    model: FittedModel,
    name: str,
    j: int,
    x: np.ndarray,
    centre: np.ndarray,
    rows: Sequence[ClientRows | None] = (),
) -> Slice:
    """The prediction at places `x` of input j, the other inputs held at `centre`."""
    axes = axes_of(model)
    lower, upper = domain_of(model)
    X = np.tile(centre, (len(x), 1))
    X[:, j] = x
    near = [_near(r, centre, j, upper - lower) for r in rows]
    held_at = tuple((axes[k], float(centre[k])) for k in range(len(axes)) if k != j)
    return Slice(axes[j], X[:, j], predict(model, name, X), held_at, *near)


def domain_of(model: FittedModel) -> tuple[np.ndarray, np.ndarray]:
    """Where the agreed domain begins and ends, (d,) each, in the data's units."""
    lower, upper = (np.asarray(v, np.float64) for v in (model.scaling.lower, model.scaling.upper))
    return lower, upper


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
