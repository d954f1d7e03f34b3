"""Forecasts, and how good they would have been: back-tests beside seasonal-naive and climatology.

A back-test never lets parameters see what is forecast: the model is fitted to the rows before the first
origin, and moved from origin to origin by `update`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError
from pfedhgp.model.kept_sums import usual_step
from pfedhgp.model.prediction import Prediction, reach_of
from pfedhgp.model.words import InputAxis, duration, number

Predict = Callable[[str, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Mean and sd (n, Q) of a client at inputs, noise included."""
REACH = 1.959963984540054
METHODS = ("model", "seasonal_naive", "climatology")
LOW, FEWEST = 0.85, 20
"""Coverage of 95% intervals below which forecasts are too sure, and cells that can tell."""
UNNAMED = InputAxis("input")


@dataclass(frozen=True, eq=False)
class Forecast:
    """A client's future: `times` (n,) in the units of the input, or as datetimes (UTC).

    Its sd is wider than that of `predict` at the same times: beyond the last row it matters that the shared
    kernel itself is known from few rows (`pfedhgp.model.uncertain_kernel`). `prediction` is `predict`'s.
    """

    client: str
    times: np.ndarray
    lead: np.ndarray
    """How far each is beyond the client's last row, in units of the input"""
    prediction: Prediction
    axis: InputAxis = UNNAMED
    """The input, for labels"""
    outputs: tuple[str, ...] = ()
    """Their names"""
    client_column: str | None = None
    """The column that named the clients in the fit, if they came in a table"""
    kernel_variance: np.ndarray | float = 0.0
    """What not knowing the shared kernel adds to the variance, shaped as the mean"""

    @property
    def mean(self) -> np.ndarray:
        """(n, Q), or (n,) if y was (n,) in the fit"""
        return self.prediction.mean

    @property
    def sd(self) -> np.ndarray:
        """as the mean, noise included"""
        return np.sqrt(self.prediction.sd**2 + self.kernel_variance)

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """(lower, upper), noise included."""
        reach = reach_of(level) * self.sd
        return self.mean - reach, self.mean + reach

    def __repr__(self) -> str:
        return f"Forecast({self.client!r}, {len(self.times)} steps from {self.times[0]})"


@dataclass(frozen=True)
class Origin:
    """One origin of a back-test: what is known, and what is then forecast."""

    known: tuple[ClientRows, ...]
    ahead: tuple[ClientRows, ...]
    last: float


def origins(rows: Sequence[ClientRows], count: int, horizon: float) -> list[Origin]:
    """The last `count` windows of the data, each `horizon` long; all clients share them."""
    end = max(float(each.X[:, 0].max()) for each in rows)
    start = min(float(each.X[:, 0].min()) for each in rows)
    if end - count * horizon <= start + horizon:
        raise InputError(
            f"{count} windows of {horizon:g} leave no rows to learn from: the data are "
            f"{end - start:g} long. Give fewer, or a shorter horizon"
        )
    found = []
    for k in range(count, 0, -1):
        last = end - k * horizon
        known, ahead = [], []
        for each in rows:
            x = each.X[:, 0]
            before, after = x <= last, (x > last) & (last + horizon >= x)
            if np.isfinite(each.Y[before]).any():  # before its first reading a client is not there
                known.append(ClientRows(each.name, each.X[before], each.Y[before]))
                if after.any():
                    ahead.append(ClientRows(each.name, each.X[after], each.Y[after]))
        found.append(Origin(tuple(known), tuple(ahead), last))
    return found


def backtest(
    rows: Sequence[ClientRows],
    *,
    count: int,
    horizon: float,
    season: float | None,
    bins: int,
    fit: Callable[[Sequence[ClientRows]], Any],
    update: Callable[[Any, Sequence[ClientRows]], None],
    predict: Callable[[Any, str, np.ndarray], tuple[np.ndarray, np.ndarray]],
) -> dict[str, Any]:
    """Scores by lead time of the model and of two simple methods; `fit` is called once."""
    errors: dict[str, list[tuple[np.ndarray, ...]]] = {name: [] for name in METHODS}
    model = None
    last = -np.inf
    for origin in origins(rows, count, horizon):
        if model is None:
            model = fit(origin.known)
        elif new := later_than(origin.known, last):
            update(model, new)
        last = origin.last
        for each in origin.ahead:
            past = next(known for known in origin.known if known.name == each.name)
            simple = simple_forecasts(past, each.X[:, 0], season)
            simple["model"] = predict(model, each.name, each.X)
            lead = each.X[:, 0] - origin.last
            for name, (mean, sd) in simple.items():
                errors[name].append((lead, each.Y, mean, sd))
    edges = np.linspace(0.0, horizon, bins + 1)
    return {
        "origins": count,
        "horizon": horizon,
        "season": season,
        "lead": [float(edge) for edge in edges[1:]],
        "scores": {name: _by_lead(found, edges) for name, found in errors.items() if found},
    }


def later_than(rows: Sequence[ClientRows], last: float) -> list[ClientRows]:
    """The rows after `last` of clients that have readings there: new ones of old clients, and new clients."""
    kept = [(each, each.X[:, 0] > last) for each in rows]
    return [
        ClientRows(each.name, each.X[new], each.Y[new])
        for each, new in kept
        if np.isfinite(each.Y[new]).any()
    ]


def simple_forecasts(
    past: ClientRows, x: np.ndarray, season: float | None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Climatology (mean and sd of the past, by phase of the season), and the value one season before.

    The spread of seasonal-naive is that of differences one season apart in the past; it grows with the root
    of how many seasons lie between.
    """
    t, Y = past.X[:, 0], past.Y
    sd = np.maximum(np.nanstd(Y, axis=0), 1e-12)
    everywhere = (np.tile(np.nanmean(Y, axis=0), (len(x), 1)), np.tile(sd, (len(x), 1)))
    if season is None:
        return {"climatology": everywhere}
    step = usual_step(t) or season
    count = max(1, round(season / step))
    phase, at = (np.round((v % season) / step).astype(int) % count for v in (t, x))
    mean, spread = np.array(everywhere[0]), np.array(everywhere[1])
    for p in np.unique(at):
        mine = Y[phase == p]
        enough = np.isfinite(mine).sum(axis=0) >= 3
        if enough.any():
            here = np.where(enough, np.nanmean(mine, axis=0), mean[0])
            mean[at == p] = here
            wide = np.where(enough, np.maximum(np.nanstd(mine, axis=0), 1e-12), sd)
            spread[at == p] = wide
    back = np.ceil(np.maximum(x - t.max(), 1e-9 * season) / season)
    naive, off = _nearest(t, Y, x - back * season), _differences(t, Y, season)
    naive = np.where(np.isfinite(naive), naive, mean)
    return {
        "climatology": (mean, spread),
        "seasonal_naive": (naive, np.sqrt(back)[:, None] * off[None, :]),
    }


def _nearest(t: np.ndarray, Y: np.ndarray, at: np.ndarray) -> np.ndarray:
    order = np.argsort(t)
    place = np.clip(np.searchsorted(t[order], at), 1, max(len(t) - 1, 1))
    left = np.abs(at - t[order][place - 1]) < np.abs(t[order][np.minimum(place, len(t) - 1)] - at)
    found: np.ndarray = Y[order][np.where(left, place - 1, np.minimum(place, len(t) - 1))]
    return found


def _differences(t: np.ndarray, Y: np.ndarray, season: float) -> np.ndarray:
    later = t - season >= t.min()
    gaps = Y[later] - _nearest(t, Y, t[later] - season)
    if not np.isfinite(gaps).any():
        gaps = Y - np.nanmean(Y, axis=0)
    found: np.ndarray = np.maximum(np.sqrt(np.nanmean(gaps**2, axis=0)), 1e-12)
    return found


def _by_lead(found: Sequence[tuple[np.ndarray, ...]], edges: np.ndarray) -> list[dict[str, float]]:
    """CRPS, RMSE and coverage of 95% intervals in each range of lead times.

    `widen`: intervals so many times as wide would have held 95%.
    """
    lead = np.concatenate([np.repeat(a, b.shape[1]) for a, b, _, _ in found])
    y, mean, sd = (np.concatenate([each[k].reshape(-1) for each in found]) for k in (1, 2, 3))
    seen = np.isfinite(y)
    lead, y, mean, sd = (v[seen] for v in (lead, y, mean, sd))
    z = (y - mean) / sd
    scores = sd * (z * (2 * ndtr(z) - 1) + 2 * _density(z) - 1 / np.sqrt(np.pi))
    table = []
    for low, high in itertools.pairwise(edges):
        mine = (lead > low) & (high * (1 + 1e-12) >= lead)
        if mine.any():
            table.append(
                {
                    "to": float(high),
                    "cells": int(mine.sum()),
                    "crps": float(scores[mine].mean()),
                    "rmse": float(np.sqrt(np.mean((y - mean)[mine] ** 2))),
                    "coverage": float(np.mean(np.abs(z[mine]) <= REACH)),
                    "widen": float(np.quantile(np.abs(z[mine]), 0.95) / REACH),
                }
            )
    return table


def too_sure(found: dict[str, Any]) -> str | None:
    """What to do if the model's intervals held too little, in words."""
    low = [e for e in found["scores"]["model"] if e["coverage"] < LOW and e["cells"] >= FEWEST]
    if not low:
        return None
    worst = min(low, key=lambda each: each["coverage"])
    lead = duration(worst["to"]) if found.get("dates") else number(worst["to"])
    return (
        f"forecasts are too sure: up to a lead of {lead} 95% intervals held {worst['coverage']:.0%} (they "
        f"would have to be {worst['widen']:.2g} times as wide): fit a rougher kernel, such as matern32 "
        "in the place of rbf, and compare"
    )


def _density(z: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi))
