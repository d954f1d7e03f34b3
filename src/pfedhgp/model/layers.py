"""Which layers a model has, how large they are, and how much of a client's variation each explains.

About the common centre c of an output, f − c = f_g' + f_δ + f_l over a grid, and

    share_b = mean_x f_b (f − c) / (mean_x (f − c)² + σ²),   share_noise = σ² / (mean_x (f − c)² + σ²)

of the posterior means. Shares add up to one; the share of a layer that acts against the sum is negative.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pfedhgp.model.blocks import deviation_loadings
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.prediction import Prediction

PARTS = ("global", "deviation", "local", "noise")


def layers_of(model: FittedModel) -> tuple[str, ...]:
    """The layers that the model has."""
    shared = model.shared.block.loadings.shape[1] > 0
    local = any(c.block.loadings.shape[1] for c in model.clients.values())
    there = (shared, shared and model.structure.deviation, local)
    return tuple(n for n, has in zip(("global", "deviation", "local"), there, strict=True) if has)


def noise_covariance(model: FittedModel, client: str) -> np.ndarray:
    """Σ (Q, Q) of a client's noise, in scaled units: with a cycle layer, what varies within a cycle."""
    layer = model.layer_of(client)
    if layer is not None:
        return np.asarray(layer.noise, np.float64)
    return np.asarray(model.clients[client].block.noise.covariance(model.outputs), np.float64)


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


def shares(predictions: Sequence[Prediction], centre: np.ndarray) -> np.ndarray:
    """(Q, 4): the shares of `PARTS` for one client, over the inputs of all its predictions."""
    total = np.concatenate([p.mean for p in predictions]) - centre
    power = np.mean(total**2, axis=0)
    noise = np.mean(np.concatenate([_noise(p) for p in predictions]), axis=0)
    parts = []
    for name in PARTS[:3]:
        layer = np.concatenate([p.layers[name].mean for p in predictions])
        parts.append(np.mean((layer - centre if name == "global" else layer) * total, axis=0))
    whole = np.where(power + noise > 0, power + noise, 1.0)
    return np.stack([*parts, noise], axis=1) / whole[:, None]


def _noise(p: Prediction) -> np.ndarray:
    """σ² at each cell: the variance of an observation less that of the function."""
    function = np.diagonal(p.covariance("outputs", noise=False), axis1=1, axis2=2)
    return np.maximum(p.sd**2 - function, 0.0)
