"""What was fitted and what was sent, in words and in the data's own units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from pfedhgp.gp.kernels import Kernel, Periodic, Product, RationalQuadratic, Scaled, Sum, unstack
from pfedhgp.model.blocks import deviation_loadings
from pfedhgp.model.fitted import FittedModel
from pfedhgp.report.words import InputAxis, axes_of, number, percent

NAMES = {
    "RBF": "RBF",
    "Matern12": "Matérn 1/2",
    "Matern32": "Matérn 3/2",
    "Matern52": "Matérn 5/2",
    "RationalQuadratic": "rational quadratic",
    "Periodic": "periodic",
}


def layers_of(model: FittedModel) -> tuple[str, ...]:
    """The layers that the model has."""
    shared = model.shared.block.loadings.shape[1] > 0
    local = any(c.block.loadings.shape[1] for c in model.clients.values())
    there = (shared, shared and model.structure.deviation, local)
    return tuple(n for n, has in zip(("global", "deviation", "local"), there, strict=True) if has)


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


def layer_sizes(model: FittedModel, client: str | None = None) -> np.ndarray:
    """(Q, 4): prior standard deviations of global, deviation and local layers, and of the noise.

    In the data's units, for one client, or as root mean square over all clients.
    """
    spread = np.broadcast_to(model.scaling.spread, (model.outputs,))
    shared = model.shared.block
    kept = [model.clients[client]] if client is not None else list(model.clients.values())
    squares = []
    for posterior in kept:
        block = posterior.block
        loadings = (
            shared.loadings,
            deviation_loadings(model.structure, shared, block),
            block.loadings,
        )
        noise = np.diagonal(np.asarray(block.noise.covariance(model.outputs)))
        layers = [np.sum(np.asarray(B) ** 2, axis=1) for B in loadings]
        squares.append(np.stack([*layers, noise], axis=1))
    return np.sqrt(np.mean(squares, axis=0)) * spread[:, None]


@dataclass(frozen=True)
class Traffic:
    """Totals of all messages, by kind and by name of the array."""

    kinds: list[dict[str, Any]]
    arrays: list[dict[str, Any]]
    up: int
    down: int
    clients: int

    @property
    def per_client(self) -> float:
        return (self.up + self.down) / max(self.clients, 1)


def traffic(messages: Sequence[Mapping[str, Any]]) -> Traffic:
    """Adds up the message log; every array is float64, eight bytes per entry."""
    kinds: dict[str, dict[str, Any]] = {}
    arrays: dict[tuple[str, str], dict[str, Any]] = {}
    clients: set[str] = set()
    for m in messages:
        way = "up" if m["to"] == "server" else "down"
        if (client := m["from"] if way == "up" else m["to"]) != "all":
            clients.add(client)
        kind = m.get("kind", "message")
        row = kinds.setdefault(kind, {"kind": kind, "up": 0, "down": 0, "messages": 0})
        row[way] += sum(8 * prod(shape) for shape in m["arrays"].values())
        row["messages"] += 1
        for name, shape in m["arrays"].items():
            new = {"name": name, "way": way, "times": 0, "bytes": 0, "shape": shape, "kinds": []}
            entry = arrays.setdefault((way, name), new)
            entry["times"] += 1
            entry["bytes"] += 8 * prod(shape)
            if prod(shape) > prod(entry["shape"]):
                entry["shape"] = shape
            if kind not in entry["kinds"]:
                entry["kinds"].append(kind)
    ordered = sorted(arrays.values(), key=lambda e: (e["way"] == "down", -e["bytes"], e["name"]))
    total = {way: sum(row[way] for row in kinds.values()) for way in ("up", "down")}
    return Traffic(list(kinds.values()), ordered, total["up"], total["down"], len(clients))
