"""Federations to fit from end to end, with rows held out, and the seconds that each fit should take.

Every client's function is a wave that all share, a bump of its own and noise of sd 0.1. The weather-like
stations have a year's wave and weather of days; the study's cell is scenario A of the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

Rows = dict[str, tuple[np.ndarray, np.ndarray]]
WIDTH = 10.0
NOISE = 0.1
RAGGED = (15, 25, 40, 40, 50, 60)
HELD_OUT = 25
"""Rows of each client that no fit sees, beside its own."""


class Federation(NamedTuple):
    """Rows by client, and others of the same functions to score."""

    train: Rows
    test: Rows


def waves(sizes: Sequence[int], seed: int) -> Federation:
    """sin x + a bump of the client's own + noise."""
    rng = np.random.default_rng(seed)
    train: Rows = {}
    test: Rows = {}
    for i, n in enumerate(sizes):
        x = np.sort(rng.uniform(0.0, WIDTH, n + HELD_OUT))
        y = np.sin(x) + np.exp(-((x - rng.uniform(0.0, WIDTH)) ** 2))
        y += NOISE * rng.normal(size=len(x))
        held = np.zeros(len(x), dtype=bool)
        held[rng.permutation(len(x))[:HELD_OUT]] = True
        train[f"site {i}"] = (x[~held, None], y[~held, None])
        test[f"site {i}"] = (x[held, None], y[held, None])
    return Federation(train, test)


def readme(draw: int) -> Federation:
    """README's example; the next draw has three rows fewer."""
    rng = np.random.default_rng(draw)
    n = 40 - 3 * draw
    x, between = np.linspace(0.0, WIDTH, n), np.linspace(0.1, WIDTH - 0.1, HELD_OUT)
    train: Rows = {}
    test: Rows = {}
    for i in range(4):
        for rows, at in ((train, x), (test, between)):
            y = np.sin(at) + np.exp(-((at - 3 * i) ** 2)) + NOISE * rng.normal(size=len(at))
            rows[f"site {i}"] = (at[:, None], y[:, None])
    return Federation(train, test)


def ragged(draw: int) -> Federation:
    """Six clients of different sizes; later draws change each by up to a fifth."""
    rng = np.random.default_rng(1000 + draw)
    factors = rng.uniform(0.8, 1.2, len(RAGGED)) if draw else np.ones(len(RAGGED))
    return waves([round(n * f) for n, f in zip(RAGGED, factors, strict=True)], draw)


def alike(clients: int, rows: int, draw: int) -> Federation:
    """Clients with equal numbers of rows."""
    return waves([rows] * clients, draw)


def weather(draw: int, stations: int = 35) -> Federation:
    """Stations with 292 days of 365 and two outputs: a year's wave, weather of about five days, noise."""
    rng = np.random.default_rng(draw)
    day = np.arange(365.0)
    root = np.linalg.cholesky(
        np.exp(-0.5 * ((day[:, None] - day) / 5.0) ** 2) + 1e-6 * np.eye(len(day))
    )
    train: Rows = {}
    test: Rows = {}
    for i in range(stations):
        season = np.cos(2.0 * np.pi * (day - 200.0) / 365.0)[:, None] * rng.normal(10.0, 3.0, 2)
        Y = season + 2.0 * root @ rng.normal(size=(len(day), 2))
        Y += 0.5 * rng.normal(size=Y.shape)
        held = np.zeros(len(day), dtype=bool)
        held[rng.permutation(len(day))[:73]] = True
        train[f"station {i}"] = (day[~held, None], Y[~held])
        test[f"station {i}"] = (day[held, None], Y[held])
    return Federation(train, test)


def study_cell(draw: int) -> Federation:
    """Scenario A: six clients, 50 rows of four outputs."""
    from pfedhgp.studies.synthetic.simulator import simulate

    truth = simulate("A", draw)
    names = [f"client {i}" for i in range(len(truth.X))]
    test = {
        name: (np.asarray(truth.X_test), y) for name, y in zip(names, truth.Y_test, strict=True)
    }
    return Federation(dict(zip(names, zip(truth.X, truth.Y, strict=True), strict=True)), test)


@dataclass(frozen=True)
class Case:
    """A federation, the estimator's settings, and seconds to stay below, by step (see `whole_fits`)."""

    make: Callable[[int], Federation]
    goals: Mapping[str, float]
    settings: Mapping[str, Any] = field(default_factory=dict)
    peers: tuple[str, ...] = ("scikit-learn", "GPyTorch")
    full: bool = False
    """Only with --full: it takes minutes."""


STUDY = {"domain": [(0.0, 10.0)], "noise": "scalar", "rounds": 10, "tolerance": 0.0}  # 12 exchanges
SIX = {"rounds": 6}
POOLED = ("GPyTorch SVGP",)
CASES: Mapping[str, Case] = {
    "README's example, 4 × 40 rows": Case(
        readme, {"import to prediction": 5.0, "next fit": 1.5, "first predict": 0.3, "adopt": 1.0}
    ),
    "six ragged clients": Case(ragged, {"first fit": 6.0, "next fit": 2.0}),
    "100 clients × 50 rows": Case(
        partial(alike, 100, 50), {"first fit": 12.0, "next fit": 8.0}, SIX
    ),
    "2 clients × 10⁴ rows": Case(partial(alike, 2, 10**4), {"first fit": 8.0}, SIX, POOLED),
    "2 clients × 10⁵ rows": Case(partial(alike, 2, 10**5), {"first fit": 12.0}, SIX, POOLED),
    "2 clients × 10⁶ rows": Case(
        partial(alike, 2, 10**6), {"first fit": 60.0, "GiB": 2.0}, SIX, POOLED, full=True
    ),
    "35 stations × 292 days × 2 outputs": Case(weather, {"first fit": 60.0}),
    "study cell, 6 × 50 rows × 4 outputs": Case(
        study_cell, {"first fit": 10.0, "next fit": 3.0}, STUDY
    ),
    "5,000 clients × 20 rows": Case(
        partial(alike, 5000, 20), {"first fit": 100.0, "save": 5.0}, {"rounds": 5}, (), full=True
    ),
    "10,000 clients × 50 rows": Case(
        partial(alike, 10_000, 50), {"first fit": 600.0}, SIX, (), full=True
    ),
}
