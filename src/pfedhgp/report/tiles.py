"""The numbers at the top of the page, for each output: a reader has them before anything else.

Uncertainty and the noise in it are averaged in one way: for each client shown the root mean square along its
slices, and of those the median over clients. So a part never exceeds the whole, and one bad site does not
speak for all.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pfedhgp.model.prediction import Prediction
from pfedhgp.model.traffic import Traffic
from pfedhgp.report import scores, words
from pfedhgp.report.gathered import Gathered

MOST = 4
"""Outputs that have a line in a tile."""


def tiles(found: Gathered, shared: np.ndarray, traffic: Traffic) -> list[dict[str, Any]]:
    """The four numbers that matter, by output, and what they mean; `shared` is the global layer's share."""
    several = found.model.outputs > 1
    of_it = "" if several else f" of {words.shown(found.model.output_names[0], 20)}"
    own = [scores.of_output(found.metrics, n, "client_mean") for n in found.model.output_names]
    if any(score.get("rmse") is not None for score in own):
        label = f"RMSE{of_it} on held-out rows, mean over clients"
        error = _tile(found, "error", [words.number(s.get("rmse")) for s in own], label)
        label = f"held-out cells{of_it} in their 95% intervals"
        held = [words.percent(s.get("coverage")) for s in own]
        first = [error, _tile(found, "coverage", held, label)]
    else:
        sd, noise = typical(found)
        over = "median over clients" if len(found.chosen) > 1 else "along its slices"
        label = f"predictive sd{of_it}, {over}"
        whole = _tile(found, "uncertainty", [words.number(v) for v in sd], label)
        label = f"sd of the noise in it{of_it}, {over}"
        first = [whole, _tile(found, "noise", [words.number(v) for v in noise], label)]
    parts = [words.percent(v) for v in shared]
    crossed = words.byte_size(traffic.per_client) if traffic.clients else words.DASH
    return [
        *first,
        _tile(found, "shared", parts, "of the variation, by the global layer"),
        {"key": "traffic", "value": crossed, "label": "to and from a client in all; no rows"},
    ]


def typical(found: Gathered) -> tuple[np.ndarray, np.ndarray]:
    """(Q,) predictive standard deviation, and (Q,) that of the noise in it, averaged alike."""
    whole = [_rms([p.sd**2 for p in own]) for own in _predictions(found)]
    noise = [_rms([_noise(p) for p in own]) for own in _predictions(found)]
    return np.median(whole, axis=0), np.median(noise, axis=0)


def _predictions(found: Gathered) -> list[list[Prediction]]:
    return [[each.prediction for each in own] for own in found.slices.values()]


def _rms(variances: list[np.ndarray]) -> np.ndarray:
    return np.asarray(np.sqrt(np.mean(np.concatenate(variances), axis=0)))


def _noise(p: Prediction) -> np.ndarray:
    """(n, Q): the variance of an observation less that of the function."""
    function = np.diagonal(p.covariance("outputs", noise=False), axis1=1, axis2=2)
    return np.maximum(p.sd**2 - function, 0.0)


def _tile(found: Gathered, key: str, values: list[str], label: str) -> dict[str, Any]:
    """One number, or a line for each of the first outputs."""
    tile: dict[str, Any] = {"key": key, "label": label}
    if len(values) == 1:
        return tile | {"value": values[0]}
    names = [words.shown(name, 18) for name in found.model.output_names]
    lines = list(zip(names, values, strict=True))
    return tile | {"lines": lines[:MOST], "more": max(len(lines) - MOST, 0)}
