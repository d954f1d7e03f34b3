"""How much of a client's variation each layer carries, and signs that the answer is shaky.

About the common centre c of an output, f − c = f_g' + f_δ + f_l over a grid, and

    share_b = mean_x f_b (f − c) / (mean_x (f − c)² + σ²),   share_noise = σ² / (mean_x (f − c)² + σ²)

of the posterior means: shares add up to one, and one is negative where a layer works against the sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pfedhgp.predict import Prediction

__all__ = ["PARTS", "Evidence", "evidence", "shares", "signs_of_shakiness"]

PARTS = ("global", "deviation", "local", "noise")
FEW_CLIENTS, UNBALANCED, ALIKE, UNCERTAIN = 4, 10.0, 0.02, 1.0


def shares(predictions: Sequence[Prediction], centre: np.ndarray) -> np.ndarray:
    """(Q, 4): the shares of `PARTS` for one client, over all its predictions' inputs."""
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
    """σ² at each cell: what an observation's variance has over the function's."""
    function = np.diagonal(p.covariance("outputs", noise=False), axis1=1, axis2=2)
    return np.maximum(p.sd**2 - function, 0.0)


@dataclass(frozen=True)
class Evidence:
    """What is known about how well global and deviation can be told apart."""

    clients: int
    rows: Mapping[str, int]
    deviation_share: float
    deviation_uncertainty: float
    """Mean posterior variance of the deviations over the mean square of their means."""
    correlation: float
    """Posterior correlation of the global layer and a deviation at one input, on average."""


def evidence(
    predictions: Mapping[str, Sequence[Prediction]],
    client_shares: Mapping[str, np.ndarray],
    *,
    clients: int,
    rows: Mapping[str, int],
) -> Evidence:
    """From the clients that the report shows."""
    every = [p for several in predictions.values() for p in several]
    variance = np.mean([np.mean(p.layers["deviation"].sd ** 2) for p in every])
    square = np.mean([np.mean(p.layers["deviation"].mean ** 2) for p in every])
    return Evidence(
        clients=clients,
        rows=rows,
        deviation_share=float(np.mean([s[:, 1] for s in client_shares.values()])),
        deviation_uncertainty=float(variance / square) if square > 0 else np.inf,
        correlation=float(np.mean([_correlation(p) for p in every])),
    )


def _correlation(p: Prediction) -> float:
    cross = np.diagonal(p.cross_covariance("global", "deviation"), axis1=1, axis2=2)
    scale = p.layers["global"].sd * p.layers["deviation"].sd
    there = scale > 0
    return float(np.mean(cross[there] / scale[there])) if there.any() else 0.0


def signs_of_shakiness(e: Evidence) -> list[str]:
    """Reasons, in words, to distrust the split between global and deviation; none is no guarantee."""
    signs = []
    if e.clients < FEW_CLIENTS:
        word = "one client" if e.clients == 1 else f"{e.clients} clients"
        signs.append(
            f"There {'is' if e.clients == 1 else 'are'} only {word}: what they share and what is "
            "one's own can hardly be told apart."
        )
    counts = [n for n in e.rows.values() if n > 0]
    if len(counts) > 1 and max(counts) > UNBALANCED * min(counts):
        signs.append(
            f"Clients are unbalanced: the largest has {max(counts)} observed cells, the smallest "
            f"{min(counts)}. The shared layer leans towards the large ones, and the split of a "
            "small client rests mostly on the prior."
        )
    if e.deviation_share < ALIKE:
        signs.append(
            "Clients are nearly identical: deviations carry under 2\u202f% of the variation, so how "
            "much of a departure is called global is arbitrary."
        )
    elif e.deviation_uncertainty > UNCERTAIN:
        signs.append(
            "Deviations are no larger than their own uncertainty: read their shapes with care."
        )
    return signs
