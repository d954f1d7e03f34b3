"""Fitted kernels in words, in the data's own units."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pfedhgp.gp.kernels import Kernel, Periodic, Product, RationalQuadratic, Scaled, Sum, unstack
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.words import InputAxis, axes_of, number, percent

NAMES = {
    "RBF": "RBF",
    "Matern12": "Matérn 1/2",
    "Matern32": "Matérn 3/2",
    "Matern52": "Matérn 5/2",
    "RationalQuadratic": "rational quadratic",
    "Periodic": "periodic",
}


def describe(kernel: Kernel, axes: Sequence[InputAxis], extent: np.ndarray) -> str:
    """One latent's kernel in words; `extent` converts lengths in the unit box to the data's units."""
    if isinstance(kernel, Scaled):
        return f"{number(kernel.variance)} × {describe(kernel.kernel, axes, extent)}"
    if isinstance(kernel, Sum):
        parts = [describe(part, axes, extent) for part in kernel.kernels]
        weights = np.asarray(kernel.weights).ravel()
        return " + ".join(f"{percent(w)} {part}" for w, part in zip(weights, parts, strict=True))
    if isinstance(kernel, Product):
        return " × ".join(describe(part, axes, extent) for part in kernel.kernels)
    dims: Any = getattr(kernel, "dims", None)
    columns = range(len(axes)) if dims is None else dims
    lengths = np.broadcast_to(np.asarray(getattr(kernel, "lengthscale", np.nan)), (len(columns),))
    words = []
    if isinstance(kernel, Periodic):
        periods = np.broadcast_to(np.asarray(kernel.period), (len(columns),))
        words.append("period " + _each(periods, columns, axes, extent))
        words.append("relative lengthscale " + ", ".join(number(v) for v in lengths))
    else:
        words.append("lengthscale " + _each(lengths, columns, axes, extent))
    if isinstance(kernel, RationalQuadratic):
        words.append(f"α {number(np.asarray(kernel.alpha).ravel()[0])}")
    return f"{NAMES.get(type(kernel).__name__, type(kernel).__name__)} ({', '.join(words)})"


def _each(
    values: Iterable[float], columns: Iterable[int], axes: Sequence[InputAxis], extent: np.ndarray
) -> str:
    several = len(axes) > 1
    return ", ".join(
        axes[j].length(float(v) * float(extent[j])) + (f" along {axes[j].label}" if several else "")
        for v, j in zip(values, columns, strict=True)
    )


def kernels_of(model: FittedModel, client: str | None = None) -> list[str]:
    """The kernels of a client's local layer, one for each latent; without a client, of the global layer."""
    block = model.shared.block if client is None else model.clients[client].block
    axes, extent = axes_of(model), np.asarray(model.scaling.extent)
    latents = range(block.loadings.shape[1])
    return [describe(unstack(block.kernels, r), axes, extent) for r in latents]
